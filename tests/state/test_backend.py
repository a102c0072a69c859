"""Captures and restores of a subtask's whole state, against a dictionary, with writes that fail and rescales."""

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.job.key_groups import key_group_range
from runtime.core.restore.state_assignment import SubtaskRestore, keyed_proofs
from runtime.core.snapshot.manifest import SubtaskSnapshot, TableColumns
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.state.backend import StateCapture, SubtaskState
from runtime.state.files.compaction import DEFAULT_POLICY, CompactionPolicy
from runtime.state.schema import OPEN_TYPE, namespace_field
from tests.example_counts import examples
from tests.state.failing_store import FailingStore
from tests.state.retaining import retained

GROUPS = 16
FILES_ONLY = replace(DEFAULT_POLICY, inline_bytes=0)
KEYS = pa.schema([pa.field("name", OPEN_TYPE), namespace_field("window", pa.int64())])
VALUES = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("best", OPEN_TYPE)])
ME = SubtaskId(OperatorId("op"), 0)

Key = tuple[str | None, int]
Row = tuple[int, float | None]


def declared(state: SubtaskState) -> Any:
    return state.keyed_table("counts", KEYS, VALUES)


def put(table: Any, rows: dict[Key, Row]) -> None:
    table.bind_types([pa.string(), pa.int64()], [pa.int64(), pa.float64()])
    if not rows:
        return
    names, windows = zip(*rows, strict=True)
    slots = table.upsert([pa.array(names, pa.string()), pa.array(windows, pa.int64())])
    table.column("n")[slots] = [n for n, _ in rows.values()]
    table.column("best")[slots] = [best or 0.0 for _, best in rows.values()]
    table.valid("best")[slots] = [best is not None for _, best in rows.values()]
    table.touch(slots)


def drop(table: Any, keys: Iterable[Key]) -> None:
    names, windows = zip(*keys, strict=True)
    table.delete(table.find([pa.array(names, pa.string()), pa.array(windows, pa.int64())]))


def contents(table: Any) -> dict[Key, Row]:
    if not table.is_typed:
        return {}
    slots = table.row_ids()
    keys = zip(*(table.key_column(name, slots).to_pylist() for name in KEYS.names), strict=True)
    values = zip(*(table.value_column(name, slots).to_pylist() for name in VALUES.names), strict=True)
    return dict(zip(keys, values, strict=True))


def restore_of(snapshots: Iterable[SubtaskSnapshot], groups: range = range(GROUPS)) -> SubtaskRestore:
    subtask_snapshots = tuple(snapshots)
    return SubtaskRestore(subtask=ME, snapshots=subtask_snapshots, proofs=keyed_proofs(subtask_snapshots, groups))


def restored(
    store: MemorySnapshotStore,
    snapshots: Iterable[SubtaskSnapshot],
    groups: range,
    policy: CompactionPolicy = FILES_ONLY,
) -> SubtaskState:
    state = SubtaskState(groups, GROUPS, store, compaction=policy)
    state.restore(restore_of(snapshots, groups))
    return state


NAMES = st.sampled_from([None, "", "a", "b", "c", "d", "e", "f", "g", "h"])
ALL_KEYS = st.tuples(NAMES, st.integers(0, 4))
ROWS = st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | st.floats(-1e9, 1e9))


class StateMachine(RuleBasedStateMachine):
    """S3-20, S3-31: several subtasks of one operator against one dictionary and what it was at each snapshot."""

    @initialize(
        parallelism=st.integers(1, 4),
        most_deltas=st.sampled_from([2, 3, 8]),
        merged=st.booleans(),
        inline_bytes=st.sampled_from([0, 2_000, DEFAULT_POLICY.inline_bytes]),
    )
    def begin(self, parallelism: int, most_deltas: int, merged: bool, inline_bytes: int) -> None:
        small = {"copied_bytes": 0, "base_bytes": 0} if merged else {}
        self.policy = CompactionPolicy(max_deltas=most_deltas, inline_bytes=inline_bytes, **small)
        self.store = FailingStore()
        self.model: dict[Key, Row] = {}
        self.captures = 0
        self.latest: list[StateCapture] = []
        self.snapshots: list[tuple[dict[Key, Row], list[SubtaskSnapshot]]] = []
        self.start([], parallelism)

    def start(self, snapshots: list[SubtaskSnapshot], parallelism: int) -> None:
        ranges = [key_group_range(index, GROUPS, parallelism) for index in range(parallelism)]
        self.states = [restored(self.store, snapshots, groups, self.policy) for groups in ranges]
        self.tables = [declared(state) for state in self.states]

    def owner(self, key: Key) -> Any:
        """Keys must be dealt as the exchange does, or a restore would drop them."""
        from runtime.operators.partition import partition_by_key_group

        batch = pa.RecordBatch.from_pydict({"name": pa.array([key[0]], pa.string())})
        dealt = partition_by_key_group(batch, ["name"], GROUPS, len(self.tables))
        return next(table for table, part in zip(self.tables, dealt, strict=True) if part is not None)

    @rule(rows=st.dictionaries(ALL_KEYS, ROWS, min_size=1, max_size=12))
    def upsert(self, rows: dict[Key, Row]) -> None:
        for table in self.tables:
            put(table, {key: row for key, row in rows.items() if self.owner(key) is table})
        self.model.update(rows)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        for key in data.draw(st.lists(st.sampled_from(sorted(self.model, key=str)), unique=True)) if self.model else ():
            drop(self.owner(key), [key])
            del self.model[key]

    @rule(full=st.booleans(), patience=st.sampled_from([0, 1, 2, 5, 1000, 1000]))
    def checkpoint(self, full: bool, patience: int) -> None:
        self.captures += 1
        captures = self.latest = [state.capture(full) for state in self.states]
        self.store.writes_until_failure = patience
        try:
            written = [capture.write(self.store, f"chk-{self.captures}/{i}")[0] for i, capture in enumerate(captures)]
        except EnvironmentFailure:
            return
        finally:
            self.store.writes_until_failure = 1_000_000
        self.snapshots.append((dict(self.model), written))
        assert contents(declared(restored(self.store, written, range(GROUPS)))) == self.model
        if not full:
            self.snapshots = retained(self.store, self.snapshots)

    @rule(patience=st.sampled_from([0, 1, 2, 5, 1000, 1000, 1000]))
    def tidy(self, patience: int) -> None:
        """Of the last captures, whether or not they were written, and also if the job began anew since."""
        self.store.writes_until_failure = patience
        try:
            for i, capture in enumerate(self.latest):
                capture.compact(self.store, f"chk-{self.captures}/{i}")
        except EnvironmentFailure:
            return
        finally:
            self.store.writes_until_failure = 1_000_000

    @rule(data=st.data(), parallelism=st.integers(1, 4))
    def restore(self, data: st.DataObject, parallelism: int) -> None:
        if self.snapshots:
            model, written = data.draw(st.sampled_from(self.snapshots))
            self.model = dict(model)
            self.start(written, parallelism)

    @invariant()
    def tables_hold_what_the_model_holds(self) -> None:
        rows: dict[Key, Row] = {}
        for table in self.tables:
            part = contents(table)
            assert not rows.keys() & part.keys(), "a key is in two subtasks"
            rows.update(part)
        assert rows == self.model


StateMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestStateMachine = StateMachine.TestCase


# ---------------------------------------------------------------- chains


def write(state: SubtaskState, store: MemorySnapshotStore, number: int, full: bool = False) -> SubtaskSnapshot:
    return state.capture(full).write(store, f"chk-{number}/op-0")[0]


def fresh(policy: CompactionPolicy = FILES_ONLY) -> tuple[MemorySnapshotStore, SubtaskState, Any]:
    store = MemorySnapshotStore()
    state = SubtaskState(range(GROUPS), GROUPS, store, compaction=policy)
    return store, state, declared(state)


def many(count: int, n: int = 0) -> dict[Key, Row]:
    return {(f"key {number}", 0): (n, None) for number in range(count)}


def test_a_delta_holds_only_what_changed_and_what_went() -> None:
    """S4-02: so checkpoints may be frequent."""
    store, state, table = fresh()
    put(table, many(10_000))
    base = write(state, store, 1)
    put(table, {("key 1", 0): (5, 1.0)})
    drop(table, [("key 2", 0), ("key 3", 0)])
    delta = write(state, store, 2)
    assert delta.keyed["counts"][0] == base.keyed["counts"][0]
    assert [segment.rows for segment in delta.keyed["counts"]] == [10_000, 3]


def test_a_key_that_came_and_went_between_captures_leaves_no_tombstone() -> None:
    store, state, table = fresh()
    put(table, many(100))
    write(state, store, 1)
    put(table, {("short-lived", 1): (1, None)})
    drop(table, [("short-lived", 1)])
    assert len(write(state, store, 2).keyed["counts"]) == 1


def test_a_key_that_came_with_a_delta_can_go_with_the_next() -> None:
    store, state, table = fresh()
    put(table, many(100))
    write(state, store, 1)
    put(table, {("new", 0): (1, None)})
    write(state, store, 2)
    drop(table, [("new", 0)])
    successor = declared(restored(store, [write(state, store, 3)], range(GROUPS)))
    assert contents(successor) == contents(table) == many(100)


def test_a_new_base_forgets_what_went_before_it() -> None:
    store = MemorySnapshotStore()
    state = restored(store, [], range(GROUPS), CompactionPolicy(max_deltas=2))
    table = declared(state)
    put(table, many(100))
    write(state, store, 0)
    for _ in range(2):
        put(table, many(1))
        write(state, store, 1)
    drop(table, [("key 5", 0)])
    put(table, {("key 5", 0): (5, None)})
    write(state, store, 2)
    put(table, {("key 6", 0): (6, None)})
    successor = declared(restored(store, [write(state, store, 3)], range(GROUPS)))
    assert contents(successor) == contents(table)
    assert contents(successor)["key 5", 0] == (5, None)


def test_an_idle_state_writes_nothing_again() -> None:
    store, state, table = fresh()
    put(table, many(100))
    first = write(state, store, 1)
    capture = state.capture(False)
    snapshot, written = capture.write(store, "chk-2/op-0")
    assert (snapshot, written) == (first, 0)


def test_a_delta_whose_write_failed_is_written_by_the_next_capture() -> None:
    store = FailingStore()
    state = SubtaskState(range(GROUPS), GROUPS, store, compaction=FILES_ONLY)
    table = declared(state)
    put(table, many(1000))
    write(state, store, 1)
    put(table, {("key 7", 0): (7, None)})
    lost = state.capture(False)
    store.writes_until_failure = 0
    with pytest.raises(EnvironmentFailure):
        lost.write(store, "chk-2/op-0")
    store.writes_until_failure = 1_000_000
    put(table, {("key 8", 0): (8, None)})
    snapshot = write(state, store, 3)
    rows = contents(declared(restored(store, [snapshot], range(GROUPS))))
    assert (rows["key 7", 0], rows["key 8", 0]) == ((7, None), (8, None))
    assert all(not segment.path.startswith("chk-2") for segment in snapshot.segments())


def test_a_savepoint_is_complete_and_leaves_the_marks_alone() -> None:
    store, state, table = fresh()
    put(table, many(1000))
    write(state, store, 1)
    put(table, {("key 1", 0): (1, None)})
    savepoint = write(state, store, 2, full=True)
    after = write(state, store, 3)
    assert [segment.rows for segment in savepoint.keyed["counts"]] == [1000]
    assert [segment.rows for segment in after.keyed["counts"]] == [1000, 1]
    assert not {segment.path for segment in savepoint.segments()} & {segment.path for segment in after.segments()}
    assert contents(declared(restored(store, [savepoint], range(GROUPS)))) == contents(table)


def test_the_base_of_a_small_state_is_rewritten_when_there_are_many_deltas() -> None:
    store, state, table = fresh()
    put(table, many(500))
    lengths = []
    for number in range(2 * DEFAULT_POLICY.max_deltas + 3):
        put(table, {(f"key {number}", 0): (number, None)})
        lengths.append(len(write(state, store, number).keyed["counts"]))
    assert max(lengths) == DEFAULT_POLICY.max_deltas + 1
    assert lengths.count(1) == 2 + 1


def test_the_base_is_rewritten_when_the_deltas_outweigh_it() -> None:
    store, state, table = fresh()
    put(table, many(10_000))
    lengths = []
    for number in range(6):
        put(table, many(4_000, number))
        lengths.append(len(write(state, store, number).keyed["counts"]))
    assert lengths == [1, 2, 3, 4, 1, 2]


def test_everything_is_written_when_most_has_changed() -> None:
    """It costs little more than the changes, and nothing before it is needed any more."""
    store, state, table = fresh()
    put(table, many(10_000))
    for number in range(4):
        put(table, many(6_000, number))
        assert [segment.rows for segment in write(state, store, number).keyed["counts"]] == [10_000]


def test_the_first_checkpoint_after_a_restore_leans_on_nothing_older() -> None:
    store, state, table = fresh()
    put(table, many(100))
    before = write(state, store, 1)
    state = restored(store, [before], range(GROUPS))
    declared(state)
    after = write(state, store, 2)
    assert not {segment.path for segment in before.segments()} & {segment.path for segment in after.segments()}


def test_segments_are_sorted_by_key_group_and_say_which_occur() -> None:
    store, state, table = fresh()
    put(table, many(500))
    write(state, store, 1)
    put(table, {("key 9", 0): (1, None)})
    drop(table, [(f"key {number}", 0) for number in range(20, 60)])
    for segment in write(state, store, 2).keyed["counts"]:
        groups = pa.ipc.open_stream(store.get(segment.path)).read_all().column(0).to_numpy()
        assert (np.diff(groups) >= 0).all()
        assert (segment.first_group, segment.last_group) == (groups[0], groups[-1])


def test_a_small_state_lies_in_its_snapshot_and_needs_no_storage() -> None:
    store, state, table = fresh(DEFAULT_POLICY)
    for number in range(20):
        put(table, {(f"key {number}", 0): (number, None)})
        drop(table, [(f"key {number - 5}", 0)] if number >= 5 else [("key 0", 0)])
        put(table, {("key 0", 0): (number, 1.0)})
        snapshot = write(state, store, number)
        assert len(snapshot.segments()) == 1, "a small state is copied: no chain of deltas in every manifest"
    assert store.list("") == []
    parts = [restored(store, [snapshot], key_group_range(index, GROUPS, 3)) for index in range(3)]
    tables = [contents(declared(part)) for part in parts]
    assert {key: row for part in tables for key, row in part.items()} == contents(table)


def test_deltas_in_the_manifest_have_a_common_bound_and_savepoints_are_files() -> None:
    policy = replace(DEFAULT_POLICY, inline_bytes=5_000)
    store, state, table = fresh(policy)
    put(table, many(5_000))
    inline_bytes = []
    for number in range(1, 9):
        snapshot = write(state, store, number)
        inline_bytes.append(sum(len(segment.content) for segment in snapshot.segments()))
        assert all(segment.is_inline or store.get(segment.path) for segment in snapshot.segments())
        put(table, {(f"key {number}", 0): (number, None)})
    assert inline_bytes[:3] == sorted(set(inline_bytes[:3])), "each delta is inline at first"
    assert 0 < max(inline_bytes) <= policy.inline_bytes
    assert not all(segment.is_inline for segment in snapshot.segments()[1:]), "and a file at last"
    successor = restored(store, [snapshot], range(GROUPS))
    assert contents(declared(successor))["key 7", 0] == (7, None)
    assert not any(segment.is_inline for segment in write(state, store, 10, full=True).segments())


def test_an_inline_delta_survives_a_checkpoint_that_is_given_up() -> None:
    store, state, table = fresh(DEFAULT_POLICY)
    put(table, many(5_000))
    write(state, store, 1)
    put(table, {("key 7", 0): (7, None)})
    state.capture(False).write(store, "chk-2/op-0")
    put(table, {("key 8", 0): (8, None)})
    snapshot = write(state, store, 3)
    rows = contents(declared(restored(store, [snapshot], range(GROUPS))))
    assert (rows["key 7", 0], rows["key 8", 0]) == ((7, None), (8, None))


def test_altered_bytes_in_a_manifest_are_named() -> None:
    store, state, table = fresh(DEFAULT_POLICY)
    put(table, many(100))
    snapshot = write(state, store, 1)
    short = snapshot.with_segments(lambda segment: msgspec.structs.replace(segment, content=segment.content[:-1]))
    with pytest.raises(CorruptState, match=re.escape(snapshot.segments()[0].path)):
        declared(restored(store, [short], range(GROUPS)))


def test_a_capture_can_be_written_while_the_state_goes_on() -> None:
    store, state, table = fresh()
    put(table, {("a", 0): (1, None), ("b", 0): (2, None)})
    capture = state.capture(False)
    put(table, {("a", 0): (100, 5.0), ("c", 3): (3, None)})
    drop(table, [("b", 0)])
    snapshot, _ = capture.write(store, "chk-1/op-0")
    rows = contents(declared(restored(store, [snapshot], range(GROUPS))))
    assert rows == {("a", 0): (1, None), ("b", 0): (2, None)}


def test_a_subtask_without_rows_learns_the_types_from_its_predecessors() -> None:
    store, state, table = fresh()
    put(table, {("a", 0): (1, None)})
    snapshot = write(state, store, 1)
    group = snapshot.keyed["counts"][0].first_group
    empty = declared(restored(store, [snapshot], range(group + 1, group + 1)))
    assert (len(empty), empty.is_typed) == (0, True)


# ---------------------------------------------------------------- what can be wrong


def damaged(change: str) -> tuple[MemorySnapshotStore, SubtaskSnapshot, str]:
    store, state, table = fresh()
    put(table, many(100))
    snapshot = write(state, store, 1)
    path = snapshot.keyed["counts"][0].path
    data = bytearray(store.get(path))
    if change == "flipped":
        data[len(data) // 2] ^= 1
    if change == "short":
        del data[-10:]
    store.put(path, [bytes(data)])
    if change == "missing":
        store.delete([path])
    return store, snapshot, path


@pytest.mark.parametrize("change", ["flipped", "short", "missing"])
def test_a_damaged_file_is_named(change: str) -> None:
    store, snapshot, path = damaged(change)
    with pytest.raises(CorruptState, match=re.escape(path)):
        declared(restored(store, [snapshot], range(GROUPS)))


def test_a_restored_state_that_nobody_declares_is_refused() -> None:
    store, state, table = fresh()
    put(table, many(3))
    snapshot = write(state, store, 1)
    state = restored(store, [snapshot], range(GROUPS))
    state.list_state("other")
    with pytest.raises(JobRejected, match=r"op: the checkpoint holds state 'counts'"):
        state.check_declarations()
    declared(state)
    state.check_declarations()


def test_columns_that_changed_are_refused() -> None:
    store, state, table = fresh()
    put(table, many(3))
    snapshot = write(state, store, 1)
    state = restored(store, [snapshot], range(GROUPS))
    with pytest.raises(JobRejected, match="window"):
        state.keyed_table("counts", pa.schema([("name", pa.string())]), VALUES)


def test_a_column_that_is_declared_narrower_keeps_the_wider_type_of_the_state() -> None:
    """A version may declare fewer bits; what the state holds is never cut off."""
    keys, store, everything = pa.schema([("k", pa.int64())]), MemorySnapshotStore(), range(GROUPS)
    wide, narrow = (pa.schema([("n", kind)]) for kind in (pa.int64(), pa.int32()))
    state = SubtaskState(everything, GROUPS, store)
    table = state.keyed_table("t", keys, wide)
    slots = table.upsert([pa.array([1])])
    table.valid("n")[slots] = True
    table.column("n")[slots] = 2**31
    successor = restored(store, [write(state, store, 1)], everything).keyed_table("t", keys, narrow)
    assert successor.column("n")[successor.row_ids()].tolist() == [2**31]


@pytest.mark.parametrize("declared", ["int64", "int8", "string"])
def test_a_restored_table_takes_the_key_types_of_the_graph_before_a_row_comes(declared: str) -> None:
    """Windows of a subtask without new rows had int32 keys beside the int64 of its siblings, in one output folder."""
    keys, store, everything = pa.schema([("k", pa.int32())]), MemorySnapshotStore(), range(GROUPS)
    state, values = SubtaskState(everything, GROUPS, store), pa.schema([("n", pa.int64())])
    state.keyed_table("t", keys, values).upsert([pa.array([1, -1], pa.int32())])
    successor = SubtaskState(everything, GROUPS, store, {"k": declared})
    successor.restore(restore_of([write(state, store, 1)]))
    restored_table = successor.keyed_table("t", pa.schema([("k", pa.null())]), values)
    column = restored_table.key_column("k", restored_table.row_ids())
    assert sorted(column.to_pylist()) == [-1, 1]
    assert column.type == (pa.int64() if declared == "int64" else pa.int32())


@pytest.mark.parametrize("declared", ["double", "halffloat", "string"])
def test_a_restored_table_takes_the_value_types_of_the_graph_before_a_row_comes(declared: str) -> None:
    """A window that fired before its subtask had a row emitted a float, and later doubles: the attempt failed."""
    keys, store, everything = pa.schema([("k", pa.int64())]), MemorySnapshotStore(), range(GROUPS)
    state = SubtaskState(everything, GROUPS, store)
    table = state.keyed_table("t", keys, pa.schema([("n", pa.float32())]))
    slots = table.upsert([pa.array([1])])
    table.column("n")[slots] = 0.5
    table.valid("n")[slots] = True
    successor = SubtaskState(everything, GROUPS, store, value_types={"t.n": declared, "other.n": "double"})
    successor.restore(restore_of([write(state, store, 1)]))
    second_table = successor.keyed_table("t", keys, pa.schema([("n", pa.null())]))
    column = second_table.value_column("n", second_table.row_ids())
    assert column.to_pylist() == [0.5]
    assert column.type == (pa.float64() if declared == "double" else pa.float32())
    assert successor.capture(False).value_types == {"t.n": str(column.type)}


WIDER_KEYS = {
    "int32 to int64": (pa.array([1, -1], pa.int32()), pa.array([1, 2**40], pa.int64())),
    "uint32 to int64": (pa.array([1, 2**32 - 1], pa.uint32()), pa.array([1, -1], pa.int64())),
    "int8 and uint8": (pa.array([1, -1], pa.int8()), pa.array([1, 255], pa.uint8())),
    "binary of 2 to binary": (pa.array([b"ab", b"cd"], pa.binary(2)), pa.array([b"ab", b"longer"])),
    "string to large string": (pa.array(["ab", "cd"]), pa.array(["ab", "e"], pa.large_string())),
    "int64 to int32": (pa.array([1, 2**40], pa.int64()), pa.array([1, -1], pa.int32())),
}


@pytest.mark.parametrize("pair", WIDER_KEYS)
def test_a_key_column_may_become_wider_and_checkpoints_go_on(pair: str) -> None:
    """Every later snapshot failed in the background, for ever; a bounded job never ended."""
    before, after = WIDER_KEYS[pair]
    store, everything, values = MemorySnapshotStore(), range(GROUPS), pa.schema([pa.field("n", pa.int64(), False)])
    state = SubtaskState(everything, GROUPS, store)
    open_keys = pa.schema([pa.field("k", pa.null())])
    table = state.keyed_table("t", open_keys, values)
    table.bind_types([before.type], [pa.int64()])
    slots = table.upsert([before])
    table.column("n")[slots] = 1
    snapshot = write(state, store, 1)
    for number in (2, 3):
        state = restored(store, [snapshot], everything)
        table = state.keyed_table("t", open_keys, values)
        table.bind_types([after.type], [pa.int64()])
        slots = table.upsert([after])
        table.column("n")[slots] += 1
        table.touch(slots)
        snapshot = write(state, store, number)
    table = restored(store, [snapshot], everything).keyed_table("t", open_keys, values)
    slots = table.row_ids()
    counts = dict(zip(table.key_column("k", slots).to_pylist(), table.column("n")[slots].tolist(), strict=True))
    (shared_key, once), (_, new) = before.to_pylist(), after.to_pylist()
    assert counts == {shared_key: 3, once: 1, new: 2}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.array([0.1], pa.float32()), pa.array([0.1])),
        (pa.array([-1]), pa.array([2**64 - 1], pa.uint64())),
        (pa.array([1]), pa.array(["1"])),
    ],
)
def test_a_key_column_of_a_type_that_does_not_go_with_its_state_is_refused(before: pa.Array, after: pa.Array) -> None:
    """Keys were rounded, counts began anew, and two keys were one."""
    table = SubtaskState(range(GROUPS), GROUPS, None).keyed_table("t", pa.schema([pa.field("k", before.type)]), VALUES)
    with pytest.raises(JobRejected, match=f"'k' is {before.type} in the state and {after.type} in the data"):
        table.bind_types([after.type], VALUES.types)


@pytest.mark.parametrize("name", ["", "a/b", "..x/y", "ä"])
def test_a_state_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(JobRejected, match="state name"):
        SubtaskState(range(1), 1, None).list_state(name)


def test_a_name_is_declared_once() -> None:
    state = SubtaskState(range(1), 1, None)
    state.list_state("a")
    with pytest.raises(JobRejected, match="twice"):
        state.broadcast_table("a")


# ---------------------------------------------------------------- lists and broadcast


def test_list_state_is_copied_at_the_barrier_and_given_back() -> None:
    """S3-27."""
    state = SubtaskState(range(GROUPS), GROUPS, None)
    values = state.list_state("offsets")
    entry = {"file": "a", "rows": [1, 2]}
    values.replace([entry, 7])
    capture = state.capture(False)
    entry["file"] = "changed"
    snapshot, _ = capture.write(MemorySnapshotStore(), "chk-1/op-0")
    assert snapshot.lists == {"offsets": ({"file": "a", "rows": [1, 2]}, 7)}
    successor = SubtaskState(range(GROUPS), GROUPS, None)
    successor.restore(SubtaskRestore(subtask=ME, snapshots=(), lists={"offsets": (1, 2)}))
    assert successor.list_state("offsets").get() == [1, 2]


def test_a_list_holds_from_the_first_what_comes_back_after_a_restore() -> None:
    """S3-27: an author sees at once what becomes of the values, and a change to them is none of the state."""
    values = SubtaskState(range(GROUPS), GROUPS, None).list_state("offsets")
    entry = {"rows": [1, 2]}
    values.replace([entry])
    entry["rows"] = [3, 4]
    assert values.get() == [{"rows": [1, 2]}]
    values.get()[0]["rows"].append(3)
    assert values.get() == [{"rows": [1, 2]}]


@pytest.mark.parametrize("value", [b"x", float("nan"), {1, 2}, (1, 2), date(2024, 2, 29)], ids=repr)
@pytest.mark.parametrize("kind", ["list_state", "union_list_state"])
def test_a_list_refuses_what_would_come_back_as_something_else(kind: str, value: Any) -> None:
    """S3-27, S3-28: bytes came back as text, and what is not a number as nothing."""
    values = getattr(SubtaskState(range(GROUPS), GROUPS, None), kind)("offsets")
    with pytest.raises(JobRejected, match=r"offsets: (list )?state holds"):
        values.replace([value])


def test_a_snapshot_replaces_what_the_list_held_before() -> None:
    """S3-32: it holds the present content only."""
    state = SubtaskState(range(GROUPS), GROUPS, None)
    buffered = state.list_state("buffer")
    buffered.replace(["a", "b", "c"])
    state.capture(False)
    buffered.replace(["d"])
    assert state.capture(False).write(MemorySnapshotStore(), "chk-2/op-0")[0].lists == {"buffer": ("d",)}


def test_a_union_list_is_stored_as_one_and_comes_back_whole() -> None:
    """S3-28: everyone has all entries and picks its own; S4-49."""
    state = SubtaskState(range(GROUPS), GROUPS, None)
    state.union_list_state("parts").replace([{"part": 1}])
    state.union_list_state("none")
    snapshot = state.capture(False).write(MemorySnapshotStore(), "chk-1/op-0")[0]
    assert (snapshot.unions, snapshot.lists) == ({"parts": ({"part": 1},), "none": ()}, {})
    successor = SubtaskState(range(GROUPS), GROUPS, None)
    successor.restore(SubtaskRestore(subtask=ME, unions={"parts": ({"part": 0}, {"part": 1}), "none": ()}))
    assert successor.union_list_state("parts").get() == [{"part": 0}, {"part": 1}]
    successor.check_declarations()


@pytest.mark.parametrize("kind", ["list_state", "union_list_state", "object_table", "broadcast_map"])
def test_a_state_that_became_another_kind_is_refused(kind: str) -> None:
    """What it held would be lost without a word."""
    store = MemorySnapshotStore()
    before = SubtaskState(range(GROUPS), GROUPS, store)
    before.broadcast_map("b")["x"] = 1
    copied = before.capture(False).write(store, "chk-1/op-0")[0]
    restores: dict[str, SubtaskRestore] = {
        "list_state": SubtaskRestore(subtask=ME, unions={"b": (1,)}),
        "union_list_state": SubtaskRestore(subtask=ME, lists={"b": (1,)}),
        "object_table": SubtaskRestore(subtask=ME, broadcast=copied),
        "broadcast_map": SubtaskRestore(subtask=ME, lists={"b": (1,)}),
    }
    state = SubtaskState(range(GROUPS), GROUPS, store)
    state.restore(restores[kind])
    getattr(state, kind)("b")
    with pytest.raises(JobRejected, match=r"op: state 'b' is .* in the checkpoint and .* in this version"):
        state.check_declarations()


def test_broadcast_rows_are_written_once_and_come_back_in_order() -> None:
    store = MemorySnapshotStore()
    state = SubtaskState(range(GROUPS), GROUPS, store)
    table = state.broadcast_table("build")
    for start in range(3):
        table.append(pa.RecordBatch.from_pydict({"k": [start, start + 10], "v": ["x", None]}))
        snapshot = write(state, store, start)
    assert [segment.rows for segment in snapshot.broadcast["build"]] == [2, 2, 2]
    successor = SubtaskState(range(GROUPS), GROUPS, store)
    successor.restore(SubtaskRestore(subtask=ME, snapshots=(), broadcast=snapshot))
    restored_table = successor.broadcast_table("build").table()
    assert restored_table is not None
    assert restored_table.column("k").to_pylist() == [0, 10, 1, 11, 2, 12]


def test_broadcast_rows_of_another_schema_are_refused() -> None:
    table = SubtaskState(range(GROUPS), GROUPS, None).broadcast_table("build")
    table.append(pa.RecordBatch.from_pydict({"k": [1]}))
    with pytest.raises(JobRejected, match="build"):
        table.append(pa.RecordBatch.from_pydict({"k": ["1"]}))


def test_a_capture_is_what_the_port_asks_for() -> None:
    assert isinstance(SubtaskState(range(1), 1, None).capture(True), StateCapture)


def test_a_table_without_rows_names_its_columns() -> None:
    """It has no file from which a reader of the checkpoint could know them."""
    state, store = SubtaskState(range(GROUPS), GROUPS, None), MemorySnapshotStore()
    table = declared(state)
    state.object_table("objects")
    snapshot, _ = state.capture(full=False).write(store, "chk-1-1/op-0")
    assert snapshot.empty_tables == {
        "counts": TableColumns({"name": "null", "window": "int64"}, {"n": "int64", "best": "null"}),
        "objects": TableColumns({"key": "large_binary"}, {"value": "large_binary"}),
    }
    table.bind_types([pa.string(), pa.int64()], [pa.int64(), pa.float64()])
    slots = table.upsert([pa.array(["a"]), pa.array([1])])
    snapshot, _ = state.capture(full=False).write(store, "chk-2-1/op-0")
    assert list(snapshot.empty_tables) == ["objects"]
    table.delete(slots)
    snapshot, _ = state.capture(full=True).write(store, "savepoint-3-1/op-0")
    assert snapshot.empty_tables["counts"].values == {"n": "int64", "best": "double"}
