"""Rows in flight: a cheap step keeps up with a busy step before it, and a slow step has few rows ahead of it."""

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from tests.jobs.numbers import SCHEMA, Numbers

BATCH = 20


class Meter:
    """Counts rows at two places of a job whose slots are threads. `most`: the largest difference seen."""

    def __init__(self) -> None:
        self._lock, self._passed = threading.Lock(), Counter[str]()
        self.most = 0

    def enter(self, rows: int) -> None:
        with self._lock:
            self._passed["in"] += rows
            self.most = max(self.most, self._passed["in"] - self._passed["out"])

    def leave(self, rows: int) -> None:
        with self._lock:
            self._passed["out"] += rows


class Rows(weir.KeyedProcessFunction):
    """Passes rows on. `seconds`: for each of them."""

    def __init__(self, count: Any, seconds: float = 0.0) -> None:
        self._count, self._seconds = count, seconds

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        if self._seconds:
            time.sleep(self._seconds)
        self._count(1)
        out.emit(row)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_cheap_step_keeps_up_with_a_busy_step(tmp_path: Path, shuffled: bool) -> None:
    """A busy step with two inputs emits two batches in a turn. The cheap step must take all of them in its turn."""
    meter = Meter()

    def leave(batch: pa.RecordBatch) -> pa.RecordBatch:
        meter.leave(batch.num_rows)
        return batch

    flow = weir.Dataflow("cheap")
    rows = flow.source("numbers", Numbers(total=1_000, batch=BATCH, keys=100))
    busy = rows.key_by("key").process("busy", lambda: Rows(meter.enter, 0.0002), SCHEMA)
    if shuffled:
        cheap = busy.key_by("value").process("cheap", lambda: Rows(meter.leave), SCHEMA)
    else:
        cheap = busy.map_batches("cheap", leave)
    cheap.sink("out", weir.DiscardSink())
    weir.run_local(flow, parallelism=2, storage=str(tmp_path))
    assert meter.most <= 16 * BATCH, (
        f"{meter.most} rows were between the steps"
    )  # else 800 to 1,000; threads hold up to 194


def test_a_slow_subtask_has_few_rows_ahead_of_it_from_the_start(tmp_path: Path) -> None:
    """Rows of 16 bytes and a millisecond each: 256 KiB per channel would be half a minute of work before a barrier."""
    meter = Meter()

    def enter(batch: pa.RecordBatch) -> pa.RecordBatch:
        meter.enter(batch.num_rows)
        return batch

    flow = weir.Dataflow("slow")
    rows = flow.source("numbers", Numbers(total=1_500, batch=BATCH, keys=1)).map_batches("enter", enter)
    slow = rows.key_by("key").process("slow", lambda: Rows(meter.leave, 0.001), SCHEMA)
    slow.sink("out", weir.DiscardSink())
    weir.run_local(flow, parallelism=2, storage=str(tmp_path))
    assert meter.most <= 20 * BATCH, f"{meter.most} of 6,000 rows were in flight"
