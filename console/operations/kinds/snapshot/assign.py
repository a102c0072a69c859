"""The assignment of a checkpoint to the user who reviews it."""

from console.accounts.models import User
from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.operations.kinds.snapshot.review import MAX_TEXT_LENGTH
from console.operations.labels import require_text
from console.operations.models import Operation, OperationKind
from console.operations.operation_type import PlainCommand, SnapshotOperation, checkpoint_of, save_succeeded
from console.operations.params import CheckpointParams


class AssignParams(CheckpointParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The user who reviews a checkpoint, by user name; "" removes the assignment."""

    user: str


class Assign(SnapshotOperation):
    kind = OperationKind.ASSIGN
    params = AssignParams
    is_review = True
    message = "The assignment is saved."
    command = PlainCommand(
        help="Assigns the review of snapshot NUMBER of JOB to USER; an empty name removes the assignment."
    )

    def accept(self, row: Operation, params: AssignParams) -> Operation:
        checkpoint = checkpoint_of(row.job, params.checkpoint)
        require_text(params.user, "params.user", MAX_TEXT_LENGTH)
        user = User.objects.filter(username=params.user, is_active=True).first()
        if user is None and params.user:
            detail = f"params.user: there is no active user {params.user!r}."
            raise Refused("unknown-user", detail, field="params.user")
        before = checkpoint.assignee.get_username() if checkpoint.assignee else ""
        Checkpoint.objects.filter(pk=checkpoint.pk).update(assignee=user)
        changes = {"assignee": [before, params.user]}
        return save_succeeded(row, {"checkpoint": checkpoint.number, "changes": changes})
