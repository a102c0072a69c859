"""State files in blocks: who owns some of the key groups reads only their part, and every part is verified."""

import re
import threading
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.job.key_groups import key_group_range
from runtime.core.restore.state_assignment import SubtaskRestore, keyed_proofs
from runtime.core.snapshot.manifest import Segment
from runtime.errors import CorruptState
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.state.backend import SubtaskState
from runtime.state.files import segments
from runtime.state.files.segments import (
    MAX_BLOCKS,
    MIN_BLOCK_BYTES,
    READ_AHEAD_BYTES,
    read_segment,
    read_segments,
    write_segment,
)

GROUPS = 128
KEYS, VALUES = pa.schema([("k", pa.int64())]), pa.schema([pa.field("n", pa.int64(), nullable=False)])


class CountingStore(MemorySnapshotStore):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0

    def get(self, path: str) -> bytes:
        data = super().get(path)
        self.bytes_read += len(data)
        return data

    def get_range(self, path: str, offset: int, nbytes: int) -> bytes:
        data = super().get(path)[offset : offset + nbytes]
        self.bytes_read += len(data)
        return data


class RendezvousStore(MemorySnapshotStore):
    """A read returns once all reads that are made at once are waiting, as in a store whose answers take a while."""

    concurrent_reads = 3

    def __init__(self) -> None:
        super().__init__()
        self.barrier = threading.Barrier(self.concurrent_reads)
        self.paths: list[str] = []

    def get(self, path: str) -> bytes:
        self.barrier.wait(60)
        self.paths.append(path)
        return super().get(path)


class PieceStore(MemorySnapshotStore):
    """Counts the pieces in which files come."""

    pieces = 0

    def put(self, path: str, data: Iterable[bytes]) -> None:
        chunks = list(data)
        self.pieces += len(chunks)
        super().put(path, chunks)


def rows(count: int, groups: int = GROUPS) -> pa.RecordBatch:
    """Sorted by key group; noise, so that compression does not help."""
    noise = np.random.default_rng(7).integers(0, 2**62, count)
    owners = np.sort(np.arange(count) % groups).astype(np.int32)
    return pa.record_batch({"key group": owners, "value": noise})


def stored(batch: pa.RecordBatch, store: MemorySnapshotStore) -> Segment:
    return write_segment(store, "a/state.arrow", [batch], batch.num_rows, groups=None)


@pytest.fixture(scope="module")
def large() -> pa.RecordBatch:
    return rows(400_000)


def test_a_file_in_blocks_is_one_ordinary_stream(large: pa.RecordBatch) -> None:
    store = MemorySnapshotStore()
    segment = stored(large, store)
    assert pa.ipc.open_stream(store.get(segment.path)).read_all().combine_chunks().to_batches() == [large]
    assert read_segment(store, segment) == large


def test_a_block_is_encoded_in_one_piece() -> None:
    """Between pieces the writing thread needs the interpreter's lock, for which it waits while the job runs."""
    store = PieceStore()
    segment = stored(rows(100_000), store)
    head_and_end = 2
    assert len(segment.blocks) > 1
    assert store.pieces <= len(segment.blocks) + head_and_end


def test_blocks_are_cut_between_key_groups_and_cover_the_file(large: pa.RecordBatch) -> None:
    """S3-22: no group is ever in two blocks."""
    segment = stored(large, MemorySnapshotStore())
    firsts = [block.first_group for block in segment.blocks]
    lasts = [block.last_group for block in segment.blocks]
    assert firsts == [0, *(last + 1 for last in lasts[:-1])]
    assert lasts[-1] == GROUPS - 1
    ends = [block.offset + block.nbytes for block in segment.blocks]
    assert [block.offset for block in segment.blocks[1:]] == ends[:-1]
    assert sum(block.rows for block in segment.blocks) == segment.rows
    row_bytes = large.nbytes / large.num_rows
    assert all(block.rows * row_bytes >= MIN_BLOCK_BYTES for block in segment.blocks[:-1])


def test_a_block_alone_gives_its_groups(large: pa.RecordBatch) -> None:
    store = CountingStore()
    segment = stored(large, store)
    for block in segment.blocks:
        groups = range(block.first_group, block.last_group + 1)
        batch = read_segment(store, segment, groups)
        assert batch.num_rows == block.rows
        assert set(batch.column(0).to_pylist()) == set(groups)


@pytest.mark.parametrize("count", [1, 10_000])
def test_a_small_state_has_no_blocks_and_is_read_at_once(count: int) -> None:
    store = CountingStore()
    segment = stored(rows(count), store)
    assert segment.blocks == ()
    assert read_segment(store, segment, range(5)).num_rows == count
    assert store.bytes_read == segment.nbytes


def test_a_large_key_group_is_one_block_of_several_messages() -> None:
    store = MemorySnapshotStore()
    segment = stored(rows(400_000, groups=2), store)
    assert [block.rows for block in segment.blocks] == [200_000, 200_000]
    assert read_segment(store, segment, range(1, 2)).column(0).unique().to_pylist() == [1]


def test_the_blocks_of_a_file_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are named in every manifest."""
    monkeypatch.setattr(segments, "MIN_BLOCK_BYTES", 1)
    segment = stored(rows(100_000, groups=2_000), MemorySnapshotStore())
    assert MAX_BLOCKS / 2 < len(segment.blocks) <= MAX_BLOCKS


@pytest.mark.parametrize("where", ["head", "block", "end"])
def test_a_damaged_part_is_named(large: pa.RecordBatch, where: str) -> None:
    store = MemorySnapshotStore()
    segment = stored(large, store)
    last = segment.blocks[-1]
    data = bytearray(store.get(segment.path))
    if where == "end":
        del data[last.offset + last.nbytes - 1 :]
    else:
        data[50 if where == "head" else last.offset + 1_000] ^= 1
    store.put(segment.path, [bytes(data)])
    with pytest.raises(CorruptState, match=re.escape(segment.path)):
        read_segment(store, segment, range(last.first_group, last.last_group + 1))


def test_damage_elsewhere_is_not_met(large: pa.RecordBatch) -> None:
    store = MemorySnapshotStore()
    segment = stored(large, store)
    data = bytearray(store.get(segment.path))
    data[segment.blocks[0].offset + 1_000] ^= 1
    store.put(segment.path, [bytes(data)])
    last = segment.blocks[-1]
    batch = read_segment(store, segment, range(last.first_group, last.last_group + 1))
    assert batch.num_rows == last.rows


# ---------------------------------------------------------------- a restore at another parallelism


def filled(store: MemorySnapshotStore, keys: int) -> Any:
    state = SubtaskState(range(GROUPS), GROUPS, store)
    table = state.keyed_table("counts", KEYS, VALUES)
    numbers = np.random.default_rng(1).permutation(keys).astype(np.int64) * 1_000_003
    slots = table.upsert([pa.array(numbers)])
    table.column("n")[slots] = np.random.default_rng(2).integers(0, 2**62, keys)
    return state.capture(full=False).write(store, "chk-1/op-0")[0]


def test_a_rescale_from_one_to_four_reads_about_a_quarter_each() -> None:
    """S3-21: state is written by group, so nobody reads everything. S3-22, S3-24."""
    store = CountingStore()
    snapshot = filled(store, 600_000)
    nbytes = sum(segment.nbytes for segment in snapshot.segments())
    sizes, read = [], []
    for index in range(4):
        store.bytes_read = 0
        groups, subtask = key_group_range(index, GROUPS, 4), SubtaskId(OperatorId("op"), index)
        state = SubtaskState(groups, GROUPS, store)
        state.restore(SubtaskRestore(subtask=subtask, snapshots=(snapshot,), proofs=keyed_proofs([snapshot], groups)))
        sizes.append(len(state.keyed_table("counts", KEYS, VALUES)))
        read.append(store.bytes_read / nbytes)
    assert sum(sizes) == 600_000
    assert all(140_000 < size < 160_000 for size in sizes)
    assert all(0.2 < share < 0.32 for share in read), read


# ---------------------------------------------------------------- several segments


def written(store: MemorySnapshotStore, count: int) -> list[Segment]:
    return [write_segment(store, f"{number}", [rows(10 + number)], 10 + number, (0, 127)) for number in range(count)]


def test_several_segments_are_read_at_once_and_come_in_their_order() -> None:
    store = RendezvousStore()
    parts = [(segment, range(GROUPS)) for segment in written(store, 2 * store.concurrent_reads)]
    read = [(segment.path, batch.num_rows) for segment, _, batch in read_segments(store, parts)]
    assert read == [(segment.path, segment.rows) for segment, _ in parts]


def test_large_segments_are_not_read_ahead() -> None:
    """Else the rows of several large files would be in memory beside the table that they fill."""
    store = RendezvousStore()
    store.barrier = threading.Barrier(1)
    first, *others = written(store, 4)
    large = msgspec.structs.replace(first, nbytes=READ_AHEAD_BYTES + 1)
    with pytest.raises(CorruptState, match="0: it has"):
        next(read_segments(store, [(segment, range(GROUPS)) for segment in (large, *others)]))
    assert store.paths == [first.path]


def test_a_segment_is_not_read_while_those_before_it_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    store = RendezvousStore()
    store.barrier = threading.Barrier(1)
    parts = [(segment, range(GROUPS)) for segment in written(store, 4)]
    limit = parts[0][0].nbytes + parts[1][0].nbytes
    monkeypatch.setattr(segments, "READ_AHEAD_BYTES", limit)
    for number, (segment, _, _) in enumerate(read_segments(store, parts)):
        kept = [each for each, _ in parts[number:] if each.path in store.paths]
        assert segment.path in store.paths
        assert sum(each.nbytes for each in kept) <= limit


@pytest.mark.parametrize("kind", [MemorySnapshotStore, RendezvousStore])
def test_the_first_damaged_segment_is_named(kind: type[MemorySnapshotStore]) -> None:
    store = kind()
    parts = [(segment, range(GROUPS)) for segment in written(store, 6)]
    store.delete(["3", "4"])
    with pytest.raises(CorruptState, match="3: there is no such file"):
        list(read_segments(store, parts))
