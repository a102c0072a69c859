"""State files in blocks: who owns some of the key groups reads only their part, and every part is verified."""

import re
from collections.abc import Iterable
from typing import Any

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
from runtime.state.files.segments import MAX_BLOCKS, MIN_BLOCK_BYTES, read_segment, write_segment

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
