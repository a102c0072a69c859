"""Late rows of windows in a side output: the rows as they came in, against a loop over records."""

from collections import Counter as Multiset
from datetime import timedelta
from functools import partial
from math import gcd
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.aggregates import Aggregate, Count, Sum
from runtime.operators.late_rows import LATE_RECORDS_COUNTER
from runtime.operators.output_tag import OutputTag
from runtime.operators.partition import partition_by_key_group
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.operators.windows.sliding import SlidingWindow
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.operators.windows.window import RowInput
from runtime.ports import Operator
from tests.example_counts import examples
from tests.operators.harness import Harness

Event = tuple[str | None, int, int]
AGGREGATES: dict[str, Aggregate] = {"n": Count(), "total": Sum("v")}
LATE = OutputTag("late", pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())]))
LENGTHS = st.sampled_from([(10, 10), (20, 10), (25, 10), (30, 4)])
EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-60, 120), st.integers(-100, 100)), max_size=12
)


def window(size: int, slide: int) -> Operator:
    pane = gcd(size, slide)
    rows = RowInput("t", pane, LATE, partial(WindowPreAggregator, ["k"], "t", pane, AGGREGATES))
    if size == slide:
        return TumblingWindow(["k"], size, AGGREGATES, rows)
    return SlidingWindow(["k"], size, slide, AGGREGATES, rows)


def batch(events: list[Event]) -> pa.RecordBatch:
    keys, times, values = zip(*events, strict=True) if events else ((), (), ())
    columns = [pa.array(keys, pa.string()), pa.array(times, pa.int64()), pa.array(values, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["k", "t", "v"])


class Oracle:
    """One record at a time: a record is late if every window that contains it ends at or before the watermark."""

    def __init__(self, size: int, slide: int) -> None:
        self.size, self.slide = size, slide
        self.open: dict[tuple[int, str | None], list[int]] = {}
        self.watermark = MIN_WATERMARK
        self.late: Multiset[Event] = Multiset()
        self.fired: Multiset[Any] = Multiset()

    def process(self, events: list[Event]) -> None:
        for key, time, value in events:
            last = time // self.slide * self.slide
            starts = [s for s in range(last, last - self.size, -self.slide) if s + self.size > time]
            still_open = [start for start in starts if start + self.size - 1 > self.watermark]
            if not still_open:
                self.late[key, time, value] += 1
            for start in still_open:
                self.open.setdefault((start, key), []).append(value)

    def advance(self, watermark: int) -> None:
        self.watermark = max(self.watermark, watermark)
        for start, key in [each for each in self.open if each[0] + self.size - 1 <= self.watermark]:
            values = self.open.pop((start, key))
            self.fired[start, key, len(values), sum(values)] += 1


class Subtasks:
    """The subtasks of a window, restored from each other's snapshots at other parallelisms."""

    def __init__(self, size: int, slide: int, parallelism: int) -> None:
        self.size, self.slide = size, slide
        self.store, self.checkpoints, self.gone = MemorySnapshotStore(), 0, list[Harness]()
        self.now = self.deploy(parallelism, [])

    def deploy(self, parallelism: int, snapshots: list[SubtaskSnapshot]) -> list[Harness]:
        return [
            Harness(
                window(self.size, self.slide),
                store=self.store,
                snapshots=snapshots,
                index=index,
                parallelism=parallelism,
            )
            for index in range(parallelism)
        ]

    def rescale(self, parallelism: int, watermark: int) -> None:
        self.checkpoints += 1
        self.gone += self.now
        self.now = self.deploy(parallelism, [subtask.snapshot(f"chk-{self.checkpoints}") for subtask in self.now])
        self.watermark(watermark)  # the worker emits the restored watermark first

    def watermark(self, time: int) -> None:
        for subtask in self.now:
            subtask.watermark(time)

    def process(self, events: list[Event]) -> None:
        for subtask, part in zip(
            self.now, partition_by_key_group(batch(events), ["k"], 16, len(self.now)), strict=True
        ):
            if part is not None:
                subtask.process(part)

    @property
    def late(self) -> Multiset[Event]:
        every = [*self.gone, *self.now]
        assert {name for subtask in every for name, _ in subtask.out.side} <= {"late"}
        late_rows = Multiset(
            (row["k"], row["t"], row["v"])
            for subtask in every
            for _, rows in subtask.out.side
            for row in rows.to_pylist()
        )
        assert sum(subtask.context.counters.get(LATE_RECORDS_COUNTER, 0) for subtask in every) == late_rows.total()
        return late_rows

    @property
    def fired(self) -> Multiset[Any]:
        epoch = pa.scalar(0, pa.timestamp("ms")).as_py()
        rows = [row for subtask in (*self.gone, *self.now) for row in subtask.out.rows()]
        return Multiset(
            (round((row["window_start"] - epoch).total_seconds() * 1_000), row["k"], row["n"], row["total"])
            for row in rows
        )


@settings(deadline=None, max_examples=examples(60))
@given(
    LENGTHS, st.lists(EVENTS | st.integers(-70, 140) | st.tuples(st.just("rescale"), st.integers(1, 4)), max_size=25)
)
def test_a_row_is_in_its_windows_or_in_the_side_output(lengths: tuple[int, int], steps: list[Any]) -> None:
    """S3-20: each late row once, as it came in; through restores at other parallelisms."""
    oracle, subtasks = Oracle(*lengths), Subtasks(*lengths, 2)
    for step in [*steps, MAX_WATERMARK]:
        if isinstance(step, int):
            oracle.advance(step)
            subtasks.watermark(step)
        elif isinstance(step, tuple):
            subtasks.rescale(step[1], oracle.watermark)
        else:
            oracle.process(step)
            if step:
                subtasks.process(step)
    assert subtasks.late == oracle.late
    assert subtasks.fired == oracle.fired


@pytest.mark.parametrize("lengths", [(10, 10), (20, 10)])
def test_late_rows_of_a_window_that_moves_from_3_to_7_to_1(lengths: tuple[int, int]) -> None:
    """S3-19, S3-20: what was late before a rescale is late after it, although the sources begin with lower times."""
    oracle, subtasks = Oracle(*lengths), Subtasks(*lengths, 3)
    for parallelism, time in ((3, 30), (7, 60), (1, 90)):
        if parallelism != 3:
            subtasks.rescale(parallelism, MIN_WATERMARK)
        events: list[Event] = [(key, at, 1) for key in "abcdefgh" for at in range(time - 40, time + 20, 7)]
        for subject in (oracle, subtasks):
            subject.process(events)
            subject.watermark(time) if isinstance(subject, Subtasks) else subject.advance(time)
            subject.process(events)
    subtasks.watermark(MAX_WATERMARK)
    oracle.advance(MAX_WATERMARK)
    assert oracle.late
    assert subtasks.late == oracle.late
    assert subtasks.fired == oracle.fired


def test_other_columns_are_refused_before_any_row_is_late() -> None:
    """Where the columns of the stream are known, when the job is built; otherwise at the first row."""
    harness = Harness(window(10, 10))
    with pytest.raises(JobRejected, match=r"columns k: string, t: int64, but 'late' declares k: string, t: int64, v"):
        harness.process(batch([("a", 1, 1)]).select(["k", "t"]))
    numbers = weir.Dataflow("late").source("numbers", weir.SequenceSource(rows=1)).key_by("key")
    with pytest.raises(JobRejected, match="columns id: int64, key: int64") as error:
        numbers.window("windows", timedelta(seconds=1), "time", {"n": weir.Count()}, late_to=LATE)
    assert (error.value.code, error.value.field) == ("bad-late-to", "windows")
