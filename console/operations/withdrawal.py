"""Withdrawal of a request that no job master has begun, or of a start that waits for its version."""

from typing import Final

from django.db.models import Q
from django.db.models.functions import Now

from console.accounts.models import User
from console.accounts.refusals import Conflict
from console.accounts.rights import require_operate
from console.operations.models import Operation, OperationKind, OperationState

#: Kinds that a job master takes from the queue. A restore, or a start with a run, is ended by a cancel of the run.
WITHDRAWABLE: Final = (OperationKind.SAVEPOINT, OperationKind.STOP, OperationKind.DRAIN)


def withdrawal_refusal(row: Operation) -> str:
    """Why an operation cannot be withdrawn; "" if it can be, unless its master begins it meanwhile."""
    if row.kind == OperationKind.START and row.run_id is None and row.state == OperationState.QUEUED:
        return ""
    if row.kind not in WITHDRAWABLE:
        return f"A {row.kind} cannot be withdrawn."
    if row.state != OperationState.QUEUED:
        return f"The {row.kind} is {row.state}: only a request that no job master has begun can be withdrawn."
    return ""


def withdraw_operation(user: User, row: Operation) -> None:
    """Ends a queued operation as failed. The state is compared and set, as the job master does when it begins one.

    Raises:
        Conflict: the operation has begun or ended, or is of a kind that cannot be withdrawn.
    """
    require_operate(user)
    error = {"code": "withdrawn", "message": f"{user} withdrew the request before a job master had begun it."}
    begins_later = Q(kind__in=WITHDRAWABLE) | Q(kind=OperationKind.START, run=None)
    queued = Operation.objects.filter(begins_later, pk=row.pk, state=OperationState.QUEUED)
    if not queued.update(state=OperationState.FAILED, phase="", ended_at=Now(), error=error):
        row.refresh_from_db()
        raise Conflict("cannot-withdraw", withdrawal_refusal(row))
