"""Checksums of state files: written with each segment, and verified by each read and each copy."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from runtime.core.snapshot.manifest import Segment
from runtime.errors import CorruptState

_ALGORITHM: Final = "blake2b"
_DIGEST_BYTES: Final = 16


class Checksum:
    """The checksum of bytes that come in parts."""

    def __init__(self, *parts: bytes) -> None:
        self._digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for part in parts:
            self._digest.update(part)

    def update(self, part: bytes) -> None:
        self._digest.update(part)

    @property
    def text(self) -> str:
        """As in `Segment.checksum`."""
        return f"{_ALGORITHM}:{self._digest.hexdigest()}"


def checksum_fault(expected: str, actual: Checksum) -> str:
    """Why bytes are not those with the checksum `expected`, as a clause; "" if they are."""
    algorithm, _, _ = expected.partition(":")
    if algorithm != _ALGORITHM:
        return f"unknown checksum algorithm {algorithm}"
    return "" if actual.text == expected else "it was altered: its checksum differs from its manifest"


def verified_chunks(segment: Segment, chunks: Iterable[bytes], file: str = "") -> Iterator[bytes]:
    """Passes the bytes of a segment on, to be copied, and verifies them at the end.

    Args:
        file: the name of the file in errors; "": the path of the segment.

    Raises:
        CorruptState: the bytes differ from the manifest in number or checksum. No copy must be kept.
    """
    actual, nbytes = Checksum(), 0
    for chunk in chunks:
        actual.update(chunk)
        nbytes += len(chunk)
        yield chunk
    if nbytes != segment.nbytes:
        raise CorruptState(file or segment.path, f"it has {nbytes} bytes; its manifest says {segment.nbytes}")
    if fault := checksum_fault(segment.checksum, actual):
        raise CorruptState(file or segment.path, fault)
