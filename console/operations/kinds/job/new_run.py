"""Operations that begin a run. They end when their run is first RUNNING, or ends earlier."""

from collections.abc import Mapping

from django.db.models import Q
from django.db.models.functions import Coalesce, Now

from console.checkpoints.models import Checkpoint
from console.jobs.models import Run
from console.operations.kinds.job.run_outcome import end, run_error, unchanged_row
from console.operations.models import Operation, OperationState
from console.operations.operation_type import JobOperation
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


class NewRun(JobOperation):
    begins_run = True
    blocked_by_maintenance = True
    due = Q()

    def advance(self, row: Operation) -> None:
        """Updates the operation from the state of its run."""
        assert row.run is not None, "it is written with its run"
        _update_from_run(row, row.run)


def _update_from_run(operation: Operation, run: Run) -> None:
    if run.run_state in _RUNNING_OR_LATER or (run.run_state in _ENDED_EARLY and _was_running(run)):
        end(operation, OperationState.SUCCEEDED, phase="", result={"run": run.pk})
    elif run.run_state in _ENDED_EARLY:
        end(operation, OperationState.FAILED, phase="", error=run_error(run, "before it was running"))
    elif operation.phase != _PHASES[run.run_state]:
        unchanged_row(operation).update(
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
