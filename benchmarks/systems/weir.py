"""Weir as users run it: slots in tasks of Spark, exactly-once checkpoints in a durable folder.

Run records are in memory instead of Postgres, since peers have no such database.
"""

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pyarrow as pa

import weir
from benchmarks import protocol, slots
from benchmarks.protocol import Task
from benchmarks.slots import JobRun
from benchmarks.systems import weir_jobs
from runtime.connectors.sources.sequence import SCHEMA
from runtime.launch.spark import SparkLauncher

TOTALS = {"count": weir.Count(), "sum": weir.Sum("id")}


def window(rows: weir.Stream) -> weir.Stream:
    return rows.key_by("key").window("windows", timedelta(seconds=1), "time", TOTALS)


def running(rows: weir.Stream) -> weir.Stream:
    return rows.key_by("key").aggregate("totals", TOTALS)


class RunningTotal(weir.KeyedProcessFunction):
    def open(self, context: weir.ProcessContext) -> None:
        self.total = context.value_state("total")

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        total = (self.total.get() or 0) + row["id"]
        self.total.update(total)
        out.emit({"key": row["key"], "total": total})


def function(rows: weir.Stream) -> weir.Stream:
    schema = pa.schema([("key", pa.int64()), ("total", pa.int64())])
    return rows.key_by("key").process("totals", RunningTotal, schema)


FORMATS: dict[str, Callable[[pa.Schema], weir.spi.Format]] = {
    "parquet": weir.ParquetFormat,
    "json": weir.JsonLinesFormat,
}
KINDS: dict[str, Callable[[weir.Stream], weir.Stream]] = {"window": window, "running": running, "function": function}


def source_of(task: Task, phase: str, rows: int) -> weir.spi.Source:
    if task.files is None:
        return weir.SequenceSource(rows=rows, keys=task.keys)
    schema = SCHEMA.set(SCHEMA.get_field_index("key"), pa.field("key", pa.string())) if task.text_keys else SCHEMA
    folder, rows_in = str(task.input(phase)), FORMATS[task.files](schema)
    return weir.DirectorySource(folder, rows_in, event_time="time", max_disorder_ms=task.disorder_ms, bounded=True)


def run(task: Task, launcher: SparkLauncher, phase: str, rows: int, sink: weir.spi.Sink) -> JobRun:
    """Runs the job to its end."""
    flow = weir.Dataflow(f"{task.workload}-{phase}")
    KINDS[task.kind](flow.source("numbers", source_of(task, phase, rows))).sink("out", sink)
    settings = weir.CoordinatorSettings(interval_ms=task.interval_ms)
    return slots.run(flow, task.parallelism, launcher, str(task.checkpoints(phase)), settings)


def main() -> None:
    task = protocol.read_task()
    if task.dataset is not None:
        weir_jobs.main(task)
        return
    with closing(SparkLauncher("weir-bench", f"local[{task.parallelism}]")) as launcher:
        run(task, launcher, "check", task.check_rows, weir.ParquetSink(str(task.output)))
        protocol.send_checked(rows=task.check_rows, format="parquet", columns={}, pattern="part-*.parquet")
        protocol.send_started()
        sink = weir.DiscardSink() if task.files is None else weir.ParquetSink(str(task.measured_output))
        job_run = run(task, launcher, "measure", task.rows, sink)
        protocol.send_measured(
            rows=task.rows, seconds=job_run.seconds, checkpoints=job_run.checkpoints, **job_run.counted
        )


if __name__ == "__main__":
    main()
