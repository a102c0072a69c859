"""The end of operations by the end of their run."""

from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Coalesce, Now

from console.jobs.models import Run
from console.operations.models import Operation, OperationState


def run_error(run: Run, when: str) -> dict[str, Any]:
    why = f": {run.failure['message']}" if run.failure else "."
    return {"code": f"run-{run.state}", "message": f"The run ended ({run.state}) {when}{why}"}


def end(operation: Operation, state: OperationState, **facts: Any) -> None:
    unchanged_row(operation).update(state=state, started_at=Coalesce("started_at", Now()), ended_at=Now(), **facts)


def unchanged_row(operation: Operation) -> QuerySet[Operation]:
    """The row, unless its state has changed since it was read."""
    return Operation.objects.filter(pk=operation.pk, state=operation.state)
