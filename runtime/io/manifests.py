"""Manifests as files, in the folder of their checkpoint.

A checkpoint whose manifest cannot be read is not a checkpoint: the error names the file and what is wrong with it.
"""

from runtime.core.checkpoint import Manifest
from runtime.core.envelope import FILE_NAME, home_of, opened, sealed
from runtime.ports import SnapshotStore


def write_manifest(store: SnapshotStore, manifest: Manifest) -> tuple[str, int]:
    """Makes the manifest durable. Returns its folder and size in bytes."""
    folder, data = home_of(manifest), sealed(manifest)
    store.put(f"{folder}/{FILE_NAME}", [data])
    return folder, len(data)


def read_manifest(store: SnapshotStore, folder: str) -> Manifest:
    """Reads and verifies.

    Raises:
        CorruptState: missing, truncated, altered or not a manifest; the file is named.
        JobRejected: its format is newer than this software.
    """
    path = f"{folder}/{FILE_NAME}"
    return opened(store.get(path), path)
