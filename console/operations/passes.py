"""Passes over the operations that the console itself carries out."""

import time
from collections.abc import Callable
from typing import Final

from django.db import transaction

from console.operations.models import ACTIVE_STATES, Operation, OperationKind

#: Key of the advisory lock of passes that copy or delete large folders. A console runs one at a time, so they leave the
#: other workers of the queue `stages` to compilations.
FILE_WORK_LOCK: Final = 0x57454952_46494C45
_REPORT_S: Final = 1.0  #: between two updates of a phase


class WorkWithdrawn(Exception):
    """A user has withdrawn the operation: its worker stops, and deletes what it has written."""


class PhaseReport:
    """The phase of an active operation, written at most once a second outside any transaction.

    A withdrawal of a running operation only writes its error (`console.operations.withdrawal`).
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
        wanted = Operation.objects.filter(pk=self._row.pk, state__in=ACTIVE_STATES, error__isnull=True)
        if not wanted.update(phase=phase):
            raise WorkWithdrawn


def for_each_active(kind: OperationKind, act: Callable[[Operation], None]) -> None:
    """Calls `act` with every active operation of a kind, oldest first, each locked in a transaction of its own.

    Operations that another pass holds are skipped. A worker that dies leaves the operation to the next pass.
    """
    active = Operation.objects.filter(kind=kind, state__in=ACTIVE_STATES)
    for pk in active.order_by("created_at").values_list("pk", flat=True):
        with transaction.atomic():
            rows = Operation.objects.select_for_update(of=("self",), no_key=True, skip_locked=True)
            row = rows.filter(pk=pk, state__in=ACTIVE_STATES).first()
            if row is not None:
                act(row)
