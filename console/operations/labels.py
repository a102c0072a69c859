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
from console.operations.params import LabelParams, PinParams, SavepointParams

MAX_NAME_LENGTH: Final = 100
MAX_NOTE_LENGTH: Final = 1000


def require_texts(given: SavepointParams | LabelParams) -> None:
    """Checks the name and the note.

    Raises:
        InvalidField: names the text that is too long or cannot be shown.
    """
    for field, text, limit in (("name", given.name, MAX_NAME_LENGTH), ("note", given.note, MAX_NOTE_LENGTH)):
        if text is None:
            continue
        if why := text_problem(text):
            raise InvalidField(f"params.{field}", why)
        if len(text) > limit:
            raise InvalidField(f"params.{field}", f"at most {limit} characters")
    if given.name and not given.name.isprintable():
        raise InvalidField("params.name", "must be a single line of printable characters")


def accept_pin(row: Operation, wanted: PinParams) -> Operation:
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
    return _record(row, checkpoint)


def accept_label(row: Operation, wanted: LabelParams) -> Operation:
    """Sets the name or the note of a checkpoint. An empty text removes it.

    Raises:
        Refused: the job has no such checkpoint, or a text cannot be stored.
    """
    require_texts(wanted)
    checkpoint = checkpoint_of(row.job, wanted.checkpoint)
    texts = {"name": wanted.name, "note": wanted.note}
    changes = {field: text.strip() for field, text in texts.items() if text is not None}
    Checkpoint.objects.filter(pk=checkpoint.pk).update(**changes)
    return _record(row, checkpoint)


def checkpoint_of(job: Job, checkpoint_id: int) -> Checkpoint:
    """The checkpoint with this id. Raises Refused if the job has none."""
    found = Checkpoint.objects.filter(pk=checkpoint_id, job=job).first()
    if found is None:
        detail = f"params.checkpoint: this job has no checkpoint with the id {checkpoint_id}."
        raise Refused("unknown-checkpoint", detail, field=storage.CHECKPOINT_FIELD)
    return found


def _record(row: Operation, checkpoint: Checkpoint) -> Operation:
    """Writes the operation, which has already taken effect."""
    row.state, row.result = OperationState.SUCCEEDED.value, {"checkpoint": checkpoint.number}
    row.started_at = row.ended_at = Now()
    row.save(force_insert=True)
    row.refresh_from_db()  # reads the times that Postgres has set
    return row
