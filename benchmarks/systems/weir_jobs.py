"""The jobs of Weir over data sets. After a SIGKILL they go on from their last checkpoint."""

import os
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import weir
from benchmarks import protocol, slots
from benchmarks.datasets import DATASETS
from benchmarks.datasets.nexmark import QUERIES
from benchmarks.protocol import Task
from benchmarks.systems import weir_nexmark, weir_payments, weir_records, weir_tpch
from runtime.launch.spark import SparkLauncher

_REFERENCE: Final = "BENCH_DATABASE"  #: name of the reference to the password
_TYPES: Final = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us"),
}


class Inputs:
    """The tables of a task as sources of a job."""

    def __init__(self, flow: weir.Dataflow, task: Task, phase: str) -> None:
        self._flow, self._task, self._phase = flow, task, phase

    def table(
        self,
        name: str,
        time: str | None = None,
        *,
        disorder_ms: int | None = None,
        max_drift: timedelta | None = None,
    ) -> weir.Stream:
        """A table. `time`: its column of event times; `disorder_ms`: by default that of the data set."""
        assert self._task.dataset is not None, "the task has a data set"
        columns = DATASETS[self._task.dataset][name].columns
        schema = pa.schema([(column, _TYPES[kind]) for column, (kind, _) in columns.items()])
        rows = weir.ParquetFormat(schema) if self._task.files == "parquet" else weir.JsonLinesFormat(schema)
        folder = str(self._task.input(self._phase) / name)
        if disorder_ms is None:
            disorder_ms = 0 if time is None else self._task.disorder_ms
        source = weir.DirectorySource(folder, rows, event_time=time, max_disorder_ms=disorder_ms, bounded=True)
        return self._flow.source(name, source, max_drift=max_drift)


def ads_read(inputs: Inputs) -> weir.Stream:
    return inputs.table("events", "event_time")


def ads(inputs: Inputs) -> weir.Stream:
    """Views per campaign in windows of 10 s."""
    views = inputs.table("events", "event_time").filter("views", pc.field("event_type") == "view")
    joined = views.join_broadcast("joined", inputs.table("campaigns"), on=["ad_id"], take=["campaign_id"])
    counted = joined.key_by("campaign_id").window(
        "windows", timedelta(seconds=10), "event_time", {"views": weir.Count()}
    )
    return counted.select("columns", "campaign_id", "window_start", "views")


def clicks_read(inputs: Inputs) -> weir.Stream:
    return inputs.table("clicks", "event_time")


def clicks(inputs: Inputs) -> weir.Stream:
    """Each event once, with its day and hour."""
    once = inputs.table("clicks", "event_time").key_by("event_id").deduplicate("once", timedelta(hours=1), "event_time")
    time = pc.field("event_time")
    return once.with_columns("hours", day=time.cast(pa.date32(), safe=False), hour=pc.hour(time))


KINDS: Final[dict[str, Callable[[Inputs], weir.Stream]]] = {
    "ads": ads,
    "ads-read": ads_read,
    "clicks": clicks,
    "clicks-read": clicks_read,
    **{f"nexmark-{name}": getattr(weir_nexmark, name) for name in QUERIES},
    "nexmark-q0-read": weir_nexmark.read,
    "payments": weir_payments.sessions,
    "payments-arrow": weir_payments.arrow,
    "payments-read": weir_payments.read,
    "records": weir_records.events,
    "records-read": weir_records.read,
    "tpch": weir_tpch.revenue,
    "tpch-read": weir_tpch.read,
}


def sink_of(task: Task, phase: str) -> weir.spi.Sink:
    match task.sink:
        case "postgres":
            url = make_conninfo(task.database, password=f"${{secret:{_REFERENCE}}}")
            return weir.PostgresSink(url, protocol.table_of(phase), key=tuple(task.output_key))
        case "files":
            return weir.ParquetSink(str(task.output_of(phase)), partition_by=tuple(task.partition_by))
        case _:
            return weir.DiscardSink()


def run(task: Task, launcher: SparkLauncher, phase: str) -> slots.JobRun:
    """Runs the job to its end."""
    flow = weir.Dataflow(f"{task.workload}-{phase}")
    KINDS[task.kind](Inputs(flow, task, phase)).sink("out", sink_of(task, phase))
    settings = weir.CoordinatorSettings(interval_ms=task.interval_ms)
    last = Path(task.folder) / f"last-checkpoint-{phase}.json"
    return slots.run(flow, task.parallelism, launcher, str(task.checkpoints(phase)), settings, last)


def main(task: Task) -> None:
    if task.database:
        os.environ[f"WEIR_SECRET_{_REFERENCE}"] = str(conninfo_to_dict(task.database)["password"])
    with closing(SparkLauncher("weir-bench", f"local[{task.parallelism}]")) as launcher:
        if not task.resumes:
            run(task, launcher, "check")
            protocol.send_checked(rows=task.check_rows, format="parquet", columns={}, pattern="**/part-*.parquet")
        protocol.send_started()
        found = run(task, launcher, "measure")
        counted = found.counted if task.sink == "discard" else {"late_rows": found.late_rows}
        protocol.send_measured(rows=task.rows, seconds=found.seconds, checkpoints=found.checkpoints, **counted)
