"""The pin of a checkpoint or savepoint, and its removal.

Retention and a pin both update the row of the checkpoint conditionally, so a checkpoint is either pinned or discarded,
never both.
"""

from typing import Any

from django.db.models.functions import Now

from console.accounts.refusals import Conflict
from console.checkpoints.models import Checkpoint, Status
from console.checkpoints.storage import CHECKPOINT_FIELD
from console.operations.models import Operation, OperationKind
from console.operations.operation_type import PlainCommand, SnapshotOperation, checkpoint_of, save_succeeded
from console.operations.params import CheckpointParams


class PinOperation(SnapshotOperation):
    """Args:
    pins: whether it sets the pin, or else removes it.
    """

    params = CheckpointParams
    pins: bool

    def conflict(self, checkpoint: Checkpoint) -> Conflict | None:
        reason = self._reason(checkpoint)
        return Conflict("cannot-pin", reason, CHECKPOINT_FIELD) if reason else None

    def _reason(self, checkpoint: Checkpoint) -> str | None:
        name = str(checkpoint).capitalize()
        if checkpoint.discarded_at:
            return f"{name} is discarded: its files are deleted."
        if checkpoint.status != Status.COMPLETED:
            return f"{name} {checkpoint.outcome_words}; only a completed {checkpoint.noun} can be pinned."
        if self.pins == checkpoint.is_pinned:
            return f"{name} is already pinned." if self.pins else f"{name} is not pinned."
        return None

    def accept(self, row: Operation, params: CheckpointParams) -> Operation:
        checkpoint = checkpoint_of(row.job, params.checkpoint)
        if conflict := self.conflict(checkpoint):
            raise conflict
        same = Checkpoint.objects.filter(pk=checkpoint.pk, status=Status.COMPLETED, discarded_at=None)
        same = same.filter(pinned_at__isnull=self.pins)
        changes: dict[str, Any] = {"pinned_at": None, "pinned_by": None}
        if self.pins:
            changes = {"pinned_at": Now(), "pinned_by": row.requested_by}
        if not same.update(**changes):
            detail = f"{str(checkpoint).capitalize()} was changed by another request or by retention meanwhile."
            raise Conflict("conflict", detail, CHECKPOINT_FIELD)
        return save_succeeded(row, {"checkpoint": checkpoint.number})


class Pin(PinOperation):
    kind = OperationKind.PIN
    message = "The pin is set."
    command = PlainCommand(
        help="Pins snapshot NUMBER of JOB: retention does not delete it, and it cannot be discarded."
    )
    pins = True
