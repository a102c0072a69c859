"""Copies of savepoints in places below `WEIR_SAVEPOINT_ROOTS`, outside the storage of Weir.

A copy is an operation of its own, also if a savepoint, stop or drain asks for it: it follows the savepoint, and its
failure leaves the savepoint as it is. The manifest is written last, so a folder with one is a whole savepoint.

The manifest of a savepoint of a running job names output that is not committed yet; the job master removes it from the
manifest soon afterwards. A copy waits for that: a later restore of it would look for output that is long committed.

A console makes one copy at a time. Files are copied outside any transaction. If the worker dies, Postgres releases its
lock, and the next pass writes the files anew.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from django.conf import settings
from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce, Now

from console import formats
from console.accounts.refusals import Conflict, Refused
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint, Kind, Status
from console.checkpoints.timed_reads import require_target_in_time
from console.jobs.services import lock_job
from console.operations.console_work import ConsoleWork, PhaseReport, WorkWithdrawn
from console.operations.models import ACTIVE_STATES, Operation, OperationKind, OperationState
from console.operations.operation_type import PlainCommand, SnapshotOperation, checkpoint_of, save_queued
from console.operations.params import CheckpointParams
from runtime.core.snapshot.checksums import verified_chunks
from runtime.core.snapshot.commit import is_same_savepoint, pending_committables
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest, relative_paths
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected
from runtime.io.store import Store, open_store

_WAITS: Final = "waiting for the commit of its output"
_COPIES: Final = "copying files"


class CopyParams(CheckpointParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The savepoint to copy, and the place below `WEIR_SAVEPOINT_ROOTS` that gets a folder with the copy."""

    target: str


class Copy(ConsoleWork, SnapshotOperation):
    kind = OperationKind.COPY
    params = CopyParams
    blocked_by_maintenance = True
    reads_files = True
    message = "The copy of the savepoint was requested."
    command = PlainCommand(
        help="Copies savepoint NUMBER of JOB into PLACE, a folder on the console's host or s3://bucket/prefix, below a "
        "place of WEIR_SAVEPOINT_ROOTS.",
        metavars={"target": "PLACE"},
    )
    noun = "copy"
    effect_before = "Nothing is copied; the savepoint stays."
    effect_during = "The copy stops, and its files are deleted; the savepoint stays."
    files_due = Q()

    def conflict(self, checkpoint: Checkpoint) -> Conflict | None:
        if checkpoint.kind != Kind.CHECKPOINT and checkpoint.is_restorable:
            return None
        detail = f"{str(checkpoint).capitalize()} is not a completed savepoint with files; only these can be copied."
        return Conflict("cannot-copy", detail, storage.CHECKPOINT_FIELD)

    def accept(self, row: Operation, params: CopyParams) -> Operation:
        """Queues the copy for a worker of the console."""
        lock_job(row.job)  # the savepoint must not be discarded meanwhile
        if conflict := self.conflict(checkpoint_of(row.job, params.checkpoint)):
            raise conflict
        require_target_in_time(params.target)
        return save_queued(row, "waiting for a worker")

    def advance_files(self, row: Operation) -> None:
        """Makes the copy once its savepoint has been taken."""
        parent = row.part_of
        if parent is not None and (parent.is_active or parent.ended_at is None):
            return
        try:
            savepoint = _savepoint_of(row)
            manifest = storage.load_manifest(savepoint)
            if pending_committables(manifest) and _is_reduced_later(savepoint):
                if row.phase != _WAITS:
                    _update(row, phase=_WAITS)
                return
            if not _update(row, state=OperationState.RUNNING, phase=_COPIES, started_at=Coalesce("started_at", Now())):
                return  # withdrawn meanwhile
            result = _copy(row, savepoint, manifest)
        except WorkWithdrawn:
            _end(row, OperationState.FAILED)
        except Refused as refused:
            _end(row, OperationState.FAILED, error={"code": refused.code, "message": refused.detail})
        except (EnvironmentFailure, JobRejected) as error:
            _end(row, OperationState.FAILED, error={"code": "not-copied", "message": f"{error}."})
        else:
            _end(row, OperationState.SUCCEEDED, result=result, error=None)  # a withdrawal came too late


def copies_of(savepoint: Checkpoint) -> QuerySet[Operation]:
    """The copies of a savepoint that were requested, or made for the operation that took it; newest first."""
    of_savepoint = Q(params__checkpoint=savepoint.pk) | Q(result__checkpoint=savepoint.number)
    return Operation.objects.filter(of_savepoint, job=savepoint.job_id, kind=OperationKind.COPY)


def _end(row: Operation, state: OperationState, **facts: Any) -> None:
    _update(row, state=state, phase="", started_at=Coalesce("started_at", Now()), ended_at=Now(), **facts)


def _update(row: Operation, **facts: Any) -> int:
    return Operation.objects.filter(pk=row.pk, state__in=ACTIVE_STATES).update(**facts)


def _is_reduced_later(savepoint: Checkpoint) -> bool:
    """Whether the job master will remove committed output from the manifest. Only the attempt of the savepoint does."""
    if savepoint.run.is_terminal:
        return False
    return not Checkpoint.objects.filter(
        run=savepoint.run_id, token__gt=savepoint.token, status=Status.COMPLETED
    ).exists()


def _savepoint_of(row: Operation) -> Checkpoint:
    parent = row.part_of
    if parent is None:
        return checkpoint_of(row.job, row.params["checkpoint"])
    number: int = (parent.result or {}).get("checkpoint", 0)
    savepoint = Checkpoint.objects.filter(job=row.job_id, number=number, status=Status.COMPLETED).first()
    if parent.state != OperationState.SUCCEEDED or savepoint is None:
        raise Conflict("no-savepoint", f"The {parent.kind} is {parent.state}: no savepoint of it is on record.")
    return savepoint


def _copy(row: Operation, savepoint: Checkpoint, manifest: Manifest) -> dict[str, Any]:
    """Copies the savepoint durably; no other user may read it.

    A repeated copy replaces the manifest only, if the savepoint's own manifest has changed since.
    """
    root, folder = storage.target_place(row.params["target"]), savepoint.path
    place = storage.target_place(f"{root}/{folder}")
    home, target = storage.job_store(savepoint.job_id), open_store(root)
    result = {
        "checkpoint": savepoint.number, "path": place, "bytes": sum(s.nbytes for s in manifest.segments()),
        "uncommitted": sum(map(len, pending_committables(manifest).values())),
    }  # fmt: skip
    file = f"{folder}/{MANIFEST_FILE}"
    body, there = home.get(file), _content(target, file)
    decode_manifest(body, place, settings.WEIR_MANIFEST_KEYS, signed=True)  # a restore reads it so
    if there is not None:
        if not is_same_savepoint(storage.load_savepoint(place)[1], manifest):
            raise Conflict("target-exists", f"{place} exists and is not this savepoint.")
        if there != body:
            target.put(file, [body])
        return result
    segments = manifest.segments()
    names = {path: f"{folder}/{name}" for path, name in relative_paths(manifest, folder).items()}
    if strange := set(target.list(f"{folder}/")).difference(names.values()):
        raise Conflict("target-exists", f"{place} exists and is not this savepoint: it has {min(strange)}.")
    storage.delete_folder(root, folder)  # what a worker that died has left
    progress = _CopyProgress(row, sum(segment.nbytes for segment in segments))
    try:
        for segment in segments:
            chunks = progress.counted(storage.file_chunks(home, segment.path, segment.nbytes))
            target.put(names[segment.path], verified_chunks(segment, chunks))
        if not target.create(file, body):
            raise Conflict("target-exists", f"Another installation has written a savepoint to {place} meanwhile.")
        storage.load_savepoint(place)
    except BaseException:
        with suppress(EnvironmentFailure):
            if _content(target, file) in (None, body):
                storage.delete_folder(root, folder)
        raise
    return result


def _content(store: Store, file: str) -> bytes | None:
    try:
        return store.get(file)
    except CorruptState:
        return None


class _CopyProgress:
    """The bytes copied so far, as the phase of the operation."""

    def __init__(self, row: Operation, total: int) -> None:
        self._report, self._total, self._copied = PhaseReport(row), formats.size(total), 0

    def counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Passes the bytes on, and shows how many there were."""
        for chunk in chunks:
            yield chunk
            self._copied += len(chunk)
            self._report.show(f"{_COPIES}: {formats.size(self._copied)} of {self._total}")
