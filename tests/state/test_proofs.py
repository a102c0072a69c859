"""Each rewrite of state in production compares its result with the proof: one row lost in it is refused by name."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from random import Random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.job.key_groups import key_group_range
from runtime.core.restore.state_assignment import SubtaskRestore, keyed_proofs
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.core.snapshot.proofs import GroupProof, StateProof, add_proofs, proof_difference, total_proof
from runtime.errors import CorruptState, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.state.backend import StateCapture, SubtaskState
from runtime.state.columns import ValueColumn
from runtime.state.files import segments
from runtime.state.files.compaction import CompactionPolicy
from runtime.state.files.segments import read_segment
from runtime.state.index.factorise import factorise
from runtime.state.index.hashing import hash_rows, value_input
from runtime.state.index.key_index import NOT_FOUND, RowIds
from runtime.state.keyed_table import KeyedTable
from runtime.state.object_table import ObjectTable
from runtime.state.primary_key import PrimaryKey
from runtime.state.proofs import LazyProof, proof_of_rows
from runtime.state.rows import rows_proof, segment_batches
from tests.state.failing_store import DiskFull, FailingStore

GROUPS = 8
OPERATOR = OperatorId("sums")
SMALL = CompactionPolicy(copied_bytes=0, base_bytes=0, inline_bytes=0, max_deltas=3)
_ODD = 0x9E3779B97F4A7C15
KEYS, VALUES = pa.schema([("k", pa.int64())]), pa.schema([pa.field("n", pa.int64())])
Patch = pytest.MonkeyPatch


class Typed:
    """A typed table with a row per key."""

    name = "typed"

    @staticmethod
    def open(state: SubtaskState) -> KeyedTable:
        return state.keyed_table("typed", KEYS, VALUES)

    @staticmethod
    def put(table: Any, keys: Iterable[int], value: int) -> None:
        rows = table.upsert([Typed.column(keys)])
        table.column("n")[rows], table.valid("n")[rows] = value, True
        table.touch(rows)

    @staticmethod
    def delete(table: Any, key: int) -> None:
        rows = table.find([Typed.column([key])])
        table.delete(rows[rows != NOT_FOUND])

    @staticmethod
    def column(keys: Iterable[int]) -> pa.Array:
        """Numbers that hardly compress: sizes of files decide what is merged."""
        return pa.array([key * _ODD % (1 << 63) for key in keys], pa.int64())


class PerGroup:
    """State per key group: all key groups have the same keys, as the rows of a join."""

    name = "objects"

    @staticmethod
    def open(state: SubtaskState) -> ObjectTable:
        return state.object_table("objects")

    @staticmethod
    def put(table: Any, keys: Iterable[int], value: int) -> None:
        for key in keys:
            table.put((key % GROUPS, b"\xc0", msgspec.msgpack.encode(key // GROUPS)), msgspec.msgpack.encode(value))

    @staticmethod
    def delete(table: Any, key: int) -> None:
        table.delete((key % GROUPS, b"\xc0", msgspec.msgpack.encode(key // GROUPS)))


KINDS = pytest.mark.parametrize("kind", [Typed, PerGroup])
Kind = type[Typed] | type[PerGroup]


def restored(store: MemorySnapshotStore, snapshots: Sequence[SubtaskSnapshot], groups: range) -> SubtaskState:
    state = SubtaskState(groups, GROUPS, store, compaction=SMALL)
    proofs = keyed_proofs(snapshots, groups)
    state.restore(SubtaskRestore(subtask=SubtaskId(OPERATOR, 0), snapshots=tuple(snapshots), proofs=proofs))
    return state


def fresh(kind: Kind, keys: int = 64) -> tuple[MemorySnapshotStore, SubtaskState, Any]:
    """A state with `keys` entries and a first checkpoint."""
    store = MemorySnapshotStore()
    state = restored(store, (), range(GROUPS))
    table = kind.open(state)
    kind.put(table, range(keys), 0)
    state.capture(False).write(store, "chk-1-1/sums-0")
    return store, state, table


def deltas(kind: Kind, store: MemorySnapshotStore, state: SubtaskState, table: Any) -> StateCapture:
    """Deltas that are due to be merged: each has a changed, a new and a deleted entry."""
    for number in range(2, 7):
        kind.put(table, [number, 100 + number], number)
        kind.delete(table, 40 + number)
        capture = state.capture(False)
        capture.write(store, f"chk-{number}-1/sums-0")
    return capture


def drop_last(function: Callable[..., RowIds]) -> Callable[..., RowIds]:
    return lambda *arguments: function(*arguments)[:-1]


def newest_rows_by_key_columns(self: PrimaryKey, batch: pa.RecordBatch) -> RowIds:
    """The fault that dropped rows of joins: it leaves out the key group."""
    distinct = factorise(self.keys(batch.columns))
    newest = {number: row for row, number in enumerate(distinct.key_numbers.tolist())}
    return np.array(sorted(newest.values()), dtype=np.intp)


@KINDS
@pytest.mark.parametrize("is_complete", [False, True])
def test_a_merge_that_lacks_a_row_is_not_installed(kind: Kind, is_complete: bool, monkeypatch: Patch) -> None:
    """S3-31. The checkpoints go on with the files that were to be merged, then with a new base."""
    store, state, table = fresh(kind, 4 if is_complete else 2_000)
    capture = deltas(kind, store, state, table)
    before = set(store.list(""))
    with monkeypatch.context() as patch:
        patch.setattr(PrimaryKey, "newest_rows", drop_last(PrimaryKey.newest_rows))
        with pytest.raises(CorruptState, match=rf"chk-9-1/sums-0/{kind.name}-\d+\.arrow: .* key group \d+ has"):
            capture.compact(store, "chk-9-1/sums-0")
    assert set(store.list("")) == before
    snapshot, _ = state.capture(False).write(store, "chk-10-1/sums-0")
    assert len(snapshot.keyed[kind.name]) == 1
    assert len(kind.open(restored(store, [snapshot], range(GROUPS)))) == len(table)


def test_a_merge_by_key_columns_alone_is_refused(monkeypatch: Patch) -> None:
    """The merge that lost rows of joins in silence."""
    store, state, table = fresh(PerGroup, 2_000)
    capture = deltas(PerGroup, store, state, table)
    monkeypatch.setattr(PrimaryKey, "newest_rows", newest_rows_by_key_columns)
    with pytest.raises(CorruptState, match="key group"):
        capture.compact(store, "chk-9-1/sums-0")


@KINDS
def test_a_merge_that_reads_other_rows_than_were_captured_is_refused(kind: Kind, monkeypatch: Patch) -> None:
    store, state, table = fresh(kind, 2_000)
    capture = deltas(kind, store, state, table)
    monkeypatch.setattr(
        "runtime.state.files.compaction.read_segment", lambda *arguments: read_segment(*arguments).slice(1)
    )
    with pytest.raises(CorruptState, match=rf"chk-\d-1/sums-0/{kind.name}-\d+\.arrow: .*key group \d"):
        capture.compact(store, "chk-9-1/sums-0")


@KINDS
def test_a_merge_of_restored_files_that_lacks_a_row_is_refused(kind: Kind, monkeypatch: Patch) -> None:
    """The first snapshot after a restore merges the restored files; no manifest names them then."""
    store, state, _ = fresh(kind)
    snapshot, _ = state.capture(False).write(store, "chk-2-1/sums-0")
    successor = restored(store, [snapshot], range(GROUPS))
    kind.open(successor)
    monkeypatch.setattr(PrimaryKey, "newest_rows", drop_last(PrimaryKey.newest_rows))
    with pytest.raises(CorruptState, match=r"chk-3-2/sums-0/.*key group"):
        successor.capture(False).write(store, "chk-3-2/sums-0")


@KINDS
@pytest.mark.parametrize("full", [False, True])
def test_a_checkpoint_or_savepoint_that_lacks_a_row_is_declined(kind: Kind, full: bool, monkeypatch: Patch) -> None:
    store, state, table = fresh(kind)
    kind.put(table, range(9), 5)
    capture = state.capture(full)

    def without_last_row(parts: Any) -> Iterator[pa.RecordBatch]:
        return (batch.slice(0, batch.num_rows - 1) for batch in segment_batches(parts))

    with monkeypatch.context() as patch:
        patch.setattr("runtime.state.backend.segment_batches", without_last_row)
        with pytest.raises(CorruptState, match=r"chk-2-1/sums-0/.*key group"):
            capture.write(store, "chk-2-1/sums-0")
    assert not store.list("chk-2-1")


@KINDS
def test_a_restore_that_lacks_a_row_names_operator_state_file_and_key_group(kind: Kind, monkeypatch: Patch) -> None:
    store, state, _ = fresh(kind)
    snapshot, _ = state.capture(False).write(store, "chk-2-1/sums-0")
    monkeypatch.setattr(segments, "read_segment", lambda *arguments: read_segment(*arguments).slice(1))
    message = rf"state '{kind.name}' of operator 'sums' \(chk-1-1/sums-0/.*\)"
    with pytest.raises(CorruptState, match=rf"{message}: .*key group 0 has \d+ entries instead of \d+"):
        kind.open(restored(store, [snapshot], range(GROUPS)))


@KINDS
def test_a_changed_value_is_noticed_although_no_entry_is_missing(kind: Kind, monkeypatch: Patch) -> None:
    store, state, table = fresh(kind)
    kind.put(table, [3], 77)
    snapshot, _ = state.capture(False).write(store, "chk-2-1/sums-0")
    base_only = msgspec.structs.replace(snapshot, keyed={kind.name: snapshot.keyed[kind.name][:1]})
    with pytest.raises(CorruptState, match=r"the \d+ entries of key group \d have other contents"):
        kind.open(restored(store, [base_only], range(GROUPS)))


@KINDS
def test_a_split_and_a_union_agree_with_the_proof_and_a_lost_share_does_not(kind: Kind) -> None:
    """S3-21: one subtask becomes three, and three become one."""
    store, state, table = fresh(kind)
    snapshot, _ = state.capture(True).write(store, "savepoint-2-1/sums-0")
    parts = []
    for index in range(3):
        share = restored(store, [snapshot], key_group_range(index, GROUPS, 3))
        kind.open(share)
        parts.append(share.capture(True).write(store, f"savepoint-3-2/sums-{index}")[0])
    assert len(kind.open(restored(store, parts, range(GROUPS)))) == len(table)
    total = add_proofs(part.proofs[kind.name] for part in parts)
    assert proof_difference(snapshot.proofs[kind.name], total) == ""
    union = SubtaskState(range(GROUPS), GROUPS, store)
    proofs = keyed_proofs(parts, range(GROUPS))
    union.restore(SubtaskRestore(subtask=SubtaskId(OPERATOR, 0), snapshots=tuple(parts[:2]), proofs=proofs))
    with pytest.raises(CorruptState, match="has 0 entries instead of"):
        kind.open(union)


def test_state_without_a_proof_is_refused() -> None:
    store, state, _ = fresh(Typed)
    snapshot, _ = state.capture(False).write(store, "chk-2-1/sums-0")
    with pytest.raises(CorruptState, match=r"has \d+ entries instead of 0"):
        Typed.open(restored(store, [msgspec.structs.replace(snapshot, proofs={})], range(GROUPS)))


def test_a_wider_type_keeps_the_proof_and_a_row_lost_by_it_is_noticed(monkeypatch: Patch) -> None:
    """Evolution: the values are the same in the wider type."""
    store, state = MemorySnapshotStore(), SubtaskState(range(GROUPS), GROUPS, MemorySnapshotStore())
    narrow = state.keyed_table("t", pa.schema([("k", pa.int32())]), pa.schema([pa.field("n", pa.float32())]))
    rows = narrow.upsert([pa.array([1, 2, None], pa.int32())])
    narrow.column("n")[rows], narrow.valid("n")[rows] = [0.5, -0.0, float("nan")], True
    snapshot, _ = state.capture(False).write(store, "chk-1-1/sums-0")
    wide = (pa.schema([("k", pa.int64())]), pa.schema([pa.field("n", pa.float64())]))
    assert len(restored(store, [snapshot], range(GROUPS)).keyed_table("t", *wide)) == 3
    put = ValueColumn.put
    monkeypatch.setattr(ValueColumn, "put", lambda self, ids, values: put(self, ids, pa.array([0.0] * len(values))))
    with pytest.raises(CorruptState, match="other contents"):
        restored(store, [snapshot], range(GROUPS)).keyed_table("t", *wide)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-1, 0, None]), (pa.uint64(), [2**64 - 1, 1, None]), (pa.bool_(), [True, False, None]),
        (pa.float16(), [np.float16(0.5), np.float16(-0.0), None]), (pa.float64(), [float("nan"), -0.0, None]),
        (pa.timestamp("us"), [-1, 2**40, None]), (pa.date32(), [0, 9, None]), (pa.duration("ms"), [5, 0, None]),
        (pa.decimal128(38, 2), [Decimal("-1.25"), Decimal("1e30"), None]),
    ],
)  # fmt: skip
def test_a_value_has_the_same_hash_in_the_live_table_and_in_a_file(kind: Any, values: list[Any]) -> None:
    store, state = MemorySnapshotStore(), SubtaskState(range(GROUPS), GROUPS, MemorySnapshotStore())
    table = state.keyed_table("t", KEYS, pa.schema([pa.field("n", kind)]))
    table.restore([pa.array(range(len(values)))], [pa.array(values, kind)])
    snapshot, _ = state.capture(False).write(store, "chk-1-1/sums-0")
    successor = restored(store, [snapshot], range(GROUPS)).keyed_table("t", KEYS, pa.schema([pa.field("n", kind)]))
    assert successor.proof()() == snapshot.proofs["t"]


def value_hashes(column: pa.Array) -> Any:
    return hash_rows([value_input(column)])


@given(values=st.lists(st.one_of(st.none(), st.binary(max_size=400)), min_size=1, max_size=8), at=st.integers(0, 7))
def test_the_hash_of_a_value_depends_on_all_its_bytes_and_on_no_other_value(
    values: list[bytes | None], at: int
) -> None:
    column = pa.array(values, pa.large_binary())
    hashes = value_hashes(column)
    assert hashes.tolist() == [int(value_hashes(column[row : row + 1])[0]) for row in range(len(values))]
    value = values[at % len(values)]
    if value:
        place = (at * 61) % len(value)
        changed = value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
        variants = [changed, value + b"\0", value[:-1], value[64:] + value[:64] if len(value) > 128 else b"other"]
        variants = [other for other in variants if other != value]
        assert int(hashes[at % len(values)]) not in value_hashes(pa.array(variants, pa.large_binary())).tolist()


def test_broadcast_state_is_compared_with_its_proof(monkeypatch: Patch) -> None:
    store, state = MemorySnapshotStore(), SubtaskState(range(GROUPS), GROUPS, MemorySnapshotStore())
    table, rules = state.broadcast_table("names"), state.broadcast_map("rules")
    table.append(pa.record_batch({"id": [1, 2], "tags": [["a"], []]}))
    rules["a"], rules["b"] = 1, 2
    snapshot, _ = state.capture(False).write(store, "chk-1-1/sums-0")
    assert {name: sum(part.entries for part in proof.values()) for name, proof in snapshot.proofs.items()} == {
        "names": 2,
        "rules": 2,
    }
    monkeypatch.setattr("runtime.state.backend.read_segment", lambda *arguments: read_segment(*arguments).slice(1))
    successor = SubtaskState(range(GROUPS), GROUPS, store)
    successor.restore(SubtaskRestore(subtask=SubtaskId(OPERATOR, 0), broadcast=snapshot))
    with pytest.raises(CorruptState, match="state 'names' of operator 'sums'"):
        successor.broadcast_table("names")
    with pytest.raises(CorruptState, match="state 'rules' of operator 'sums'"):
        successor.broadcast_map("rules")


@pytest.mark.parametrize("texts", [0, 1_200])
def test_a_null_key_before_the_first_text_leaves_the_hashes_of_later_texts_right(texts: int) -> None:
    """Also once all texts were deleted, and the numbering of texts began anew."""
    store, state = MemorySnapshotStore(), SubtaskState(range(GROUPS), GROUPS, MemorySnapshotStore(), compaction=SMALL)
    schema = pa.schema([("k", pa.string())])
    table = state.keyed_table("t", schema, VALUES)
    rows = table.upsert([pa.array([None, *(f"text {number}" for number in range(texts))], pa.string())])
    state.capture(False).write(store, "chk-1-1/sums-0")
    table.delete(rows[1:])
    state.capture(False).write(store, "chk-2-1/sums-0")
    table.touch(rows[:1])
    state.capture(False).write(store, "chk-3-1/sums-0")
    table.upsert([pa.array(["new", None, "other"], pa.string())])
    snapshot, _ = state.capture(False).write(store, "chk-4-1/sums-0")
    assert len(restored(store, [snapshot], range(GROUPS)).keyed_table("t", schema, VALUES)) == 3


@KINDS
def test_a_whole_state_that_is_missing_is_noticed(kind: Kind) -> None:
    """Its files are named by no manifest, and its proof is left: declared or not, the state is not empty."""
    store, state, _ = fresh(kind)
    snapshot, _ = state.capture(False).write(store, "chk-2-1/sums-0")
    nothing = msgspec.structs.replace(snapshot, keyed={})
    with pytest.raises(CorruptState, match=rf"state '{kind.name}' of operator 'sums' \(without files\)"):
        kind.open(restored(store, [nothing], range(GROUPS)))
    with pytest.raises(JobRejected, match=f"the checkpoint holds state '{kind.name}'"):
        restored(store, [nothing], range(GROUPS)).check_declarations()


def test_proofs_do_not_hold_the_changes_of_captures_whose_writes_failed() -> None:
    """While the disk is full, a job goes on."""
    store, (_, state, table) = FailingStore(), fresh(PerGroup, 8)
    for number in range(50):
        PerGroup.put(table, range(8), number)
        capture = state.capture(False)
        with pytest.raises(DiskFull), store.failing_after(0):
            capture.write(store, f"chk-{number + 2}-1/sums-0")
        assert table._history._newest._previous is None


def test_a_broadcast_table_may_have_columns_that_no_key_can_have() -> None:
    store, state = MemorySnapshotStore(), SubtaskState(range(GROUPS), GROUPS, MemorySnapshotStore())
    table = state.broadcast_table("names")
    table.append(pa.record_batch({"id": [1], "every": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}))
    assert state.capture(False).write(store, "chk-1-1/sums-0")[0].proofs["names"][0].entries == 1


def test_a_change_that_no_capture_has_is_noticed_by_the_number_of_entries() -> None:
    store, state, table = fresh(Typed)
    rows = table.upsert([Typed.column([1_000])])
    table._dirty.data[rows] = False
    with pytest.raises(CorruptState, match="it has 65 entries, and 64 in its proof"):
        state.capture(False).write(store, "chk-2-1/sums-0")


def test_proofs_of_captures_that_were_never_written_do_not_pile_up_on_the_stack() -> None:
    store, state, table = fresh(PerGroup)
    for number in range(5_000):
        PerGroup.put(table, [number % 50], number)
        state.capture(False)
    snapshot, _ = state.capture(False).write(store, "chk-2-1/sums-0")
    assert len(PerGroup.open(restored(store, [snapshot], range(GROUPS)))) == len(table)


ROWS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), st.integers(0, 3)), max_size=30)


@given(rows=ROWS, seed=st.randoms())
def test_a_proof_depends_on_contents_and_not_on_order(rows: list[tuple[int, int, int]], seed: Any) -> None:
    def proof(some: Sequence[tuple[int, int, int]]) -> dict[int, GroupProof]:
        groups, keys, values = (list(column) for column in zip(*some, strict=True)) if some else ([], [], [])
        columns = [pa.array(groups, pa.int32()), pa.array([False] * len(some)), pa.array(keys), pa.array(values)]
        batch = pa.RecordBatch.from_arrays(
            [
                column.cast(kind)
                for column, kind in zip(columns, (pa.int32(), pa.bool_(), pa.int64(), pa.int64()), strict=True)
            ],
            names=["g", "d", "k", "v"],
        )
        return dict(proof_of_rows(PrimaryKey(1), [batch]))

    shuffled = list(rows)
    seed.shuffle(shuffled)
    assert proof(rows) == proof(shuffled)
    if rows:
        assert proof_difference(proof(rows), proof(rows[1:]))
        assert proof_difference(proof(rows), proof([*rows, rows[0]]))
        assert total_proof([proof(rows[:3]), proof(rows[3:])]) == total_proof([proof(rows)])


@KINDS
@pytest.mark.parametrize("seed", range(5))
def test_a_proof_is_that_of_its_capture_whenever_it_is_computed(kind: Kind, seed: int) -> None:
    """Writers compute proofs later, in any order. Row ids of deleted entries are used again meanwhile."""
    random, state = Random(seed), SubtaskState(range(GROUPS), GROUPS, MemorySnapshotStore())
    table: Any = kind.open(state)
    proofs = list[tuple[LazyProof, StateProof]]()
    present = set[int]()
    for step in range(60):
        keys = random.sample(range(40), random.randint(1, 12))
        kind.put(table, keys, step)
        present.update(keys)
        for key in random.sample(sorted(present), random.randint(0, min(8, len(present)))):
            kind.delete(table, key)
            present.remove(key)
        match random.randrange(3):
            case 0:
                table.capture_changes()
            case 1:
                table.capture_all()
        proofs.append((table.proof(), rows_proof([table.copy_all()])))
    random.shuffle(proofs)
    assert all(proof() == expected for proof, expected in proofs)
