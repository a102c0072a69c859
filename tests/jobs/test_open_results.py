"""Numbers of results that are not final, from the operators to the live report of a running job."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from runtime.operators.aggregates import Count
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcessFunction, ProcessContext
from runtime.ports import Collector, Operator
from tests.jobs.live import Run, running
from tests.jobs.numbers import Numbers, NumbersReader


class Timed(Numbers):
    """Numbers with an event time that never advances."""

    def reader(self) -> "TimedReader":
        return TimedReader(self)


class TimedReader(NumbersReader):
    def watermark(self) -> int | None:
        return None


class Later(KeyedProcessFunction):
    """A timer per key, which no watermark reaches."""

    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        context.register_event_timer(10**15)


class Failing(Operator):
    """An author's operator whose number raises."""

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)

    def open_results(self) -> dict[str, int]:
        raise RuntimeError("no number")


def open_results(run: Run) -> dict[str, dict[str, int]]:
    """Results by operator that are not final."""
    operators = run.records.live.get("operators", {})
    return {uid: row["open_results"] for uid, row in operators.items() if any(row["open_results"].values())}


def test_a_live_report_has_windows_sessions_and_timers(tmp_path: Path) -> None:
    flow = Dataflow("open")
    keyed = flow.source("rows", Timed(total=100, unbounded=True)).transform("through", Failing).key_by("key")
    day, counted, schema = timedelta(days=1), {"n": Count()}, pa.schema([("key", pa.int64())])
    steps = (
        keyed.window("days", day, "value", counted),
        keyed.session_window("pauses", day, "value", counted),
        keyed.process("later", Later, schema, time="value"),
    )
    for step in steps:
        step.sink(f"out-{step.uid}", ParquetSink(str(tmp_path / step.uid)))
    with running(flow.compile(2), tmp_path / "state") as run:
        expected = {"days": {"windows": 7}, "pauses": {"sessions": 7}, "later": {"timers": 7}}
        run.wait_for(lambda: open_results(run) == expected)


def test_a_live_report_has_the_rows_that_are_not_committed(tmp_path: Path) -> None:
    flow = Dataflow("open")
    flow.source("rows", Numbers(total=100, unbounded=True)).sink("copy", ParquetSink(str(tmp_path / "copy")))
    with running(flow.compile(2), tmp_path / "state", settings=CoordinatorSettings(interval_ms=None)) as run:
        run.wait_for(lambda: open_results(run) == {"copy": {"rows": 400}})
