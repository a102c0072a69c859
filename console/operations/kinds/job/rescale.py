"""A rescale: the run stops with a savepoint, and a run at another parallelism or in another version restores it."""

from console.accounts.refusals import Conflict
from console.jobs.services import lock_job
from console.operations.job_state import JobState, with_blockers
from console.operations.kinds.job.stop import Stop
from console.operations.kinds.job.succession import Succession, end_run
from console.operations.models import Operation, OperationKind
from console.operations.operation_type import JobButton
from console.operations.params import RescaleParams
from console.operations.restores.rescale_plan import rescale_target
from runtime.core.job.lifecycle import RunAct, RunState


class Rescale(Succession):
    kind = OperationKind.RESCALE
    params = RescaleParams
    button = JobButton(place=2, label="Rescale…", key="p")
    message = "The rescale was requested: the run stops with a savepoint, then a new run restores it."
    goal = "rescaled"
    states = (RunState.STOPPING,)
    ending_param = "plan_hash"

    def conflict(self, state: JobState) -> Conflict | None:
        return state.run_conflict(RunAct.STOP)

    def accept(self, row: Operation, params: RescaleParams) -> Operation:
        """Stops the run with a savepoint."""
        lock_job(row.job)
        try:
            run, version, parallelism = rescale_target(row.job, params)
        except Conflict as conflict:
            raise with_blockers(row.job, conflict) from None
        return end_run(row, run, Stop(), version=version.pk, parallelism=parallelism)
