"""Ending operations that no job master will end.

`start` and `restore` are about a run, so they end when the run first runs, or ends before that. The others are ended by
the master that took them, together with its run; what is left open when a run has ended is settled here, by what is on
record: how the run ended, which savepoint it completed. Where the record does not tell, the outcome stays unknown.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.db.models.functions import Coalesce, Now

from console.checkpoints.models import Checkpoint, Kind, Status
from console.jobs.models import Run
from console.operations.models import ACTIVE, NEW_RUN, Operation, OperationKind, OperationState
from runtime.core.job.lifecycle import TERMINAL, RunState

#: The master records the end of its run and of its operations apart; this is how long it may take.
_GRACE_S = 5

_BEGUN = (RunState.RUNNING, RunState.STOPPING, RunState.DRAINING, RunState.FINISHED, RunState.STOPPED)
_BEFORE = (RunState.FAILED, RunState.CANCELED)
_PHASES: Mapping[RunState, str] = {
    RunState.QUEUED: "waiting for a worker",
    RunState.STARTING: "starting",
    RunState.WAITING: "waiting for slots",
    RunState.RESTARTING: "restarting",
    RunState.CANCELLING: "cancelling",
}
#: The end of a run that is what the operation wanted.
_WANTED: Mapping[str, RunState] = {
    OperationKind.STOP: RunState.STOPPED,
    OperationKind.DRAIN: RunState.FINISHED,
    OperationKind.CANCEL: RunState.CANCELED,
}


def settle_new_runs() -> None:
    """Let starts and restores follow their runs."""
    active = Operation.objects.filter(kind__in=NEW_RUN, state__in=ACTIVE).select_related("run")
    for operation in active:
        assert operation.run is not None, "start and restore are written with their run"
        _follow(operation, operation.run)


def settle_orphans() -> None:
    """End what the masters of ended runs left open."""
    open_still = Operation.objects.exclude(kind__in=NEW_RUN).filter(
        state__in=ACTIVE, run__state__in=TERMINAL, run__ended_at__lte=Now() - timedelta(seconds=_GRACE_S)
    )
    for operation in open_still.select_related("run"):
        assert operation.run is not None, "filtered by the state of the run"
        _settle(operation, operation.run)


def _follow(operation: Operation, run: Run) -> None:
    if run.run_state in _BEGUN or (run.run_state in _BEFORE and _has_run(run)):
        _end(operation, OperationState.SUCCEEDED, phase="", result={"run": run.pk})
    elif run.run_state in _BEFORE:
        _end(operation, OperationState.FAILED, phase="", error=_error(run, "before it was running"))
    elif operation.phase != _PHASES[run.run_state]:
        _still(operation).update(
            state=OperationState.RUNNING, phase=_PHASES[run.run_state], started_at=Coalesce("started_at", Now())
        )


def _has_run(run: Run) -> bool:
    """Whether a run that failed or was cancelled ran before: between two passes it may do both.

    Checkpoints are taken of a running job only; live numbers are written while it is deployed too, and say so.
    """
    operators = ((run.live or {}).get("operators") or {}).values()
    deployed = all(operator.get("state") in ("running", "finished") for operator in operators)
    return (bool(operators) and deployed) or Checkpoint.objects.filter(run=run).exists()


def _settle(operation: Operation, run: Run) -> None:
    if operation.kind == OperationKind.SAVEPOINT:
        _settle_savepoint(operation, run)
    elif _WANTED.get(operation.kind) is run.run_state:
        _end(operation, OperationState.SUCCEEDED, phase="settled by how the run ended")
    else:
        _end(operation, OperationState.FAILED, error=_error(run, f"before the {operation.kind} was done"))


def _settle_savepoint(operation: Operation, run: Run) -> None:
    """Its master may have died between recording the savepoint and telling of it."""
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
    _still(operation).update(state=state, started_at=Coalesce("started_at", Now()), ended_at=Now(), **facts)


def _still(operation: Operation) -> Any:
    """The row, if nobody has changed its state since it was read."""
    return Operation.objects.filter(pk=operation.pk, state=operation.state)
