"""A manifest as bytes: JSON in an envelope that carries its checksum.

It does not know where the bytes lie; `name` is what an error calls them. Where the files of a savepoint lie after its
folder was moved follows from `inside`, since a savepoint names no file outside its own folder.
"""

import hashlib
from typing import Final

import msgspec

from runtime.core.checkpoint import FORMAT_VERSION, Manifest, Segment, folder_of
from runtime.core.mapping import newer_format
from runtime.errors import CorruptState, JobRejected

FILE_NAME: Final = "manifest.json"


class _Envelope(msgspec.Struct):
    checksum: str
    manifest: msgspec.Raw


class _Header(msgspec.Struct):
    """What every format has in common."""

    format: int


def sealed(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Envelope(_checksum(body), msgspec.Raw(body)))


def opened(data: bytes, name: str) -> Manifest:
    """The manifest in `data`.

    Raises:
        CorruptState: truncated, altered or not a manifest.
        JobRejected: its format is newer than this software.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        body = bytes(envelope.manifest)
        if _checksum(body) != envelope.checksum:
            raise CorruptState(name, "the checksum does not match; the file was altered or damaged")
        _check_format(msgspec.json.decode(body, type=_Header).format, name)
        return msgspec.json.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise CorruptState(name, f"not a readable manifest: {error}") from error


def home_of(manifest: Manifest) -> str:
    """The folder below the job's storage root that the checkpoint was written to."""
    return folder_of(manifest.kind, manifest.checkpoint, manifest.token)


def at_home(manifest: Manifest) -> tuple[Manifest, dict[str, str]]:
    """A savepoint with every segment in its own folder, and where those come from that were written for another.

    They are of subtasks that had ended: these take no part, so their last snapshot goes on standing for them.
    """
    home = f"{home_of(manifest)}/"
    origins: dict[str, str] = {}

    def moved(segment: Segment) -> Segment:
        if segment.path.startswith(home):
            return segment
        origins[home + segment.path] = segment.path
        return msgspec.structs.replace(segment, path=home + segment.path)

    return manifest.with_segments(moved), origins


def inside(manifest: Manifest, name: str) -> dict[str, str]:
    """The files of a savepoint relative to its own folder, wherever that is, by their paths in the manifest.

    Raises:
        JobRejected: it is a periodic checkpoint, or names a file outside its folder.
    """
    if not manifest.kind.is_savepoint:
        detail = f"{manifest.kind} {manifest.checkpoint} shares files with others; only a savepoint can be moved"
        raise JobRejected("not-a-savepoint", name, detail)
    home = f"{home_of(manifest)}/"
    for segment in manifest.segments():
        if not segment.path.startswith(home) or ".." in segment.path.split("/"):
            raise JobRejected("not-a-savepoint", name, f"it names a file outside its own folder: {segment.path}")
    return {segment.path: segment.path.removeprefix(home) for segment in manifest.segments()}


def _check_format(format: int, name: str) -> None:
    if format > FORMAT_VERSION:
        problem = newer_format(format)
        raise JobRejected(problem.code, name, problem.detail)


def _checksum(body: bytes) -> str:
    return "blake2b:" + hashlib.blake2b(body, digest_size=16).hexdigest()
