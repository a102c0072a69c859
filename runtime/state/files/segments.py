"""State files: Arrow IPC streams with checksums that are verified on every read.

The stream format is used because the IPC file format refuses dictionary replacement. Reading a state file executes no
code.

A large file sorted by key group consists of blocks that end at key group borders, each with its own checksum. A subtask
reads the head of the file (the schema) and only the blocks with its key groups.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from runtime.core.snapshot.checksums import Checksum, checksum_fault
from runtime.core.snapshot.manifest import Segment, SegmentBlock
from runtime.errors import CorruptState
from runtime.ports import SnapshotStore
from runtime.state.primary_key import PrimaryKey

MIN_BLOCK_BYTES: Final = 1 << 18  #: minimum size of a block before compression: small states have a single block
MAX_BLOCKS: Final = 128  #: per file: the manifest names every block
READ_AHEAD_BYTES: Final = 64 << 20

_ROWS_PER_MESSAGE: Final = 65_536
_MESSAGE_BYTES: Final = 1 << 20  #: buffer of the IPC writer; most messages fit


def write_segment(
    store: SnapshotStore,
    path: str,
    batches: Iterable[pa.RecordBatch],
    rows: int,
    groups: tuple[int, int] | None,
    inline_bytes: int = 0,
) -> Segment:
    """Writes `batches` (at least one, all of one schema) to `path`.

    Args:
        rows: upper bound of the row count.
        groups: first and last key group that may occur. None: the first column is the key group; rows are sorted by it
            and no group spans two batches.
        inline_bytes: a segment of at most this size is inline, and no file is written.
    """
    sink = _CountingSink()
    if groups is None:
        encoded = _encode(batches, sink, lambda batch: _cut_into_blocks(batch, rows // MAX_BLOCKS))
        content = _put_or_keep(store, path, encoded, inline_bytes)
        groups = (sink.blocks[0].first_group, sink.blocks[-1].last_group)
    else:
        first, last = groups
        encoded = _encode(batches, sink, lambda batch: [_BlockRows(0, batch.num_rows, first, last)])
        content = _put_or_keep(store, path, encoded, inline_bytes)
        sink.blocks.clear()
    return Segment(
        path=path,
        rows=sink.rows,
        nbytes=sink.nbytes,
        checksum=sink.digest.text,
        first_group=groups[0],
        last_group=groups[1],
        blocks=tuple(sink.blocks) if len(sink.blocks) > 1 and not content else (),
        content=content,
    )


def _put_or_keep(store: SnapshotStore, path: str, encoded: Iterator[bytes], inline_bytes: int) -> bytes:
    """Stores a file, unless all bytes are at most `inline_bytes`. Returns the bytes that are not stored."""
    chunks, nbytes = list[bytes](), 0
    for chunk in encoded:
        chunks.append(chunk)
        nbytes += len(chunk)
        if nbytes > inline_bytes:
            store.put(path, itertools.chain(chunks, encoded))
            return b""
    return b"".join(chunks)


def read_segment(store: SnapshotStore, segment: Segment, groups: range | None = None) -> pa.RecordBatch:
    """Reads and verifies a segment. With `groups`, reads only blocks that may hold them; other groups may occur.

    Raises:
        CorruptState: the file is missing, truncated or altered; the error names its path.
    """
    parts = segment.blocks if groups is None else _blocks_with_groups(segment.blocks, groups)
    data = _read_whole(store, segment) if len(parts) == len(segment.blocks) else _read_blocks(store, segment, parts)
    try:
        table = pa.ipc.open_stream(data).read_all()
    except pa.ArrowInvalid as error:
        raise CorruptState(segment.path, f"not an Arrow stream: {error}") from error
    rows = sum(block.rows for block in parts) if parts else segment.rows
    if table.num_rows != rows:
        raise CorruptState(segment.path, f"it has {table.num_rows} rows; its manifest says {rows}")
    return pa.concat_batches(table.to_batches()) if table.num_rows else pa.RecordBatch.from_pylist([], table.schema)


def read_segments(
    store: SnapshotStore, parts: Iterable[tuple[Segment, range]]
) -> Iterator[tuple[Segment, range, pa.RecordBatch]]:
    """Reads segments as `read_segment` does, in their order. Files are read ahead, as many at once as the store allows.

    Unread segments have at most `READ_AHEAD_BYTES` together, or are a single one. So the decoded rows of a large state
    are never all in memory.
    """
    if store.concurrent_reads == 1:
        yield from ((segment, groups, read_segment(store, segment, groups)) for segment, groups in parts)
        return
    with ThreadPoolExecutor(store.concurrent_reads, thread_name_prefix="restore") as pool:
        reads: deque[tuple[Segment, range, Callable[[], pa.RecordBatch]]] = deque()
        for segment, groups in parts:
            while len(reads) > store.concurrent_reads or (
                reads and sum(each.nbytes for each, _, _ in reads) + segment.nbytes > READ_AHEAD_BYTES
            ):
                first, first_groups, result = reads.popleft()
                yield first, first_groups, result()
            read = partial(read_segment, store, segment, groups)
            reads.append((segment, groups, read if segment.is_inline else pool.submit(read).result))
        for each, each_groups, result in reads:
            yield each, each_groups, result()


# ---------------------------------------------------------------- reading


def _blocks_with_groups(blocks: tuple[SegmentBlock, ...], groups: range) -> tuple[SegmentBlock, ...]:
    """The blocks with any of `groups`; if no block has any, the first block, because the schema is needed."""
    matches = tuple(b for b in blocks if b.first_group < groups.stop and groups.start <= b.last_group)
    return matches or blocks[:1]


def _read_whole(store: SnapshotStore, segment: Segment) -> bytes:
    data = segment.content or store.get(segment.path)
    if len(data) != segment.nbytes:
        raise CorruptState(segment.path, f"it has {len(data)} bytes; its manifest says {segment.nbytes}")
    _verify(segment, segment.checksum, data)
    return data


def _read_blocks(store: SnapshotStore, segment: Segment, blocks: tuple[SegmentBlock, ...]) -> bytes:
    """The head of the file and `blocks`, which are adjacent: together a valid stream."""
    head = _read_range(store, segment, 0, segment.blocks[0].offset)
    start = blocks[0].offset
    data = _read_range(store, segment, start, sum(block.nbytes for block in blocks))
    for block in blocks:
        at = block.offset - start
        _verify(segment, block.checksum, head, data[at : at + block.nbytes])
    return head + data


def _read_range(store: SnapshotStore, segment: Segment, offset: int, nbytes: int) -> bytes:
    data = store.get_range(segment.path, offset, nbytes)
    if len(data) != nbytes:
        raise CorruptState(segment.path, f"it ends before byte {offset + nbytes}; its manifest says otherwise")
    return data


def _verify(segment: Segment, checksum: str, *data: bytes) -> None:
    if fault := checksum_fault(checksum, Checksum(*data)):
        raise CorruptState(segment.path, fault)


# ---------------------------------------------------------------- writing


@dataclass(frozen=True, slots=True)
class _BlockRows:
    """Rows of a block, and the first and last key group in it."""

    start: int
    stop: int
    first_group: int
    last_group: int


def _cut_into_blocks(batch: pa.RecordBatch, fewest_rows: int) -> list[_BlockRows]:
    """Cuts at the first key group border after every `MIN_BLOCK_BYTES`, or later to keep within `MAX_BLOCKS`."""
    groups = PrimaryKey.groups(batch)
    rows = max(1, fewest_rows, batch.num_rows * MIN_BLOCK_BYTES // max(1, batch.nbytes))
    borders = np.append(np.flatnonzero(np.diff(groups)) + 1, len(groups))
    parts, start = [], 0
    while start < len(groups):
        stop = int(borders[min(np.searchsorted(borders, start + rows), len(borders) - 1)])
        parts.append(_BlockRows(start, stop, int(groups[start]), int(groups[stop - 1])))
        start = stop
    return parts


@dataclass
class _CountingSink:
    """File object for the IPC writer: buffers bytes until `take_chunks`; counts and digests all bytes."""

    nbytes: int = 0
    rows: int = 0
    digest: Checksum = field(default_factory=Checksum)
    blocks: list[SegmentBlock] = field(default_factory=list)
    closed: bool = False
    _chunks: list[bytes] = field(default_factory=list)
    _block: Checksum | None = (
        None  #: of the block that is being written; None: the first, which begins as the file does
    )

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        self.nbytes += len(chunk)
        self.digest.update(chunk)
        if self._block is not None:
            self._block.update(chunk)
        self._chunks.append(chunk)
        return len(chunk)

    def flush(self) -> None:
        """Required by the IPC writer."""

    def close(self) -> None:
        """Required by the IPC writer."""
        self.closed = True

    def begin_block(self, head: bytes) -> None:
        if self.blocks:
            self._block = Checksum(head)

    def end_block(self, part: _BlockRows, offset: int) -> None:
        self.rows += part.stop - part.start
        self.blocks.append(
            SegmentBlock(
                offset=offset,
                nbytes=self.nbytes - offset,
                rows=part.stop - part.start,
                checksum=(self._block or self.digest).text,
                first_group=part.first_group,
                last_group=part.last_group,
            )
        )

    def take_chunks(self) -> list[bytes]:
        chunks, self._chunks = self._chunks, []
        return chunks


def _encode(
    batches: Iterable[pa.RecordBatch], sink: _CountingSink, parts: Callable[[pa.RecordBatch], list[_BlockRows]]
) -> Iterator[bytes]:
    """The bytes of the stream, message by message: a large state is never encoded as a whole in memory."""
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    iterator = iter(batches)
    first = next(iterator)
    head = first.schema.serialize().to_pybytes()  # the writer emits the schema before the first message
    # Arrow writes a message in hundreds of pieces. Unbuffered, each would take the GIL, which the slot's loop needs.
    stream = pa.BufferedOutputStream(pa.PythonFile(sink, mode="w"), _MESSAGE_BYTES)
    with stream, pa.ipc.new_stream(stream, first.schema, options=options) as writer:
        for batch in itertools.chain([first], iterator):
            for part in parts(batch):
                offset = max(len(head), sink.nbytes)
                sink.begin_block(head)
                for start in range(part.start, part.stop, _ROWS_PER_MESSAGE):
                    writer.write_batch(batch.slice(start, min(_ROWS_PER_MESSAGE, part.stop - start)))
                    stream.flush()
                    yield from sink.take_chunks()
                sink.end_block(part, offset)
    yield from sink.take_chunks()
