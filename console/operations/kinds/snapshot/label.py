"""The name and the note of a checkpoint or savepoint."""

from console.checkpoints.models import Checkpoint
from console.operations.labels import require_texts
from console.operations.models import Operation, OperationKind
from console.operations.operation_type import PlainCommand, SnapshotOperation, checkpoint_of, save_succeeded
from console.operations.params import CheckpointParams


class LabelParams(CheckpointParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new name or note of a checkpoint or savepoint; None keeps the present text."""

    name: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if self.name is None and self.note is None:
            raise ValueError("`name` must be given, or else a note")


class Label(SnapshotOperation):
    """Sets the name or the note of a checkpoint. An empty text removes it."""

    kind = OperationKind.LABEL
    params = LabelParams
    message = "Name and note are saved."
    command = PlainCommand(
        help="Changes the name or the note of snapshot NUMBER of JOB.",
        options={"name": "The new name; an empty text removes it.", "note": "The new note; an empty text removes it."},
        needs_option=True,
    )

    def accept(self, row: Operation, params: LabelParams) -> Operation:
        require_texts(params.name, params.note)
        checkpoint = checkpoint_of(row.job, params.checkpoint)
        texts = {"name": params.name, "note": params.note}
        changes = {field: text.strip() for field, text in texts.items() if text is not None}
        before = {field: [getattr(checkpoint, field), text] for field, text in changes.items()}
        Checkpoint.objects.filter(pk=checkpoint.pk).update(**changes)
        return save_succeeded(row, {"checkpoint": checkpoint.number, "changes": before})
