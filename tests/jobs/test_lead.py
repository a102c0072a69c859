"""Two sources of one window, of which one is slow: the other does not run away from it."""

import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.dataflow.builder import Dataflow
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import run_local
from runtime.operators.aggregates import Count
from runtime.ports import OperatorContext, SourceReader


@dataclass(frozen=True)
class Uneven:
    """Rows of a millisecond each; the second subtask is slow. Notes how far the first is ahead at each batch of its."""

    total: int
    seen: list[int]  #: by subtask, the event time to which it has read
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
        self._index = context.index

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if self.exhausted:
            return None
        first = self._source.seen[self._index]
        if self._index:
            time.sleep(0.002)
        else:
            self._source.leads.append(first - self._source.seen[1])
        times = range(first, first + 10)
        self._source.seen[self._index] += 10
        return pa.record_batch({"key": [0] * 10, "time": pa.array(times, pa.int64())})

    @property
    def exhausted(self) -> bool:
        return self._source.seen[self._index] >= self._source.total

    def watermark(self) -> int | None:
        return self._source.seen[self._index] - 1


def test_a_source_does_not_run_far_ahead_of_a_slower_one(tmp_path: Path) -> None:
    """Its rows could only lie in windows that stay open. It says in the end how long it has waited."""
    source = Uneven(total=3_000, seen=[0, 0])
    flow = Dataflow("uneven")
    rows = flow.source("rows", source).map_batches("same", lambda batch: batch)
    windows = rows.key_by("key").window("windows", timedelta(milliseconds=20), "time", {"n": Count()})
    windows.sink("out", ParquetSink(str(tmp_path / "out")))
    records = MemoryRunStore()
    run_local(flow, parallelism=2, storage=str(tmp_path / "state"), records=records)
    assert max(source.leads) <= 2 * 20 + 6 * 10, "two panes, and the batches that were on their way"
    assert records.live["counters"]["waited_for_slower_sources_ms"] > 0
    windows_out = pq.read_table(tmp_path / "out")
    assert windows_out.column("n").to_pylist() == [40] * 150
