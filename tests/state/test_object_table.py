"""Keyed state of Python objects, captured and restored, against a dictionary: failing writes, deltas, rescales."""

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.job.key_groups import key_group_owner, key_group_range
from runtime.core.restore.state_assignment import SubtaskRestore, keyed_proofs
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.state import object_table
from runtime.state.backend import StateCapture, SubtaskState
from runtime.state.files.compaction import DEFAULT_POLICY, CompactionPolicy
from runtime.state.object_table import Entry, ObjectTable, Place
from tests.example_counts import examples
from tests.state.failing_store import FailingStore
from tests.state.retaining import retained

GROUPS = 8
ME = SubtaskId(OperatorId("op"), 0)
NAME = "objects"

Model = dict[tuple[int, bytes], list[tuple[Place, bytes]]]  #: per key, in the order of writing


def opened(
    store: MemorySnapshotStore,
    snapshots: Iterable[SubtaskSnapshot] = (),
    groups: range = range(GROUPS),
    policy: CompactionPolicy = DEFAULT_POLICY,
) -> tuple[SubtaskState, ObjectTable]:
    state = SubtaskState(groups, GROUPS, store, compaction=policy)
    subtask_snapshots = tuple(snapshots)
    state.restore(
        SubtaskRestore(subtask=ME, snapshots=subtask_snapshots, proofs=keyed_proofs(subtask_snapshots, groups))
    )
    return state, state.object_table(NAME)


def contents(*tables: ObjectTable) -> Model:
    model: Model = {}
    for table in tables:
        part: Model = {}
        for (group, key, place), value in table.items():
            assert isinstance(value, bytes), "only bytes are put here"
            part.setdefault((group, key), []).append((place, value))
        assert not model.keys() & part.keys(), "a key is in two subtasks"
        model.update(part)
    return model


def entry_of(number: int, place: Place) -> Entry:
    """A key has one key group for ever."""
    return number % GROUPS, msgspec.msgpack.encode([number, f"k{number}"]), place


ENTRIES = st.builds(entry_of, st.integers(0, 20), st.none() | st.integers(-3, 3) | st.binary(max_size=2))


class ObjectMachine(RuleBasedStateMachine):
    """Several subtasks of one operator; the model is one dictionary and, per snapshot, what it was then."""

    @initialize(parallelism=st.integers(1, 4), most_deltas=st.sampled_from([2, 3, 8]), merged=st.booleans())
    def begin(self, parallelism: int, most_deltas: int, merged: bool) -> None:
        small = {"copied_bytes": 0, "base_bytes": 0} if merged else {}
        self.policy = CompactionPolicy(max_deltas=most_deltas, **small)
        self.store = FailingStore()
        self.model: Model = {}
        self.captures = 0
        self.latest: list[StateCapture] = []
        self.snapshots: list[tuple[Model, list[SubtaskSnapshot]]] = []
        self.start([], parallelism)

    def start(self, snapshots: list[SubtaskSnapshot], parallelism: int) -> None:
        ranges = [key_group_range(index, GROUPS, parallelism) for index in range(parallelism)]
        pairs = [opened(self.store, snapshots, groups, self.policy) for groups in ranges]
        self.states, self.tables = [state for state, _ in pairs], [table for _, table in pairs]

    def owner(self, entry: Entry) -> ObjectTable:
        return self.tables[key_group_owner(entry[0], GROUPS, len(self.tables))]

    @rule(entries=st.lists(st.tuples(ENTRIES, st.binary(max_size=8)), min_size=1, max_size=10))
    def put(self, entries: list[tuple[Entry, bytes]]) -> None:
        for entry, value in entries:
            self.owner(entry).put(entry, value)
            places = self.model.setdefault(entry[:2], [])
            places[:] = [*((place, old) for place, old in places if place != entry[2]), (entry[2], value)]

    @rule(entries=st.lists(ENTRIES, min_size=1, max_size=10))
    def delete(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.forget(entry)

    @rule(data=st.data())
    def delete_what_is_there(self, data: st.DataObject) -> None:
        if there := [(*key, place) for key, places in self.model.items() for place, _ in places]:
            self.forget(data.draw(st.sampled_from(there)))

    def forget(self, entry: Entry) -> None:
        self.owner(entry).delete(entry)
        left = [(place, value) for place, value in self.model.pop(entry[:2], []) if place != entry[2]]
        if left:
            self.model[entry[:2]] = left

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
        self.snapshots.append(({key: list(places) for key, places in self.model.items()}, written))
        assert contents(opened(self.store, written)[1]) == self.model
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
            self.model = {key: list(places) for key, places in model.items()}
            self.start(written, parallelism)

    @invariant()
    def tables_hold_what_the_model_holds(self) -> None:
        assert contents(*self.tables) == self.model
        assert sum(len(table) for table in self.tables) == sum(len(places) for places in self.model.values())


ObjectMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestObjectMachine = ObjectMachine.TestCase


def write(state: SubtaskState, store: MemorySnapshotStore, number: int) -> SubtaskSnapshot:
    return state.capture(False).write(store, f"chk-{number}/op-0")[0]


def test_a_delta_holds_single_elements_and_what_came_and_went_leaves_nothing() -> None:
    store = MemorySnapshotStore()
    state, table = opened(store)
    for number in range(2_000):
        table.put(entry_of(7, number), b"x" * 100)
    write(state, store, 1)
    table.put(entry_of(7, 2_000), b"one more")
    table.delete(entry_of(7, 0))
    table.put(entry_of(9, None), b"short-lived")
    table.delete(entry_of(9, None))
    table.delete(entry_of(10, None))
    assert [segment.rows for segment in write(state, store, 2).keyed[NAME]] == [2_000, 2]


def calls_of_a_capture(keys: int) -> int:
    """The calls in the module of the table while a capture copies a single change."""
    store = MemorySnapshotStore()
    state, table = opened(store, policy=CompactionPolicy(copied_bytes=0, base_bytes=0, inline_bytes=0))
    for number in range(keys):
        table.put(entry_of(number, None), b"value")
    write(state, store, 1)
    table.put(entry_of(0, None), b"changed")
    calls = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == object_table.__file__

    sys.setprofile(count)
    try:
        capture = state.capture(False)
    finally:
        sys.setprofile(None)
    assert [segment.rows for segment in capture.write(store, "chk-2/op-0")[0].keyed[NAME]] == [keys, 1]
    return calls


def test_the_work_at_a_barrier_does_not_depend_on_the_number_of_entries() -> None:
    """Each capture counted the entries twice, key by key: a slot with millions of keys stood still."""
    assert 0 < calls_of_a_capture(20) == calls_of_a_capture(2_000)


def test_a_capture_can_be_written_while_the_state_goes_on() -> None:
    store = MemorySnapshotStore()
    state, table = opened(store)
    table.put(entry_of(1, None), b"before")
    capture = state.capture(False)
    table.put(entry_of(1, None), b"after")
    table.put(entry_of(2, None), b"new")
    snapshot, _ = capture.write(store, "chk-1/op-0")
    assert contents(opened(store, [snapshot])[1]) == {entry_of(1, None)[:2]: [(None, b"before")]}


def test_segments_are_arrow_streams_sorted_by_key_group_without_anything_executable() -> None:
    store = MemorySnapshotStore()
    state, table = opened(store)
    for number in reversed(range(40)):
        table.put(entry_of(number, b"place"), b"value")
    segment = write(state, store, 1).keyed[NAME][0]
    arrow_table = pa.ipc.open_stream(segment.content).read_all()
    groups = arrow_table.column(0).to_pylist()
    assert groups == sorted(groups)
    assert (segment.first_group, segment.last_group) == (0, GROUPS - 1)
    assert {tuple(msgspec.msgpack.decode(key)[0]) for key in arrow_table.column(2).to_pylist()} == {
        (number, f"k{number}") for number in range(40)
    }


def test_a_columnar_state_of_the_same_name_is_refused() -> None:
    store = MemorySnapshotStore()
    state = SubtaskState(range(GROUPS), GROUPS, store)
    keys, values = pa.schema([("key", pa.int64())]), pa.schema([("value", pa.int64())])
    state.keyed_table(NAME, keys, values).upsert([pa.array([1, 2])])
    snapshot = write(state, store, 1)
    with pytest.raises(JobRejected, match="objects: the checkpoint has columns of type int64, int64 here, not objects"):
        opened(store, [snapshot])
