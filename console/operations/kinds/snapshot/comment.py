"""A comment in the review of a checkpoint."""

from typing import Annotated

from msgspec import Meta

from console.operations.kinds.snapshot.review import MAX_TEXT_LENGTH
from console.operations.labels import require_text
from console.operations.models import Operation, OperationKind
from console.operations.operation_type import PlainCommand, SnapshotOperation, checkpoint_of, save_succeeded
from console.operations.params import CheckpointParams


class CommentParams(CheckpointParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A comment on a checkpoint. Comments are never changed or deleted."""

    text: Annotated[str, Meta(min_length=1, max_length=4000)]


class Comment(SnapshotOperation):
    kind = OperationKind.COMMENT
    params = CommentParams
    is_review = True
    message = "The comment is saved."
    command = PlainCommand(help="Adds a comment to the review of snapshot NUMBER of JOB.")

    def accept(self, row: Operation, params: CommentParams) -> Operation:
        require_text(params.text, "params.text", MAX_TEXT_LENGTH)
        return save_succeeded(row, {"checkpoint": checkpoint_of(row.job, params.checkpoint).number})
