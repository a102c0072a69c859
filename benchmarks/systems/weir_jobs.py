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
from benchmarks.datasets.nexmark import QUERIES
from benchmarks.protocol import Task
from benchmarks.systems import weir_nexmark, weir_payments, weir_records, weir_tpch
from benchmarks.systems.weir_inputs import WeirInputs
from runtime.launch.spark import SparkLauncher

_REFERENCE: Final = "BENCH_DATABASE"  #: name of the reference to the password


def ads_read(inputs: WeirInputs) -> weir.Stream:
    return inputs.table("events", "event_time")


def ads(inputs: WeirInputs) -> weir.Stream:
    """Views per campaign in windows of 10 s."""
    views = inputs.table("events", "event_time").filter("views", pc.field("event_type") == "view")
    joined = views.join_broadcast("joined", inputs.table("campaigns"), on=["ad_id"], take=["campaign_id"])
    counted = joined.key_by("campaign_id").window(
        "windows", timedelta(seconds=10), "event_time", {"views": weir.Count()}
    )
    return counted.select("columns", "campaign_id", "window_start", "views")


def clicks_read(inputs: WeirInputs) -> weir.Stream:
    return inputs.table("clicks", "event_time")


def clicks(inputs: WeirInputs) -> weir.Stream:
    """Each event once, with its day and hour."""
    once = inputs.table("clicks", "event_time").key_by("event_id").deduplicate("once", timedelta(hours=1), "event_time")
    time = pc.field("event_time")
    return once.with_columns("hours", day=time.cast(pa.date32(), safe=False), hour=pc.hour(time))


KINDS: Final[dict[str, Callable[[WeirInputs], weir.Stream]]] = {
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
    KINDS[task.kind](WeirInputs(flow, task, phase)).sink("out", sink_of(task, phase))
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
        job_run = run(task, launcher, "measure")
        counted = job_run.counted if task.sink == "discard" else {"late_rows": job_run.late_rows}
        protocol.send_measured(rows=task.rows, seconds=job_run.seconds, checkpoints=job_run.checkpoints, **counted)
