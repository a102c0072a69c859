"""Ends operations that no job master will end.

`start` and `restore` end when their run is first RUNNING, or ends earlier; `console.operations.waiting_starts` gives
waiting starts their run; `console.operations.successions` ends rescales and rollbacks, and
`console.operations.discard` a discard.
`console.operations.verification` ends a check of files, and `console.operations.copies` a copy. Pins, labels and
schedules end when they are accepted. The run's master ends savepoints, stops, drains and cancels together with the
run. Operations that are still open after the run's end are resolved here from the records: the run's final state and
its completed savepoints. If the records do not show the outcome, the state becomes `unknown` and stays so, since an
ended run records nothing more.
"""

from collections.abc import Mapping
from typing import Any

from django.db.models.functions import Coalesce, Now

from console.checkpoints.models import Checkpoint, Kind, Status
from console.checkpoints.services import RUN_ENDED
from console.jobs.models import Run
from console.operations.models import (
    ACTIVE_STATES,
    NEW_RUN_KINDS,
    SUCCESSION_KINDS,
    Operation,
    OperationKind,
    OperationState,
)
from runtime.core.job.lifecycle import RunState

_RUNNING_OR_LATER = (RunState.RUNNING, RunState.STOPPING, RunState.DRAINING, RunState.FINISHED, RunState.STOPPED)
_ENDED_EARLY = (RunState.FAILED, RunState.CANCELED)
_PHASES: Mapping[RunState, str] = {
    RunState.QUEUED: "waiting for a worker",
    RunState.STARTING: "starting",
    RunState.WAITING: "waiting for slots",
    RunState.RESTARTING: "restarting",
    RunState.CANCELLING: "cancelling",
}
#: Final state of the run that means success of the operation.
_SUCCESS_STATES: Mapping[str, RunState] = {
    OperationKind.STOP: RunState.STOPPED,
    OperationKind.DRAIN: RunState.FINISHED,
    OperationKind.CANCEL: RunState.CANCELED,
}


def update_start_operations() -> None:
    """Updates starts and restores from the states of their runs."""
    active = Operation.objects.filter(kind__in=NEW_RUN_KINDS, state__in=ACTIVE_STATES, run__isnull=False)
    for operation in active.select_related("run"):
        assert operation.run is not None, "filtered"
        _update_from_run(operation, operation.run)


def end_orphaned_operations() -> None:
    """Ends operations that the masters of ended runs left open."""
    of_console = (*NEW_RUN_KINDS, *SUCCESSION_KINDS)
    open_still = Operation.objects.exclude(kind__in=of_console).filter(RUN_ENDED, state__in=ACTIVE_STATES)
    for operation in open_still.select_related("run"):
        assert operation.run is not None, "filtered by the state of the run"
        _end_orphan(operation, operation.run)


def _update_from_run(operation: Operation, run: Run) -> None:
    if run.run_state in _RUNNING_OR_LATER or (run.run_state in _ENDED_EARLY and _was_running(run)):
        _end(operation, OperationState.SUCCEEDED, phase="", result={"run": run.pk})
    elif run.run_state in _ENDED_EARLY:
        _end(operation, OperationState.FAILED, phase="", error=_error(run, "before it was running"))
    elif operation.phase != _PHASES[run.run_state]:
        _unchanged_row(operation).update(
            state=OperationState.RUNNING, phase=_PHASES[run.run_state], started_at=Coalesce("started_at", Now())
        )


def _was_running(run: Run) -> bool:
    """Whether a failed or cancelled run had been RUNNING: a run may start and end between two passes of the reconciler.

    Checkpoints exist only after the job was running. Live metrics exist during deployment too, but
    some operator is then neither running nor finished.
    """
    operators = ((run.live or {}).get("operators") or {}).values()
    deployed = all(operator.get("state") in ("running", "finished") for operator in operators)
    return (bool(operators) and deployed) or Checkpoint.objects.filter(run=run).exists()


def _end_orphan(operation: Operation, run: Run) -> None:
    if operation.kind == OperationKind.SAVEPOINT:
        _end_orphaned_savepoint(operation, run)
    elif _SUCCESS_STATES.get(operation.kind) is run.run_state:
        final = Checkpoint.objects.filter(run=run, kind=operation.kind, status=Status.COMPLETED).first()
        result = {"checkpoint": final.number} if final else None
        _end(operation, OperationState.SUCCEEDED, phase="settled by how the run ended", result=result)
    else:
        _end(operation, OperationState.FAILED, error=_error(run, f"before the {operation.kind} was done"))


def _end_orphaned_savepoint(operation: Operation, run: Run) -> None:
    """Ends a savepoint operation whose master may have recorded the savepoint, but not the end of the operation."""
    asked_at = operation.started_at or operation.created_at
    made = Checkpoint.objects.filter(
        run=run, kind=Kind.SAVEPOINT, status=Status.COMPLETED, triggered_at__gte=asked_at
    ).order_by("number")
    told = Operation.objects.filter(run=run, kind=operation.kind, result__checkpoint__isnull=False)
    if found := made.exclude(number__in=[row.result["checkpoint"] for row in told if row.result]).first():
        _end(operation, OperationState.SUCCEEDED, phase="", result={"checkpoint": found.number})
        return
    message = f"The run ended ({run.state}) before the outcome was recorded, and no savepoint of it is on record."
    _end(operation, OperationState.UNKNOWN, phase="", error={"code": f"run-{run.state}", "message": message})


def _error(run: Run, when: str) -> dict[str, Any]:
    why = f": {run.failure['message']}" if run.failure else "."
    return {"code": f"run-{run.state}", "message": f"The run ended ({run.state}) {when}{why}"}


def _end(operation: Operation, state: OperationState, **facts: Any) -> None:
    _unchanged_row(operation).update(state=state, started_at=Coalesce("started_at", Now()), ended_at=Now(), **facts)


def _unchanged_row(operation: Operation) -> Any:
    """The row, unless its state has changed since it was read."""
    return Operation.objects.filter(pk=operation.pk, state=operation.state)
