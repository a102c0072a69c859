"""State files: Arrow IPC streams with a checksum that is verified on every read.

Streams, since the IPC file format refuses a dictionary that changes. Nothing in a state file is ever executed.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from runtime.core.checkpoint import Segment
from runtime.errors import CorruptState
from runtime.ports import SnapshotStore

_ROWS_PER_MESSAGE: Final = 65_536
_DIGEST_BYTES: Final = 16
_ALGORITHM: Final = "blake2b"


def write_segment(store: SnapshotStore, path: str, batch: pa.RecordBatch, groups: tuple[int, int]) -> Segment:
    """Stores `batch` under `path`. `groups` are the first and last key group that may occur in it."""
    sink = _CountingSink()
    store.put(path, _encoded(batch, sink))
    return Segment(
        path=path,
        rows=batch.num_rows,
        nbytes=sink.nbytes,
        checksum=f"{_ALGORITHM}:{sink.digest.hexdigest()}",
        first_group=groups[0],
        last_group=groups[1],
    )


def read_segment(store: SnapshotStore, segment: Segment) -> pa.RecordBatch:
    """Reads and verifies.

    Raises:
        CorruptState: the file is missing, truncated or altered; it is named.
    """
    data = store.get(segment.path)
    _verify(segment, data)
    try:
        table = pa.ipc.open_stream(data).read_all()
    except pa.ArrowInvalid as error:
        raise CorruptState(f"state file {segment.path} is not an Arrow stream: {error}") from error
    return pa.concat_batches(table.to_batches()) if table.num_rows else pa.RecordBatch.from_pylist([], table.schema)


def _verify(segment: Segment, data: bytes) -> None:
    if len(data) != segment.nbytes:
        raise CorruptState(f"state file {segment.path} has {len(data)} bytes; its manifest says {segment.nbytes}")
    algorithm, _, expected = segment.checksum.partition(":")
    if algorithm != _ALGORITHM:
        raise CorruptState(f"state file {segment.path} has a checksum of an unknown kind: {algorithm}")
    if hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest() != expected:
        raise CorruptState(f"state file {segment.path} has been altered: its checksum is not that of its manifest")


class _CountingSink:
    """Where the IPC writer writes: keeps what is not yet passed on, and counts and digests everything."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.digest: Any = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self.closed = False
        self._chunks: list[bytes] = []

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        self.nbytes += len(chunk)
        self.digest.update(chunk)
        self._chunks.append(chunk)
        return len(chunk)

    def flush(self) -> None:
        """Part of what the IPC writer asks of a file."""

    def taken(self) -> list[bytes]:
        chunks, self._chunks = self._chunks, []
        return chunks


def _encoded(batch: pa.RecordBatch, sink: _CountingSink) -> Iterator[bytes]:
    """The bytes of the stream, message by message, so that a large state is never encoded twice in memory."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), batch.schema, options=options) as writer:
        for start in range(0, batch.num_rows, _ROWS_PER_MESSAGE):
            writer.write_batch(batch.slice(start, _ROWS_PER_MESSAGE))
            yield from sink.taken()
    yield from sink.taken()
