"""Passes over the operations that the console itself carries out."""

from collections.abc import Callable

from django.db import transaction

from console.operations.models import ACTIVE_STATES, Operation, OperationKind


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
