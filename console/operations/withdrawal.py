"""Withdrawal of a request that no job master has begun, of a start that waits for its version, or of a waiting restore.

A copy, a check of files and a restore drill can be withdrawn while they are under way too. The withdrawal writes the
error of the operation; the worker of the console then stops, deletes what it has written, and ends the operation.

The restore of a rescale or rollback waits for the end of the run, or for storage. After its withdrawal nothing is
restored; a stop or cancel that has been requested goes on.
"""

from collections.abc import Mapping
from typing import Final

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from console.accounts.models import User
from console.accounts.refusals import Conflict
from console.accounts.rights import require_operate
from console.checkpoints.operation_codes import WITHDRAWN
from console.operations import successions
from console.operations.drills import MEASURED
from console.operations.holds import release
from console.operations.models import (
    ACTIVE_STATES,
    SUCCESSION_KINDS,
    Operation,
    OperationKind,
    OperationState,
)

#: Kinds that a job master takes from the queue. A restore, or a start with a run, is ended by a cancel of the run.
WITHDRAWABLE: Final = (OperationKind.SAVEPOINT, OperationKind.STOP, OperationKind.DRAIN)

#: Work of the console: its name, and the effects of a withdrawal before it begins and while it is under way.
_WORK: Final[Mapping[str, tuple[str, str, str]]] = {
    OperationKind.COPY: ("copy", "Nothing is copied; the savepoint stays.",
                         "The copy stops, and its files are deleted; the savepoint stays."),
    OperationKind.VERIFY: ("check of files", "Nothing is checked.", "The check stops without a result."),
    OperationKind.DRILL: ("restore drill", "No clone is created.",
                          "The clone is cancelled and its files are deleted. The drill proves nothing."),
}  # fmt: skip


def withdrawal_refusal(row: Operation) -> str:
    """Why an operation cannot be withdrawn; "" if it can be, unless its master begins it meanwhile."""
    if row.kind in SUCCESSION_KINDS:
        return _succession_refusal(row)
    if row.kind in _WORK:
        return _work_refusal(row)
    if row.kind == OperationKind.START and row.run_id is None and row.state == OperationState.QUEUED:
        return ""
    if row.kind not in WITHDRAWABLE:
        return f"A {row.kind} cannot be withdrawn."
    if row.state != OperationState.QUEUED:
        return f"The {row.kind} is {row.state}: only a request that no job master has begun can be withdrawn."
    return ""


def withdrawal_effect(row: Operation) -> str:
    """The consequence of a withdrawal that is possible, in sentences."""
    if row.kind in _WORK:
        _, before, during = _WORK[row.kind]
        return before if row.state == OperationState.QUEUED else during
    if row.kind not in SUCCESSION_KINDS:
        return "It is possible until the job master begins it."
    ending = row.parts.filter(state__in=ACTIVE_STATES).first()
    if ending is None:
        return f"Run {row.run_id} has ended: the job stays stopped, and nothing is restored."
    effect = f"The {ending.kind} of run {row.run_id} goes on, and nothing is restored after it."
    keeps = ending.kind in WITHDRAWABLE and ending.state == OperationState.QUEUED
    return f"{effect} To keep the run, withdraw the {ending.kind} instead." if keeps else effect


def withdraw_operation(user: User, row: Operation) -> None:
    """Ends an operation as failed. The state is compared and set, as the job master does when it begins one.

    The worker of a copy, a check of files or a drill that is under way ends it.

    Raises:
        Conflict: the operation has begun or ended, or is of a kind that cannot be withdrawn.
    """
    require_operate(user)
    if row.kind in SUCCESSION_KINDS:
        _withdraw_succession(user, row)
        return
    if row.kind in _WORK:
        _withdraw_work(user, row)
        return
    error = {"code": WITHDRAWN, "message": f"{user} withdrew the request before a job master had begun it."}
    begins_later = Q(kind__in=WITHDRAWABLE) | Q(kind=OperationKind.START, run=None)
    queued = Operation.objects.filter(begins_later, pk=row.pk, state=OperationState.QUEUED)
    if not queued.update(state=OperationState.FAILED, phase="", ended_at=Now(), error=error):
        row.refresh_from_db()
        raise Conflict("cannot-withdraw", withdrawal_refusal(row))


def _succession_refusal(row: Operation) -> str:
    if not row.is_active:
        return f"The {row.kind} has ended: it is {row.state}."
    if row.parts.filter(kind=OperationKind.RESTORE).exists():
        return f"The {row.kind} has begun the restore: cancel the new run instead."
    return ""


def _work_refusal(row: Operation) -> str:
    noun, _, _ = _WORK[row.kind]
    if not row.is_active:
        return f"The {noun} has ended: it is {row.state}."
    if row.error is not None:
        return f"The {noun} is being stopped."
    if MEASURED in (row.result or {}):
        return f"The {noun} has its result, and its clone is being removed."
    return ""


def _withdraw_work(user: User, row: Operation) -> None:
    """Ends queued work. Work under way reads the error as the request to stop (`passes.PhaseReport`)."""
    with transaction.atomic():
        locked = Operation.objects.select_for_update(no_key=True).get(pk=row.pk)
        if refused := withdrawal_refusal(locked):
            raise Conflict("cannot-withdraw", refused)
        noun, _, _ = _WORK[row.kind]
        is_queued = locked.state == OperationState.QUEUED
        when = "before it had begun" if is_queued else "while it was under way"
        own = Operation.objects.filter(pk=row.pk)
        error = {"code": WITHDRAWN, "message": f"{user} withdrew the {noun} {when}. {withdrawal_effect(locked)}"}
        if is_queued:
            own.update(state=OperationState.FAILED, phase="", ended_at=Now(), error=error)
            release(locked)
        else:
            own.update(phase="stopping", error=error)


def _withdraw_succession(user: User, row: Operation) -> None:
    """Ends a rescale or rollback before its restore. The lock is that of the passes which request the restore."""
    with transaction.atomic():
        locked = Operation.objects.select_for_update(no_key=True).get(pk=row.pk)
        if refused := withdrawal_refusal(locked):
            raise Conflict("cannot-withdraw", refused)
        is_ending = locked.parts.filter(state__in=ACTIVE_STATES).exists()
        when, rest = ("before", "Its end goes on") if is_ending else ("after", "The job stays stopped")
        message = f"{user} withdrew the {row.kind} {when} run {row.run_id} had ended. {rest}, and nothing is restored."
        successions.end(locked, OperationState.FAILED, error={"code": WITHDRAWN, "message": message})
