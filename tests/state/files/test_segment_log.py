"""Files merged beside a running job: how few they stay, what is written for it, and what may go wrong meanwhile."""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.job.key_groups import key_group_range
from runtime.core.restore.state_assignment import SubtaskRestore, keyed_proofs
from runtime.core.snapshot.manifest import Segment, SubtaskSnapshot
from runtime.errors import CorruptState, EnvironmentFailure
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.state.backend import StateCapture, SubtaskState
from runtime.state.files.compaction import (
    DEFAULT_POLICY,
    SMALLEST_CLASS_UNIT_BYTES,
    CompactionPolicy,
    Merge,
    compaction_start,
)
from runtime.state.index.hashing import key_groups
from runtime.state.keyed_table import KeyedTable
from runtime.state.object_table import ObjectTable
from runtime.state.primary_key import PrimaryKey
from tests.state.failing_store import FailingStore

GROUPS = 16
ME = SubtaskId(OperatorId("op"), 0)
KEYS, VALUES = pa.schema([("k", pa.int64())]), pa.schema([pa.field("n", pa.int64(), nullable=False)])


MAX_DELTAS = DEFAULT_POLICY.max_deltas
NOTHING_IS_SMALL = CompactionPolicy(copied_bytes=0, base_bytes=0, inline_bytes=0)
FEW_GROUPS_AT_A_TIME = replace(NOTHING_IS_SMALL, slice_bytes=1)


def restored(
    store: MemorySnapshotStore,
    snapshots: Iterable[SubtaskSnapshot] = (),
    groups: range = range(GROUPS),
    policy: CompactionPolicy = NOTHING_IS_SMALL,
) -> SubtaskState:
    state = SubtaskState(groups, GROUPS, store, compaction=policy)
    subtask_snapshots = tuple(snapshots)
    state.restore(
        SubtaskRestore(subtask=ME, snapshots=subtask_snapshots, proofs=keyed_proofs(subtask_snapshots, groups))
    )
    return state


def opened(
    store: MemorySnapshotStore,
    snapshots: Iterable[SubtaskSnapshot] = (),
    groups: range = range(GROUPS),
    policy: CompactionPolicy = NOTHING_IS_SMALL,
) -> tuple[SubtaskState, ObjectTable]:
    state = restored(store, snapshots, groups, policy)
    return state, state.object_table("objects")


def put(table: ObjectTable, numbers: Iterable[int], value: bytes = b"") -> None:
    for number in numbers:
        noise = Random(number).randbytes(100)  # what compresses says nothing of sizes
        table.put((number % GROUPS, msgspec.msgpack.encode([number]), None), value + noise)


def delete(table: ObjectTable, numbers: Iterable[int]) -> None:
    for number in numbers:
        table.delete((number % GROUPS, msgspec.msgpack.encode([number]), None))


def written(capture: StateCapture, store: MemorySnapshotStore, number: int) -> tuple[SubtaskSnapshot, int]:
    result = capture.write(store, f"chk-{number}")
    capture.compact(store, f"chk-{number}")
    return result


def agree(store: MemorySnapshotStore, snapshot: SubtaskSnapshot, table: ObjectTable) -> bool:
    return dict(opened(store, [snapshot])[1].items()) == dict(table.items())


# ---------------------------------------------------------------- which


@given(sizes=st.lists(st.integers(1, 10**7), min_size=1, max_size=200), most=st.integers(2, 8))
def test_a_chain_of_any_sizes_becomes_short_and_stays_so(sizes: list[int], most: int) -> None:
    """Sizes add up when nothing is written twice, which is the worst case."""
    files: list[int] = []
    for size in sizes:
        files.append(size)
        while (start := compaction_start(files, most, with_base=True)) is not None:
            files[start:] = [sum(files[start:])]
    classes = 1 + next(n for n in range(64) if SMALLEST_CLASS_UNIT_BYTES * most**n > sum(sizes))
    assert len(files) <= 1 + most * classes
    assert sum(files[1:]) <= files[0]


def test_what_lies_before_is_left_alone_unless_the_rest_outweighs_it() -> None:
    assert compaction_start([1_000_000, 10, 10], 8, with_base=True) is None
    assert compaction_start([15, 10, 10], 8, with_base=True) == 0
    assert compaction_start([15, 10, 10], 8, with_base=False) is None
    assert compaction_start([1_000_000, *[10] * 8], 8, with_base=True) == 1
    assert compaction_start([1_000_000, 400_000, *[10] * 8], 8, with_base=True) == 2
    assert compaction_start([5], 8, with_base=True) is None


def test_bytes_written_follow_the_change_and_files_stay_few() -> None:
    """S4-02: 1 % of the keys change between checkpoints."""
    store = MemorySnapshotStore()
    state, table = opened(store)
    put(table, range(10_000))
    _, base_bytes = written(state.capture(False), store, 0)
    total, files = 0, 0
    for number in range(1, 201):
        put(table, range(number * 100 % 10_000, number * 100 % 10_000 + 100), number.to_bytes(4, "big"))
        snapshot, nbytes = written(state.capture(False), store, number)
        total, files = total + nbytes, max(files, len(snapshot.keyed["objects"]))
    assert agree(store, snapshot, table)
    assert total < 6 * 200 * base_bytes / 100
    assert files <= 1 + 3 * MAX_DELTAS


# ---------------------------------------------------------------- meanwhile


def test_a_checkpoint_whose_writes_are_overtaken_names_no_file_of_a_newer_one() -> None:
    """Retention relies on it where the older manifest is unreadable."""
    store = MemorySnapshotStore()
    state, table = opened(store)
    put(table, range(50))
    older, then = state.capture(False), dict(table.items())
    put(table, range(50, 60))
    after, _ = state.capture(False).write(store, "chk-31-4/op-0")
    before, nbytes = older.write(store, "chk-30-4/op-0")
    assert nbytes > 0
    assert {segment.path.split("/")[0] for segment in before.segments()} == {"chk-30-4"}
    store.delete([segment.path for segment in after.segments()])
    assert dict(opened(store, [before])[1].items()) == then


class GatedStore(MemorySnapshotStore):
    """Lets writes through, and those of merging only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.merging, self.go_on = threading.Event(), threading.Event()
        self.merger: threading.Thread | None = None

    def put(self, path: str, data: Iterable[bytes]) -> None:
        if threading.current_thread() is self.merger:
            self.merging.set()
            assert self.go_on.wait(30)
        super().put(path, data)

    def merge(self, capture: StateCapture) -> threading.Thread:
        self.merger = threading.Thread(target=capture.compact, args=(self, "merged"))
        self.merger.start()
        assert self.merging.wait(30)
        return self.merger


def with_deltas(
    store: MemorySnapshotStore, count: int, policy: CompactionPolicy = NOTHING_IS_SMALL
) -> tuple[SubtaskState, ObjectTable, StateCapture]:
    state, table = opened(store, policy=policy)
    put(table, range(500))
    for number in range(count + 1):
        put(table, [number], b"changed")
        capture = state.capture(False)
        capture.write(store, f"chk-{number}")
    return state, table, capture


def test_checkpoints_go_on_while_files_are_merged() -> None:
    store = GatedStore()
    state, table, capture = with_deltas(store, MAX_DELTAS)
    thread = store.merge(capture)
    put(table, [3, 1_000], b"while merging")
    delete(table, [4])
    between, _ = state.capture(False).write(store, "chk-between")
    assert len(between.keyed["objects"]) == MAX_DELTAS + 2
    store.go_on.set()
    thread.join()
    after, merged_bytes = state.capture(False).write(store, "chk-after")
    assert merged_bytes > 0
    assert len(after.keyed["objects"]) == 3
    assert after.keyed["objects"][-1] == between.keyed["objects"][-1]
    assert agree(store, between, table)
    assert agree(store, after, table)


def test_a_chain_that_began_again_meanwhile_forgets_what_was_merged() -> None:
    store = GatedStore()
    state, table, capture = with_deltas(store, MAX_DELTAS)
    thread = store.merge(capture)
    put(table, range(600))
    state.capture(False)  # never written, and larger than the base: the next capture copies the state
    snapshot, _ = state.capture(False).write(store, "chk-again")
    store.go_on.set()
    thread.join()
    assert state.capture(False).write(store, "chk-after")[0] == snapshot
    assert agree(store, snapshot, table)
    assert not store.list("merged")


def test_a_merged_file_that_is_merged_again_before_a_snapshot_names_it_does_not_stay() -> None:
    """S3-31: retention goes by what manifests name, so nobody else would delete it while the attempt lasts."""
    store = GatedStore()
    state, table, capture = with_deltas(store, MAX_DELTAS)
    thread = store.merge(capture)
    put(table, range(500), b"while merging")
    between, _ = state.capture(False).write(store, "chk-between")
    store.go_on.set()
    thread.join()
    after, _ = state.capture(False).write(store, "chk-after")
    assert [segment.path for segment in after.keyed["objects"]] == store.list("merged")
    assert len(store.list("merged")) == 1
    assert agree(store, between, table)
    assert agree(store, after, table)


def test_merging_ends_soon_when_the_subtask_does() -> None:
    store = GatedStore()
    state, _, capture = with_deltas(store, MAX_DELTAS, FEW_GROUPS_AT_A_TIME)
    before = set(store.list(""))
    thread = store.merge(capture)
    state.close()
    store.go_on.set()
    thread.join()
    assert set(store.list("")) == before


def test_what_could_not_be_merged_is_merged_later() -> None:
    store = FailingStore()
    state, table, capture = with_deltas(store, MAX_DELTAS)
    store.writes_until_failure = 0
    with pytest.raises(EnvironmentFailure):
        capture.compact(store, "merged")
    store.writes_until_failure = 1_000_000
    assert len(written(state.capture(False), store, 100)[0].keyed["objects"]) == MAX_DELTAS + 1
    snapshot, _ = state.capture(False).write(store, "chk-101")
    assert len(snapshot.keyed["objects"]) == 2
    assert agree(store, snapshot, table)


def test_a_damaged_file_that_merging_meets_is_made_good_by_the_next_capture() -> None:
    """The rows are there still: a restore from what is written then reads none of it."""
    store = MemorySnapshotStore()
    state, table, capture = with_deltas(store, MAX_DELTAS)
    damaged = capture.write(store, "again")[0].keyed["objects"][3].path
    store.put(damaged, [b"no Arrow stream"])
    with pytest.raises(CorruptState, match=damaged):
        capture.compact(store, "merged")
    snapshot, _ = state.capture(False).write(store, "chk-after")
    assert len(snapshot.keyed["objects"]) == 1
    assert agree(store, snapshot, table)


def test_inline_deltas_of_a_large_state_become_a_file() -> None:
    store = MemorySnapshotStore()
    state, table, capture = with_deltas(store, MAX_DELTAS, replace(NOTHING_IS_SMALL, inline_bytes=20_000))
    before = capture.write(store, "again")[0].keyed["objects"]
    assert [segment.is_inline for segment in before] == [False] + MAX_DELTAS * [True]
    capture.compact(store, "merged")
    snapshot, _ = state.capture(False).write(store, "chk-after")
    assert len(snapshot.keyed["objects"]) == 2
    assert not any(segment.is_inline for segment in snapshot.segments())
    assert agree(store, snapshot, table)


def test_a_storage_that_is_away_does_not_fill_the_memory() -> None:
    """What was captured is kept until it is written: no more than the state twice, however long that takes."""
    store = FailingStore()
    state, table = opened(store)
    put(table, range(500))
    written(state.capture(False), store, 0)
    store.writes_until_failure = 0
    for number in range(1, 60):
        put(table, range(50), b"%d" % number)
        capture = state.capture(False)
        with pytest.raises(EnvironmentFailure):
            capture.write(store, f"chk-{number}")
        assert sum(link.rows for link in capture.keyed["objects"]) <= 3 * len(table)
    store.writes_until_failure = 1_000_000
    snapshot, _ = state.capture(False).write(store, "chk-after")
    assert agree(store, snapshot, table)


def whole_merge(segments: Sequence[Segment], nbytes: int, slice_bytes: int) -> Merge:
    return Merge(PrimaryKey(1), segments, range(GROUPS), nbytes, slice_bytes, state=dict)


def test_rows_that_compress_well_are_merged_a_few_at_a_time() -> None:
    """What goes through memory is bounded by what the rows take there, not by the size of their files."""
    store = MemorySnapshotStore()
    state = restored(store)
    table = typed(state, pa.int64())
    table.upsert([pa.array(range(20_000))])
    (segment,) = state.capture(False).write(store, "chk-1")[0].keyed["typed"]
    nbytes = 20_000 * table.row_bytes
    assert nbytes > 4 * segment.nbytes
    slices = list(whole_merge([segment], nbytes, slice_bytes=1 << 16).batches(store))
    assert sum(batch.num_rows for batch in slices) == 20_000
    assert max(batch.num_rows for batch in slices) * table.row_bytes <= 2 << 16


class CountingStore(MemorySnapshotStore):
    """A store that counts the reads of each file."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def get(self, path: str) -> bytes:
        self.reads[path] += 1
        return super().get(path)


def test_a_small_file_is_read_once_by_a_compaction() -> None:
    """A file of one block is read as a whole for its schema. Its rows are kept for the slices of key groups."""
    store, slice_bytes = CountingStore(), 1 << 14
    state = restored(store)
    table = typed(state, pa.int64())
    for number, keys in enumerate([200, 40, 20]):
        rows = table.upsert([pa.array(range(keys))])
        table.column("n")[rows] = number
        table.touch(rows)
        snapshot, _ = state.capture(False).write(store, f"chk-{number}")
    segments = snapshot.keyed["typed"]
    assert len(segments) == 3
    assert not any(segment.blocks or segment.is_inline for segment in segments)
    store.reads.clear()
    nbytes = GROUPS * slice_bytes
    slices = list(whole_merge(segments, nbytes, slice_bytes).batches(store))
    assert len(slices) == GROUPS
    assert Counter(pa.Table.from_batches(slices)["n"].to_pylist()) == {0: 160, 1: 20, 2: 20}
    assert store.reads == dict.fromkeys((segment.path for segment in segments), 1)


# ---------------------------------------------------------------- after a restore


def test_a_large_state_is_not_copied_at_the_first_barrier_after_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3-31: all of it is written once more all the same, so that nothing leans on files of another lineage."""
    store = MemorySnapshotStore()
    _, _, capture = with_deltas(store, 3)
    before = capture.write(store, "again")[0]
    for kind in (ObjectTable, KeyedTable):
        monkeypatch.setattr(kind, "capture_all", None)
    state, table = opened(store, [before])
    put(table, [7, 2_000], b"after the restore")
    delete(table, [8])
    snapshot, _ = written(state.capture(False), store, 10)
    assert [segment.rows for segment in snapshot.keyed["objects"]] == [500, 3]
    assert not {segment.path for segment in before.segments()} & {segment.path for segment in snapshot.segments()}
    assert agree(store, snapshot, table)


def test_restored_files_that_went_away_cost_one_checkpoint() -> None:
    """A savepoint belongs to people, who may delete it while the job that began from it is running."""
    store = MemorySnapshotStore()
    _, _, capture = with_deltas(store, 3)
    before = capture.write(store, "again")[0]
    state, table = opened(store, [before])
    store.delete([segment.path for segment in before.segments()])
    put(table, [7], b"after the restore")
    with pytest.raises(CorruptState):
        state.capture(False).write(store, "chk-10")
    snapshot, _ = state.capture(False).write(store, "chk-11")
    assert agree(store, snapshot, table)


def test_what_restored_files_are_merged_to_is_given_up_when_the_subtask_ends() -> None:
    """A slot that ends waits for its writer, and the next attempt for the slot."""
    store = MemorySnapshotStore()
    _, _, capture = with_deltas(store, 3)
    state, _ = opened(store, [capture.write(store, "again")[0]])
    first = state.capture(False)
    state.close()
    with pytest.raises(EnvironmentFailure, match="ended"):
        first.write(store, "chk-10")
    assert not store.list("chk-10")


def test_half_of_the_key_groups_are_taken_over_alone() -> None:
    """S3-20: what others own does not travel with the files."""
    store = MemorySnapshotStore()
    _, table, capture = with_deltas(store, 3)
    before = capture.write(store, "again")[0]
    halves = [opened(store, [before], groups) for groups in (range(GROUPS // 2), range(GROUPS // 2, GROUPS))]
    snapshots = [state.capture(False).write(store, f"half-{i}")[0] for i, (state, _) in enumerate(halves)]
    assert [segment.rows for snapshot in snapshots for segment in snapshot.keyed["objects"]] == [252, 248]
    assert dict(opened(store, snapshots)[1].items()) == dict(table.items())


def typed(state: SubtaskState, kind: pa.DataType) -> KeyedTable:
    return state.keyed_table("typed", KEYS, pa.schema([pa.field("n", kind, nullable=False)]))


def test_types_that_became_wider_are_merged() -> None:
    store = MemorySnapshotStore()
    narrow = restored(store)
    typed(narrow, pa.int32()).upsert([pa.array(range(100))])
    before = narrow.capture(False).write(store, "narrow")[0]
    wide = restored(store, [before])
    table = typed(wide, pa.int64())
    for number in range(MAX_DELTAS + 2):
        slots = table.upsert([pa.array([number])])
        table.column("n")[slots] = 2**40
        table.touch(slots)
        snapshot, _ = written(wide.capture(False), store, number)
    successor = restored(store, [snapshot])
    restored_table = typed(successor, pa.int64())
    assert sorted(restored_table.column("n")[restored_table.row_ids()].tolist()) == [0] * 90 + [2**40] * 10


def test_types_that_became_wider_in_few_key_groups_are_merged() -> None:
    """Rows pass a few key groups at a time, and of some of these only older files have any."""
    store, numbers = MemorySnapshotStore(), pa.array(range(100))
    narrow = restored(store, policy=FEW_GROUPS_AT_A_TIME)
    typed(narrow, pa.int32()).upsert([numbers])
    snapshot = narrow.capture(False).write(store, "narrow")[0]
    few = numbers.filter(pa.array(key_groups(pa.record_batch([numbers], ["k"]), ["k"], GROUPS) < GROUPS // 3))
    wide = restored(store, [snapshot], policy=FEW_GROUPS_AT_A_TIME)
    table = typed(wide, pa.int64())
    for number in range(MAX_DELTAS):
        slots = table.upsert([few])
        table.column("n")[slots] = 2**40
        table.touch(slots)
        snapshot, _ = written(wide.capture(False), store, number)
    for _ in range(2):  # the first snapshot after a restore is made of several files as well
        successor = restored(store, [snapshot], policy=FEW_GROUPS_AT_A_TIME)
        restored_table = typed(successor, pa.int64())
        assert sorted(restored_table.column("n")[restored_table.row_ids()].tolist()) == [0] * (100 - len(few)) + [
            2**40
        ] * len(few)
        snapshot, _ = successor.capture(False).write(store, "once-more")


@pytest.mark.parametrize(
    "halves",
    [
        [(pa.float64(), 0.1), (pa.float32(), 0.5)],
        [(pa.int64(), 2**40), (pa.int32(), 5)],
        [(pa.int32(), 5), (pa.int64(), 2**40)],
        [(pa.uint8(), 200), (pa.int8(), -1)],
    ],
)
def test_files_of_subtasks_with_different_types_become_a_file_of_their_common_type(
    halves: list[tuple[pa.DataType, float]],
) -> None:
    """After a restore with a wider column, only subtasks with new rows had the wider type.

    The last file then decided: doubles were rounded to floats, and no large integer could be written.
    """
    store, snapshots, numbers = MemorySnapshotStore(), list[SubtaskSnapshot](), pa.array(range(100))
    owners = key_groups(pa.record_batch([numbers], ["k"]), ["k"], GROUPS)
    for index, (kind, value) in enumerate(halves):
        groups = key_group_range(index, GROUPS, 2)
        state = restored(store, groups=groups)
        table = typed(state, kind)
        slots = table.upsert([numbers.filter(pa.array(np.isin(owners, list(groups))))])
        table.column("n")[slots] = value
        snapshots.append(state.capture(False).write(store, f"half-{index}")[0])
    successor = restored(store, snapshots)
    typed(successor, halves[1][0])
    snapshot, _ = successor.capture(False).write(store, "both")
    restored_table = typed(restored(store, [snapshot]), halves[1][0])
    assert len(restored_table) == 100
    assert set(restored_table.column("n")[restored_table.row_ids()].tolist()) == {value for _, value in halves}
