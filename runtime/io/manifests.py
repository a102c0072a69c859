"""Manifests as files, in the folder of their checkpoint.

A checkpoint whose manifest cannot be read is not a checkpoint: the error names the file and what is wrong with it.
"""

from runtime.core.checkpoint import Manifest
from runtime.core.envelope import FILE_NAME, Keys, home_of, opened, sealed
from runtime.ports import SnapshotStore


class _Signing:
    keys: Keys = ()


def sign_with(keys: Keys) -> None:
    """The keys of this process, set once at its start. Without keys manifests are neither signed nor refused."""
    _Signing.keys = keys


def write_manifest(store: SnapshotStore, manifest: Manifest) -> tuple[str, int]:
    """Makes the manifest durable. Returns its folder and size in bytes."""
    folder, data = home_of(manifest), sealed(manifest, _Signing.keys)
    store.put(f"{folder}/{FILE_NAME}", [data])
    return folder, len(data)


def read_manifest(store: SnapshotStore, folder: str) -> Manifest:
    """Reads and verifies.

    Raises:
        CorruptState: missing, truncated, altered or not a manifest; the file is named.
        JobRejected: its format is newer than this software, or it is not ours.
    """
    path = f"{folder}/{FILE_NAME}"
    return opened(store.get(path), path, _Signing.keys)


def read_foreign_manifest(store: SnapshotStore, name: str) -> Manifest:
    """That of a savepoint in a folder of its own, the root of `store`; `name` is what errors call it.

    Raises:
        CorruptState: missing, truncated, altered or not a manifest; the file is named.
        JobRejected: its format is newer than this software, or it is not signed with a key of ours.
    """
    return opened(store.get(FILE_NAME), f"{name}/{FILE_NAME}", _Signing.keys, signed=True)
