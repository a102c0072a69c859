"""Withdrawal of a request that no job master has begun, of a start that waits for its version, or of a waiting restore.

A copy, a check of files and a restore drill can be withdrawn while they are under way too. The class of the operation
has the rules (`OperationType.on_withdrawal`).
"""

from console.accounts.models import User
from console.accounts.rights import require_operate
from console.operations.models import Operation
from console.operations.registry import operation_type


def withdrawal_refusal(row: Operation) -> str:
    """Why an operation cannot be withdrawn; "" if it can be, unless its master begins it meanwhile."""
    return operation_type(row.kind).withdrawal_refusal(row)


def withdrawal_effect(row: Operation) -> str:
    """The consequence of a withdrawal that is possible, in sentences."""
    return operation_type(row.kind).withdrawal_effect(row)


def withdraw_operation(user: User, row: Operation) -> None:
    """Ends an operation as failed. The worker of work that is under way ends it soon.

    Raises:
        Conflict: the operation has begun or ended, or is of a kind that cannot be withdrawn.
    """
    require_operate(user)
    operation_type(row.kind).on_withdrawal(user, row)
