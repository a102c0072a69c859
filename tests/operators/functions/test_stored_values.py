"""Values of a state that are kept as they are, against their stored form."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from tests.manual_clock import ManualClock
from tests.operators.functions.test_keyed_process import Kept, batch, operator, texts
from tests.operators.harness import Harness

STORED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.tuples(STORED)), min_size=1, max_size=20),
    st.integers(1, 20),
    st.sampled_from([None, 1_000]),
)
def test_values_kept_as_they_are_and_encoded_ones_agree(
    steps: list[tuple[str, tuple[Any] | None]], size: int, ttl_ms: int | None
) -> None:
    """S1-15: what a value state says, row by row and after each restore, is what its msgpack form says."""

    def each(state: Any, row: dict[str, Any]) -> Any:
        before, put = state.get("nothing"), steps[row["v"]][1]
        state.clear() if put is None else state.update(put[0])
        return before

    rows = [(key, number) for number, (key, _) in enumerate(steps)]
    model, output, expected = dict[str, bytes](), list[tuple[Any, str]](), list[tuple[Any, str]]()
    for key, put in steps:
        expected.append((key, repr(msgspec.msgpack.decode(model[key]) if key in model else "nothing")))
        model.pop(key, None) if put is None else model.update({key: msgspec.msgpack.encode(put[0])})
    store, snapshots = MemorySnapshotStore(), list[SubtaskSnapshot]()
    for start in range(0, len(rows), size):
        function = Kept(lambda context: context.value_state("kept", ttl_ms=ttl_ms), each)
        harness = Harness(operator(function), store=store, snapshots=snapshots)
        output += texts(harness.process(batch(rows[start : start + size])))
        snapshots = [harness.snapshot(f"chk-{start}")]
    assert output == expected


@pytest.mark.parametrize("value", [2**63, 2**64, "\ud800", object()])
def test_what_has_no_stored_form_is_refused_when_it_is_put(value: Any) -> None:
    def each(state: Any, row: dict[str, Any]) -> Any:
        try:
            state.update(value)
        except JobRejected:
            return "refused"
        return state.get()

    harness = Harness(operator(Kept(lambda c: c.value_state("kept"), each)))
    answer = "9223372036854775808" if value == 2**63 else "'refused'"
    assert texts(harness.process(batch([("a", 1)]))) == [("a", answer)]
    harness.snapshot("chk-1")


def test_only_what_differs_at_the_end_of_a_batch_is_written() -> None:
    """A value is looked up and put back once per key and batch, however many rows of the key there are."""
    steps: list[tuple[Callable[[Any], Any], str, int]] = [
        (lambda state: state.update(1), "1", 1),
        (lambda state: state.update(state.get()), "1", 0),
        (lambda state: (state.get(), state.clear(), state.update(1)), "1", 0),
        (lambda state: (state.clear(), state.update(2), state.get(), state.update(3)), "3", 1),
        (lambda state: (state.update(4), state.update([5])), "[5]", 1),
        (lambda state: (state.update([6]), state.update(6)), "6", 1),
        (lambda state: (state.update(8), state.clear()), "None", 1),
        (lambda state: (state.get(), state.update([9]), state.clear()), "None", 0),
    ]
    each = Kept(lambda c: c.value_state("kept"), lambda state, row: (steps[row["v"]][0](state), state.get())[1])
    harness = Harness(operator(each))
    harness.process(batch([(f"another {number}", 0) for number in range(500)]))  # so that the base is not written anew
    before = harness.snapshot("base").keyed["kept"]
    for number, (_, text, written) in enumerate(steps):
        assert texts(harness.process(batch([("a", number)] * 3)))[-1] == ("a", text)
        after = harness.snapshot(f"chk-{number}").keyed["kept"]
        assert sum(segment.rows for segment in after if segment not in before) == written, number
        before = after


def test_a_shorter_time_to_live_ends_before_a_longer_one_that_was_restored() -> None:
    """New elements stood behind the restored ones, and stayed in the state until those had expired."""

    def counting(ttl_ms: int) -> Kept:
        return Kept(lambda c: c.value_state("kept", ttl_ms=ttl_ms), lambda s, row: s.update(row["v"]))

    clock, store = ManualClock(1_000), MemorySnapshotStore()
    first = Harness(operator(counting(1_000)), clock=clock, store=store)
    first.process(batch([("a", 1), ("b", 2), ("c", 3)]))
    later = Harness(operator(counting(10)), clock=clock, store=store, snapshots=[first.snapshot("chk-1")])
    later.process(batch([("c", 4), ("d", 5)]))
    rows = []
    for number, elapsed_ms in enumerate([9, 1, 989, 1]):
        clock.advance(elapsed_ms)
        later.snapshot(f"chk-{number + 2}")
        rows.append(sum(segment.rows for segment in later.snapshot(f"sav-{number}", full=True).keyed.get("kept", ())))
    assert rows == [4, 2, 2, 0], "c and d expire after 10 ms, a and b after 1,000 ms"


def test_what_lives_for_ever_now_outlives_what_it_replaces() -> None:
    """A state whose time to live was taken away: what was stored with one still expires, what is put again does not."""
    clock, store = ManualClock(1_000), MemorySnapshotStore()
    put = Kept(lambda c: c.value_state("kept", ttl_ms=10), lambda s, row: s.update(row["v"]))
    first = Harness(operator(put), clock=clock, store=store)
    first.process(batch([("a", 1), ("b", 2)]))

    def renew(state: Any, row: dict[str, Any]) -> Any:
        value = state.get()
        if row["v"]:
            state.update(value)
        return value

    snapshots = [first.snapshot("chk-1")]
    later = Harness(
        operator(Kept(lambda c: c.value_state("kept"), renew)), clock=clock, store=store, snapshots=snapshots
    )
    assert texts(later.process(batch([("a", 1), ("b", 0), ("b", 0)]))) == [("a", "1"), ("b", "2"), ("b", "2")]
    clock.advance(10)
    assert texts(later.process(batch([("a", 0), ("b", 0)]))) == [("a", "1"), ("b", "None")]
    assert sum(segment.rows for segment in later.snapshot("sav-2", full=True).keyed["kept"]) == 1
