"""Names, notes and pins of checkpoints and savepoints.

Each change is an operation in the ledger and takes effect in the same transaction. Retention and a pin both update the
row of the checkpoint conditionally, so a checkpoint is either pinned or discarded, never both.
"""

from typing import Any, Final

from django.db.models.functions import Now

from console.accounts.refusals import Conflict, InvalidField, Refused
from console.accounts.storable import text_problem
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint, Status
from console.jobs.models import Job
from console.operations.legality import pin_conflict
from console.operations.models import Operation, OperationKind, OperationState
from console.operations.params import CheckpointParams, LabelParams, SavepointParams

MAX_NAME_LENGTH: Final = 100
MAX_NOTE_LENGTH: Final = 1000


def require_texts(given: SavepointParams | LabelParams) -> None:
    """Checks the name and the note.

    Raises:
        InvalidField: names the text that is too long or cannot be shown.
    """
    if given.name is not None:
        require_name(given.name, "params.name")
    if given.note is not None:
        require_text(given.note, "params.note", MAX_NOTE_LENGTH)


def require_name(name: str, field: str) -> None:
    """Checks a name. Raises InvalidField with the name of the field."""
    require_text(name, field, MAX_NAME_LENGTH)
    if name and not name.isprintable():
        raise InvalidField(field, "must be a single line of printable characters")


def require_text(text: str, field: str, limit: int) -> None:
    """Raises InvalidField with the name of the field."""
    if why := text_problem(text):
        raise InvalidField(field, why)
    if len(text) > limit:
        raise InvalidField(field, f"at most {limit} characters")


def accept_pin(row: Operation, wanted: CheckpointParams) -> Operation:
    """Pins or unpins a checkpoint.

    Raises:
        Refused: the job has no such checkpoint.
        Conflict: the checkpoint is not completed, is discarded, or has this pin already.
    """
    checkpoint = checkpoint_of(row.job, wanted.checkpoint)
    pins = row.kind == OperationKind.PIN
    if refused := pin_conflict(checkpoint, pins=pins):
        raise refused
    same = Checkpoint.objects.filter(pk=checkpoint.pk, status=Status.COMPLETED, discarded_at=None)
    same = same.filter(pinned_at__isnull=pins)
    changes: dict[str, Any] = {"pinned_at": Now(), "pinned_by": row.requested_by} if pins else {
        "pinned_at": None, "pinned_by": None,
    }  # fmt: skip
    if not same.update(**changes):
        detail = f"{str(checkpoint).capitalize()} was changed by another request or by retention meanwhile."
        raise Conflict("conflict", detail, storage.CHECKPOINT_FIELD)
    return record_success(row, {"checkpoint": checkpoint.number})


def accept_label(row: Operation, wanted: LabelParams) -> Operation:
    """Sets the name or the note of a checkpoint. An empty text removes it.

    Raises:
        Refused: the job has no such checkpoint, or a text cannot be stored.
    """
    require_texts(wanted)
    checkpoint = checkpoint_of(row.job, wanted.checkpoint)
    texts = {"name": wanted.name, "note": wanted.note}
    changes = {field: text.strip() for field, text in texts.items() if text is not None}
    before = {field: [getattr(checkpoint, field), text] for field, text in changes.items()}
    Checkpoint.objects.filter(pk=checkpoint.pk).update(**changes)
    return record_success(row, {"checkpoint": checkpoint.number, "changes": before})


def checkpoint_of(job: Job, checkpoint_id: int) -> Checkpoint:
    """The checkpoint with this id. Raises Refused if the job has none."""
    found = Checkpoint.objects.filter(pk=checkpoint_id, job=job).first()
    if found is None:
        detail = f"params.checkpoint: this job has no checkpoint with the id {checkpoint_id}."
        raise Refused("unknown-checkpoint", detail, field=storage.CHECKPOINT_FIELD)
    return found


def record_success(row: Operation, result: dict[str, Any]) -> Operation:
    """Writes an operation that has already taken effect."""
    row.state, row.result = OperationState.SUCCEEDED.value, result
    row.started_at = row.ended_at = Now()
    row.save(force_insert=True)
    row.refresh_from_db()  # reads the times that Postgres has set
    return row
