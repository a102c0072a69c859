"""Checkpoint storage: manifests, and whether the files that they name exist.

Checks read a small manifest and compare file sizes, so that a bad checkpoint is refused before anything starts.
Checksums are verified when state is read. Viewing a checkpoint's state pins the checkpoint. Folders outside the job's
storage are read below `WEIR_SAVEPOINT_ROOTS` only.
"""

import shutil
import time
from collections.abc import Iterable, Iterator
from errno import ENAMETOOLONG
from http import HTTPStatus
from pathlib import Path
from typing import Final
from uuid import uuid4

import structlog
from django.conf import settings

from console.accounts.refusals import InvalidField, Refused
from console.checkpoints.models import Checkpoint, Kind, Status
from runtime.core.snapshot.commit import is_same_savepoint
from runtime.core.snapshot.contents import StoredState, stored_states
from runtime.core.snapshot.manifest import Manifest, Segment, parse_folder
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest, manifest_folder, relative_paths
from runtime.core.snapshot.pins import PIN_VALIDITY_MS, PINS_FOLDER, Pin, encode_pin
from runtime.errors import CorruptState, JobRejected

log = structlog.get_logger(__name__)

STORAGE_MARKER: Final = ".weir-storage"  #: file in `WEIR_STORAGE`
_MAX_JOBS: Final = 10  #: newest, one of whose snapshots shows that the storage is mounted
_CHUNK_BYTES: Final = 1 << 20
CORRUPT_CODE: Final = "corrupt-checkpoint"
CHECKPOINT_FIELD, PATH_FIELD, TARGET_FIELD = "params.checkpoint", "params.path", "params.target"


def job_root(job_id: int) -> Path:
    """The storage root of a job, which the job master uses too."""
    return Path(settings.WEIR_STORAGE) / str(job_id)


def load_manifest(checkpoint: Checkpoint) -> Manifest:
    """The manifest of a completed checkpoint whose files all exist.

    Raises:
        Refused: names the file that is missing or damaged, or the storage that cannot be read at the moment.
    """
    root = job_root(checkpoint.job_id)
    try:
        return _complete_manifest(checkpoint, root)
    except Refused as refused:
        if refused.code == CORRUPT_CODE:
            _require_mounted(root)
        raise


def load_pinned_manifest(checkpoint: Checkpoint) -> Manifest:
    """As `load_manifest`. The checkpoint is pinned before, so retention keeps its files for ten minutes."""
    pin(checkpoint)
    return load_manifest(checkpoint)


def _complete_manifest(checkpoint: Checkpoint, root: Path) -> Manifest:
    file = root / checkpoint.path / MANIFEST_FILE
    manifest = _read_manifest(file, CHECKPOINT_FIELD)
    if (manifest.checkpoint, manifest.token) != (checkpoint.number, checkpoint.token):
        detail = f"it is of checkpoint {manifest.checkpoint}, attempt token {manifest.token}"
        raise _corrupt(f"{file}: {detail}", CHECKPOINT_FIELD)
    _check_sizes(((root / segment.path, segment) for segment in manifest.files()), CHECKPOINT_FIELD)
    return manifest


def _require_mounted(root: Path) -> None:
    """Raises Refused if the storage of a job is not there: while it is not mounted, no file counts as missing."""
    try:
        root.stat()
    except OSError as error:
        raise _unreadable(error, CHECKPOINT_FIELD) from error


def readable_manifest(checkpoint: Checkpoint) -> Manifest | None:
    """The manifest of a completed checkpoint; None if it is missing or damaged. Its files are not looked at.

    Raises:
        Refused: the storage cannot be read at the moment.
    """
    try:
        return _read_manifest(_manifest_file(checkpoint), CHECKPOINT_FIELD)
    except Refused as refused:
        if refused.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        _require_mounted(job_root(checkpoint.job_id))
        return None


def manifest_bytes(checkpoint: Checkpoint) -> int:
    """The size of the manifest's file; 0 if it is gone."""
    try:
        return _manifest_file(checkpoint).stat().st_size
    except OSError:
        return 0


def recorded_states(checkpoint: Checkpoint) -> tuple[StoredState, ...]:
    """The states that the manifest of a completed checkpoint names. Their files are not looked at.

    Raises:
        Refused: the manifest is missing or damaged.
    """
    return stored_states(_read_manifest(_manifest_file(checkpoint), CHECKPOINT_FIELD))


def pin(checkpoint: Checkpoint) -> None:
    """Exempts a periodic checkpoint from retention for ten minutes (`core.snapshot.pins`). Savepoints need no pin.

    Call it before reading the manifest. If the storage is not writable, it only logs a warning.
    """
    if checkpoint.kind != Kind.CHECKPOINT:
        return
    entry = Pin(folder=checkpoint.path, until_ms=int(time.time() * 1000) + PIN_VALIDITY_MS)
    file = job_root(checkpoint.job_id) / PINS_FOLDER / f"console-{checkpoint.pk}.json"
    aside = file.with_name(f".tmp-{uuid4().hex}")
    try:
        file.parent.mkdir(exist_ok=True)
        aside.write_bytes(encode_pin(entry))
        aside.replace(file)
    except OSError as error:
        log.warning("retention may delete the checkpoint while it is read", checkpoint=checkpoint.pk, error=str(error))


def needs_folder(checkpoint: Checkpoint, folder: str) -> bool | None:
    """Whether the manifest of `checkpoint` names files below `folder`; None if the manifest cannot be read."""
    manifest = readable_manifest(checkpoint)
    return None if manifest is None else any(segment.path.startswith(f"{folder}/") for segment in manifest.files())


def delete_savepoint(checkpoint: Checkpoint) -> bool:
    """Deletes the folder of a savepoint, as `_delete`."""
    assert parse_folder(checkpoint.path) is not None, "Weir names the folders of savepoints"
    root = job_root(checkpoint.job_id)
    return _delete(root / checkpoint.path, beside=root)


def delete_clone(clone_id: int, cloned_id: int) -> bool:
    """Deletes the storage of a clone of the job `cloned_id`, as `_delete`."""
    return _delete(job_root(clone_id), beside=job_root(cloned_id))


def _delete(folder: Path, beside: Path) -> bool:
    """Deletes a folder in the storage of Weir. Idempotent. Returns whether the folder existed.

    Raises:
        OSError: among other faults, the storage is not mounted: then no folder counts as deleted.
    """
    try:
        beside.stat()
    except FileNotFoundError:
        if not _marker().is_file():
            raise
    if not folder.exists():
        return False
    shutil.rmtree(folder)
    return True


def mark_storage() -> None:
    """Writes a marker into the storage of Weir as soon as it has a recorded snapshot.

    A storage that is not mounted has neither. If the marker is there, the folder of a job that is missing was removed
    by hand.

    Raises:
        OSError: the storage cannot be read or written.
    """
    marker = _marker()
    if not marker.is_file() and _has_snapshot():
        marker.touch()


def _marker() -> Path:
    return Path(settings.WEIR_STORAGE) / STORAGE_MARKER


def _has_snapshot() -> bool:
    checkpoints = Checkpoint.objects.filter(status=Status.COMPLETED, discarded_at=None)
    newest = checkpoints.order_by("-job_id", "-number").distinct("job_id").only("job", "path")[:_MAX_JOBS]
    return any(_manifest_file(row).is_file() for row in newest)


def load_savepoint(path: str) -> tuple[Path, Manifest]:
    """The savepoint folder `path`, resolved, and its manifest.

    Raises:
        Refused: the folder is outside the allowed roots, has no complete savepoint, or names files outside it.
    """
    folder = _allowed_folder(path)
    manifest = _read_manifest(_file_within(folder, MANIFEST_FILE), PATH_FIELD)
    try:
        files = relative_paths(manifest, str(folder))
    except JobRejected as error:
        raise Refused(error.code, f"{error}.", PATH_FIELD) from error
    _check_sizes(((_file_within(folder, files[s.path]), s) for s in manifest.segments()), PATH_FIELD)
    return folder, manifest


def target_roots() -> list[Path]:
    """The folders below which savepoints may be copied: the roots outside the storage of Weir.

    Symbolic links are not followed, as pages name the roots while the storage hangs. `target_folder` follows them.
    """
    home = Path(settings.WEIR_STORAGE).absolute()
    roots = [Path(root).absolute() for root in settings.WEIR_SAVEPOINT_ROOTS]
    return [root for root in roots if not root.is_relative_to(home)]


def target_folder(path: str) -> Path:
    """The folder `path` for copies of savepoints, resolved. It need not exist.

    Raises:
        Refused: the folder is outside the allowed roots, or within the storage of Weir, which deletes what it does not
            know.
    """
    folder = _allowed_folder(path, TARGET_FIELD)
    if folder.is_relative_to(Path(settings.WEIR_STORAGE).resolve()):
        detail = f"{TARGET_FIELD}: {path} lies within WEIR_STORAGE. Name a folder below another root of savepoints."
        raise Refused("path-not-allowed", detail, TARGET_FIELD)
    return folder


def file_chunks(file: Path) -> Iterator[bytes]:
    """The bytes of a file, a part at a time."""
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            yield chunk


def require_no_clash(job_id: int, folder: Path, manifest: Manifest) -> None:
    """Checks that the import folder has no savepoint with the same numbers from another installation.

    Raises:
        Refused: names both folders.
    """
    home = job_root(job_id) / manifest_folder(manifest)
    if home.resolve() == folder or not (home / MANIFEST_FILE).is_file():
        return
    try:
        home_manifest = _read_manifest(home / MANIFEST_FILE, CHECKPOINT_FIELD)
    except Refused as refused:
        if refused.code != CORRUPT_CODE:
            raise
        return  # the import replaces the damaged copy
    if not is_same_savepoint(home_manifest, manifest):
        detail = f"{folder}: the job already has a different savepoint {home.name}, in {home}."
        raise Refused("savepoint-clash", detail, PATH_FIELD)


def _manifest_file(checkpoint: Checkpoint) -> Path:
    return job_root(checkpoint.job_id) / checkpoint.path / MANIFEST_FILE


def _allowed_folder(text: str, field: str = PATH_FIELD) -> Path:
    path = Path(text)
    if not path.is_absolute() or "\0" in text:
        raise InvalidField(field, f"must be the absolute path of a folder, not {text!r}")
    folder = _resolve(path)
    roots = [Path(root).resolve() for root in settings.WEIR_SAVEPOINT_ROOTS]
    if not any(folder.is_relative_to(root) for root in roots):
        paths = ", ".join(str(root) for root in roots)
        raise Refused(
            "path-not-allowed", f"{field}: folders of savepoints lie below {paths} only, not in {text}.", field
        )
    return folder


def _file_within(folder: Path, name: str) -> Path:
    """A file of a savepoint. A symbolic link out of its folder would bypass the allowed roots."""
    file = _resolve(folder / name)
    if not file.is_relative_to(folder):
        raise Refused(
            "path-not-allowed", f"{PATH_FIELD}: {folder / name} links to a file outside its folder.", PATH_FIELD
        )
    return file


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError as error:
        raise _corrupt(f"{path}: its symbolic links form a cycle", PATH_FIELD) from error


def _read_manifest(file: Path, field: str) -> Manifest:
    try:
        if not file.is_file():
            raise _corrupt(f"{file}: there is no such file", field)
        return decode_manifest(file.read_bytes(), str(file), settings.WEIR_MANIFEST_KEYS, signed=field == PATH_FIELD)
    except CorruptState as error:
        raise _corrupt(str(error), field) from error
    except JobRejected as error:
        raise Refused(error.code, f"{error}.", field) from error
    except OSError as error:
        raise _unreadable(error, field) from error


def _check_sizes(files: Iterable[tuple[Path, Segment]], field: str) -> None:
    for file, segment in files:
        try:
            nbytes = file.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            raise _corrupt(f"{file}: there is no such file", field) from None
        except OSError as error:
            raise _unreadable(error, field) from error
        if nbytes != segment.nbytes:
            raise _corrupt(f"{file}: it has {nbytes} bytes; its manifest names {segment.nbytes}", field)


def _corrupt(detail: str, field: str) -> Refused:
    return Refused(CORRUPT_CODE, f"{detail}.", field)


def _unreadable(error: OSError, field: str) -> Refused:
    """The refusal for `error`: an outage of the storage, unless the name is too long for any file system."""
    if error.errno == ENAMETOOLONG:
        return _corrupt(f"{error.filename}: there is no such file", field)
    detail = f"Checkpoint storage cannot be read: {error}. Nothing was changed; try again."
    return Refused("storage-away", detail, status=HTTPStatus.SERVICE_UNAVAILABLE)
