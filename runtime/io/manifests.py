"""Manifests as files, in the folder of their checkpoint.

A checkpoint with an unreadable manifest is not a checkpoint: the error names the file and the defect.
"""

from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import (
    MANIFEST_FILE,
    SigningKeys,
    decode_manifest,
    encode_manifest,
    manifest_folder,
)
from runtime.ports import SnapshotStore


class _Signing:
    keys: SigningKeys = ()


def set_signing_keys(keys: SigningKeys) -> None:
    """Sets the signing keys of this process, at its start. Without keys, manifests are neither signed nor rejected."""
    _Signing.keys = keys


def write_manifest(store: SnapshotStore, manifest: Manifest) -> tuple[str, int]:
    """Makes the manifest durable. Returns its folder and size in bytes."""
    folder, data = manifest_folder(manifest), encode_manifest(manifest, _Signing.keys)
    store.put(f"{folder}/{MANIFEST_FILE}", [data])
    return folder, len(data)


def read_manifest(store: SnapshotStore, folder: str) -> Manifest:
    """Reads and verifies the manifest in `folder`.

    Raises:
        CorruptState: missing, truncated, altered or not a manifest; the error names the file.
        JobRejected: the format is newer than this software, or the signature is not from a known key.
    """
    path = f"{folder}/{MANIFEST_FILE}"
    return decode_manifest(store.get(path), path, _Signing.keys)


def read_foreign_manifest(store: SnapshotStore, name: str) -> Manifest:
    """Manifest of a savepoint whose folder is the root of `store`. Errors refer to the folder as `name`.

    Raises:
        CorruptState: missing, truncated, altered or not a manifest; the error names the file.
        JobRejected: the format is newer than this software, or the manifest is not signed with a known key.
    """
    return decode_manifest(store.get(MANIFEST_FILE), f"{name}/{MANIFEST_FILE}", _Signing.keys, signed=True)
