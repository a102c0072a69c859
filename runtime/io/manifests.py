"""Manifests as files: JSON with a format version and a checksum, in the folder of their checkpoint.

A checkpoint whose manifest cannot be read is not a checkpoint: the error names the file and what is wrong with it.
"""

import hashlib
from typing import Final

import msgspec

from runtime.core.checkpoint import Manifest, folder_of
from runtime.errors import CorruptState
from runtime.ports import SnapshotStore

FILE_NAME: Final = "manifest.json"


class _Envelope(msgspec.Struct):
    checksum: str
    manifest: msgspec.Raw


def _checksum(body: bytes) -> str:
    return "blake2b:" + hashlib.blake2b(body, digest_size=16).hexdigest()


def write_manifest(store: SnapshotStore, manifest: Manifest) -> tuple[str, int]:
    """Makes the manifest durable. Returns its folder and size in bytes."""
    folder = folder_of(manifest.kind, manifest.checkpoint, manifest.token)
    body = msgspec.json.encode(manifest)
    data = msgspec.json.encode(_Envelope(_checksum(body), msgspec.Raw(body)))
    store.put(f"{folder}/{FILE_NAME}", [data])
    return folder, len(data)


def read_manifest(store: SnapshotStore, folder: str) -> Manifest:
    """Raises CorruptState naming the file: missing, truncated, altered or not a manifest."""
    path = f"{folder}/{FILE_NAME}"
    try:
        envelope = msgspec.json.decode(store.get(path), type=_Envelope)
        body = bytes(envelope.manifest)
        if _checksum(body) != envelope.checksum:
            raise CorruptState(path, "the checksum does not match; the file was altered or damaged")
        return msgspec.json.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise CorruptState(path, f"not a readable manifest: {error}") from error
