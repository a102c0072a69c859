"""Windows that overlap, against plain Python: disorder, lateness by window, restores at another parallelism, panes."""

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from math import gcd
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.aggregates import Aggregate, Count, Max, Mean, Sum
from runtime.operators.arguments import check_window
from runtime.operators.late_rows import LATE_RECORDS_COUNTER
from runtime.operators.partition import partition_by_key_group
from runtime.operators.windows import pane_totals
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.operators.windows.sliding import SlidingWindow
from runtime.ports import Operator
from tests.operators.combined import Combined
from tests.operators.harness import Harness, by_window, sort_windows

SHAPES = [(10, 5), (12, 3), (10, 4), (9, 6), (7, 1), (20, 20)]
EPOCH = dt.datetime.fromisoformat("1970-01-01")

Shape = tuple[int, int]
Event = tuple[str | None, int, int | None]
AGGREGATES: dict[str, Aggregate] = {"total": Sum("v"), "high": Max("v"), "mean": Mean("v")}


def operator(shape: Shape, aggregates: dict[str, Aggregate] = AGGREGATES) -> Operator:
    size, slide = shape
    combiner = WindowPreAggregator(["k"], "t", gcd(size, slide), aggregates)
    return Combined(combiner, SlidingWindow(["k"], size, slide, aggregates))


def batch(events: Sequence[Event]) -> pa.RecordBatch:
    keys, times, values = zip(*events, strict=True) if events else ((), (), ())
    columns = [pa.array(keys, pa.string()), pa.array(times, pa.int64()), pa.array(values, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["k", "t", "v"])


class Oracle:
    """The same, one record and one window at a time."""

    def __init__(self, shape: Shape) -> None:
        self.size, self.slide = shape
        self.open: dict[tuple[str | None, int], list[int | None]] = defaultdict(list)
        self.watermark, self.late = MIN_WATERMARK, 0

    def process(self, events: Sequence[Event]) -> None:
        for key, time, value in events:
            last = time // self.slide * self.slide
            starts = range(last, time - self.size, -self.slide)
            open_ = [start for start in starts if start + self.size - 1 > self.watermark]
            self.late += not open_
            for start in open_:
                self.open[key, start].append(value)

    def advance(self, watermark: int) -> list[dict[str, Any]]:
        self.watermark = max(self.watermark, watermark)
        due = [window for window in self.open if window[1] + self.size - 1 <= self.watermark]
        return [self._row(window, self.open.pop(window)) for window in sorted(due, key=_order)]

    def _row(self, window: tuple[str | None, int], values: list[int | None]) -> dict[str, Any]:
        numbers = [value for value in values if value is not None]
        return {
            "k": window[0],
            "window_start": EPOCH + dt.timedelta(milliseconds=window[1]),
            "window_end": EPOCH + dt.timedelta(milliseconds=window[1] + self.size),
            "total": sum(numbers) if numbers else None,
            "high": max(numbers, default=None),
            "mean": sum(numbers) / len(numbers) if numbers else None,
        }


def _order(window: tuple[str | None, int]) -> Any:
    return window[1], window[0] is None, window[0]


VALUES = st.none() | st.integers(-100, 100)
EVENTS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-60, 120), VALUES), max_size=12)
WATERMARKS = st.integers(-70, 140)


@given(st.sampled_from(SHAPES), st.lists(EVENTS | WATERMARKS, max_size=25))
def test_it_computes_what_a_loop_over_windows_computes(shape: Shape, steps: list[Any]) -> None:
    """S0-65: in any order of rows and watermarks; a row late for some of its windows counts for the others."""
    harness, oracle = Harness(operator(shape)), Oracle(shape)
    for step in [*steps, MAX_WATERMARK]:
        if isinstance(step, int):
            assert sort_windows(harness.watermark(step)) == oracle.advance(step)
        else:
            oracle.process(step)
            assert harness.process(batch(step)) == []
    assert harness.context.counters.get(LATE_RECORDS_COUNTER, 0) == oracle.late


def deploy(shape: Shape, parallelism: int, store: Any, snapshots: list[SubtaskSnapshot]) -> list[Harness]:
    return [
        Harness(operator(shape), store=store, snapshots=snapshots, index=index, parallelism=parallelism)
        for index in range(parallelism)
    ]


RESCALES = st.tuples(st.just("rescale"), st.integers(1, 4))


@given(st.sampled_from(SHAPES), st.lists(EVENTS | WATERMARKS | RESCALES, max_size=25))
def test_panes_move_with_their_key_groups_and_no_window_fires_twice(shape: Shape, steps: list[Any]) -> None:
    """S3-20: restored in the middle, at any parallelism."""
    store, oracle, late, checkpoints = MemorySnapshotStore(), Oracle(shape), 0, 0
    subtasks = deploy(shape, 2, store, [])
    for step in [*steps, MAX_WATERMARK]:
        if isinstance(step, int):
            fired = [row for subtask in subtasks for row in subtask.watermark(step)]
            assert sorted(fired, key=by_window) == oracle.advance(step)
        elif isinstance(step, tuple):
            checkpoints += 1
            late += sum(subtask.context.counters.get(LATE_RECORDS_COUNTER, 0) for subtask in subtasks)
            snapshots = [subtask.snapshot(f"chk-{checkpoints}") for subtask in subtasks]
            subtasks = deploy(shape, step[1], store, snapshots)
            assert [subtask.watermark(oracle.watermark) for subtask in subtasks] == [[]] * step[1]
        else:
            oracle.process(step)
            for subtask, part in zip(
                subtasks, partition_by_key_group(batch(step), ["k"], 16, len(subtasks)), strict=True
            ):
                if part is not None:
                    subtask.process(part)
    assert late + sum(subtask.context.counters.get(LATE_RECORDS_COUNTER, 0) for subtask in subtasks) == oracle.late


def test_no_window_fires_again_where_subtasks_had_come_to_different_times() -> None:
    """S3-20: as one, they begin with the lower time; the windows between concern only the keys of the one behind."""
    events: list[Event] = [(f"key {number}", time, 1) for number in range(8) for time in (2, 7)]
    store = MemorySnapshotStore()
    ahead, behind = deploy((10, 5), 2, store, [])
    for subtask, part in zip((ahead, behind), partition_by_key_group(batch(events), ["k"], 16, 2), strict=True):
        assert part is not None
        subtask.process(part)
    fired = [*ahead.watermark(9), *behind.watermark(4)]
    (successor,) = deploy((10, 5), 1, store, [ahead.snapshot("a"), behind.snapshot("b")])
    assert successor.watermark(4) == []
    fired += successor.watermark(MAX_WATERMARK)
    starts = sorted((row["k"], row["window_start"]) for row in fired)
    assert starts == sorted((key, EPOCH + dt.timedelta(milliseconds=at)) for key in _keys(events) for at in (-5, 0, 5))


def _keys(events: Sequence[Event]) -> set[str]:
    return {key for key, _, _ in events if key is not None}


def test_a_row_is_kept_once_however_many_windows_it_lies_in() -> None:
    """And a pane goes when its last window has fired, with a tombstone."""
    keys = 2_000  # a small state is copied, without tombstones
    harness = Harness(operator((60, 1), {"n": Count()}))
    harness.process(batch([(f"k{number}", time, 1) for time in (100, 400) for number in range(keys)]))
    snapshot = harness.snapshot("chk-1")
    assert [segment.rows for segment in snapshot.keyed["panes"]] == [2 * keys]
    assert harness.operator.open_results() == {"panes": 2 * keys}
    assert len(harness.watermark(158)) == keys * 59
    assert [segment.rows for segment in harness.snapshot("chk-2").keyed["panes"]] == [2 * keys]
    assert len(harness.watermark(159)) == keys
    assert harness.operator.open_results() == {"panes": keys}
    assert [segment.rows for segment in harness.snapshot("chk-3").keyed["panes"]] == [2 * keys, keys]
    assert len(harness.watermark(MAX_WATERMARK)) == keys * 60


def test_panes_of_another_length_are_refused_and_other_windows_of_them_are_not() -> None:
    harness = Harness(operator((60, 2)))
    harness.process(batch([("a", 100, 1), ("a", 103, 1)]))
    snapshot = harness.snapshot("chk-1")
    with pytest.raises(JobRejected, match=r"columns.*pane_2_ms.*pane_3_ms"):
        Harness(operator((60, 3)), store=harness.store, snapshots=[snapshot])
    successor = Harness(operator((10, 4)), store=harness.store, snapshots=[snapshot])
    assert [row["total"] for row in successor.watermark(MAX_WATERMARK)] == [1, 2, 2]


def test_hours_without_a_row_cost_nothing() -> None:
    harness = Harness(operator((10, 1), {"n": Count()}))
    harness.process(batch([("a", -(10**13), 1), ("a", 10**13, 1)]))
    assert len(harness.watermark(MAX_WATERMARK)) == 20


@given(
    st.integers(0, 20),
    st.integers(1, 3),
    st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), max_size=9), max_size=9),
)
def test_few_totals_in_front_and_many_keys_that_go_make_no_difference(
    cells: int, front: int, batches: list[list[tuple[int, int]]]
) -> None:
    """The bounds on memory are never reached by small tests, so they are lowered here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pane_totals, "_MAX_FRONT_CELLS", cells)
        patch.setattr(pane_totals, "_MIN_FRONT_PANES", front)
        patch.setattr(pane_totals, "_MAX_UNUSED_KEYS", 2)
        harness, oracle = Harness(operator((12, 2))), Oracle((12, 2))
        for number, drawn in enumerate(batches):
            events: list[Event] = [(f"{number // 3} {key}", 10 * number + time, key) for key, time in drawn]
            oracle.process(events)
            harness.process(batch(events))
            assert sort_windows(harness.watermark(10 * number + 7)) == oracle.advance(10 * number + 7)
        assert sort_windows(harness.watermark(MAX_WATERMARK)) == oracle.advance(MAX_WATERMARK)


def test_a_window_over_many_panes_and_keys_has_all_of_them() -> None:
    """Panes with keys of their own: the later ones had totals, those in the middle none, so their rows were lost."""
    size, slide, keys = 1001, 500, 25
    harness = Harness(operator((size, slide), {"n": Count()}))
    harness.watermark(slide)
    harness.process(batch([(f"{time} {key}", time, 1) for time in range(size) for key in range(keys)]))
    assert len(harness.watermark(size - 1)) == keys * size
    assert len(harness.watermark(size + slide - 1)) == keys * (size - slide)


@pytest.mark.parametrize(
    ("size", "slide", "message"),
    [
        (0, None, "w: size must be at least 1 ms"),
        (10, 0, "w: slide must be at least 1 ms"),
        (10, -5, "w: slide must be at least 1 ms"),
        (10, 11, "w: the slide of 11 ms is longer than the window of 10 ms"),
        (60_000, 7, "w: a slide of 7 ms cuts a window of 60000 ms into 60000 panes"),
    ],
)
def test_windows_that_cannot_be_are_refused(size: int, slide: int | None, message: str) -> None:
    def span(ms: int) -> dt.timedelta:
        return dt.timedelta(milliseconds=ms)

    with pytest.raises(JobRejected, match=message):
        check_window("w", span(size), None if slide is None else span(slide))


def test_output_columns_must_differ() -> None:
    with pytest.raises(JobRejected, match="must differ"):
        SlidingWindow(["window_start"], 10, 5, {"n": Count()})


def test_a_sender_whose_keys_are_of_another_type_is_refused() -> None:
    """Each has a combiner of its own; the types of the first say nothing of the next."""
    harness = Harness(SlidingWindow(["k"], 10, 5, {"n": Count()}))
    rows = [pa.record_batch({"k": key, "t": [1]}) for key in ([dt.date(1970, 1, 8)], [7])]
    first, second = (WindowPreAggregator(["k"], "t", 5, {"n": Count()}) for _ in rows)
    first.add(rows[0])
    second.add(rows[1])
    harness.process(first.flush()[0])
    with pytest.raises(JobRejected, match=r"'k' is date32.* in the state and int64 in the data"):
        harness.process(second.flush()[0])
