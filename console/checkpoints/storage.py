"""Checkpoint storage: manifests, and whether the files that they name exist.

Checks read a small manifest and compare file sizes, so that a bad checkpoint is refused before anything starts.
Checksums are verified when state is read. Viewing a checkpoint's state pins the checkpoint. Folders outside the job's
storage are read below `WEIR_SAVEPOINT_ROOTS` only.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from errno import ENAMETOOLONG
from http import HTTPStatus
from pathlib import Path
from typing import Final

import structlog
from django.conf import settings

from console.accounts.refusals import InvalidField, Refused
from console.checkpoints.models import Checkpoint, Kind, Status
from runtime.core.checkpoint.retention_plan import folder_of_file
from runtime.core.snapshot.commit import is_same_savepoint
from runtime.core.snapshot.contents import StoredState, stored_states
from runtime.core.snapshot.manifest import Manifest, Segment, parse_folder
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest, manifest_folder, relative_paths
from runtime.core.snapshot.pins import PIN_VALIDITY_MS, PINS_FOLDER, Pin, encode_pin
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected
from runtime.io.store import Store, check_mounted, open_store, storage_uri
from runtime.s3 import is_bucket

log = structlog.get_logger(__name__)

STORAGE_MARKER: Final = ".weir-storage"  #: file in `WEIR_STORAGE`
_MAX_JOBS: Final = 10  #: newest, one of whose snapshots shows that the storage is mounted
_CHUNK_BYTES: Final = 8 << 20
CORRUPT_CODE: Final = "corrupt-checkpoint"
CHECKPOINT_FIELD, PATH_FIELD, TARGET_FIELD = "params.checkpoint", "params.path", "params.target"


def job_uri(job_id: int) -> str:
    """The storage root of a job, which the job master uses too."""
    return f"{settings.WEIR_STORAGE}/{job_id}"


def job_store(job_id: int) -> Store:
    return open_store(job_uri(job_id))


def shared_store() -> Store:
    """The storage of all jobs. Each job has a folder in it, whose name is its id."""
    return open_store(str(settings.WEIR_STORAGE))


def load_manifest(checkpoint: Checkpoint) -> Manifest:
    """The manifest of a completed checkpoint whose files all exist.

    Raises:
        Refused: names the file that is missing or damaged, or the storage that cannot be read at the moment.
    """
    try:
        return _complete_manifest(checkpoint)
    except Refused as refused:
        if refused.code == CORRUPT_CODE:
            _require_mounted(checkpoint.job_id)
        raise


def load_pinned_manifest(checkpoint: Checkpoint) -> Manifest:
    """As `load_manifest`. The checkpoint is pinned before, so retention keeps its files for ten minutes."""
    pin(checkpoint)
    return load_manifest(checkpoint)


def _complete_manifest(checkpoint: Checkpoint) -> Manifest:
    root = job_uri(checkpoint.job_id)
    manifest = _read_manifest(root, _manifest_path(checkpoint), CHECKPOINT_FIELD)
    if (manifest.checkpoint, manifest.token) != (checkpoint.number, checkpoint.token):
        detail = f"it is of checkpoint {manifest.checkpoint}, attempt token {manifest.token}"
        raise _corrupt(f"{root}/{_manifest_path(checkpoint)}: {detail}", CHECKPOINT_FIELD)
    files = {segment.path: segment for segment in manifest.files()}
    _check_sizes(root, files, sorted({folder_of_file(path) for path in files}), CHECKPOINT_FIELD)
    return manifest


def _require_mounted(job_id: int) -> None:
    """Raises Refused if the storage of a job is not there: while it is not mounted, no file counts as missing."""
    try:
        check_mounted(job_uri(job_id))
    except EnvironmentFailure as error:
        raise _unreadable(error, CHECKPOINT_FIELD) from error


def readable_manifest(checkpoint: Checkpoint) -> Manifest | None:
    """The manifest of a completed checkpoint; None if it is missing or damaged. Its files are not looked at.

    Raises:
        Refused: the storage cannot be read at the moment.
    """
    try:
        return _read_manifest(job_uri(checkpoint.job_id), _manifest_path(checkpoint), CHECKPOINT_FIELD)
    except Refused as refused:
        if refused.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        _require_mounted(checkpoint.job_id)
        return None


def manifest_bytes(checkpoint: Checkpoint) -> int:
    """The size of the manifest's file; 0 if it is gone, or the storage cannot be read."""
    try:
        return job_store(checkpoint.job_id).size(_manifest_path(checkpoint)) or 0
    except EnvironmentFailure:
        return 0


def recorded_states(checkpoint: Checkpoint) -> tuple[StoredState, ...]:
    """The states that the manifest of a completed checkpoint names. Their files are not looked at.

    Raises:
        Refused: the manifest is missing or damaged.
    """
    manifest = _read_manifest(job_uri(checkpoint.job_id), _manifest_path(checkpoint), CHECKPOINT_FIELD)
    return stored_states(manifest)


def pin(checkpoint: Checkpoint) -> None:
    """Exempts a periodic checkpoint from retention for ten minutes (`core.snapshot.pins`). Savepoints need no pin.

    Call it before reading the manifest. If the storage is not writable, it only logs a warning.
    """
    if checkpoint.kind != Kind.CHECKPOINT:
        return
    entry = Pin(folder=checkpoint.path, until_ms=int(time.time() * 1000) + PIN_VALIDITY_MS)
    try:
        check_mounted(job_uri(checkpoint.job_id))
        job_store(checkpoint.job_id).put(f"{PINS_FOLDER}/console-{checkpoint.pk}.json", [encode_pin(entry)])
    except EnvironmentFailure as error:
        log.warning("retention may delete the checkpoint while it is read", checkpoint=checkpoint.pk, error=str(error))


def needs_folder(checkpoint: Checkpoint, folder: str) -> bool | None:
    """Whether the manifest of `checkpoint` names files below `folder`; None if the manifest cannot be read."""
    manifest = readable_manifest(checkpoint)
    return None if manifest is None else any(segment.path.startswith(f"{folder}/") for segment in manifest.files())


def delete_savepoint(checkpoint: Checkpoint) -> bool:
    """Deletes the files of a savepoint. Idempotent. Returns whether there were any.

    Raises:
        EnvironmentFailure: among other faults, the storage is not mounted: then no file counts as deleted.
    """
    assert parse_folder(checkpoint.path) is not None, "Weir names the folders of savepoints"
    root = job_uri(checkpoint.job_id)
    _require_deletable(root)
    return delete_folder(root, checkpoint.path)


def delete_clone(clone_id: int, cloned_id: int) -> bool:
    """Deletes the storage of a clone of the job `cloned_id`, as `delete_savepoint`."""
    _require_deletable(job_uri(cloned_id))
    return delete_folder(str(settings.WEIR_STORAGE), str(clone_id))


def delete_folder(root: str, folder: str) -> bool:
    """Deletes the files of a folder below `root`. Returns whether it had any.

    Raises:
        EnvironmentFailure: the storage fails.
    """
    store, leftovers = open_store(root), open_store(f"{root}/{folder}").leftover_files()
    files = [*store.list(f"{folder}/"), *(f"{folder}/{path}" for path in leftovers)]
    store.delete(files)
    return bool(files)


def _require_deletable(root: str) -> None:
    """Raises EnvironmentFailure if the folder of a job is missing because the storage is not mounted."""
    try:
        check_mounted(root)
    except EnvironmentFailure:
        if not _is_marked():
            raise


def mark_storage() -> None:
    """Writes a marker into the storage of Weir as soon as it has a recorded snapshot.

    A storage that is not mounted has neither. If the marker is there, the folder of a job that is missing was removed
    by hand. A bucket needs none.

    Raises:
        EnvironmentFailure: the storage cannot be read or written.
    """
    if not is_bucket(str(settings.WEIR_STORAGE)) and not _is_marked() and _has_snapshot():
        shared_store().put(STORAGE_MARKER, [])


def _is_marked() -> bool:
    try:
        shared_store().get(STORAGE_MARKER)
    except CorruptState:
        return False
    return True


def _has_snapshot() -> bool:
    checkpoints = Checkpoint.objects.filter(status=Status.COMPLETED, discarded_at=None)
    newest = checkpoints.order_by("-job_id", "-number").distinct("job_id").only("job", "path")[:_MAX_JOBS]
    return any(map(manifest_bytes, newest))


def load_savepoint(path: str) -> tuple[str, Manifest]:
    """The place of the savepoint at `path`, with its links resolved, and its manifest.

    Raises:
        Refused: the place is outside the allowed roots, has no complete savepoint, or names files outside it.
    """
    place = _allowed_place(path)
    _check_links(place, [MANIFEST_FILE])
    manifest = _read_manifest(place, MANIFEST_FILE, PATH_FIELD)
    try:
        names = relative_paths(manifest, place)
    except JobRejected as error:
        raise Refused(error.code, f"{error}.", PATH_FIELD) from error
    _check_links(place, list(names.values()))
    _check_sizes(place, {names[s.path]: s for s in manifest.segments()}, [""], PATH_FIELD)
    return place, manifest


def target_roots() -> list[str]:
    """The places below which savepoints may be copied: the roots outside the storage of Weir.

    Symbolic links are not followed, as pages name the roots while the storage hangs. `target_place` follows them.
    """
    roots = map(str, settings.WEIR_SAVEPOINT_ROOTS)
    return [root for root in roots if not _is_within(root, str(settings.WEIR_STORAGE))]


def target_place(path: str) -> str:
    """The place `path` for copies of savepoints, with its links resolved. It need not exist.

    Raises:
        Refused: the place is outside the allowed roots, or within the storage of Weir, which deletes what it does not
            know.
    """
    place = _allowed_place(path, TARGET_FIELD)
    if _is_within(place, _resolve(str(settings.WEIR_STORAGE))):
        detail = f"{TARGET_FIELD}: {path} lies within WEIR_STORAGE. Name a place below another root of savepoints."
        raise Refused("path-not-allowed", detail, TARGET_FIELD)
    return place


def file_chunks(store: Store, path: str, nbytes: int) -> Iterator[bytes]:
    """The bytes of a file, a part at a time. `nbytes`: what its manifest names; a longer file gives a byte more.

    Raises:
        CorruptState, EnvironmentFailure: as `Store.get_range`.
    """
    offset = 0
    while chunk := store.get_range(path, offset, min(_CHUNK_BYTES, nbytes + 1 - offset)):
        yield chunk
        offset += len(chunk)
        if offset > nbytes:
            return


def require_no_clash(job_id: int, place: str, manifest: Manifest) -> None:
    """Checks that the import folder has no savepoint with the same numbers from another installation.

    Raises:
        Refused: names both places.
    """
    root, folder = job_uri(job_id), manifest_folder(manifest)
    if place == _resolve(f"{root}/{folder}"):
        return
    try:
        home_manifest = _read_manifest(root, f"{folder}/{MANIFEST_FILE}", CHECKPOINT_FIELD)
    except Refused as refused:
        if refused.code != CORRUPT_CODE:
            raise
        return  # there is none, or the import replaces the damaged copy
    if not is_same_savepoint(home_manifest, manifest):
        detail = f"{place}: the job already has a different savepoint {folder}, in {root}/{folder}."
        raise Refused("savepoint-clash", detail, PATH_FIELD)


def home_folder(job_id: int, place: str, manifest: Manifest) -> str:
    """The folder of a savepoint below the storage root of its job; "" if `place` is elsewhere."""
    folder = manifest_folder(manifest)
    return folder if place == _resolve(f"{job_uri(job_id)}/{folder}") else ""


def _manifest_path(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.path}/{MANIFEST_FILE}"


def _allowed_place(text: str, field: str = PATH_FIELD) -> str:
    try:
        place = storage_uri(field, text) if is_bucket(text) else text
    except JobRejected as error:
        raise InvalidField(field, f"must be s3://bucket/prefix, not {text!r}") from error
    if not is_bucket(place) and (not Path(text).is_absolute() or "\0" in text):
        raise InvalidField(field, f"must be the absolute path of a folder, or s3://bucket/prefix, not {text!r}")
    place, roots = _resolve(place), [_resolve(str(root)) for root in settings.WEIR_SAVEPOINT_ROOTS]
    if not any(_is_within(place, root) for root in roots):
        detail = f"{field}: savepoints lie below {', '.join(roots)} only, not in {text}."
        raise Refused("path-not-allowed", detail, field)
    return place


def _is_within(place: str, root: str) -> bool:
    return f"{place}/".startswith(f"{root.rstrip('/')}/")


def _check_links(place: str, names: Sequence[str]) -> None:
    """Checks the files of a savepoint. A symbolic link out of its folder would bypass the allowed roots."""
    for name in names if not is_bucket(place) else ():
        if not _is_within(_resolve(f"{place}/{name}"), place):
            detail = f"{PATH_FIELD}: {place}/{name} links to a file outside its folder."
            raise Refused("path-not-allowed", detail, PATH_FIELD)


def _resolve(place: str) -> str:
    try:
        return place if is_bucket(place) else str(Path(place).resolve())
    except RuntimeError as error:
        raise _corrupt(f"{place}: its symbolic links form a cycle", PATH_FIELD) from error


def _read_manifest(root: str, path: str, field: str) -> Manifest:
    file = f"{root}/{path}"
    try:
        body = open_store(root).get(path)
    except CorruptState as error:
        raise _corrupt(f"{file}: there is no such file", field) from error
    except EnvironmentFailure as error:
        raise _unreadable(error, field) from error
    try:
        return decode_manifest(body, file, settings.WEIR_MANIFEST_KEYS, signed=field == PATH_FIELD)
    except CorruptState as error:
        raise _corrupt(str(error), field) from error
    except JobRejected as error:
        raise Refused(error.code, f"{error}.", field) from error


def _check_sizes(root: str, files: Mapping[str, Segment], folders: Sequence[str], field: str) -> None:
    """Compares files by path with the sizes in their manifest. `folders`: those that contain them; "": the root."""
    store, sizes = open_store(root), dict[str, int]()
    try:
        for folder in folders:
            sizes |= store.sizes(folder and f"{folder}/")
    except EnvironmentFailure as error:
        raise _unreadable(error, field) from error
    for path, segment in files.items():
        if path not in sizes:
            raise _corrupt(f"{root}/{path}: there is no such file", field)
        if sizes[path] != segment.nbytes:
            detail = f"it has {sizes[path]} bytes; its manifest names {segment.nbytes}"
            raise _corrupt(f"{root}/{path}: {detail}", field)


def _corrupt(detail: str, field: str) -> Refused:
    return Refused(CORRUPT_CODE, f"{detail}.", field)


def _unreadable(error: EnvironmentFailure, field: str) -> Refused:
    """The refusal for `error`: an outage of the storage, unless the name is too long for any file system."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno == ENAMETOOLONG:
        return _corrupt(f"{cause.filename}: there is no such file", field)
    detail = f"Checkpoint storage cannot be read: {error}. Nothing was changed; try again."
    return Refused("storage-away", detail, status=HTTPStatus.SERVICE_UNAVAILABLE)
