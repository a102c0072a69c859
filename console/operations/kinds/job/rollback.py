"""A rollback: the run ends, and a new run restores a snapshot that the user chose."""

from enum import StrEnum

from console.accounts.refusals import Conflict
from console.jobs.models import Run
from console.jobs.services import lock_job
from console.operations.holds import hold
from console.operations.job_state import JobState, ending_operations, run_conflict, with_blockers
from console.operations.kinds.job.cancel import Cancel
from console.operations.kinds.job.stop import Stop
from console.operations.kinds.job.succession import Succession, end_run
from console.operations.models import Operation, OperationKind
from console.operations.operation_type import JobButton
from console.operations.params import RestoreParams
from console.operations.restores.effects import require_restorable
from console.operations.restores.new_runs import new_run_target
from console.operations.restores.origin import Origin
from console.runs.selectors import latest_run
from runtime.core.job.lifecycle import RunAct, RunState

#: The restore follows if the run ended so, even if the run was ended by another cause than its stop or cancel.
_RESTORED_AFTER = (RunState.FAILED, RunState.STOPPED, RunState.CANCELED)


class EndRun(StrEnum):
    """The operation by which a rollback ends the run. A stop takes a savepoint, so no progress is lost."""

    STOP = OperationKind.STOP.value
    CANCEL = OperationKind.CANCEL.value


class RollbackParams(RestoreParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run ends by `end_run`, then `checkpoint` is restored. The parameters are those of a restore without `path`.

    The run may commit output until it ends, so `accept_repeated_output` is required. Without `plan_hash`, the rollback
    is bound to the effects at the time of the request.
    """

    end_run: EndRun = EndRun.STOP

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checkpoint is None:
            raise ValueError("`checkpoint` must be given: only a recorded snapshot is held until the run has ended")


class Rollback(Succession):
    kind = OperationKind.ROLLBACK
    params = RollbackParams
    button = JobButton(
        place=6, label="Stop and restore…", key="r", page=OperationKind.RESTORE, is_dangerous=True
    )  # a restore and a rollback are never possible at the same time
    message = "The rollback was requested: the run ends, then a new run restores the snapshot."
    goal = "rolled back"
    states = (RunState.STOPPING, RunState.CANCELLING)
    ending_param = "end_run"

    def conflict(self, state: JobState) -> Conflict | None:
        unstoppable = state.run_conflict(RunAct.STOP)
        in_batch = state.run is not None and state.run.version.is_batch  # it has no snapshot to go back to
        return unstoppable if in_batch else unstoppable and state.run_conflict(RunAct.CANCEL)

    def accept(self, row: Operation, params: RollbackParams) -> Operation:
        """Ends the run; the chosen snapshot is held until then.

        Files are read before the row of the job is locked, since the run takes checkpoints meanwhile.
        """
        run, ending = latest_run(row.job), Stop() if params.end_run is EndRun.STOP else Cancel()
        if conflict := run_conflict(run, ending.act, ending_operations(run)):
            raise with_blockers(row.job, conflict)
        assert run is not None, "a job that never ran has a conflict"
        version, parallelism = new_run_target(row.job, params)
        origin = Origin.from_params(row.job, params)
        plan = require_restorable(row.job, origin, version, parallelism, params, ends=run)
        snapshot = origin.checkpoint
        assert snapshot is not None, "a rollback has no path"
        lock_job(row.job)
        hold(snapshot, row)
        return end_run(row, run, ending, version=version.pk, parallelism=parallelism, plan_hash=plan.plan_hash)

    def goes_on_after(self, run: Run | None) -> bool:
        return run is not None and run.run_state in _RESTORED_AFTER
