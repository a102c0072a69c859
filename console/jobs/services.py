"""Definitions: jobs, and versions that a stage compiles to a graph.

The console validates values only (bounds, the pipeline's parameter schema). The compile stage, which runs the author's
code in its own process, decides whether the version makes a valid graph.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings as django_settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from console import wakeups
from console.accounts.models import User
from console.accounts.refusals import Conflict, InvalidField, Refused
from console.accounts.rights import require_define
from console.accounts.storable import text_problem
from console.jobs.changes import announce
from console.jobs.code import package_change
from console.jobs.differences import differences
from console.jobs.inputs import check_params, parse_settings, parse_stored_settings
from console.jobs.masking import require_references, unmask, unmask_settings
from console.jobs.models import Job, JobVersion, Package, PackageState, Pipeline, VersionState
from console.jobs.pipelines import request_sync
from console.jobs.stages import wake_up_after
from console.jobs.tags import require_match
from runtime.access.redaction import redact_json
from runtime.core.job.key_groups import MAX_KEY_GROUPS, default_max_parallelism
from runtime.core.snapshot import manifest

MAX_NAME_LENGTH = 100
MAX_DESCRIPTION_LENGTH = 2_000
MAX_MESSAGE_LENGTH = 500
MAX_PARAMS_BYTES = 64 * 1024  #: as JSON


def create_job(user: User, *, name: str, pipeline: str, description: str = "") -> Job:
    """Defines a job without versions."""
    require_define(user)
    name = require_name(name)
    if len(description) > MAX_DESCRIPTION_LENGTH:
        raise InvalidField("description", f"must have {MAX_DESCRIPTION_LENGTH} characters at most")
    _usable_pipeline(pipeline)
    try:
        with transaction.atomic():
            job = Job.objects.create(name=name, pipeline=pipeline, description=description.strip(), created_by=user)
            announce("define", user, job, {"name": (None, name), "pipeline": (None, pipeline)})
    except IntegrityError as error:
        raise Conflict("name-taken", f"name: another job is called {name!r}.", field="name") from error
    return job


def require_name(text: str) -> str:
    """The name of a job without surrounding space. Raises InvalidField if no job can have it."""
    name = text.strip()
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise InvalidField("name", f"must have 1 to {MAX_NAME_LENGTH} characters")
    if not name.isprintable():
        raise InvalidField("name", "must be one line of printable characters")
    return name


def create_version(
    user: User,
    job: Job,
    *,
    parallelism: int,
    params: dict[str, Any],
    settings: dict[str, Any] | None = None,
    max_parallelism: int | None = None,
    package: str | None = None,
    message: str = "",
    request_key: str | None = None,
    if_match: str | None = None,
    skip_if_equal: bool = False,
    like: JobVersion | None = None,
) -> JobVersion:
    """Adds a version in state `compiling` and starts its compilation. Repeating `request_key` returns the existing
    version.

    A secret may be sent as the mask that `like` shows (default: the newest version). `if_match` is the `If-Match`
    header of the request.
    `max_parallelism` None: that of the newest version, because its checkpoints have as many key groups; for the first
    version derived from `parallelism`.
    `package`: a digest, or "" for the installed code; None: as `like` or the newest version, and for the first version
    the newest package that offers the pipeline.
    `skip_if_equal`: returns the newest version if it has the same values, and the package that it was compiled from is
    installed unchanged. If only the package has changed, the message says so.
    """
    require_define(user)
    if len(message) > MAX_MESSAGE_LENGTH or text_problem(message):
        raise InvalidField("message", text_problem(message) or f"must have {MAX_MESSAGE_LENGTH} characters at most")
    with transaction.atomic():
        lock_job(job)  # serialises version numbers
        if earlier := version_by_request(user, request_key):
            return earlier
        require_match(job, if_match)
        require_present(job)
        newest = newest_version(job)
        values = checked_values(
            job, newest, parallelism=parallelism, params=params, settings=settings, max_parallelism=max_parallelism,
            package=package, like=like,
        )  # fmt: skip
        if skip_if_equal and newest is not None and _has_values(newest, values):
            change = package_change(newest)
            if change is None:
                return newest
            message = message.strip() or f"Installed package: {change.after}, before {change.before}"
        _hold_package(values["package_id"])
        version = JobVersion.objects.create(
            job=job, number=_next_number(job, newest), message=message.strip(), created_by=user,
            request_key=request_key, **values,
        )  # fmt: skip
        announce("define", user, job, _changes(newest, version))
        wakeups.after_commit(wakeups.COMPILE_TASK, version.pk)
    return version


def _changes(newest: JobVersion | None, version: JobVersion) -> dict[str, tuple[Any, Any]]:
    if newest is None:
        return {"version": (None, version.number)}
    changes = differences(newest, version, pipeline_schema(version.job.pipeline))
    return {"version": (newest.number, version.number)} | {
        f"{each.part} {each.name}": (each.before, each.after) for each in changes
    }


def newest_version(job: Job) -> JobVersion | None:
    """The newest version in any state."""
    return JobVersion.objects.filter(job=job).order_by("-number").first()


def checked_values(
    job: Job,
    newest: JobVersion | None,
    *,
    parallelism: int,
    params: dict[str, Any],
    settings: dict[str, Any] | None = None,
    max_parallelism: int | None = None,
    package: str | None = None,
    like: JobVersion | None = None,
) -> dict[str, Any]:
    """The values of a version after `newest`, with defaults filled in and masks replaced by the secrets of `like`.

    Raises:
        Refused: names the value at fault.
    """
    if max_parallelism is not None and not 0 < max_parallelism <= MAX_KEY_GROUPS:
        raise InvalidField("max_parallelism", f"must lie between 1 and {MAX_KEY_GROUPS}, not {max_parallelism}")
    if len(msgspec.json.encode(params)) > MAX_PARAMS_BYTES:
        raise InvalidField("params", f"must have {MAX_PARAMS_BYTES} bytes at most")
    base = like or newest
    pipeline = _usable_pipeline(job.pipeline)
    code = _package_of(pipeline, base, package)
    schema = code.schema_of(pipeline.name) if code else pipeline.schema
    derived = newest.max_parallelism if newest else default_max_parallelism(parallelism)
    groups = derived if max_parallelism is None else max_parallelism
    require_parallelism(parallelism, groups)
    settings = unmask_settings(settings or {}, base.settings if base else {})
    checked = msgspec.to_builtins(parse_settings(settings))
    require_references(params, schema)
    params = unmask(params, base.params if base else {}, schema)
    check_params(params, dict(schema))
    return {"parallelism": parallelism, "max_parallelism": groups, "params": params, "settings": checked,
            "package_id": code and code.pk}  # fmt: skip


def _has_values(version: JobVersion, values: Mapping[str, Any]) -> bool:
    """Whether a version that was not rejected has these values. Settings that it lacks have their defaults."""
    settings = {**msgspec.to_builtins(parse_stored_settings(version.settings)), **version.settings}
    version_values = {**{name: getattr(version, name) for name in values}, "settings": settings}
    return version.state != VersionState.REJECTED and version_values == values


def _next_number(job: Job, newest: JobVersion | None) -> int:
    """The number of the next version. The numbers of deleted versions are not used again."""
    deleted = Job.objects.values_list("last_version", flat=True).get(pk=job.pk)
    return max(deleted, newest.number if newest else 0) + 1


def require_present(job: Job) -> None:
    """Raises Conflict if the job is archived."""
    if conflict := archived_conflict(job):
        raise conflict


def archived_conflict(job: Job) -> Conflict | None:
    """Why nothing new can begin in an archived job; None for other jobs."""
    if job.archived_at is None:
        return None
    return Conflict("archived", f"Job {job.name} is archived. Bring it back first.")


def lock_job(job: Job) -> None:
    """Locks the row of the job: until the commit, no other transaction can add a version, restore or discard."""
    Job.objects.select_for_update(no_key=True).get(pk=job.pk)


def version_by_request(user: User, request_key: str | None) -> JobVersion | None:
    """The version that this user's earlier request with `request_key` created, if any."""
    if request_key is None:
        return None
    return JobVersion.objects.select_related("job").filter(created_by=user, request_key=request_key).first()


def store_graph(version_id: int, graph: dict[str, Any]) -> bool:
    """Stores the graph that the compile stage returned. False if the version was no longer compiling."""
    compiling = JobVersion.objects.filter(pk=version_id, state=VersionState.COMPILING)
    return bool(compiling.update(state=VersionState.READY, graph=graph, error=None))


def store_rejection(version_id: int, error: dict[str, Any]) -> bool:
    """Stores the compile stage's error, with secrets redacted. False if the version was no longer compiling."""
    return _store_failure(version_id, error, state=VersionState.REJECTED)


def postpone_compilation(version_id: int, error: dict[str, Any]) -> bool:
    """Stores why the compile stage could not run, as `store_rejection`, and when it is repeated."""
    failures = JobVersion.objects.values_list("failed_attempts", flat=True).filter(pk=version_id).first() or 0
    columns = {"failed_attempts": failures + 1, "woken_at": wake_up_after(failures + 1)}
    return _store_failure(version_id, error, **columns)


def _store_failure(version_id: int, error: dict[str, Any], **columns: Any) -> bool:
    version = JobVersion.objects.select_related("job", "package").filter(pk=version_id).first()
    if version is None:  # deleted since
        return False
    redacted_error = redact_json(error, version.params, parameter_schema(version))
    compiling = JobVersion.objects.filter(pk=version_id, state=VersionState.COMPILING)
    return bool(compiling.update(error=redacted_error, **columns))


def newest_ready(job: Job) -> JobVersion | None:
    """The newest version in state `ready`, which a start uses by default; None if there is none."""
    return ready_versions(job).first()


def ready_versions(job: Job) -> QuerySet[JobVersion]:
    """The versions in state `ready`, newest first."""
    return JobVersion.objects.filter(job=job, state=VersionState.READY).order_by("-number")


def parameter_schema(version: JobVersion) -> Mapping[str, Any]:
    """The parameter schema of a version; {} if its pipeline is no longer installed."""
    return version.parameter_schema({} if version.package_id else pipeline_schema(version.job.pipeline))


def _package_of(pipeline: Pipeline, base: JobVersion | None, digest: str | None) -> Package | None:
    """The package of a new version; None: the installed code.

    Raises:
        InvalidField: there is no such package, it is not ready, or it does not offer the pipeline.
    """
    package = pipeline.package if base is None else base.package
    if digest is not None:
        package = Package.objects.filter(pk=digest).first()
    if package is None and digest:
        raise InvalidField("package", f"there is no package {digest}; `weir package` uploads one")
    if package is None and pipeline.package is not None:
        raise InvalidField("package", f"{pipeline.name} is not installed: name a package that offers it")
    if package is not None and package.state != PackageState.READY:
        raise InvalidField("package", f"{package.pk} is {package.state}; a version needs one that is ready")
    if package is not None and pipeline.name not in package.pipelines:
        offered = ", ".join(package.pipelines)
        raise InvalidField("package", f"{package.pk} does not offer {pipeline.name!r}; it offers {offered}")
    return package


def _hold_package(digest: str | None) -> None:
    """Locks the package of a new version until the commit. Raises InvalidField if it was deleted since it was read."""
    ready = Package.objects.filter(pk=digest, state=PackageState.READY)
    if digest is not None and not ready.update(used_at=Now()):
        raise InvalidField("package", f"{digest} was deleted; name another package")


def pipeline_schema(name: str) -> dict[str, Any]:
    """The parameter schema of a pipeline: of the newest package that offers it, or of what is installed."""
    pipeline = Pipeline.objects.filter(pk=name).first()
    return pipeline.schema if pipeline else {}


def columns_folder(version: JobVersion) -> Path:
    """Folder for the column types that the compilation of a version reads from Spark."""
    return Path(django_settings.WEIR_INPUTS) / manifest.columns_folder(version.job_id, version.pk)


def _usable_pipeline(name: str) -> Pipeline:
    try:
        pipeline = Pipeline.objects.get(pk=name)
    except Pipeline.DoesNotExist:
        names = ", ".join(Pipeline.objects.values_list("name", flat=True)) or "none yet"
        request_sync()
        advice = "The installed packages are read again now: if it was just installed, retry in some seconds"
        detail = f"pipeline: there is no pipeline {name!r}; known: {names}. {advice}."
        raise Refused("unknown-pipeline", detail, field="pipeline") from None
    if pipeline.error:
        raise Refused("broken-pipeline", f"pipeline: {pipeline.error}.", field="pipeline")
    return pipeline


def parallelism_limit(version: JobVersion) -> int:
    """The highest parallelism of a run of `version`: one key group and one slot for each subtask."""
    return min(version.max_parallelism, int(django_settings.WEIR_MAX_SLOTS))


def require_parallelism(parallelism: int, max_parallelism: int, field: str = "parallelism") -> None:
    """Checks `parallelism`, the number of subtasks of each operator and of slots of the run.

    Raises:
        Refused: the parallelism exceeds `max_parallelism` or WEIR_MAX_SLOTS.
    """
    if not 0 < parallelism <= max_parallelism:
        raise InvalidField(field, f"must lie between 1 and max_parallelism ({max_parallelism}), not {parallelism}")
    most = django_settings.WEIR_MAX_SLOTS
    if parallelism > most:
        raise InvalidField(
            field, f"a run may have {most} slots at most, not {parallelism}; WEIR_MAX_SLOTS sets the limit"
        )
