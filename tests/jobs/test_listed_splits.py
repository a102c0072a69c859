"""Whole jobs whose source keeps its splits in list state: crashed, stopped, rescaled; no row is late."""

from collections import Counter as Multiset
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.builder import Dataflow
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.aggregates import Count
from runtime.ports import OperatorContext, SourceReader
from tests.jobs.gated import Bomb
from tests.jobs.live import running
from tests.jobs.numbers import committed

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64())])
WINDOW_MS = 100
STARTS = {"a": 0, "b": 5_000, "c": 50_000, "d": 0, "e": 50_000}  #: the event time of the first row of each split


@dataclass
class Topics:
    """Unbounded: `rows` rows of each split are there, which a test may raise. The first splits are assigned 4 to 1."""

    rows: int
    bounded = False
    guarantee = "exactly-once"

    def reader(self) -> "TopicsReader":
        return TopicsReader(self)

    def check(self) -> None:
        return None


class TopicsReader(SourceReader):
    def __init__(self, source: Topics) -> None:
        self._source = source

    def open(self, context: OperatorContext) -> None:
        self._state = context.state.list_state("splits")
        self._next: dict[str, int] = dict(self._state.get())
        if not context.restored:
            self._next = dict.fromkeys("abcd" if context.index == 0 else "e" if context.index == 1 else "", 0)

    @property
    def exhausted(self) -> bool:
        return False

    @property
    def idle(self) -> bool:
        return not self._next

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        ready = {split: at for split, at in self._next.items() if at < self._source.rows}
        if not ready:
            return None
        split = min(ready, key=lambda split: STARTS[split] + 10 * ready[split])
        at = self._next[split]
        self._next[split] = stop = min(at + 5, self._source.rows)
        times = [STARTS[split] + 10 * row for row in range(at, stop)]
        return pa.RecordBatch.from_pydict({"key": [row % 7 for row in range(at, stop)], "time": times}, schema=SCHEMA)

    def watermark(self) -> int | None:
        return min((STARTS[split] + 10 * at - 1 for split, at in self._next.items()), default=None)

    def snapshot(self, checkpoint: int) -> None:
        self._state.replace([list(entry) for entry in self._next.items()])


def job(source: Topics, bomb: Bomb, output: Path) -> Dataflow:
    flow = Dataflow("topics")
    rows = flow.source("topics", source).map_batches("bomb", bomb)
    rows.sink("seen", DiscardSink())  # or the source would wait for the splits that lag
    rows.key_by("key").window("windows", timedelta(milliseconds=WINDOW_MS), "time", {"n": Count()}).sink(
        "out", ParquetSink(str(output))
    )
    return flow


def expected(rows: int) -> Multiset[tuple[int, int]]:
    every = ((row % 7, STARTS[split] + 10 * row) for split in STARTS for row in range(rows))
    return Multiset((key, time // WINDOW_MS * WINDOW_MS) for key, time in every)


def counted(output: Path) -> Multiset[tuple[int, int]]:
    epoch = pa.scalar(0, pa.timestamp("ms")).as_py()
    counts: Multiset[tuple[int, int]] = Multiset()
    for row in committed(output):
        counts[row["key"], round((row["window_start"] - epoch).total_seconds() * 1_000)] += row["n"]
    return counts


def late_records(run: Any) -> int:
    return int(run.operator("windows").get("counters", {}).get("late_records", 0))


@pytest.mark.parametrize("parallelisms", [(2, 2), (2, 3), (2, 1)])
def test_no_row_of_a_split_is_late_after_a_crash_nor_after_a_rescale(
    tmp_path: Path, parallelisms: tuple[int, int]
) -> None:
    """S0-55, S0-56: splits that lie 50 s apart in event time; every row is in its window."""
    source, bomb, output, storage = Topics(40), Bomb(), tmp_path / "out", tmp_path / "state"
    with running(job(source, bomb, output).compile(2), storage, restart=FixedDelay(attempts=5, delay_ms=10)) as run:
        run.wait_for(lambda: run.operator("bomb").get("records_in", 0) == 5 * 40)
        run.checkpoints(2)
        bomb.arm()
        source.rows = 80
        run.wait_for(lambda: run.records.token > 1 and run.operator("bomb").get("records_in", 0) == 5 * 40)
        run.checkpoints(2)
        assert late_records(run) == 0
        savepoint = run.end("stop")
    source.rows = 200
    records = MemoryRunStore(token=Token(10), restore_from=savepoint)
    with running(job(source, bomb, output).compile(parallelisms[1]), storage, records) as run:
        run.wait_for(lambda: run.operator("bomb").get("records_in", 0) == 5 * 120)
        assert late_records(run) == 0
        run.end("drain")
    assert counted(output) == expected(200)
