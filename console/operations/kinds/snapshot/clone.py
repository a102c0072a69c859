"""A clone: a new job beside the job, restored from a snapshot, with its output discarded."""

from contextlib import AbstractContextManager

from console.accounts.refusals import Conflict
from console.checkpoints.models import Checkpoint
from console.operations.models import Operation, OperationKind
from console.operations.operation_type import SnapshotOperation, save_succeeded
from console.operations.params import CloneParams
from console.operations.restores.clones import PreparedClone, create_clone, prepared_clone


class RestoreBeside(SnapshotOperation):
    """A clone or a drill, which leaves the job as it is."""

    params = CloneParams
    blocked_by_maintenance = True

    def conflict(self, checkpoint: Checkpoint) -> Conflict | None:
        if checkpoint.is_restorable:
            return None
        return Conflict("not-restorable", f"{str(checkpoint).capitalize()} cannot be restored.")


class Clone(RestoreBeside):
    kind = OperationKind.CLONE
    message = "The clone is created; its restore was requested."

    def prepare(self, row: Operation, params: CloneParams) -> AbstractContextManager[PreparedClone]:
        """Writes the files of the clone."""
        return prepared_clone(row, params)

    def accept(self, row: Operation, params: PreparedClone) -> Operation:
        """Creates the clone and its run. The operation succeeds at once; the restore is an operation of the clone.

        Raises:
            Conflict: as `create_clone`.
        """
        run = create_clone(row, params, "clone")
        return save_succeeded(row, {"job": run.job_id, "run": run.pk})
