"""Session windows against plain Python: disorder, merging, lateness, firing, restores at another parallelism."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.aggregates import Aggregate, Count, Max, Mean, Sum
from runtime.operators.late_rows import LATE_RECORDS_COUNTER
from runtime.operators.output_tag import OutputTag
from runtime.operators.partition import partition_by_key_group
from runtime.operators.windows.session import SessionWindow
from tests.example_counts import examples
from tests.operators.harness import Harness, by_window, sort_windows

GAP = 10
EPOCH = dt.datetime.fromisoformat("1970-01-01")
COLUMNS = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
LATE = OutputTag("late", COLUMNS)
AGGREGATES: dict[str, Aggregate] = {"n": Count(), "total": Sum("v"), "high": Max("v"), "mean": Mean("v")}

Event = tuple[str | None, int, int]


def operator() -> SessionWindow:
    return SessionWindow(["k"], GAP, "t", AGGREGATES, LATE)


def batch(events: list[Event]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": key, "t": time, "v": value} for key, time, value in events], COLUMNS)


class Oracle:
    """The same, one record and one pair of sessions at a time. A session is its sorted records."""

    def __init__(self) -> None:
        self.open: dict[str | None, list[list[Event]]] = {}
        self.watermark = MIN_WATERMARK
        self.late: list[Event] = []

    def process(self, events: list[Event]) -> None:
        for key in {event[0] for event in events}:
            sessions = [*self.open.get(key, []), *([event] for event in events if event[0] == key)]
            sessions.sort(key=lambda session: session[0][1])
            merged: list[list[Event]] = []
            for session in sessions:
                if merged and session[0][1] - merged[-1][-1][1] <= GAP:
                    merged[-1] = sorted([*merged[-1], *session], key=lambda event: event[1])
                else:
                    merged.append(session)
            self.late += [event for session in merged if self.is_over(session) for event in session]
            self.open[key] = [session for session in merged if not self.is_over(session)]

    def is_over(self, session: list[Event]) -> bool:
        return session[-1][1] + GAP <= self.watermark

    def advance(self, watermark: int) -> list[dict[str, Any]]:
        self.watermark = max(self.watermark, watermark)
        due = [session for sessions in self.open.values() for session in sessions if self.is_over(session)]
        for key, sessions in self.open.items():
            self.open[key] = [session for session in sessions if not self.is_over(session)]
        return sorted((self.row(session) for session in due), key=by_window)

    @staticmethod
    def row(session: list[Event]) -> dict[str, Any]:
        values = [event[2] for event in session]
        return {
            "k": session[0][0],
            "window_start": EPOCH + dt.timedelta(milliseconds=session[0][1]),
            "window_end": EPOCH + dt.timedelta(milliseconds=session[-1][1] + GAP),
            "n": len(values),
            "total": sum(values),
            "high": max(values),
            "mean": sum(values) / len(values),
        }


def late_rows(harness: Harness) -> list[Event]:
    return [(row["k"], row["t"], row["v"]) for _, late in harness.out.side for row in late.to_pylist()]


EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-60, 120), st.integers(-100, 100)), max_size=12
)


@settings(max_examples=examples(50))
@given(st.lists(EVENTS | st.integers(-70, 140), max_size=25))
def test_it_computes_what_a_loop_over_records_computes(steps: list[Any]) -> None:
    harness, oracle = Harness(operator()), Oracle()
    for step in [*steps, MAX_WATERMARK]:
        if isinstance(step, int):
            assert sort_windows(harness.watermark(step)) == oracle.advance(step)
        else:
            oracle.process(step)
            assert harness.process(batch(step)) == []
    assert sorted(map(str, late_rows(harness))) == sorted(map(str, oracle.late))
    assert harness.context.counters.get(LATE_RECORDS_COUNTER, 0) == len(oracle.late)


def deploy(parallelism: int, store: MemorySnapshotStore, snapshots: list[SubtaskSnapshot]) -> list[Harness]:
    return [
        Harness(operator(), store=store, snapshots=snapshots, index=index, parallelism=parallelism)
        for index in range(parallelism)
    ]


RESCALE = st.tuples(st.just("rescale"), st.sampled_from([1, 3, 7]))


@settings(max_examples=examples(50))
@given(st.lists(EVENTS | st.integers(-70, 140) | RESCALE, max_size=25))
def test_sessions_move_with_their_key_groups(steps: list[Any]) -> None:
    store, oracle = MemorySnapshotStore(), Oracle()
    subtasks, checkpoints, late = deploy(3, store, []), 0, 0
    for step in [*steps, MAX_WATERMARK]:
        if isinstance(step, int):
            fired = [row for subtask in subtasks for row in subtask.watermark(step)]
            assert sorted(fired, key=by_window) == oracle.advance(step)
        elif isinstance(step, tuple):
            checkpoints += 1
            late += sum(len(late_rows(subtask)) for subtask in subtasks)
            snapshots = [subtask.snapshot(f"chk-{checkpoints}") for subtask in subtasks]
            subtasks = deploy(step[1], store, snapshots)
            for subtask in subtasks:
                assert subtask.watermark(oracle.watermark) == []
        else:
            oracle.process(step)
            parts = partition_by_key_group(batch(step), ["k"], 16, len(subtasks))
            for subtask, part in zip(subtasks, parts, strict=True):
                if part is not None:
                    subtask.process(part)
    assert late + sum(len(late_rows(subtask)) for subtask in subtasks) == len(oracle.late)


@given(EVENTS, st.integers(1, 5))
def test_sorted_rows_give_the_same_sessions(events: list[Event], rows: int) -> None:
    """BATCH: rows arrive by key, then time; each session is emitted once the next one of the rows has begun."""
    harness, oracle = Harness(operator()), Oracle()
    oracle.process(events)
    events = sorted(events, key=lambda event: (event[0] is None, event[0], event[1]))
    for start in range(0, len(events), rows):
        harness.operator.process_sorted(batch(events[start : start + rows]), harness.out)
    harness.watermark(MAX_WATERMARK)
    assert sorted(harness.out.rows(), key=by_window) == oracle.advance(MAX_WATERMARK)


def test_rows_exactly_a_gap_apart_belong_together() -> None:
    """As in Flink, where windows that touch are merged."""
    harness = Harness(operator())
    harness.process(batch([("a", 0, 1), ("a", 10, 1), ("a", 21, 1)]))
    assert [row["n"] for row in harness.watermark(MAX_WATERMARK)] == [2, 1]


def test_a_session_fires_at_its_end_and_not_before() -> None:
    """A row that is not late at watermark 14 may have time 15, which belongs to a session with the last row 5."""
    harness = Harness(operator())
    harness.process(batch([("a", 0, 1), ("a", 5, 2)]))
    assert harness.watermark(14) == []
    harness.process(batch([("a", 15, 3)]))
    assert harness.watermark(24) == []
    assert [row["total"] for row in harness.watermark(25)] == [6]
    assert harness.watermark(25) == []


def test_a_row_joins_two_open_sessions() -> None:
    harness = Harness(operator())
    harness.process(batch([("a", 0, 1), ("a", 18, 2), ("a", 40, 4)]))
    harness.process(batch([("a", 9, 8)]))
    assert [(row["n"], row["total"]) for row in harness.watermark(MAX_WATERMARK)] == [(3, 11), (1, 4)]


def test_a_row_before_the_watermark_is_not_late_in_an_open_session() -> None:
    harness = Harness(operator())
    harness.process(batch([("a", 20, 1)]))
    harness.watermark(25)
    harness.process(batch([("a", 12, 2), ("b", 12, 4), ("a", 1, 8)]))
    assert late_rows(harness) == [("b", 12, 4), ("a", 1, 8)]
    assert [row["total"] for row in harness.watermark(MAX_WATERMARK)] == [3]


def test_many_open_sessions_of_a_key_are_kept_apart() -> None:
    """Event time may lag by many gaps: a file of hours is read before the first watermark."""
    harness = Harness(operator())
    times = [number * 20 for number in range(1000)]
    harness.process(batch([("a", time, 1) for time in times]))
    harness.process(batch([("a", time + 5, 1) for time in reversed(times)]))
    assert [row["n"] for row in harness.watermark(10_000)] == [2] * 500
    harness.process(batch([("a", 19_990, 1)]))
    assert [row["n"] for row in harness.watermark(MAX_WATERMARK)] == [2] * 499 + [3]


def test_ended_sessions_leave_tombstones_and_not_rows() -> None:
    harness = Harness(operator())
    keys = 5_000  # a small state is copied, without tombstones
    harness.process(batch([(f"k{number}", number % 40, 1) for number in range(keys)]))
    harness.snapshot("chk-1")
    fired = len(harness.watermark(29))
    snapshot = harness.snapshot("chk-2")
    assert [segment.rows for segment in snapshot.keyed["sessions"]] == [keys, fired]
    successor = Harness(operator(), store=harness.store, snapshots=[snapshot])
    assert len(successor.watermark(MAX_WATERMARK)) == keys - fired


def test_a_late_row_does_not_open_a_session_again_where_subtasks_had_different_watermarks() -> None:
    """S3-20: as one, they begin with the lower watermark; a session that one of them had emitted stays closed."""
    store = MemorySnapshotStore()
    subtasks = deploy(2, store, [])
    events: list[Event] = [(f"key {number}", 2, 1) for number in range(8)]
    for subtask, part in zip(subtasks, partition_by_key_group(batch(events), ["k"], 16, 2), strict=True):
        assert part is not None
        subtask.process(part)
    ended = {row["k"] for row in subtasks[0].watermark(12)}
    assert 0 < len(ended) < 8
    (successor,) = deploy(1, store, [subtask.snapshot(str(index)) for index, subtask in enumerate(subtasks)])
    successor.process(batch([(f"key {number}", 1, 1) for number in range(8)]))
    assert {event[0] for event in late_rows(successor)} == ended
    assert {row["k"]: row["n"] for row in successor.watermark(MAX_WATERMARK)} == {
        f"key {number}": 2 for number in range(8) if f"key {number}" not in ended
    }


def test_bad_columns_are_refused() -> None:
    with pytest.raises(JobRejected, match="must differ"):
        SessionWindow(["window_start"], GAP, "t", {"n": Count()})
    with pytest.raises(JobRejected, match="t: event times are a timestamp"):
        Harness(SessionWindow(["k"], GAP, "t", {"n": Count()})).process(
            pa.RecordBatch.from_pydict({"k": ["a"], "t": ["noon"]})
        )
    other = OutputTag("late", pa.schema([("k", pa.string())]))
    with pytest.raises(JobRejected, match="late rows have the columns"):
        Harness(SessionWindow(["k"], GAP, "t", {"n": Count()}, other)).process(batch([("a", 0, 1)]))


def test_sessions_of_another_gap_are_refused() -> None:
    harness = Harness(operator())
    harness.process(batch([("a", 0, 1)]))
    with pytest.raises(JobRejected, match=r"sessions with a gap of 10 ms, not of 20 ms"):
        Harness(SessionWindow(["k"], 20, "t", AGGREGATES), store=harness.store, snapshots=[harness.snapshot("chk-1")])
