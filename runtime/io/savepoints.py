"""Savepoints: made whole when they are taken, and brought home from a folder that was moved or copied.

A savepoint names no file outside its own folder, so it is complete wherever it lies. It is copied to the place in the
job's storage that its manifest names, and is a savepoint of the job like any other from then on; where it came from is
only read. Checksums are verified when its state is read.
"""

from pathlib import PurePosixPath

from runtime.core.checkpoint import Manifest
from runtime.core.commit import without_committed
from runtime.core.envelope import at_home, home_of, inside
from runtime.errors import CorruptState, JobRejected
from runtime.io.filesystem import FileStore
from runtime.io.manifests import read_foreign_manifest, read_manifest, write_manifest
from runtime.ports import SnapshotStore


def manifest_at(store: SnapshotStore, place: str) -> Manifest:
    """The manifest of a checkpoint in the job's storage, or in a folder elsewhere if `place` is an absolute path.

    Raises:
        CorruptState: missing, truncated, altered or not a manifest; the file is named.
        JobRejected: its format is newer than this software, or it is not signed with a key of ours.
    """
    if not _is_elsewhere(place):
        return read_manifest(store, place)
    return read_foreign_manifest(FileStore(place), place)


def copy_home(store: SnapshotStore, place: str, manifest: Manifest) -> None:
    """Copies the files of the savepoint at `place` to where its manifest says, unless that is done. May be repeated.

    It is the job's only with its manifest, which `show_home` writes: one that is refused leaves the place free.

    Raises:
        CorruptState: a file is missing or has another length than its manifest says.
        JobRejected: it is not a savepoint, or another one has its place.
    """
    if not _is_elsewhere(place):
        return
    files = inside(manifest, place)
    if _is_at_home(store, place, manifest):
        return
    away = FileStore(place)
    for segment in manifest.segments():
        data = away.get(files[segment.path])
        if len(data) != segment.nbytes:
            detail = f"it has {len(data)} bytes; its manifest says {segment.nbytes}"
            raise CorruptState(f"{place}/{files[segment.path]}", detail)
        store.put(segment.path, [data])


def show_home(store: SnapshotStore, place: str, manifest: Manifest) -> None:
    """Makes a savepoint that `copy_home` has copied one of the job's. May be done again."""
    if _is_elsewhere(place) and not _is_at_home(store, place, manifest):
        write_manifest(store, manifest)


def gather(store: SnapshotStore, manifest: Manifest) -> tuple[Manifest, int]:
    """The savepoint with a copy of every file that lies outside its folder, and the bytes that this took.

    Raises:
        CorruptState: such a file is missing.
    """
    gathered, origins = at_home(manifest)
    copied_bytes = 0
    for path, origin in origins.items():
        data = store.get(origin)
        store.put(path, [data])
        copied_bytes += len(data)
    return gathered, copied_bytes


def _is_elsewhere(place: str) -> bool:
    return PurePosixPath(place).is_absolute()


def note_committed(store: SnapshotStore, savepoint: Manifest, later: Manifest | None = None) -> None:
    """Makes the manifest of a savepoint name no longer what has been committed; see `without_committed`.

    The manifest is what travels with a savepoint. On a machine that cannot see the output folder, nothing else shows
    what has become of prepared output.
    """
    left = without_committed(savepoint, later)
    if left != savepoint:
        write_manifest(store, left)


def _is_at_home(store: SnapshotStore, place: str, manifest: Manifest) -> bool:
    """Whether the job has this savepoint with all its files. The job's own may have more of its output committed.

    A savepoint of another installation may have the same job, number and attempt.
    """
    try:
        found = read_manifest(store, home_of(manifest))
    except CorruptState:
        return False  # nothing, or something that this one mends
    if without_committed(found) != without_committed(manifest):
        raise JobRejected("savepoint-clash", place, f"the job has another savepoint called {home_of(manifest)}")
    there = set(store.list(f"{home_of(manifest)}/"))
    return all(segment.path in there for segment in manifest.segments())
