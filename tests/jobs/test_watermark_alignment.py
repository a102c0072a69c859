"""Watermark alignment of a slow and a fast subtask of a source (FLIP-182)."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.stream import Stream
from runtime.errors import JobRejected
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import run_local
from runtime.operators.aggregates import Count
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcessFunction, ProcessContext
from runtime.ports import OperatorContext, SourceReader

MAX_LEAD_MS: Final = 2 * 20 + 6 * 10  #: two panes, and the batches on their way
MAX_PRE_AGGREGATED_LEAD_MS: Final = 2 * 20 + 18 * 10  #: the same before windows that receive pre-aggregated rows


@dataclass(frozen=True)
class Uneven:
    """Rows of a millisecond each; the second subtask is slow. Notes how far the first is ahead at each batch of its."""

    total: int
    times: list[int]  #: by subtask, the event time to which it has read
    head_start: int = 0  #: the second subtask begins when the first is so far ahead, or after a minute
    leads: list[int] = field(default_factory=list)
    guarantee = "exactly-once"
    bounded = True

    def reader(self) -> "UnevenReader":
        return UnevenReader(self)

    def check(self) -> None:
        return None


class UnevenReader(SourceReader):
    def __init__(self, source: Uneven) -> None:
        self._source = source

    def open(self, context: OperatorContext) -> None:
        self._index, self._deadline = context.index, time.monotonic() + 60

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if self.exhausted:
            return None
        first = self._source.times[self._index]
        if self._index:
            time.sleep(0.002)
            if not first and self._source.times[0] < self._source.head_start and time.monotonic() < self._deadline:
                return None
        else:
            self._source.leads.append(first - self._source.times[1])
        times = range(first, first + 10)
        self._source.times[self._index] += 10
        return pa.record_batch({"key": [0] * 10, "time": pa.array(times, pa.int64())})

    @property
    def exhausted(self) -> bool:
        return self._source.times[self._index] >= self._source.total

    def watermark(self) -> int | None:
        return self._source.times[self._index] - 1


class Passing(KeyedProcessFunction):
    """Emits each row as it is."""

    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        out.emit(row)


def windows(rows: Stream) -> Stream:
    return rows.key_by("key").window("windows", timedelta(milliseconds=20), "time", {"n": Count()})


def sessions(rows: Stream) -> Stream:
    return rows.key_by("key").session_window("sessions", timedelta(milliseconds=20), "time", {"n": Count()})


def joined_windows(rows: Stream) -> Stream:
    half = rows.filter("half", pc.field("time") < 0).key_by("key")
    return rows.key_by("key").join(half).window(
        "joined", timedelta(milliseconds=20), time=("time", "time"), suffixes=("", "_2")
    )  # fmt: skip


def process(rows: Stream) -> Stream:
    schema = pa.schema([("key", pa.int64()), ("time", pa.int64())])
    return rows.key_by("key").process("each", Passing, schema, time="time")


def run(
    tmp_path: Path, step: Callable[[Stream], Stream], max_drift: timedelta | None = None, head_start: int = 0
) -> tuple[list[int], int]:
    """The leads of the fast subtask at its batches, and the milliseconds for which it has paused."""
    source = Uneven(total=3_000, times=[0, 0], head_start=head_start)
    flow = Dataflow("uneven")
    rows = flow.source("rows", source, max_drift=max_drift).map_batches("same", lambda batch: batch)
    step(rows).sink("out", ParquetSink(str(tmp_path / "out")))
    records = MemoryRunStore()
    run_local(flow, parallelism=2, storage=str(tmp_path / "state"), records=records)
    return source.leads, records.live["counters"].get("waited_for_slower_sources_ms", 0)


@pytest.mark.parametrize("step", [sessions, joined_windows])
def test_a_source_pauses_where_its_rows_wait_for_windows(tmp_path: Path, step: Callable[[Stream], Stream]) -> None:
    leads, paused_ms = run(tmp_path, step)
    assert max(leads) <= MAX_LEAD_MS
    assert paused_ms > 0


def test_a_source_may_lead_windows_that_hold_aggregates_by_more_batches(tmp_path: Path) -> None:
    leads, paused_ms = run(tmp_path, windows)
    assert MAX_LEAD_MS < max(leads) <= MAX_PRE_AGGREGATED_LEAD_MS
    assert paused_ms > 0


def test_windows_behind_an_aligned_source_are_complete(tmp_path: Path) -> None:
    run(tmp_path, windows)
    assert pq.read_table(tmp_path / "out").column("n").to_pylist() == [40] * 150


def test_a_source_before_a_process_function_pauses_at_the_drift_of_its_author(tmp_path: Path) -> None:
    """FLIP-182: any step may follow. All rows arrive."""
    leads, paused_ms = run(tmp_path, process, timedelta(milliseconds=20))
    assert max(leads) <= MAX_LEAD_MS
    assert paused_ms > 0
    times = pq.read_table(tmp_path / "out").column("time").to_pylist()
    assert sorted(times) == sorted([*range(3_000), *range(3_000)])


def test_a_source_before_a_process_function_does_not_pause_by_itself(tmp_path: Path) -> None:
    leads, paused_ms = run(tmp_path, process, head_start=2_000)
    assert max(leads) > 10 * MAX_LEAD_MS
    assert paused_ms == 0


def test_a_drift_that_is_no_positive_duration_is_refused_by_name() -> None:
    with pytest.raises(JobRejected, match="max_drift"):
        Dataflow("bad").source("rows", Uneven(total=1, times=[0, 0]), max_drift=timedelta(0))
