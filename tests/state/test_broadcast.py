"""Broadcast entries: a dictionary that is captured in deltas and copied to everyone."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.state.backend import SubtaskState
from runtime.state.broadcast import BroadcastMap, BroadcastTable
from runtime.state.own_memory import memory_kept_alive
from tests.received import wide

ME = SubtaskId(OperatorId("op"), 0)
NAMES = st.text(max_size=3) | st.integers(-3, 3) | st.binary(max_size=2)
STEPS = st.lists(st.tuples(NAMES, st.none() | st.integers()), max_size=40)


def fresh(store: MemorySnapshotStore) -> tuple[SubtaskState, BroadcastMap]:
    state = SubtaskState(range(8), 8, store)
    return state, state.broadcast_map("rules")


def written(state: SubtaskState, store: MemorySnapshotStore, number: int, full: bool = False) -> SubtaskSnapshot:
    return state.capture(full).write(store, f"chk-{number}/op-0")[0]


def copied(store: MemorySnapshotStore, snapshot: SubtaskSnapshot, groups: range = range(8)) -> BroadcastMap:
    state = SubtaskState(groups, 8, store)
    state.restore(SubtaskRestore(subtask=ME, broadcast=snapshot))
    rules = state.broadcast_map("rules")
    state.check_declarations()
    return rules


def test_it_is_used_like_a_dictionary() -> None:
    _, rules = fresh(MemorySnapshotStore())
    rules["a"] = {"limit": [1, 2]}
    rules[b"a"], rules[7] = None, 1.5
    assert dict(rules.items()) == {"a": {"limit": [1, 2]}, b"a": None, 7: 1.5}
    assert ("a" in rules, "b" in rules, rules.get("b", 9), len(rules)) == (True, False, 9, 3)
    del rules["a"]
    assert list(rules) == [b"a", 7]
    with pytest.raises(KeyError):
        rules["a"]
    with pytest.raises(KeyError):
        del rules["a"]


def test_clearing_goes_through_the_entries_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per entry, it took minutes for a hundred thousand rules, and a slot does nothing else meanwhile."""
    store = MemorySnapshotStore()
    state, rules = fresh(store)
    rules.update(dict.fromkeys(range(100)))
    written(state, store, 1)
    walks: list[BroadcastMap] = []
    walk = BroadcastMap.__iter__

    def counted(self: BroadcastMap) -> Iterator[Any]:
        walks.append(self)
        return walk(self)

    monkeypatch.setattr(BroadcastMap, "__iter__", counted)
    rules.clear()
    assert len(walks) <= 1
    assert len(copied(store, written(state, store, 2))) == len(rules) == 0


def test_what_was_got_is_a_copy() -> None:
    _, rules = fresh(MemorySnapshotStore())
    rules["a"] = [1]
    rules["a"].append(2)
    assert rules["a"] == [1]


@pytest.mark.parametrize(("key", "value"), [(True, 1), (1.5, 1), (None, 1), ("a", object()), ("a", 2**70)])
def test_what_could_not_come_back_is_refused(key: Any, value: Any) -> None:
    _, rules = fresh(MemorySnapshotStore())
    with pytest.raises((TypeError, JobRejected), match=r"map state|rules: state holds"):
        rules[key] = value


@given(rounds=st.lists(st.tuples(STEPS, st.booleans()), max_size=5))
def test_every_snapshot_gives_back_what_was_there_in_its_order(rounds: list[tuple[Any, bool]]) -> None:
    store = MemorySnapshotStore()
    state, rules = fresh(store)
    model: dict[Any, int] = {}
    for number, (steps, full) in enumerate(rounds):
        for key, value in steps:
            model.pop(key, None)
            if value is not None and -(2**63) <= value < 2**64:
                rules[key] = model[key] = value
            else:
                rules.pop(key, None)
        copy = copied(store, written(state, store, number, full))
        assert list(copy.items()) == list(model.items())


def test_a_delta_holds_only_what_changed() -> None:
    store = MemorySnapshotStore()
    state, rules = fresh(store)
    for number in range(1_000):
        rules[number] = "x" * 100
    written(state, store, 1)
    rules[3] = "changed"
    del rules[4]
    snapshot = written(state, store, 2)
    assert [segment.rows for segment in snapshot.broadcast["rules"]] == [1_000, 2]
    assert [segment.rows for segment in written(state, store, 3, full=True).broadcast["rules"]] == [999]


def test_everyone_has_the_whole_whatever_its_key_groups() -> None:
    """S0-61."""
    store = MemorySnapshotStore()
    state, rules = fresh(store)
    rules.update({"a": 1, "b": 2})
    snapshot = written(state, store, 1)
    for groups in (range(1), range(3, 8), range(8, 8)):
        assert dict(copied(store, snapshot, groups)) == {"a": 1, "b": 2}


def test_rows_are_no_entries() -> None:
    store = MemorySnapshotStore()
    state = SubtaskState(range(8), 8, store)
    state.broadcast_table("rules").append(pa.record_batch({"k": [1], "l": [1], "m": [1], "n": [1]}))
    snapshot = written(state, store, 1)
    with pytest.raises(JobRejected, match="rules"):
        copied(store, snapshot)


def test_rows_of_a_build_side_do_not_keep_the_rest_of_their_batches_alive() -> None:
    table = BroadcastTable("build")
    for _ in range(3):
        table.append(wide().select(["k"]))
    assert sum(map(memory_kept_alive, table.batches)) < 1.1 * sum(batch.nbytes for batch in table.batches)
