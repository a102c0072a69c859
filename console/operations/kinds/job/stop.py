"""The end of a run with a savepoint."""

from console.checkpoints.selectors import RunProgress
from console.jobs.models import Run
from console.metrics.live import Live
from console.operations.kinds.job.delegated import BulkProgress, SavepointTaking
from console.operations.models import OperationKind
from console.operations.operation_type import JobButton
from console.operations.preview import Confirmation
from runtime.core.job.lifecycle import RunState

_EFFECT = (
    "Open windows are kept in the savepoint, so the job can continue from it later, also at another parallelism. If "
    "the savepoint fails, the run continues."
)


class Stop(SavepointTaking):
    kind = OperationKind.STOP
    button = JobButton(place=3, label="Stop with savepoint…", key="x")
    message = "The stop with savepoint was requested."
    bulk_title = "Stop with savepoint"
    bulk_effect = "Each of these jobs takes a savepoint, commits the output up to it and ends."
    ends_run = True
    goal = "stopped"
    states = (RunState.STOPPING,)
    reached_state = RunState.STOPPED
    similar = ("stop", "savepoint")

    def confirmation(self, run: Run | None, reached: RunProgress, live: Live) -> Confirmation:
        where = f"run {run.pk}" if run else "the run"
        return Confirmation(
            title="Stop with savepoint",
            sentences=(f"Weir takes a savepoint of {where}, commits the output up to it and ends the run.", _EFFECT),
            instead="To keep the run going, take a savepoint without stopping.",
            gentler="savepoint",
            dangerous=False,
        )

    def effect(self, progress: BulkProgress) -> str:
        takes = f"run {progress.run.pk} takes {progress.savepoint}"
        return f"{takes}, commits the output up to it and ends{progress.lasts}"
