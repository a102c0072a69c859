"""Jobs for real slots: everything that steers them is a file, since slots are processes of their own."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import weir
from runtime.core.job.ids import OperatorId
from runtime.dataflow.plan import CompiledJob
from runtime.operators.sink import SinkOperator
from runtime.ports import Collector, Operator
from tests.jobs.live import with_operator
from tests.jobs.numbers import Numbers, committed
from tests.jobs.test_process_job import BURST_MS, Clicks


class Steered(Operator):
    """Passes batches on. Subtask 1 stands still while the file `hold` is there, and fails once for the file `raise`.

    The file `held` is there once it stands still.
    """

    def __init__(self, folder: Path) -> None:
        self._hold, self._held, self._raise = folder / "hold", folder / "held", folder / "raise"

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._mine = context.index == 1

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)

    def next_processing_timer(self) -> int | None:
        return 0 if self._mine and (self._hold.exists() or self._raise.exists()) else None

    def on_processing_time(self, now_ms: int, out: Collector) -> None:
        while self._hold.exists():
            self._held.touch()
            time.sleep(0.02)
        if self._raise.exists():
            self._raise.unlink()
            raise RuntimeError("as asked")


class Opened(Operator):
    """Passes batches on, and leaves a file that says in which attempt it was opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, context: weir.spi.OperatorContext) -> None:
        (self._folder / f"opened-{context.token}-{context.index}").touch()

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)


def steered_counts(source: Numbers, folder: Path, parallelism: int, table: Numbers | None = None) -> CompiledJob:
    """Running counts behind a steered step; beside it a bounded branch that counts `table`, where there is one."""
    flow = weir.Dataflow("steered")
    steered = flow.source("numbers", source).map_batches("steered", _same)
    _count(steered, "counts", folder / "out")
    if table is not None:
        _count(flow.source("table", table).map_batches("rows", _same), "table-counts", folder / "table")
    job = with_operator(flow.compile(parallelism), "steered", lambda: Steered(folder))
    return job if table is None else with_operator(job, "rows", lambda: Opened(folder))


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _count(stream: weir.Stream, uid: str, output: Path) -> None:
    counted = stream.key_by("key").aggregate(uid, {"n": weir.Count(), "total": weir.Sum("value")})
    counted.sink(f"{uid}-out", weir.ParquetSink(str(output)))


# ---------------------------------------------------------------- three two-phase commits in a row


class WritesAndPassesOn(SinkOperator):
    """A two-phase-commit step with something behind it."""

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        super().process(input, batch, out)
        out.emit(batch)


TARGETS = ("first", "second", "third")


def cascade(source: Numbers, folder: Path, parallelism: int, early: Numbers | None = None) -> CompiledJob:
    """source, three steps that each commit to a target of their own; beside them a branch that ends early."""
    flow = weir.Dataflow("cascade")
    stream = flow.source("numbers", source)
    for uid in TARGETS[:-1]:
        stream = stream.map_batches(uid, _same)
    stream.sink(TARGETS[-1], weir.ParquetSink(str(folder / TARGETS[-1])))
    if early is not None:
        flow.source("early", early).sink("early-out", weir.ParquetSink(str(folder / "early")))
    job = flow.compile(parallelism)
    for uid in TARGETS[:-1]:
        sink = weir.ParquetSink(str(folder / uid))
        job = with_operator(job, uid, lambda sink=sink: WritesAndPassesOn(sink))  # type: ignore[misc]
        job = replace(job, sinks={**job.sinks, OperatorId(uid): sink})
    return job


def rows_of(source: Numbers) -> Counter[int]:
    """How often each value is in it."""
    return Counter(dict.fromkeys(range(source.total), source.splits))


def rows_in(output: Path) -> Counter[int]:
    return Counter(row["value"] for row in committed(output))


# ---------------------------------------------------------------- state, timers and time to live


class Visits(weir.KeyedProcessFunction):
    """How many different clicks a user made in each burst, told when the burst is over, and when it first came."""

    def open(self, context: weir.ProcessContext) -> None:
        self._clicks = context.map_state("clicks")
        self._first = context.value_state("first", ttl_ms=int(timedelta(days=1) / timedelta(milliseconds=1)))
        self._gone = context.value_state("gone", ttl_ms=1)

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        burst = row["at"] // BURST_MS
        self._clicks[f"{burst}/{row['click']}"] = burst
        self._first.update(min(row["at"], self._first.get(row["at"])))
        if not self._gone.get(False):
            self._gone.update(True)
        context.register_event_timer((burst + 1) * BURST_MS - 1)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        burst = timestamp_ms // BURST_MS
        over = [click for click, of in self._clicks.items() if of == burst]
        for name in over:
            del self._clicks[name]
        row = {"user": context.current_key, "burst": burst, "clicks": len(over), "first": self._first.get()}
        out.emit(row)


COUNTED = pa.schema([("user", pa.string()), ("burst", pa.int64()), ("clicks", pa.int64()), ("first", pa.int64())])


@dataclass(frozen=True)
class Version:
    """One version of the job of visits: how far it reads, how it is written down."""

    upto: int
    parallelism: int
    last: bool = False
    turned: bool = False  #: steps declared in another order, and with other names


def visits(version: Version, folder: Path) -> CompiledJob:
    flow = weir.Dataflow("visits")
    for add in (_ticks, _visits) if version.turned else (_visits, _ticks):
        add(flow, version, folder)
    return flow.compile(version.parallelism)


def _visits(flow: weir.Dataflow, version: Version, folder: Path) -> None:
    name = "clicks, read anew" if version.turned else "clicks"
    clicks = flow.source("clicks", Clicks(version.upto, bounded=version.last), name=name)
    visits = clicks.key_by("user").process("visits", Visits, COUNTED, time="at")
    visits.sink("out", weir.ParquetSink(str(folder / "out")), name="told" if version.turned else "out")


def _ticks(flow: weir.Dataflow, version: Version, folder: Path) -> None:
    numbers = flow.source("ticks", Numbers(total=300, unbounded=not version.last))
    numbers.sink("ticks-out", weir.ParquetSink(str(folder / "ticks")))
