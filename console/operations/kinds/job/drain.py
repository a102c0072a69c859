"""The end of a run for good: every window fires, and all output is committed."""

from console.checkpoints.selectors import RunProgress
from console.jobs.models import Run
from console.jobs.operator_names import operator_names
from console.metrics.live import Live
from console.operations.kinds.job.delegated import BulkProgress, SavepointTaking
from console.operations.models import OperationKind
from console.operations.operation_type import JobButton
from console.operations.preview import Confirmation, fired_early
from runtime.core.job.lifecycle import RunState

_EFFECT = (
    "Every open window fires early, with the records that it has now, and its result is committed. Then the run "
    "finishes for good."
)
_ADVICE = (
    "Early results are not corrected later: drain only when all data has been read, or when no further data matters."
)


class Drain(SavepointTaking):
    kind = OperationKind.DRAIN
    button = JobButton(place=4, label="Drain and finish…", key="d", is_dangerous=True)
    message = "The drain was requested."
    bulk_title = "Drain and finish"
    bulk_effect = (
        "The sources of each of these jobs end. Every window fires early, all output is committed, and the jobs "
        "finish. They should not be continued from these savepoints."
    )
    fires_windows = True
    blocked_by_maintenance = True
    ends_run = True
    goal = "finished"
    states = (RunState.DRAINING,)
    reached_state = RunState.FINISHED
    similar = ("drain", "stop", "savepoint")

    def confirmation(self, run: Run | None, reached: RunProgress, live: Live) -> Confirmation:
        where, names = f"run {run.pk}" if run else "the run", operator_names(run.version.graph if run else None)
        finished = [names.get(uid, uid) for uid, numbers in live.operators.items() if numbers.finished]
        already = f" Already finished: {', '.join(finished)}." if finished else ""
        return Confirmation(
            title="Drain and finish",
            sentences=(f"The sources of {where} stop at their current positions. {_EFFECT}{already}", _ADVICE),
            instead="To continue the job later, stop it with a savepoint instead.",
            gentler="stop",
            dangerous=True,
        )

    def effect(self, progress: BulkProgress) -> str:
        run, lasts = progress.run, progress.lasts
        early = f" ({results})" if (results := fired_early(run)) else ""
        return f"every open window of run {run.pk} fires early{early}, its output is committed, and it finishes{lasts}"
