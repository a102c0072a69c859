"""Operations that a worker of the console carries out for a while: copies, checks of files and restore drills.

They can be withdrawn while they are under way, too. The withdrawal writes the error of the operation; the worker then
stops, deletes what it has written, and ends the operation.
"""

import time
from typing import ClassVar, Final

from django.db import transaction
from django.db.models.functions import Now

from console.accounts.models import User
from console.accounts.refusals import Conflict
from console.checkpoints.operation_codes import WITHDRAWN
from console.operations.holds import release
from console.operations.models import ACTIVE_STATES, Operation, OperationState
from console.operations.operation_type import OperationType

_REPORT_S: Final = 1.0  #: between two updates of a phase


class ConsoleWork(OperationType):
    """Args:
    effect_before: consequence of a withdrawal before the work begins.
    effect_during: consequence of a withdrawal while it is under way.
    """

    noun: ClassVar[str]
    effect_before: ClassVar[str]
    effect_during: ClassVar[str]

    def withdrawal_refusal(self, row: Operation) -> str:
        if not row.is_active:
            return f"The {self.noun} has ended: it is {row.state}."
        return f"The {self.noun} is being stopped." if row.error is not None else ""

    def withdrawal_effect(self, row: Operation) -> str:
        return self.effect_before if row.state == OperationState.QUEUED else self.effect_during

    def on_withdrawal(self, user: User, row: Operation) -> None:
        """Ends queued work. Work under way reads the error as the request to stop (`PhaseReport`)."""
        with transaction.atomic():
            locked = Operation.objects.select_for_update(no_key=True).get(pk=row.pk)
            if refused := self.withdrawal_refusal(locked):
                raise Conflict("cannot-withdraw", refused)
            is_queued = locked.state == OperationState.QUEUED
            when = "before it had begun" if is_queued else "while it was under way"
            message = f"{user} withdrew the {self.noun} {when}. {self.withdrawal_effect(locked)}"
            error, stored = {"code": WITHDRAWN, "message": message}, Operation.objects.filter(pk=row.pk)
            if is_queued:
                stored.update(state=OperationState.FAILED, phase="", ended_at=Now(), error=error)
                release(locked)
            else:
                stored.update(phase="stopping", error=error)


class WorkWithdrawn(Exception):
    """A user has withdrawn the operation: its worker stops, and deletes what it has written."""


class PhaseReport:
    """The phase of an active operation, written at most once a second outside any transaction.

    A withdrawal of a running operation only writes its error (`ConsoleWork`).
    """

    def __init__(self, row: Operation) -> None:
        self._row, self._due = row, time.monotonic()

    def show(self, phase: str) -> None:
        """Writes the phase.

        Raises:
            WorkWithdrawn: the operation was withdrawn.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _REPORT_S
        unhindered = Operation.objects.filter(pk=self._row.pk, state__in=ACTIVE_STATES, error__isnull=True)
        if not unhindered.update(phase=phase):
            raise WorkWithdrawn
