"""Clones: a snapshot of a job restored as a new job beside it, with its output discarded.

The snapshot becomes a savepoint of the clone. Its state files are hard links, or copies that the bucket makes itself,
since they never change. The state of sinks is left out: it describes output that the clone must neither commit nor
clean.

The files are written before the rows. Until the rows are committed, a file marks their folder as unfinished, and an
advisory lock shows that the process lives. If it dies before, the next pass of file work deletes the folder.
"""

import itertools
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import structlog
from django.conf import settings
from django.db import connection

from console.accounts.refusals import Conflict, Refused
from console.advisory_lock import try_lock
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint
from console.checkpoints.timed_reads import load_pinned_manifest_in_time
from console.jobs.models import Job, JobVersion, Run, VersionState
from console.jobs.services import lock_job, require_name
from console.operations.models import Operation, OperationKind
from console.operations.params import CloneParams, RestoreParams
from console.operations.restores.effects import require_mapping
from console.operations.restores.new_runs import new_run, new_run_target, require_isolable
from console.operations.restores.origin import Origin, find_checkpoint, require_restorable_row
from console.runs import run_store
from runtime.core.job.graph import Role
from runtime.core.snapshot.clone_manifest import clone_manifest
from runtime.core.snapshot.manifest import Manifest, Segment
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, encode_manifest, manifest_folder
from runtime.errors import EnvironmentFailure

_PIN_RENEWAL_S: Final = 60.0
_LOCKS: Final = 0x57454952_00000000  #: key of the advisory lock of a clone, less its id
_MARKS: Final = ".unfinished-clones"  #: folder of `WEIR_STORAGE`, with a file per clone, whose name is its id

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClone:
    """A clone whose savepoint is in its storage. Its job, whose id is reserved, and its version are not saved yet."""

    job: Job
    version: JobVersion
    parallelism: int
    manifest: Manifest
    allow_unmapped: bool

    @property
    def restored_bytes(self) -> int:
        """The size of the state that its run restores."""
        return sum(segment.nbytes for segment in self.manifest.segments())


@contextmanager
def prepared_clone(row: Operation, params: CloneParams) -> Iterator[PreparedClone]:
    """Writes the savepoint of a clone. Its files are removed if the body of the `with` raises an exception.

    Nothing is locked, so the job takes checkpoints meanwhile. A pin keeps the files of a checkpoint from retention;
    from then on the clone needs none of them.

    Raises:
        Refused: the snapshot cannot be restored, the version cannot be cloned, the name is taken, or the storage fails.
    """
    version, parallelism, snapshot = clone_target(row.job, params)
    origin = Origin.from_row(row.job, snapshot, load_pinned_manifest_in_time(snapshot))
    clone, copy = _copy_definition(row, version, params.name, snapshot)
    operators = (version.graph or {})["operators"]
    sinks = {each["uid"] for each in operators if each["role"] == Role.SINK or each["commits"]}
    manifest, origins = clone_manifest(origin.manifest, str(clone.pk), sinks)
    clone_origin = Origin(manifest=manifest, path=manifest_folder(manifest))
    require_mapping(clone, clone_origin, copy, parallelism, allow_unmapped=params.allow_unmapped)
    with try_lock(_LOCKS + clone.pk):
        try:
            _write_savepoint(snapshot, clone, manifest, origins)
            yield PreparedClone(
                job=clone, version=copy, parallelism=parallelism, manifest=manifest,
                allow_unmapped=params.allow_unmapped,
            )  # fmt: skip
        except BaseException:
            with suppress(EnvironmentFailure):
                _delete_unfinished(clone.pk)
            raise
        with suppress(EnvironmentFailure):  # then the next pass removes the mark
            _unmark(clone.pk)


def delete_unfinished_clones() -> None:
    """Deletes the files of clones whose process has died before it committed their rows."""
    names = [path.rpartition("/")[2] for path in storage.shared_store().list(f"{_MARKS}/")]
    for clone_id in (int(name) for name in names if name.isdecimal()):  # other files are not of Weir
        with try_lock(_LOCKS + clone_id) as is_free:
            if not is_free:
                continue  # its process lives
            if Job.objects.filter(pk=clone_id).exists():
                _unmark(clone_id)
            else:
                log.warning("an unfinished clone is deleted", folder=storage.job_uri(clone_id))
                _delete_unfinished(clone_id)


def _delete_unfinished(clone_id: int) -> None:
    storage.delete_folder(str(settings.WEIR_STORAGE), str(clone_id))
    _unmark(clone_id)


def _unmark(clone_id: int) -> None:
    storage.shared_store().delete([f"{_MARKS}/{clone_id}"])


def clone_target(job: Job, params: CloneParams) -> tuple[JobVersion, int, Checkpoint]:
    """The version, the parallelism and the snapshot of a clone, as far as their rows allow it. No file is read.

    Raises:
        Refused: the snapshot cannot be restored, the version cannot be cloned, or the name is taken.
    """
    restore_params = RestoreParams(checkpoint=params.checkpoint, version=params.version, parallelism=params.parallelism)
    version, parallelism = new_run_target(job, restore_params)
    snapshot = find_checkpoint(params.checkpoint)
    require_restorable_row(job, snapshot)
    require_isolable(version)
    if params.name:
        _require_free(require_name(params.name))
    return version, parallelism, snapshot


def create_clone(row: Operation, prepared: PreparedClone, purpose: str) -> Run:
    """Writes the rows of a clone for the operation `row`. The restore is an operation of the clone.

    Raises:
        Conflict: another job has taken the name meanwhile.
    """
    lock_job(row.job)  # serialises default names
    clone, manifest = prepared.job, prepared.manifest
    clone.name = clone.name or _default_name(row.job, purpose)
    _require_free(clone.name)
    clone.save(force_insert=True)
    prepared.version.save(force_insert=True)
    run_store.reserve_ids_above(clone, manifest.checkpoint, manifest.token)
    folder = manifest_folder(manifest)
    restore = Operation(
        job=clone, kind=OperationKind.RESTORE, params={"path": folder}, requested_by=row.requested_by,
        reason=row.reason, request_id=row.request_id,
    )  # fmt: skip
    new_run(
        restore, prepared.version, prepared.parallelism, restore_path=folder, allow_unmapped=prepared.allow_unmapped
    )
    assert restore.run is not None, "a restore is written with its run"
    return restore.run


def _require_free(name: str) -> None:
    if Job.objects.filter(name=name).exists():
        raise Conflict("name-taken", f"name: another job is called {name!r}.", field="params.name")


def _default_name(job: Job, purpose: str) -> str:
    """The next name that no job has: jobs are renamed, and long names begin alike."""
    prefix = f"{job.name[:70]}, {purpose} "
    names = set(Job.objects.filter(name__startswith=prefix).values_list("name", flat=True))
    number = Job.objects.filter(cloned_from__job=job).count() + 1
    return next(name for count in itertools.count(number) if (name := f"{prefix}{count}") not in names)


def _copy_definition(row: Operation, version: JobVersion, name: str, snapshot: Checkpoint) -> tuple[Job, JobVersion]:
    """The job and the version of a clone, not saved. `name` "": the default name, which is chosen later."""
    job = row.job
    description = f"Clone of {job.name}, restored from {snapshot}. Its output is discarded."
    clone = Job(
        pk=_reserved_id(), name=name.strip(), pipeline=job.pipeline, description=description, owner=job.owner,
        tags=job.tags, runbook=job.runbook, max_silence_s=job.max_silence_s,
        created_by=row.requested_by, discards_output=True, cloned_from=snapshot,
    )  # fmt: skip
    copy = JobVersion(
        job=clone, number=1, parallelism=version.parallelism, max_parallelism=version.max_parallelism,
        params=version.params, settings=version.settings, package_id=version.package_id, state=VersionState.READY,
        graph=version.graph, message=f"Version {version.number} of {job.name}", created_by=row.requested_by,
    )  # fmt: skip
    return clone, copy


def _reserved_id() -> int:
    """The id of a further job: the manifest of its savepoint names it before its row exists."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval(pg_get_serial_sequence('weir_job', 'id'))")
        (job_id,) = cursor.fetchone()
    return int(job_id)


def _write_savepoint(snapshot: Checkpoint, clone: Job, manifest: Manifest, origins: Mapping[str, Segment]) -> None:
    """Writes the savepoint into the clone's storage, marked as unfinished; its manifest last.

    Raises:
        Refused: the storage fails.
    """
    store, renewal = storage.shared_store(), time.monotonic() + _PIN_RENEWAL_S

    def write(segment: Segment) -> None:
        origin = origins.get(segment.path, segment)
        if origin.is_inline:
            store.put(f"{clone.pk}/{segment.path}", [origin.content])
        else:  # its checksum is verified when its state is read
            store.copy(f"{snapshot.job_id}/{origin.path}", f"{clone.pk}/{segment.path}")

    try:
        store.put(f"{_MARKS}/{clone.pk}", [])
        segments = {segment.path: segment for segment in manifest.segments()}.values()  # subtasks share files
        with ThreadPoolExecutor(store.concurrent_reads, thread_name_prefix="clone") as pool:
            for _ in pool.map(write, segments):
                if time.monotonic() > renewal:
                    storage.pin(snapshot)
                    renewal = time.monotonic() + _PIN_RENEWAL_S
        file = f"{clone.pk}/{manifest_folder(manifest)}/{MANIFEST_FILE}"
        store.put(file, [encode_manifest(manifest, settings.WEIR_MANIFEST_KEYS)])
    except EnvironmentFailure as error:
        detail = f"The files of {snapshot} cannot be copied for a clone: {error}. Nothing was changed; try again."
        raise Refused("not-cloned", detail, status=HTTPStatus.SERVICE_UNAVAILABLE) from error
