"""Weir as people run it: slots in a Spark barrier stage, exactly-once checkpoints in a durable folder.

The rows that a console would keep in Postgres are kept in memory: peers have no such database.
"""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa

from benchmarks import protocol
from benchmarks.protocol import Task
from runtime.connectors.formats import Format, JsonLinesFormat, ParquetFormat
from runtime.connectors.sinks.discard import STATE, DiscardSink, totals
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.sequence import SCHEMA, SequenceSource
from runtime.core.coordinator import CoordinatorSettings
from runtime.core.lifecycle import RunEvent, RunState
from runtime.dataflow import Dataflow, Stream
from runtime.hosts.driver import JobMaster, MasterConfig
from runtime.hosts.spark import SparkLauncher
from runtime.io.clock import SystemClock
from runtime.io.filesystem import FileStore
from runtime.io.memory_records import MemoryRecords
from runtime.operators.aggregates import Count, Sum
from runtime.operators.functions import RowCollector
from runtime.operators.process import KeyedProcessFunction, ProcessContext
from runtime.ports import Sink, Source
from runtime.records import Completed

TOTALS = {"count": Count(), "sum": Sum("id")}


class TimedRecords(MemoryRecords):
    """Notes when the job was running, and when its last checkpoint was recorded."""

    running_at = 0.0
    recorded_at = 0.0

    def change_state(
        self, event: RunEvent, failure: Mapping[str, Any] | None = None, savepoint: int | None = None
    ) -> RunState | None:
        if event is RunEvent.DEPLOYED:
            self.running_at = time.monotonic()
        return super().change_state(event, failure, savepoint)

    def record_completed(self, completed: Completed) -> bool:
        self.recorded_at = time.monotonic()
        return super().record_completed(completed)


def window(rows: Stream) -> Stream:
    return rows.key_by("key").window("windows", timedelta(seconds=1), "time", TOTALS)


def running(rows: Stream) -> Stream:
    return rows.key_by("key").aggregate("totals", TOTALS)


class RunningTotal(KeyedProcessFunction):
    def open(self, context: ProcessContext) -> None:
        self.total = context.value_state("total")

    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        total = (self.total.get() or 0) + row["id"]
        self.total.update(total)
        out.emit({"key": row["key"], "total": total})


def function(rows: Stream) -> Stream:
    schema = pa.schema([("key", pa.int64()), ("total", pa.int64())])
    return rows.key_by("key").process("totals", RunningTotal, schema)


FORMATS: dict[str, Format] = {"parquet": ParquetFormat(SCHEMA), "json": JsonLinesFormat(SCHEMA)}
KINDS: dict[str, Callable[[Stream], Stream]] = {"window": window, "running": running, "function": function}


def source_of(task: Task, phase: str, rows: int) -> Source:
    if task.files is None:
        return SequenceSource(rows=rows, keys=task.keys, zipf=task.zipf)
    return DirectorySource(str(task.input(phase)), FORMATS[task.files], event_time="time", bounded=True)


def run(task: Task, launcher: SparkLauncher, phase: str, rows: int, sink: Sink) -> TimedRecords:
    """Runs the job to its end."""
    flow = Dataflow(f"{task.workload}-{phase}")
    KINDS[task.kind](flow.source("numbers", source_of(task, phase, rows))).sink("out", sink)
    records, storage = TimedRecords(), str(task.checkpoints(phase))
    config = MasterConfig(
        job_id=flow.name,
        token=records.token,
        job=flow.compile(task.parallelism),
        storage=storage,
        host=launcher.host,
        coordinator=CoordinatorSettings(interval_ms=task.interval_ms),
    )
    JobMaster(config, records, FileStore(storage), launcher, SystemClock()).run()
    if records.state is not RunState.FINISHED:
        raise SystemExit(f"the job ended as {records.state}: {records.failure}")
    return records


def discarded(records: TimedRecords) -> dict[str, int]:
    """What the sink counted in all, from the manifests."""
    last: dict[int, Any] = {}
    for completed in records.completed:
        last |= completed.manifest.operators["out"].subtasks
    rows, sums = totals(entry for snapshot in last.values() for entry in snapshot.lists.get(STATE, ()))
    return {"rows_out": rows, **{f"sum_of_{name}": value for name, value in sums.items()}}


def main() -> None:
    task = protocol.task()
    launcher = SparkLauncher("weir-bench", f"local[{task.parallelism}]")
    try:
        run(task, launcher, "check", task.check_rows, ParquetSink(str(task.output)))
        protocol.checked(rows=task.check_rows, format="parquet", columns={}, pattern="part-*.parquet")
        protocol.started()
        sink = DiscardSink() if task.files is None else ParquetSink(str(task.measured_output))
        records = run(task, launcher, "measure", task.rows, sink)
        seconds = records.recorded_at - records.running_at
        details = {"checkpoints": len(records.completed)}
        if task.files is None:
            details |= discarded(records)
        protocol.measured(rows=task.rows, seconds=seconds, **details)
    finally:
        launcher.close()


if __name__ == "__main__":
    main()
