"""The manifest codec: JSON in an envelope with a checksum and, if a key is configured, a signature.

The checksum detects damage; the signature (HMAC-SHA256) detects a manifest from another writer. The signature covers
the state files too, since the manifest holds their BLAKE2b digests. A manifest without a signature was written without
a key. The argument `name` identifies the manifest in errors. A savepoint names no file outside its own folder, so it
can be moved: `relative_paths` maps its files.
"""

import hashlib
import hmac
from typing import Final

import msgspec

from runtime.core.snapshot.manifest import FORMAT_VERSION, Manifest, Segment, folder_of, is_variant
from runtime.errors import CorruptState, JobRejected

MANIFEST_FILE: Final = "manifest.json"
OTHER_FORMAT: Final = "other-format"  #: code of the refusal of a manifest with another format
MIN_KEY_CHARACTERS: Final = 32

SigningKeys = tuple[bytes, ...]  #: the first key signs, every key verifies; empty: manifests are not signed


class _Envelope(msgspec.Struct, omit_defaults=True):
    checksum: str
    manifest: msgspec.Raw
    signature: str = ""


class _Header(msgspec.Struct):
    """The part of a manifest that is equal in every format."""

    format: int


def parse_keys(text: str) -> SigningKeys:
    """The keys in `WEIR_MANIFEST_KEY`, separated by commas. Raises ValueError for a key that is too short."""
    keys = tuple(part.strip() for part in text.split(",") if part.strip())
    if any(len(key) < MIN_KEY_CHARACTERS for key in keys):
        raise ValueError(f"WEIR_MANIFEST_KEY: a key must have {MIN_KEY_CHARACTERS} characters or more")
    return tuple(key.encode() for key in keys)


def encode_manifest(manifest: Manifest, keys: SigningKeys = ()) -> bytes:
    body = msgspec.json.encode(manifest)
    signature = _signature(body, keys[0]) if keys else ""
    return msgspec.json.encode(_Envelope(_checksum(body), msgspec.Raw(body), signature))


def decode_manifest(data: bytes, name: str, keys: SigningKeys = (), *, signed: bool = False) -> Manifest:
    """Decodes and verifies a manifest.

    Args:
        signed: refuse a manifest without a signature, if there are keys. False in the job's own storage, which may
            hold manifests that are older than the key.

    Raises:
        CorruptState: truncated, altered or not a manifest.
        JobRejected: the format is another one; the signature is missing or of an unknown key; or a file has a path that
            no checkpoint uses.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        body = bytes(envelope.manifest)
        if _checksum(body) != envelope.checksum:
            raise CorruptState(name, "the checksum does not match; the file was altered or damaged")
        if keys:
            _check_signature(body, envelope.signature, keys, name, signed=signed)
        _check_format(msgspec.json.decode(body, type=_Header).format, name)
        manifest = msgspec.json.decode(body, type=Manifest)
        _check_paths(manifest, name)
        _check_variant(manifest, name)
        return manifest
    except msgspec.DecodeError as error:
        raise CorruptState(name, f"not a readable manifest: {error}") from error


def is_signed(data: bytes) -> bool:
    """Whether a readable manifest has a signature, which `decode_manifest` verifies if there are keys."""
    return bool(msgspec.json.decode(data, type=_Envelope).signature)


def manifest_folder(manifest: Manifest) -> str:
    """The folder of the checkpoint, below the job's storage root."""
    return folder_of(manifest.kind, manifest.checkpoint, manifest.token, manifest.variant)


def self_contained_manifest(manifest: Manifest) -> tuple[Manifest, dict[str, Segment]]:
    """A self-contained copy of a savepoint's manifest, and the segments to copy, by their new path.

    The segments to copy belong to finished subtasks, which the savepoint represents by their last snapshot.
    """
    home = f"{manifest_folder(manifest)}/"
    origins: dict[str, Segment] = {}

    def move(segment: Segment) -> Segment:
        if segment.path.startswith(home):
            return segment
        origins[home + segment.path] = segment
        return msgspec.structs.replace(segment, path=home + segment.path, content=b"")

    return manifest.with_segments(move), origins


def relative_paths(manifest: Manifest, name: str) -> dict[str, str]:
    """The files of a savepoint: path in the manifest -> path relative to the savepoint's folder.

    Raises:
        JobRejected: the manifest is of a periodic checkpoint, or names a file outside its folder.
    """
    if not manifest.kind.is_savepoint:
        shared = f"{manifest.kind} {manifest.checkpoint} shares files with other checkpoints"
        raise JobRejected("not-a-savepoint", name, f"{shared}; only a savepoint can be moved")
    home = f"{manifest_folder(manifest)}/"
    for segment in manifest.segments():
        if not segment.path.startswith(home) or ".." in segment.path.split("/"):
            raise JobRejected("not-a-savepoint", name, f"it names a file outside its own folder: {segment.path}")
    return {segment.path: segment.path.removeprefix(home) for segment in manifest.segments()}


def _check_signature(body: bytes, signature: str, keys: SigningKeys, name: str, *, signed: bool) -> None:
    if not signature and signed:
        detail = "it carries no signature, and only savepoints signed with WEIR_MANIFEST_KEY are read from here"
        raise JobRejected("not-signed", name, detail)
    if signature and not any(hmac.compare_digest(signature, _signature(body, key)) for key in keys):
        raise JobRejected("not-signed", name, "no key in WEIR_MANIFEST_KEY verifies its signature")


def _check_paths(manifest: Manifest, name: str) -> None:
    for segment in manifest.segments():
        if "\0" in segment.path or any(part in ("", ".", "..") for part in segment.path.split("/")):
            raise JobRejected("bad-path", name, f"it names a file by a path that no checkpoint has: {segment.path!r}")


def _check_variant(manifest: Manifest, name: str) -> None:
    """Checks the variant, which becomes part of the folder to which a restore copies the savepoint."""
    if manifest.variant and not is_variant(manifest.variant):
        raise JobRejected("bad-path", name, f"no savepoint has a folder with {manifest.variant!r} in its name")


def _signature(body: bytes, key: bytes) -> str:
    return "hmac-sha256:" + hmac.new(key, body, hashlib.sha256).hexdigest()


def other_format(format: int) -> str:
    """The text of the refusal `OTHER_FORMAT`: another version of this software wrote the checkpoint."""
    return f"the checkpoint has format {format}, this version reads format {FORMAT_VERSION}"


def _check_format(format: int, name: str) -> None:
    if format != FORMAT_VERSION:
        raise JobRejected(OTHER_FORMAT, name, other_format(format))


def _checksum(body: bytes) -> str:
    return "blake2b:" + hashlib.blake2b(body, digest_size=16).hexdigest()
