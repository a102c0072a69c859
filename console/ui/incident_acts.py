"""The act that helps against the cause of an incident, as a button like that of the job's page."""

from console.accounts.rights import AnyUser
from console.checkpoints.selectors import continuable
from console.incidents.models import Incident
from console.jobs.models import Run
from console.operations.legality import allowed_operation
from console.operations.models import OperationKind
from console.ui.actions import JobActs, job_acts
from console.ui.remedies import Remedy, Suggestion, remedy_of, suggest_remedy
from runtime.core.job.lifecycle import RunState

_NONE = JobActs(possible=(), refused=())


def incident_acts(incident: Incident, run: Run | None, user: AnyUser) -> tuple[Suggestion | None, JobActs]:
    """The suggestion after a failure, and the act: that of the finding, else that of the suggestion.

    `run`: the latest run of the job. An incident that has ended, or whose job is well again, has no act.
    """
    if not incident.is_open or incident.well_since is not None:
        return None, _NONE
    finding = incident.finding
    suggestion = _suggestion(run) if run is not None and run.run_state is RunState.FAILED else None
    kind = OperationKind(finding.act) if finding.act else suggestion.act if suggestion else None
    if kind is None:
        return suggestion, _NONE
    allowed = allowed_operation(kind, incident.job, run, user)
    return suggestion, job_acts(incident.job_id, [allowed], start_repeats=False, suggested=kind)


def _suggestion(run: Run) -> Suggestion:
    job = run.job
    code = str((run.failure or {}).get("code") or "unknown")
    needs_version = remedy_of(code) is Remedy.VERSION
    newest_version = job.versions.order_by("-number").first() if needs_version else None
    return suggest_remedy(run, code, continuable(job).first(), newest_version)
