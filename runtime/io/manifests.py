"""Manifests as files, in the folder of their checkpoint.

A checkpoint with an unreadable manifest is not a checkpoint: the error names the file and the defect.
"""

from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import FILE_NAME, Keys, home_of, opened, sealed
from runtime.ports import SnapshotStore


class _Signing:
    keys: Keys = ()


def sign_with(keys: Keys) -> None:
    """Sets the signing keys of this process, at its start. Without keys, manifests are neither signed nor rejected."""
    _Signing.keys = keys


def write_manifest(store: SnapshotStore, manifest: Manifest) -> tuple[str, int]:
    """Makes the manifest durable. Returns its folder and size in bytes."""
    folder, data = home_of(manifest), sealed(manifest, _Signing.keys)
    store.put(f"{folder}/{FILE_NAME}", [data])
    return folder, len(data)


def read_manifest(store: SnapshotStore, folder: str) -> Manifest:
    """Reads and verifies.

    Raises:
        CorruptState: missing, truncated, altered or not a manifest; the error names the file.
        JobRejected: the format is newer than this software, or the signature is not from a known key.
    """
    path = f"{folder}/{FILE_NAME}"
    return opened(store.get(path), path, _Signing.keys)


def read_foreign_manifest(store: SnapshotStore, name: str) -> Manifest:
    """Manifest of a savepoint whose folder is the root of `store`. Errors refer to the folder as `name`.

    Raises:
        CorruptState: missing, truncated, altered or not a manifest; the error names the file.
        JobRejected: the format is newer than this software, or the manifest is not signed with a known key.
    """
    return opened(store.get(FILE_NAME), f"{name}/{FILE_NAME}", _Signing.keys, signed=True)
