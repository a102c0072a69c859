"""Jobs of operators that hold something back, for real slots: what steers them is a file, since slots are processes."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import weir
from runtime.dataflow.plan import CompiledJob
from tests.jobs.numbers import SCHEMA, Numbers, NumbersReader

Row = dict[str, Any]


# ---------------------------------------------------------------- requests


@dataclass(frozen=True)
class Service:
    """Answers once the file `up` is there; leaves a line for each request, in a file of its process."""

    folder: Path

    async def __call__(self, row: Row) -> list[Row]:
        with (self.folder / f"asked-{os.getpid()}").open("a") as file:
            file.write(f"{row['value']}\n")
        while not (self.folder / "up").exists():  # noqa: ASYNC110  # it is another process that lets it go on
            await asyncio.sleep(0.02)
        return [row]

    def asked(self) -> int:
        return sum(len(path.read_text().splitlines()) for path in self.folder.glob("asked-*"))


def lookups(source: Numbers, service: Service, folder: Path) -> CompiledJob:
    flow = weir.Dataflow("lookups")
    answers = flow.source("numbers", source).async_map("ask", service, SCHEMA, timeout_ms=600_000)
    answers.sink("out", weir.ParquetSink(str(folder / "out")))
    return flow.compile(2)


# ---------------------------------------------------------------- rules, batches, routing, timers, changes


class Rated(weir.BroadcastProcessFunction):
    """Multiplies each value by the rate of its key. Rows that come before all rates are known wait."""

    def open(self, context: weir.SubtaskContext) -> None:
        self._rates = context.broadcast_map("rates")
        self._stored = context.list_state("early")
        self._early: list[Row] = self._stored.get()

    def process(self, row: Row, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        if len(self._rates) < RATES.total:
            self._early.append(row)
        else:
            self._emit(row, out)

    def process_broadcast(self, row: Row, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._rates[row["value"]] = row["key"]
        if len(self._rates) == RATES.total:
            early, self._early = self._early, []
            for waiting in early:
                self._emit(waiting, out)

    def snapshot(self, checkpoint: int) -> None:
        self._stored.replace(self._early)

    def _emit(self, row: Row, out: weir.RowCollector) -> None:
        out.emit({"key": row["key"], "value": row["value"] * self._rates[row["key"] % RATES.total]})


class Patient(weir.ProcessFunction):
    """Gives even values out by a timer and keeps odd ones to the end, in a union list where each picks its own."""

    WAIT_MS = 50

    def open(self, context: weir.SubtaskContext) -> None:
        self._stored = context.union_list_state("rows")
        everything = self._stored.get()
        homes = route(pa.RecordBatch.from_pylist(everything, SCHEMA), context.parallelism)
        self._rows = [row for row, home in zip(everything, homes, strict=True) if home == context.index]

    def start(self, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        context.register_processing_timer(context.now_ms())

    def process(self, row: Row, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._rows.append(row)

    def on_timer(self, timestamp_ms: int, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        context.register_processing_timer(context.now_ms() + self.WAIT_MS)
        self._give([row for row in self._rows if not row["value"] % 2], out)
        self._rows = [row for row in self._rows if row["value"] % 2]

    def finish(self, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._give(self._rows, out)

    def snapshot(self, checkpoint: int) -> None:
        self._stored.replace(self._rows)

    def _give(self, rows: list[Row], out: weir.RowCollector) -> None:
        for row in rows:
            out.emit(row)


def route(rows: pa.RecordBatch, targets: int) -> npt.NDArray[np.int64]:
    """For records and for state alike."""
    keys: npt.NDArray[np.int64] = rows["key"].to_numpy()
    return (keys**2 + 1) % targets


RATES: Final = Numbers(total=7, splits=1)
FULL: Final = 48  #: rows of a batch


def rated(source: Numbers, parallelism: int, folder: Path) -> CompiledJob:
    """Rules, batches of many keys, an own routing, timers without keys; then counts and sums as a changelog."""
    flow = weir.Dataflow("rated")
    rates = flow.source("rates", RATES)
    numbers = flow.source("numbers", source).connect_broadcast("rated", rates, Rated, SCHEMA)
    bulk = numbers.key_by("key").batches("bulk", lambda batch: batch, max_rows=FULL, max_wait_ms=600_000)
    stream = bulk.partition_custom(route, "key").process("patient", Patient, SCHEMA)
    counted = stream.key_by("key").aggregate("counts", {"n": weir.Count(), "total": weir.Sum("value")}, changelog=True)
    counted.sink("out", weir.ParquetSink(str(folder / "out")))
    return flow.compile(parallelism)


def rated_answer(source: Numbers) -> dict[int, tuple[int, int]]:
    """Number and sum of the rated values of each key, worked out without the job."""
    rates = {value: value * 31 % RATES.keys for value in range(RATES.total)}
    counts, totals = Counter[int](), Counter[int]()
    for split in range(source.splits):
        for value in range(source.total):
            key = (value * 31 + split) % source.keys
            counts[key] += 1
            totals[key] += value * rates[key % RATES.total]
    return {key: (counts[key], totals[key]) for key in counts}


# ---------------------------------------------------------------- a union list, partly finished


@dataclass(frozen=True, kw_only=True)
class HeldOpen(Numbers):
    """All subtasks but the last end with their rows; the last goes on until the file `let` is there."""

    let: Path

    def reader(self) -> HeldOpenReader:
        return HeldOpenReader(self)


class HeldOpenReader(NumbersReader):
    def __init__(self, source: HeldOpen) -> None:
        super().__init__(source)
        self._let = source.let

    def open(self, context: weir.spi.OperatorContext) -> None:
        super().open(context)
        self._last = context.index == context.parallelism - 1

    @property
    def exhausted(self) -> bool:
        return super().exhausted and (not self._last or self._let.exists())


class Told(weir.ProcessFunction):
    """Passes rows on; tells of itself in a union list."""

    def open(self, context: weir.SubtaskContext) -> None:
        self._index = context.index
        self._parts = context.union_list_state("parts")

    def process(self, row: Row, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        out.emit(row)

    def snapshot(self, checkpoint: int) -> None:
        self._parts.replace([self._index])


def told(source: Numbers, folder: Path) -> CompiledJob:
    flow = weir.Dataflow("told")
    flow.source("numbers", source).process("told", Told, SCHEMA).sink("out", weir.ParquetSink(str(folder / "out")))
    return flow.compile(2)
