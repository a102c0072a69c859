"""New runs: their version and parallelism, and their rows."""

from typing import Any

from console.accounts.refusals import Conflict, Refused
from console.jobs.models import Job, JobVersion, VersionState
from console.jobs.services import newest_ready, require_parallelism
from console.operations.job_state import NO_READY_VERSION
from console.operations.models import Operation
from console.operations.params import NewRunParams
from console.runs import run_store


def new_run_target(job: Job, params: NewRunParams) -> tuple[JobVersion, int]:
    """The version and the parallelism of a new run.

    Raises:
        Refused: the job has no such version, or the version cannot have this parallelism.
    """
    version = version_of(job, params.version)
    parallelism = params.parallelism or version.parallelism
    require_parallelism(parallelism, version.max_parallelism, "params.parallelism")
    return version, parallelism


def new_run(row: Operation, version: JobVersion, parallelism: int, **restore: Any) -> Operation:
    """Creates the run; a supervisor will claim it. `row` is new, or a start that waited for its version."""
    row.run = run_store.create(row.requested_by, row.job, version, parallelism, **restore)
    row.save(force_insert=row._state.adding)
    return row


def require_isolable(version: JobVersion) -> None:
    """Raises Conflict if a run of `version` cannot discard its output, or disturbs another run of the version."""
    reason = ""
    if version.is_batch:
        reason = "runs in BATCH"
    elif version.has_standing_stages:
        reason = "has PySpark stages, which read and write beside the run"
    if reason:
        detail = f"Version {version.number} {reason}. It cannot run with its output discarded."
        raise Conflict("cannot-discard-output", detail, "params.version")
    operators = (version.graph or {}).get("operators", ())
    if alone := [operator["uid"] for operator in operators if operator["exclusive"]]:
        detail = f"The input of {', '.join(alone)} may have a single reader: another run would stop the reading run."
        raise Conflict("exclusive-source", f"{detail} Version {version.number} cannot be cloned.", "params.version")


def version_of(job: Job, version_id: int | None) -> JobVersion:
    """The version of a job with this id; None: the newest that is ready. Raises Refused if a run cannot use it."""
    version = newest_ready(job) if version_id is None else JobVersion.objects.filter(pk=version_id, job=job).first()
    if version is None and version_id is None:
        raise _not_ready("no-ready-version", NO_READY_VERSION, job.versions.order_by("-number").first())
    if version is None:
        detail = f"params.version: this job has no version with the id {version_id}."
        raise Refused("unknown-version", detail, field="params.version")
    if version.state != VersionState.READY:
        raise _not_ready("version-not-ready", f"params.version: version {version.number} is {version.state}", version)
    if job.discards_output:
        require_isolable(version)
    return version


def _not_ready(code: str, detail: str, version: JobVersion | None) -> Conflict:
    """A conflict; if `version` was rejected, it includes the rejection's code, field and reason."""
    if version is None or version.state != VersionState.REJECTED or not isinstance(version.error, dict):
        return Conflict(code, f"{detail}.", field="params.version")
    rejection = {name: str(version.error.get(name) or "") for name in ("code", "field", "detail")}
    why = ": ".join(filter(None, (rejection["field"], rejection["detail"])))
    message = f"{detail}: version {version.number} was rejected with {rejection['code']}, {why}."
    return Conflict(code, message, field="params.version", rejection=rejection)
