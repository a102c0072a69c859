"""Savepoints: made self-contained when they are taken, and imported from a folder that was moved or copied.

A savepoint names no file outside its folder, so the folder may be anywhere. An import copies it to the folder in the
job's storage that its manifest names. From then on it is a savepoint of the job like any other. The origin is only
read. Each copy verifies the checksums.
"""

from runtime.core.snapshot.checksums import verified_chunks
from runtime.core.snapshot.commit import is_same_savepoint, pending_only
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import manifest_folder, relative_paths, self_contained_manifest
from runtime.errors import CorruptState, JobRejected
from runtime.io.manifests import read_foreign_manifest, read_manifest, write_manifest
from runtime.io.store import is_absolute, open_store
from runtime.ports import SnapshotStore


def manifest_at(store: SnapshotStore, place: str) -> Manifest:
    """Manifest of a checkpoint in the job's storage, or elsewhere if `place` is an absolute path or a URI.

    Raises:
        CorruptState: missing, truncated, altered or not a manifest; the error names the file.
        JobRejected: the format is newer than this software, or the manifest is not signed with a known key.
    """
    if not is_absolute(place):
        return read_manifest(store, place)
    return read_foreign_manifest(open_store(place), place)


def import_files(store: SnapshotStore, place: str, manifest: Manifest) -> None:
    """Copies the files of the savepoint at `place` to the folder that its manifest names. Idempotent.

    Only `publish_import` makes it a savepoint of the job: if it is rejected before, its folder name stays free.

    Raises:
        CorruptState: a file is missing, or differs from the manifest.
        JobRejected: it is not a savepoint, or another savepoint has its folder.
    """
    if not is_absolute(place):
        return
    files = relative_paths(manifest, place)
    if _is_imported(store, place, manifest):
        return
    away = open_store(place)
    for segment in manifest.segments():
        name = files[segment.path]
        store.put(segment.path, verified_chunks(segment, [away.get(name)], f"{place}/{name}"))


def publish_import(store: SnapshotStore, place: str, manifest: Manifest) -> None:
    """Writes the manifest of a savepoint that `import_files` has copied. Idempotent."""
    if is_absolute(place) and not _is_imported(store, place, manifest):
        write_manifest(store, manifest)


def make_self_contained(store: SnapshotStore, manifest: Manifest) -> tuple[Manifest, int]:
    """Stores every segment from outside the savepoint's folder in it. Returns the new manifest and the bytes copied.

    Raises:
        CorruptState: a file to copy is missing, or differs from the manifest.
    """
    gathered, origins = self_contained_manifest(manifest)
    copied_bytes = 0
    for path, origin in origins.items():
        store.put(path, verified_chunks(origin, [origin.content or store.get(origin.path)]))
        copied_bytes += origin.nbytes
    return gathered, copied_bytes


def drop_committed_output(store: SnapshotStore, savepoint: Manifest, later: Manifest | None = None) -> None:
    """Removes committed output from the stored manifest of a savepoint; see `pending_only`.

    A savepoint travels with its manifest, which alone shows the fate of prepared output where the output folder is
    absent.
    """
    left = pending_only(savepoint, later)
    if left != savepoint:
        write_manifest(store, left)


def _is_imported(store: SnapshotStore, place: str, manifest: Manifest) -> bool:
    """Whether the job has this savepoint, with files of the right sizes.

    The job's copy may show more committed output. A savepoint of another installation may have the same job, number
    and attempt.
    """
    try:
        savepoint = read_manifest(store, manifest_folder(manifest))
    except CorruptState:
        return False  # missing, or damaged: the import repairs it
    if not is_same_savepoint(savepoint, manifest):
        raise JobRejected("savepoint-clash", place, f"the job has another savepoint called {manifest_folder(manifest)}")
    sizes = store.sizes(f"{manifest_folder(manifest)}/")
    return all(sizes.get(segment.path) == segment.nbytes for segment in manifest.segments())
