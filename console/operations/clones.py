"""Clones: a snapshot of a job restored as a new job beside it, with its output discarded.

The snapshot becomes a savepoint of the clone. Its state files are hard links, since they never change. The state of
sinks is left out: it describes output that the clone must neither commit nor clean.
"""

import itertools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from console.accounts.models import User
from console.accounts.refusals import Conflict
from console.checkpoints import storage
from console.jobs.models import Job, JobVersion, Run, VersionState
from console.jobs.services import lock_job, require_name
from console.operations.labels import record_success
from console.operations.legality import drill_conflict
from console.operations.models import Operation, OperationKind, OperationState
from console.operations.new_runs import new_run, new_run_target, require_isolable
from console.operations.origin import Origin
from console.operations.params import CloneParams, RestoreParams
from console.operations.restore import require_mapping
from console.runs import run_store
from runtime.core.job.graph import Role
from runtime.core.snapshot.clone_manifest import clone_manifest
from runtime.core.snapshot.manifest import Manifest, Segment
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, encode_manifest, manifest_folder


def accept_clone(row: Operation, wanted: CloneParams) -> Operation:
    """Creates the clone and its run. The operation succeeds at once; the restore is an operation of the clone.

    Raises:
        Refused: the snapshot cannot be restored, the version cannot be cloned, or the name is taken.
    """
    clone = create_clone(row, wanted, "clone")
    return record_success(row, {"job": clone.run.job_id, "run": clone.run.pk})


def accept_drill(row: Operation, wanted: CloneParams) -> Operation:
    """Creates the clone; `console.operations.drills` does the rest.

    Raises:
        Refused: as `create_clone`.
        Conflict: another drill of the job has not ended.
    """
    if refused := drill_conflict(row.job):
        raise refused
    clone = create_clone(row, wanted, "drill")
    row.state, row.phase, row.started_at = OperationState.RUNNING.value, "waiting for a worker", Now()
    row.result = {"job": clone.run.job_id, "run": clone.run.pk, "restored_bytes": clone.restored_bytes}
    row.save(force_insert=True)
    row.refresh_from_db()  # reads the times that Postgres has set
    return row


def drills_of(job: Job) -> QuerySet[Operation]:
    """The drills of a job, newest first."""
    return Operation.objects.filter(job=job, kind=OperationKind.DRILL)


@dataclass(frozen=True, slots=True)
class Clone:
    """A clone: its queued run, and the size of the state that the run restores."""

    run: Run
    restored_bytes: int


def create_clone(row: Operation, wanted: CloneParams, purpose: str) -> Clone:
    """Creates a clone for the operation `row`. The restore is an operation of the clone.

    Raises:
        Refused: as `accept_clone`.
    """
    lock_job(row.job)  # the snapshot must not be discarded meanwhile
    given = RestoreParams(checkpoint=wanted.checkpoint, version=wanted.version, parallelism=wanted.parallelism)
    version, parallelism = new_run_target(row.job, given)
    origin = Origin.from_params(row.job, given)
    require_isolable(version)
    name = require_name(wanted.name or _default_name(row.job, purpose))
    if Job.objects.filter(name=name).exists():
        raise Conflict("name-taken", f"name: another job is called {name!r}.", field="params.name")
    clone, copy = _copy_definition(row.requested_by, row.job, version, name, origin)
    sinks = {row["uid"] for row in (version.graph or {})["operators"] if row["role"] == Role.SINK or row.get("commits")}
    manifest, origins = clone_manifest(origin.manifest, str(clone.pk), sinks)
    folder = manifest_folder(manifest)
    own = Origin(manifest=manifest, path=folder)
    require_mapping(clone, own, copy, parallelism, allow_unmapped=wanted.allow_unmapped)
    run_store.reserve_ids_above(clone, manifest.checkpoint, manifest.token)
    restore = Operation(
        job=clone, kind=OperationKind.RESTORE, params={"path": folder}, requested_by=row.requested_by,
        reason=row.reason, request_id=row.request_id,
    )  # fmt: skip
    try:
        _write_savepoint(row.job, clone, manifest, origins)
        with transaction.atomic():
            new_run(restore, copy, parallelism, restore_path=folder, allow_unmapped=wanted.allow_unmapped)
    except BaseException:
        shutil.rmtree(storage.job_root(clone.pk), ignore_errors=True)
        raise
    assert restore.run is not None, "a restore is written with its run"
    return Clone(restore.run, sum(segment.nbytes for segment in manifest.segments()))


def _default_name(job: Job, purpose: str) -> str:
    """The next name that no job has: jobs are renamed, and long names begin alike."""
    prefix = f"{job.name[:70]}, {purpose} "
    taken = set(Job.objects.filter(name__startswith=prefix).values_list("name", flat=True))
    number = Job.objects.filter(cloned_from__job=job).count() + 1
    return next(name for count in itertools.count(number) if (name := f"{prefix}{count}") not in taken)


def _copy_definition(
    user: User | None, job: Job, version: JobVersion, name: str, origin: Origin
) -> tuple[Job, JobVersion]:
    description = f"Clone of {job.name}, restored from {origin.name.lower()}. Its output is discarded."
    clone = Job.objects.create(
        name=name, pipeline=job.pipeline, description=description, owner=job.owner, tags=job.tags,
        runbook=job.runbook, created_by=user, discards_output=True, cloned_from=origin.checkpoint,
    )  # fmt: skip
    copy = JobVersion.objects.create(
        job=clone, number=1, parallelism=version.parallelism, max_parallelism=version.max_parallelism,
        params=version.params, settings=version.settings, state=VersionState.READY, graph=version.graph,
        message=f"Version {version.number} of {job.name}", created_by=user,
    )  # fmt: skip
    return clone, copy


def _write_savepoint(job: Job, clone: Job, manifest: Manifest, origins: Mapping[str, Segment]) -> None:
    """Writes the savepoint into the clone's storage, its manifest last."""
    source, target = storage.job_root(job.pk), storage.job_root(clone.pk)
    for segment in {segment.path: segment for segment in manifest.segments()}.values():  # subtasks share files
        origin, file = origins.get(segment.path, segment), target / segment.path
        file.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_inline:
            file.write_bytes(origin.content)
        else:
            _link(source / origin.path, file)
    file = target / manifest_folder(manifest) / MANIFEST_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encode_manifest(manifest, settings.WEIR_MANIFEST_KEYS))


def _link(source: Path, target: Path) -> None:
    """Links the file, or copies it where the file system has no hard links."""
    try:
        target.hardlink_to(source)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:
        shutil.copyfile(source, target)
