"""The outcome of the review of a checkpoint.

Assignments, comments and outcomes take effect at their request. Their operations are the history of the review: a
comment is a row with author and time, and no row of the ledger changes later.
"""

from typing import Annotated

from django.db.models import QuerySet
from msgspec import Meta

from console.checkpoints import services
from console.checkpoints.models import Checkpoint, ReviewState
from console.operations.labels import require_text
from console.operations.models import Operation, OperationKind
from console.operations.operation_type import PlainCommand, SnapshotOperation, checkpoint_of, save_succeeded
from console.operations.params import CheckpointParams
from console.operations.registry import operation_types
from console.operations.restores.verification import read_manifest

MAX_TEXT_LENGTH = 4000


class ReviewParams(CheckpointParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The review of a checkpoint. `note` None keeps the present note."""

    state: ReviewState
    note: Annotated[str, Meta(max_length=4000)] | None = None


class Review(SnapshotOperation):
    """Sets the state of the review, and its note if one is given. The result names the manifest that it is about."""

    kind = OperationKind.REVIEW
    params = ReviewParams
    is_review = True
    message = "The review is saved."
    command = PlainCommand(
        help="Sets the state of the review of snapshot NUMBER of JOB.", options={"note": "The new note of the review."}
    )

    def accept(self, row: Operation, params: ReviewParams) -> Operation:
        checkpoint = checkpoint_of(row.job, params.checkpoint)
        require_text(params.note or "", "params.note", MAX_TEXT_LENGTH)
        assert row.requested_by is not None, "users request reviews"
        services.review(row.requested_by, [checkpoint.pk], params.state, params.note)
        changes = {"review_state": [checkpoint.review_state, params.state.value]}
        if params.note is not None:
            changes["review_note"] = [checkpoint.review_note, params.note]
        about = read_manifest(checkpoint).sha256 or None
        result = {"checkpoint": checkpoint.number, "manifest_sha256": about, "changes": changes}
        return save_succeeded(row, result)


def review_history(checkpoint: Checkpoint) -> QuerySet[Operation]:
    """Assignments, comments and outcomes of the review of a checkpoint, newest first."""
    kinds = [each.kind.value for each in operation_types() if each.is_review]
    history = Operation.objects.filter(job=checkpoint.job_id, kind__in=kinds, params__checkpoint=checkpoint.pk)
    return history.select_related("requested_by").order_by("-created_at", "-id")
