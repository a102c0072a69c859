"""Row-wise functions: every kind of state, time to live, timers in order, and all of it after a restore."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from runtime.core.job.messages import MAX_WATERMARK
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import JobRejected, WeirError
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.functions.batch import MAX_ROWS_PER_BATCH
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcess, KeyedProcessFunction, ProcessContext
from runtime.operators.partition import partition_by_key_group
from tests.manual_clock import ManualClock
from tests.operators.harness import Harness

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("text", pa.string())])


def batch(rows: list[tuple[Any, int]]) -> pa.RecordBatch:
    """Rows of key and value; the value is the event time too."""
    keys, values = zip(*rows, strict=True)
    return pa.record_batch({"k": pa.array(keys, pa.string()), "v": pa.array(values, pa.int64())})


def operator(function: KeyedProcessFunction) -> KeyedProcess:
    return KeyedProcess(function, ["k"], SCHEMA, "v")


Declare = Callable[[ProcessContext], Any]


class Kept(KeyedProcessFunction):
    """Does something to one state for each row, and gives out what it answers."""

    def __init__(self, declare: Declare, each: Callable[[Any, dict[str, Any]], Any]) -> None:
        self._declare, self._each = declare, each

    def open(self, context: ProcessContext) -> None:
        self._state = self._declare(context)

    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        out.emit({"k": context.current_key, "text": repr(self._each(self._state, row))})


def texts(rows: list[dict[str, Any]]) -> list[tuple[Any, str]]:
    return [(row["k"], row["text"]) for row in rows]


def _count(state: Any, row: dict[str, Any]) -> Any:
    state.update(state.get(0) + 1)
    return state.get()


def _append(state: Any, row: dict[str, Any]) -> Any:
    state.add(row["v"])
    return state.get()


def _index(state: Any, row: dict[str, Any]) -> Any:
    state[str(row["v"])] = state.get(str(row["v"]), 0) + 1
    state[row["v"]] = "int"
    return dict(state)


def _fold(state: Any, row: dict[str, Any]) -> Any:
    state.add(row["v"])
    return state.get()


def mean(context: ProcessContext) -> Any:
    return context.aggregating_state(
        "kept", lambda: [0, 0], lambda acc, v: [acc[0] + v, acc[1] + 1], lambda acc: acc[0] / acc[1]
    )


KINDS: dict[str, tuple[Declare, Callable[[Any, dict[str, Any]], Any], list[str], str]] = {
    "value": (lambda c: c.value_state("kept"), _count, ["1", "1", "2", "3"], "4"),
    "list": (lambda c: c.list_state("kept"), _append, ["[5]", "[7]", "[5, 3]", "[5, 3, 5]"], "[5, 3, 5, 5]"),
    "map": (
        lambda c: c.map_state("kept"),
        _index,
        [
            "{'5': 1, 5: 'int'}",
            "{'7': 1, 7: 'int'}",
            "{'5': 1, 5: 'int', '3': 1, 3: 'int'}",
            "{'3': 1, 3: 'int', '5': 2, 5: 'int'}",
        ],
        "{'3': 1, 3: 'int', '5': 3, 5: 'int'}",
    ),
    "reducing": (lambda c: c.reducing_state("kept", max), _fold, ["5", "7", "5", "5"], "5"),
    "aggregating": (mean, _fold, ["5.0", "7.0", "4.0", repr(13 / 3)], "4.5"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_kept_by_key_is_seen_by_the_next_row_and_comes_back(kind: str) -> None:
    """S1-15, S1-16: value, list, map and the folds, within one batch and over a restore."""
    declare, each, expected, after = KINDS[kind]
    harness = Harness(operator(Kept(declare, each)))
    rows = harness.process(batch([("a", 5), ("b", 7), ("a", 3), ("a", 5)]))
    assert texts(rows) == list(zip("abaa", expected, strict=True))
    snapshot = harness.snapshot("chk-1")
    successor = Harness(operator(Kept(declare, each)), store=harness.store, snapshots=[snapshot])
    assert texts(successor.process(batch([("a", 5)]))) == [("a", after)]


@pytest.mark.parametrize(("kind", "empty"), [("value", "7"), ("list", "[7]"), ("map", "{'7': 1, 7: 'int'}")])
def test_what_is_cleared_is_gone_also_after_a_restore(kind: str, empty: str) -> None:
    declare, each, _, _ = KINDS[kind]

    def cleared(state: Any, row: dict[str, Any]) -> Any:
        state.clear()
        return None

    first = Harness(operator(Kept(declare, each)))
    first.process(batch([("a", 5), ("a", 6)]))
    snapshots = [first.snapshot("chk-1")]
    second = Harness(operator(Kept(declare, cleared)), store=first.store, snapshots=snapshots)
    second.snapshot("chk-2")
    second.process(batch([("a", 5)]))
    third = Harness(operator(Kept(declare, each)), store=first.store, snapshots=[second.snapshot("chk-3")])
    assert texts(third.process(batch([("a", 7)]))) == [("a", "1" if kind == "value" else empty)]


def test_what_get_returns_is_a_copy_and_the_same_as_after_a_restore() -> None:
    def mutate(state: Any, row: dict[str, Any]) -> Any:
        if state.get() is None:
            state.update(["list", {"n": 1}])
        state.get()[1]["n"] = 2
        return state.get()

    harness = Harness(operator(Kept(lambda c: c.value_state("kept"), mutate)))
    assert texts(harness.process(batch([("a", 1), ("a", 1)]))) == [("a", "['list', {'n': 1}]")] * 2


def test_lists_are_replaced_and_maps_lose_keys_like_those_of_python() -> None:
    def replaced(state: Any, row: dict[str, Any]) -> Any:
        state.replace([*reversed(state.get()), row["v"]])
        return state.get()

    def popped(state: Any, row: dict[str, Any]) -> Any:
        state[b"kept"] = 1
        with pytest.raises(KeyError):
            del state["never there"]
        state["gone"] = None
        return state.pop("gone"), list(state), len(state), "gone" in state

    harness = Harness(operator(Kept(lambda c: c.list_state("kept"), replaced)))
    rows = harness.process(batch([("a", 1), ("a", 2), ("a", 3)]))
    assert texts(rows) == [("a", "[1]"), ("a", "[1, 2]"), ("a", "[2, 1, 3]")]
    harness = Harness(operator(Kept(lambda c: c.map_state("kept"), popped)))
    assert texts(harness.process(batch([("a", 1)]))) == [("a", "(None, [b'kept'], 1, False)")]


@pytest.mark.parametrize("key", [True, 1.5, None, ("a", "b"), np.int64(1)])
def test_a_map_key_that_would_come_back_as_another_is_refused(key: Any) -> None:
    harness = Harness(operator(Kept(lambda c: c.map_state("kept"), lambda state, row: state.get(key))))
    with pytest.raises(TypeError, match="a key of a map state is str, int or bytes"):
        harness.process(batch([("a", 1)]))


@pytest.mark.parametrize(
    "value", [object(), 2**70, print, {1}, (1, 2)], ids=["object", "big", "function", "set", "tuple"]
)
def test_a_value_that_cannot_be_stored_names_its_state(value: Any) -> None:
    harness = Harness(operator(Kept(lambda c: c.value_state("kept"), lambda state, row: state.update(value))))
    with pytest.raises(JobRejected, match="kept: state holds"):
        harness.process(batch([("a", 1)]))


def test_state_outside_of_a_row_is_refused() -> None:
    def declare(context: ProcessContext) -> Any:
        return context.value_state("kept").get()

    with pytest.raises(WeirError, match="no current key"):
        Harness(operator(Kept(declare, _count)))


# ---------------------------------------------------------------- time to live

LIVED: dict[str, tuple[Declare, Callable[[Any, dict[str, Any]], Any]]] = {
    "value": (lambda c: c.value_state("kept", ttl_ms=10), lambda s, row: (s.get(), s.update(row["v"]))[0]),
    "list": (lambda c: c.list_state("kept", ttl_ms=10), lambda s, row: (s.get() or None, s.add(row["v"]))[0]),
    "map": (lambda c: c.map_state("kept", ttl_ms=10), lambda s, row: (s.get("x"), s.update(x=row["v"]))[0]),
    "reducing": (lambda c: c.reducing_state("kept", max, ttl_ms=10), lambda s, row: (s.get(), s.add(row["v"]))[0]),
}


@pytest.mark.parametrize("kind", LIVED)
def test_what_has_outlived_its_time_is_not_there_and_leaves_the_next_snapshot(kind: str) -> None:
    clock, store = ManualClock(1_000), MemorySnapshotStore()
    harness = Harness(operator(Kept(*LIVED[kind])), clock=clock, store=store)
    harness.process(batch([("a", 5), ("b", 6)]))
    first = harness.snapshot("chk-1")
    clock.advance(9)
    assert "5" in texts(harness.process(batch([("a", 7)])))[0][1]
    clock.advance(1)
    assert texts(harness.process(batch([("b", 8)]))) == [("b", "None")]
    successor = Harness(operator(Kept(*LIVED[kind])), clock=clock, store=store, snapshots=[first])
    assert _rows(successor.snapshot("chk-2")) == 0, "both have expired since"


def test_a_snapshot_removes_what_has_expired_and_keeps_what_was_written_again() -> None:
    clock = ManualClock(1_000)
    harness = Harness(operator(Kept(*LIVED["value"])), clock=clock)
    harness.process(batch([(f"k{number}", 1) for number in range(100)]))
    assert _rows(harness.snapshot("chk-1")) == 100
    clock.advance(5)
    harness.process(batch([("k7", 2)]))
    clock.advance(6)
    assert _rows(harness.snapshot("sav-2", full=True)) == 1
    assert texts(harness.process(batch([("k7", 3)]))) == [("k7", "2")]


def _rows(snapshot: SubtaskSnapshot) -> int:
    return sum(segment.rows for segment in snapshot.keyed["kept"])


def test_a_time_to_live_of_nothing_is_refused() -> None:
    with pytest.raises(JobRejected, match="kept: a time to live must be at least 1 ms"):
        Harness(operator(Kept(lambda c: c.value_state("kept", ttl_ms=0), _count)))


# ---------------------------------------------------------------- timers


class Alarms(KeyedProcessFunction):
    """Sets a timer for the value of each row, and says when it rings and how often it has."""

    def __init__(self, sense: str = "event") -> None:
        self._sense = sense

    def open(self, context: ProcessContext) -> None:
        self._rung = context.value_state("rung")

    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        if self._sense == "event":
            context.register_event_timer(row["v"])
        else:
            context.register_processing_timer(row["v"])

    def on_timer(self, timestamp_ms: int, context: ProcessContext, out: RowCollector) -> None:
        assert context.timestamp == timestamp_ms
        self._rung.update(self._rung.get(0) + 1)
        out.emit({"k": context.current_key, "v": timestamp_ms, "text": str(self._rung.get())})


def rung(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["v"], row["k"], row["text"]) for row in rows]


def test_event_timers_fire_once_in_order_of_time_and_key() -> None:
    harness = Harness(operator(Alarms()))
    harness.process(batch([("b", 20), ("a", 10), (None, 10), ("b", 10), ("a", 30), ("bb", 10), ("a", 10)]))
    assert harness.watermark(9) == []
    assert rung(harness.watermark(20)) == [
        (10, "a", "1"), (10, "b", "1"), (10, "bb", "1"), (10, None, "1"), (20, "b", "2")
    ]  # fmt: skip
    assert harness.watermark(29) == []
    assert rung(harness.watermark(MAX_WATERMARK)) == [(30, "a", "2")]


def test_processing_timers_fire_when_the_clock_reaches_them() -> None:
    clock = ManualClock(100)
    harness = Harness(operator(Alarms("processing")), clock=clock)
    assert harness.operator.next_processing_timer() is None
    harness.process(batch([("b", 120), ("a", 110), ("a", 50)]))
    assert rung(harness.tick()) == [(50, "a", "1")]
    assert harness.operator.next_processing_timer() == 110
    assert harness.watermark(1_000) == []
    clock.advance(20)
    assert rung(harness.tick()) == [(110, "a", "2"), (120, "b", "1")]
    assert harness.tick() == []


@pytest.mark.parametrize("sense", ["event", "processing"])
def test_timers_are_restored_at_another_parallelism_and_emit_before_any_row(sense: str) -> None:
    """S3-37, S3-38: what was set fires at the restored watermark, each timer in one subtask, though no row comes."""
    clock = ManualClock(100)
    first = Harness(operator(Alarms(sense)), clock=clock)
    rows = [(f"key {number}", 100 + number) for number in range(1, 61)]
    first.process(batch(rows))
    base = first.snapshot("chk-1")
    clock.advance(10)
    assert len(first.watermark(110) if sense == "event" else first.tick()) == 10
    delta = first.snapshot("chk-2")
    for snapshot, left in [(delta, rows[10:]), (base, rows)]:
        now = ManualClock(1_000)
        parts = [
            Harness(operator(Alarms(sense)), clock=now, store=first.store, snapshots=[snapshot], index=i, parallelism=3)
            for i in range(3)
        ]
        fired = [part.watermark(1_000) if sense == "event" else part.tick() for part in parts]
        for i, rung_here in enumerate(fired):
            times = [row["v"] for row in rung_here]
            assert times == sorted(times)
            part = partition_by_key_group(batch(left), ["k"], 16, 3)[i]
            assert sorted((row["k"], row["v"]) for row in rung_here) == sorted(
                (row["k"], row["v"]) for row in (part.to_pylist() if part is not None else [])
            )


def test_a_timer_may_set_another_that_is_due_already() -> None:
    class Chain(Alarms):
        def on_timer(self, timestamp_ms: int, context: ProcessContext, out: RowCollector) -> None:
            super().on_timer(timestamp_ms, context, out)
            if timestamp_ms < 13:
                context.register_event_timer(timestamp_ms + 1)

    harness = Harness(operator(Chain()))
    harness.process(batch([("a", 10), ("b", 11)]))
    fired = [(time, key) for time, key, _ in rung(harness.watermark(12))]
    assert fired == [(10, "a"), (11, "a"), (11, "b"), (12, "a"), (12, "b")]
    assert harness.operator.next_processing_timer() is None


def test_a_timer_at_no_whole_number_is_refused() -> None:
    class Wrong(Alarms):
        def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
            when: Any = 1.5
            context.register_event_timer(when)

    with pytest.raises(TypeError, match=r"int \(milliseconds\), not float"):
        Harness(operator(Wrong())).process(batch([("a", 1)]))


@pytest.mark.parametrize("when", [2**63, -(2**63) - 1])
def test_a_timer_that_no_snapshot_can_hold_is_refused_where_it_is_set(when: int) -> None:
    """It was found when the snapshot was written, where no operator could be named."""

    class Wrong(Alarms):
        def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
            context.register_event_timer(when)

    with pytest.raises(ValueError, match="the timestamp of a timer must fit 64 bits"):
        Harness(operator(Wrong())).process(batch([("a", 1)]))


# ---------------------------------------------------------------- keys, rows and output


class Echo(KeyedProcessFunction):
    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        self.kept = out
        out.emit({"v": context.timestamp, "text": repr(context.current_key)})


def test_keys_are_what_the_columns_hold() -> None:
    columns = {
        "a": pa.array(["x", None]).dictionary_encode(),
        "b": pa.array([2**63 + 1, 0], pa.uint64()),
        "c": pa.array([b"\xff", b""]),
        "d": pa.array([True, False]),
        "at": pa.array([1_000, 2_000], pa.timestamp("us")),
    }
    harness = Harness(KeyedProcess(Echo(), ["a", "b", "c", "d"], SCHEMA, "at"))
    rows = harness.process(pa.record_batch(columns))
    assert [row["text"] for row in rows] == ["('x', 9223372036854775809, b'\\xff', True)", "(None, 0, b'', False)"]
    assert [(row["k"], row["v"]) for row in rows] == [(None, 1), (None, 2)]
    harness = Harness(KeyedProcess(Echo(), ["d"], SCHEMA))
    assert [(row["text"], row["v"]) for row in harness.process(pa.record_batch(columns))] == [
        ("True", None),
        ("False", None),
    ]


def test_a_key_that_has_no_stored_form_is_refused() -> None:
    harness = Harness(KeyedProcess(Echo(), ["k"], SCHEMA))
    with pytest.raises(JobRejected, match=r"k: a key of a process function must be text, .* not double"):
        harness.process(pa.record_batch({"k": [1.5]}))


def test_output_is_cut_into_batches_and_kept_collectors_are_refused() -> None:
    echo = Echo()
    harness = Harness(operator(echo))
    harness.process(batch([("a", number) for number in range(MAX_ROWS_PER_BATCH + 5)]))
    assert [part.num_rows for part in harness.out.batches] == [MAX_ROWS_PER_BATCH, 5]
    assert {part.schema for part in harness.out.batches} == {SCHEMA}
    with pytest.raises(WeirError, match="emit was called outside a hook"):
        echo.kept.emit({})
