"""Holds: neither retention nor a user discards a snapshot that an active operation will restore.

The updates of the row are conditional, as that of retention: a snapshot is either held or discarded. A single operation
holds it, since the end of another would release it.
"""

from console.accounts.refusals import Conflict
from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import CHECKPOINT_FIELD
from console.operations.models import Operation


def hold(snapshot: Checkpoint, row: Operation) -> None:
    """Holds `snapshot` for `row`.

    Raises:
        Conflict: another operation holds it, or it is discarded.
    """
    if Checkpoint.objects.filter(pk=snapshot.pk, discarded_at=None, held_by=None).update(held_by=row.pk):
        return
    snapshot.refresh_from_db(fields=("held_by",))
    reason = hold_reason(snapshot)
    detail = reason or f"The files of {str(snapshot).capitalize()} have been removed."
    raise Conflict("held" if reason else "discarded", detail, CHECKPOINT_FIELD)


def release(row: Operation) -> None:
    """Ends the hold of `row`, if there is one."""
    Checkpoint.objects.filter(pk=row.params.get("checkpoint"), held_by=row.pk).update(held_by=None)


def hold_reason(checkpoint: Checkpoint) -> str | None:
    """Why a checkpoint that a rollback or a drill restores cannot be discarded, or chosen for another of them."""
    if checkpoint.held_by is None:
        return None
    name = str(checkpoint).capitalize()
    kind = Operation.objects.values_list("kind", flat=True).get(pk=checkpoint.held_by)
    return f"{name} is restored by a {kind} that is under way, operation {checkpoint.held_by}."
