"""The registry of pipelines as rows, so that forms need not import it.

A sync reads the pipelines that are installed beside Weir. A package that a user uploads is described by a stage, which
imports it in a process of its own. A name belongs to the installed code or to packages of one distribution.
"""

from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import structlog
from django.conf import settings
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from console import wakeups
from console.accounts.models import User
from console.accounts.refusals import Conflict, Refused
from console.accounts.rights import require_upload
from console.jobs import stages
from console.jobs.models import Package, PackageState, Pipeline
from runtime.access.redaction import storable_json
from runtime.core.job.code_identity import short_digest
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.package_archive import package_digest, read_archive
from runtime.io.package_cache import package_path
from runtime.io.store import open_store

_TIMEOUT_S = 180  # a package whose import hangs takes `runtime.dataflow.pipelines.IMPORT_TIMEOUT_S` of this time
_MAX_ATTEMPTS = 8  #: to describe a package whose stage crashes or takes too long
_MAX_DESCRIPTION_BYTES = 2**20  #: of a package, as JSON
_SYNC_PAUSE_S = 5  #: least age of the rows at which a request reads the registry again


class OfferedPipeline(msgspec.Struct, frozen=True):
    """A pipeline as `spark_jobs pipelines` and `describe` print it."""

    name: str
    description: str = ""
    schema: dict[str, Any] = {}
    queries: dict[str, str] = {}
    error: str = ""  #: why the pipeline cannot be used
    distribution: str = ""  #: of a package, that offers the pipeline


def sync() -> list[str]:
    """Reads the registry and replaces the rows. Returns the names of the pipelines.

    Raises:
        StageFailed: the registry cannot be read; the rows stay as they were.
    """
    log = Path(settings.WEIR_LOGS) / "stage-pipelines.log"
    printed = stages.run(stages.StageCommand(arguments=["pipelines"], log=log, timeout_s=_TIMEOUT_S))
    try:
        offered = msgspec.convert(printed, list[OfferedPipeline])
    except msgspec.ValidationError as error:
        raise stages.StageFailed("stage-failed", f"pipelines: {error}.") from error
    replace(offered)
    return [pipeline.name for pipeline in offered]


def request_sync() -> None:
    """Wakes a worker to read the registry, unless it was read in the last `_SYNC_PAUSE_S`."""
    if not Pipeline.objects.filter(updated_at__gt=Now() - timedelta(seconds=_SYNC_PAUSE_S)).exists():
        wakeups.send(wakeups.PIPELINES_TASK)


def replace(offered: list[OfferedPipeline]) -> None:
    """Makes the rows of installed pipelines equal to `offered`. A name that packages have stays theirs.

    Jobs of a removed pipeline keep its name but get no new versions.
    """
    with transaction.atomic():
        names = [pipeline.name for pipeline in offered]
        packaged = set(Pipeline.objects.filter(name__in=names, package__isnull=False).values_list("name", flat=True))
        for pipeline in offered:
            if pipeline.name not in packaged:
                _store(msgspec.structs.replace(pipeline, schema=_with_order(pipeline.schema)), None)
        Pipeline.objects.filter(package=None).exclude(name__in=names).delete()


def _store(pipeline: OfferedPipeline, package: Package | None) -> None:
    columns = {**msgspec.structs.asdict(pipeline), "updated_at": Now()}
    del columns["distribution"]
    Pipeline.objects.update_or_create(name=pipeline.name, defaults={**columns, "package": package})


def upload_package(user: User, archive: bytes) -> Package:
    """Stores a package and starts its description. A package that is stored already is returned as it is.

    A repeated upload replaces a damaged file of the storage, and describes a rejected package again.

    Raises:
        Refused: not permitted, the archive is no package, it is being deleted, or the storage fails.
    """
    require_upload(user)
    try:
        digest = package_digest(read_archive(archive))
    except JobRejected as error:
        raise Refused(error.code, f"package: {error.detail}.", field="package") from error
    with transaction.atomic():
        package, is_new = _lock_package(digest, len(archive), user)  # before the file, which a deletion removes
        try:
            is_replaced = _store_archive(digest, archive)
        except EnvironmentFailure as error:
            detail = f"The package cannot be stored at the moment: {error}."
            raise Refused("storage-failed", detail, status=HTTPStatus.SERVICE_UNAVAILABLE) from error
        failed = Q(state=PackageState.REJECTED) | Q(state=PackageState.DESCRIBING, failed_attempts__gt=0)
        columns = {"state": PackageState.DESCRIBING, "error": None, "failed_attempts": 0, "woken_at": Now()}
        is_described = bool(Package.objects.filter(failed, pk=digest).update(**columns)) or is_new
        if is_described:
            wakeups.after_commit(wakeups.PACKAGE_TASK, digest)
        if is_replaced or is_described:
            record_package_act(user, package, ADDITION if is_new else CHANGE, "Uploaded")
        package.refresh_from_db()
    return package


def _lock_package(digest: str, size: int, user: User) -> tuple[Package, bool]:
    """The row of a package, which no deletion can take until the commit, and whether it is new."""
    package, is_new = Package.objects.get_or_create(digest=digest, defaults={"size": size, "created_by": user})
    stored = Package.objects.filter(pk=digest).exclude(state=PackageState.DELETING)
    if not stored.update(used_at=Now()):
        raise Conflict("being-deleted", f"package: {digest} is being deleted. Upload it again in a minute.", "package")
    return package, is_new


def record_package_act(user: User, package: Package, action: int, act: str) -> None:
    """Adds an act to the history of the admin: operations are those of a job, and a package has none."""
    request_id = structlog.contextvars.get_contextvars().get("request_id", "")
    LogEntry.objects.log_actions(user.pk, [package], action, f"{act} by request {request_id}.")


def hand_over(pipeline: Pipeline) -> None:
    """Gives a locked pipeline to the newest other package that offers it. Without one it is removed.

    It is found again if it is installed: the next sync adds it.
    """
    others = Package.objects.filter(state=PackageState.READY).exclude(pk=pipeline.package_id)
    package = others.filter(description__pipelines__contains=[{"name": pipeline.name}]).first()
    if package is None:
        pipeline.delete()
    else:
        _store(msgspec.convert(package.pipelines[pipeline.name], OfferedPipeline), package)


def _store_archive(digest: str, archive: bytes) -> bool:
    """Stores the file unless an intact one is there. Returns whether it replaced a damaged file.

    Equal packages may differ in their compression.
    """
    store, path = open_store(str(settings.WEIR_STORAGE)), package_path(digest)
    if store.create(path, archive):
        return False
    try:
        is_intact = package_digest(read_archive(store.get(path))) == digest
    except JobRejected:
        is_intact = False
    if not is_intact:
        store.put(path, [archive])
    return not is_intact


def describe_package(digest: str) -> None:
    """Describes a package in state `describing`. Any other state means a repeated message, which is ignored.

    Only the stage itself rejects a package. After any other failure the reconciler sends a further wake-up, after a
    growing pause: without limit while storage or a service is unavailable, else up to `_MAX_ATTEMPTS`.
    """
    describing = Package.objects.filter(pk=digest, state=PackageState.DESCRIBING)
    package = describing.first()
    if package is None:
        return
    log = Path(settings.WEIR_LOGS) / f"describe-package-{short_digest(digest)}.log"
    stage = stages.StageCommand(arguments=["describe"], log=log, timeout_s=_TIMEOUT_S, package=digest)
    try:
        printed = stages.run(stage, lambda _: bool(describing.update(woken_at=Now())))
        description, offered = _checked(printed)
        _require_free_names(offered)
    except stages.StageInterrupted:
        return
    except stages.StageRejected as rejected:
        describing.update(state=PackageState.REJECTED, error=_storable(rejected.error))
    except stages.StageFailed as failed:
        attempts = package.failed_attempts + 1
        is_final = attempts >= _MAX_ATTEMPTS and not isinstance(failed, stages.StageUnavailable)
        state = PackageState.REJECTED if is_final else PackageState.DESCRIBING
        columns = {"failed_attempts": attempts, "error": _storable(failed.error)}
        describing.update(state=state, woken_at=stages.wake_up_after(attempts), **columns)
    else:
        with transaction.atomic():
            if describing.update(state=PackageState.READY, description=description, error=None):
                for pipeline in sorted(offered, key=lambda each: each.name):  # locks are in the order of a deletion
                    _store(pipeline, Package(pk=digest))


def _checked(printed: Any) -> tuple[dict[str, Any], list[OfferedPipeline]]:
    """A description as it is stored, and its pipelines. Raises StageRejected if it is too large or has another form."""
    try:
        description: dict[str, Any] = _storable(printed)
        for each in description["pipelines"]:
            each["schema"] = _with_order(each["schema"])
        offered = msgspec.convert(description["pipelines"], list[OfferedPipeline])
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
        raise stages.StageRejected("broken-package", f"its description has another form: {error}", "package") from error
    if (size := len(msgspec.json.encode(description))) > _MAX_DESCRIPTION_BYTES:
        detail = f"its description has {size:,} bytes, and a package may have {_MAX_DESCRIPTION_BYTES:,}"
        raise stages.StageRejected("broken-package", detail, "package")
    return description, offered


def _storable(value: Any) -> Any:
    """JSON without the characters that Postgres cannot store: schemas, docstrings and tracebacks come from authors."""
    return msgspec.json.decode(storable_json(value))


def _require_free_names(offered: list[OfferedPipeline]) -> None:
    """Raises StageRejected if a pipeline is installed beside Weir, or if another distribution offers it.

    A version without a package would change its code, or a new job the author of its code.
    """
    rows = Pipeline.objects.select_related("package").in_bulk([pipeline.name for pipeline in offered])
    for pipeline in offered:
        row = rows.get(pipeline.name)
        if row is not None and row.package is None:
            detail = f"{row.name} is installed beside Weir too: uninstall it there, or give one another name."
            raise stages.StageRejected("package-conflict", detail, "package")
        owner = row.package.pipelines[row.name]["distribution"] if row is not None and row.package else ""
        if owner not in ("", pipeline.distribution):
            detail = f"{pipeline.name} belongs to packages of {owner}, not of {pipeline.distribution}: rename it."
            raise stages.StageRejected("package-conflict", detail, "package")


def _with_order(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` with the author's order of parameters in `x-order`, because Postgres does not keep the order of object
    keys.
    """
    root = schema.get("$defs", {}).get(str(schema.get("$ref")).rpartition("/")[2], schema)
    return {**schema, "x-order": list(root.get("properties", {}))}
