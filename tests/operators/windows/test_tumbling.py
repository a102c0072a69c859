"""Tumbling windows against plain Python: disorder, lateness, firing, restores at another parallelism."""

import datetime as dt
import random
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import DataRejected, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.aggregates import Aggregate, Count, Max, Mean, Sum
from runtime.operators.event_time import event_times_ms
from runtime.operators.late_rows import LATE_RECORDS_COUNTER
from runtime.operators.partition import partition_by_key_group
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.ports import Operator
from tests.operators.combined import Combined
from tests.operators.harness import Harness, by_window, sort_windows

SIZE = 10
EPOCH = dt.datetime.fromisoformat("1970-01-01")

Event = tuple[str | None, int, int]
Window = tuple[str | None, int]


AGGREGATES: dict[str, Aggregate] = {"n": Count(), "total": Sum("v"), "high": Max("v"), "mean": Mean("v")}


def window(keys: list[str], aggregates: dict[str, Aggregate]) -> Operator:
    return Combined(WindowPreAggregator(keys, "t", SIZE, aggregates), TumblingWindow(keys, SIZE, aggregates))


def operator() -> Operator:
    return window(["k"], AGGREGATES)


def batch(events: list[Event]) -> pa.RecordBatch:
    keys, times, values = zip(*events, strict=True) if events else ((), (), ())
    columns = [pa.array(keys, pa.string()), pa.array(times, pa.int64()), pa.array(values, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["k", "t", "v"])


class Oracle:
    """The same, one record at a time."""

    def __init__(self) -> None:
        self.open: dict[Window, list[int]] = defaultdict(list)
        self.watermark = MIN_WATERMARK
        self.late = 0

    def process(self, events: list[Event]) -> None:
        for key, time, value in events:
            start = time // SIZE * SIZE
            if start + SIZE - 1 <= self.watermark:
                self.late += 1
            else:
                self.open[key, start].append(value)

    def advance(self, watermark: int) -> list[dict[str, Any]]:
        self.watermark = max(self.watermark, watermark)
        due = [window for window in self.open if window[1] + SIZE - 1 <= self.watermark]
        order = sorted(due, key=lambda window: (window[1], window[0] is None, window[0]))
        return [self._row(window, self.open.pop(window)) for window in order]

    def _row(self, window: Window, values: list[int]) -> dict[str, Any]:
        start = EPOCH + dt.timedelta(milliseconds=window[1])
        return {
            "k": window[0],
            "window_start": start,
            "window_end": start + dt.timedelta(milliseconds=SIZE),
            "n": len(values),
            "total": sum(values),
            "high": max(values),
            "mean": sum(values) / len(values),
        }


EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-60, 120), st.integers(-100, 100)), max_size=12
)
STEPS = st.lists(EVENTS | st.integers(-70, 140), max_size=25)


@given(STEPS)
def test_it_computes_what_a_loop_over_records_computes(steps: list[Any]) -> None:
    """S0-65: at the end of time every open window fires."""
    harness, oracle = Harness(operator()), Oracle()
    for step in steps:
        if isinstance(step, int):
            assert sort_windows(harness.watermark(step)) == oracle.advance(step)
        else:
            oracle.process(step)
            assert harness.process(batch(step)) == []
    assert sort_windows(harness.watermark(MAX_WATERMARK)) == oracle.advance(MAX_WATERMARK)
    assert harness.context.counters.get(LATE_RECORDS_COUNTER, 0) == oracle.late


def deploy(parallelism: int, store: MemorySnapshotStore, snapshots: list[SubtaskSnapshot]) -> list[Harness]:
    return [
        Harness(operator(), store=store, snapshots=snapshots, index=index, parallelism=parallelism)
        for index in range(parallelism)
    ]


@settings(deadline=None)
@given(
    st.lists(st.one_of(EVENTS, st.integers(-70, 140), st.tuples(st.just("rescale"), st.integers(1, 4))), max_size=25)
)
def test_windows_move_with_their_key_groups(steps: list[Any]) -> None:
    """S3-20."""
    store, oracle, counters = MemorySnapshotStore(), Oracle(), 0
    subtasks, checkpoints = deploy(2, store, []), 0
    for step in [*steps, MAX_WATERMARK]:
        if isinstance(step, int):
            fired = [row for subtask in subtasks for row in subtask.watermark(step)]
            assert sorted(fired, key=by_window) == oracle.advance(step)
        elif isinstance(step, tuple):
            checkpoints += 1
            counters += sum(subtask.context.counters.get(LATE_RECORDS_COUNTER, 0) for subtask in subtasks)
            snapshots = [subtask.snapshot(f"chk-{checkpoints}") for subtask in subtasks]
            subtasks = deploy(step[1], store, snapshots)
            for subtask in subtasks:
                assert subtask.watermark(oracle.watermark) == []  # the worker gives the restored watermark first
        else:
            oracle.process(step)
            for subtask, part in zip(
                subtasks, partition_by_key_group(batch(step), ["k"], 16, len(subtasks)), strict=True
            ):
                if part is not None:
                    subtask.process(part)
    counters += sum(subtask.context.counters.get(LATE_RECORDS_COUNTER, 0) for subtask in subtasks)
    assert counters == oracle.late


def test_a_window_fires_at_its_last_millisecond_and_not_before() -> None:
    harness = Harness(operator())
    harness.process(batch([("a", 0, 1), ("a", 9, 2), ("a", 10, 3)]))
    assert harness.watermark(8) == []
    assert [row["total"] for row in harness.watermark(9)] == [3]
    assert harness.watermark(9) == []


def test_a_window_that_has_fired_never_opens_again() -> None:
    harness = Harness(operator())
    harness.process(batch([("a", 5, 1)]))
    harness.watermark(9)
    assert harness.process(batch([("a", 9, 1), ("b", 3, 1), ("a", 10, 7)])) == []
    assert harness.context.counters == {LATE_RECORDS_COUNTER: 2}
    assert [row["total"] for row in harness.watermark(MAX_WATERMARK)] == [7]


def test_fired_windows_leave_tombstones_and_not_rows() -> None:
    harness = Harness(operator())
    keys = 5_000  # a small state is copied, without tombstones
    harness.process(batch([(f"k{number}", number % 20, 1) for number in range(keys)]))
    harness.snapshot("chk-1")
    harness.watermark(9)
    snapshot = harness.snapshot("chk-2")
    assert [segment.rows for segment in snapshot.keyed["windows"]] == [keys, keys // 2]
    successor = Harness(operator(), store=harness.store, snapshots=[snapshot])
    assert successor.watermark(9) == []
    assert len(successor.watermark(19)) == keys // 2


@pytest.mark.parametrize(
    ("column", "times"),
    [
        (pa.array([0, 1], pa.timestamp("s")), [0, 1000]),
        (pa.array([-1, 999], pa.timestamp("us")), [-1, 0]),
        (pa.array([-1, 1_000_000], pa.timestamp("ns")), [-1, 1]),
        (pa.array([-1, 25], pa.timestamp("ms", "UTC")), [-1, 25]),
        (pa.array([0, 1], pa.date32()), [0, 86_400_000]),
        (pa.array([0, 86_400_000], pa.date64()), [0, 86_400_000]),
        (pa.array([3, 17], pa.int32()), [3, 17]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_times_of_every_unit_fall_into_the_window_of_their_millisecond(column: pa.Array, times: list[int]) -> None:
    harness = Harness(window(["k"], {"n": Count()}))
    harness.process(pa.RecordBatch.from_arrays([pa.array(["a", "b"]), column], names=["k", "t"]))
    starts = {row["k"]: row["window_start"] for row in harness.watermark(MAX_WATERMARK)}
    for key, time in zip("ab", times, strict=True):
        assert starts[key] == EPOCH + dt.timedelta(milliseconds=time // SIZE * SIZE)


def test_what_has_no_time_is_refused() -> None:
    with pytest.raises(DataRejected, match="column 't' is null"):
        Harness(operator()).process(pa.RecordBatch.from_pydict({"k": ["a", "b"], "t": [1, None], "v": [1, 1]}))
    with pytest.raises(JobRejected, match="t: event times are a timestamp"):
        Harness(operator()).process(pa.RecordBatch.from_pydict({"k": ["a"], "t": ["noon"], "v": [1]}))
    with pytest.raises(JobRejected, match="t: there is no such column"):
        Harness(operator()).process(pa.RecordBatch.from_pydict({"k": ["a"], "v": [1]}))


def test_output_columns_must_differ() -> None:
    with pytest.raises(JobRejected, match="must differ"):
        TumblingWindow(["window_start"], SIZE, {"n": Count()})


def test_output_has_one_schema_and_is_cut_into_batches() -> None:
    harness = Harness(window(["k", "j"], {"n": Count()}))
    random.seed(1)
    keys = pa.array(range(70_000), pa.int32())
    columns = [keys, pa.array(["x"] * 70_000).dictionary_encode(), pa.array([5] * 70_000)]
    harness.process(pa.RecordBatch.from_arrays(columns, names=["k", "j", "t"]))
    harness.watermark(MAX_WATERMARK)
    assert [out.num_rows for out in harness.out.batches] == [65_536, 4_464]
    time = pa.timestamp("ms")
    expected = [("k", pa.int32()), ("j", pa.string()), ("window_start", time), ("window_end", time), ("n", pa.int64())]
    assert {out.schema for out in harness.out.batches} == {pa.schema(expected)}


@pytest.mark.parametrize(
    "times",
    [
        pa.array([2**63 - 1], pa.int64()),
        pa.array([-(2**63)], pa.int64()),
        pa.array([2**64 - 1], pa.uint64()),
        pa.array([0, 2**62], pa.timestamp("s")),
        pa.array([0, -(2**60)], pa.timestamp("s")),
        pa.array([2**63 - 1], pa.timestamp("ms")),
    ],
)
def test_a_time_beyond_all_windows_is_refused(times: pa.Array) -> None:
    """Its window would have no end within 64 bits: it came out with the times of another, or never."""
    rows = pa.RecordBatch.from_arrays([times, pa.array(["a"] * len(times))], names=["t", "k"])
    with pytest.raises(DataRejected, match=r"column 't' is out of range \(row \d of a batch\)"):
        Harness(window(["k"], {"n": Count()})).process(rows)
    with pytest.raises(DataRejected, match="out of range"):
        event_times_ms(rows, "t")


def test_times_millions_of_years_away_have_windows() -> None:
    harness = Harness(window(["k"], {"n": Count()}))
    starts = [-(2**62), 0, 2**62 - 1]
    harness.process(batch([("a", time, 1) for time in starts]))
    harness.operator.on_watermark(MAX_WATERMARK, harness.out)
    (fired,) = harness.out.batches
    assert fired.column("window_start").cast(pa.int64()).to_pylist() == [time // SIZE * SIZE for time in starts]


def pair() -> tuple[Harness, Harness, MemorySnapshotStore]:
    """Two subtasks with a row of each of eight keys in the windows 0 and 10; the first is ahead."""
    store = MemorySnapshotStore()
    ahead, behind = deploy(2, store, [])
    events: list[Event] = [(f"key {number}", time, 1) for number in range(8) for time in (2, 12)]
    for subtask, part in zip((ahead, behind), partition_by_key_group(batch(events), ["k"], 16, 2), strict=True):
        assert part is not None
        subtask.process(part)
    ahead.watermark(9)
    behind.watermark(4)
    return ahead, behind, store


def test_no_window_opens_again_where_subtasks_had_come_to_different_times() -> None:
    """S3-20: as one, they begin with the lower time; what comes for a window that one of them had fired is late."""
    ahead, behind, store = pair()
    fired_keys = {row["k"] for row in ahead.out.rows()}
    assert 0 < len(fired_keys) < 8
    snapshots = [ahead.snapshot("a"), behind.snapshot("b")]
    for attempt in range(2):
        (successor,) = deploy(1, store, snapshots)
        successor.watermark(4)
        successor.process(batch([(f"key {number}", 3, 1) for number in range(8)]))
        snapshots = [successor.snapshot(f"both {attempt}")]
        assert successor.context.counters[LATE_RECORDS_COUNTER] == len(fired_keys)
    fired = successor.watermark(9)
    assert {row["k"]: row["n"] for row in fired} == {f"key {n}": 3 for n in range(8) if f"key {n}" not in fired_keys}
    assert len(successor.watermark(MAX_WATERMARK)) == 8


def test_windows_of_another_size_are_refused() -> None:
    """Rows of the old ones would be given out as those of others."""
    ahead, behind, store = pair()
    snapshots = [ahead.snapshot("a"), behind.snapshot("b")]
    with pytest.raises(JobRejected, match=r"windows of 10 ms.*not of 20 ms"):
        Harness(TumblingWindow(["k"], 20, AGGREGATES), store=store, snapshots=snapshots)
