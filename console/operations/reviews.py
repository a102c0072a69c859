"""Reviews of checkpoints: assignment, comments and outcome.

Each change is an operation in the ledger and takes effect in the same transaction. The operations are the history of
the review: a comment is a row with author and time, and no row of the ledger changes later.
"""

from django.db.models import QuerySet

from console.accounts.models import User
from console.accounts.refusals import Refused
from console.checkpoints import services
from console.checkpoints.models import Checkpoint
from console.operations.labels import checkpoint_of, record_success, require_text
from console.operations.models import REVIEW_OPERATIONS, Operation
from console.operations.params import AssignParams, CommentParams, ReviewParams
from console.operations.verification import read_manifest

MAX_TEXT_LENGTH = 4000


def accept_assign(row: Operation, wanted: AssignParams) -> Operation:
    """Assigns a checkpoint to a user, or to no user.

    Raises:
        Refused: the job has no such checkpoint, or there is no active user of this name.
    """
    checkpoint = checkpoint_of(row.job, wanted.checkpoint)
    require_text(wanted.user, "params.user", MAX_TEXT_LENGTH)
    user = User.objects.filter(username=wanted.user, is_active=True).first()
    if user is None and wanted.user:
        detail = f"params.user: there is no active user {wanted.user!r}."
        raise Refused("unknown-user", detail, field="params.user")
    before = checkpoint.assignee.get_username() if checkpoint.assignee else ""
    Checkpoint.objects.filter(pk=checkpoint.pk).update(assignee=user)
    return record_success(row, {"checkpoint": checkpoint.number, "changes": {"assignee": [before, wanted.user]}})


def accept_comment(row: Operation, wanted: CommentParams) -> Operation:
    """Records a comment.

    Raises:
        Refused: the job has no such checkpoint, or the text cannot be stored.
    """
    require_text(wanted.text, "params.text", MAX_TEXT_LENGTH)
    return record_success(row, {"checkpoint": checkpoint_of(row.job, wanted.checkpoint).number})


def accept_review(row: Operation, wanted: ReviewParams) -> Operation:
    """Sets the state of the review, and its note if one is given. The result names the manifest that it is about.

    Raises:
        Refused: the job has no such checkpoint, or the note cannot be stored.
    """
    checkpoint = checkpoint_of(row.job, wanted.checkpoint)
    require_text(wanted.note or "", "params.note", MAX_TEXT_LENGTH)
    assert row.requested_by is not None, "users request reviews"
    services.review(row.requested_by, [checkpoint.pk], wanted.state, wanted.note)
    changes = {"review_state": [checkpoint.review_state, wanted.state.value]}
    if wanted.note is not None:
        changes["review_note"] = [checkpoint.review_note, wanted.note]
    about = read_manifest(checkpoint).sha256 or None
    return record_success(row, {"checkpoint": checkpoint.number, "manifest_sha256": about, "changes": changes})


def review_history(checkpoint: Checkpoint) -> QuerySet[Operation]:
    """Assignments, comments and outcomes of the review of a checkpoint, newest first."""
    own = Operation.objects.filter(job=checkpoint.job_id, kind__in=[kind.value for kind in REVIEW_OPERATIONS])
    return own.filter(params__checkpoint=checkpoint.pk).select_related("requested_by").order_by("-created_at", "-id")
