"""The queries of Structured Streaming over data sets, with the settings that its guide recommends.

State is in RocksDB with changelog checkpointing. A batch takes about a second: it has a fixed number of files, found by
measurement. A query goes on from its checkpoint folder after a SIGKILL.
"""

from collections.abc import Callable
from typing import Any, Final

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks import protocol
from benchmarks.datasets import DATASETS
from benchmarks.datasets.files import FILES
from benchmarks.datasets.nexmark import QUERIES, UPDATES
from benchmarks.protocol import Task
from benchmarks.systems import spark_nexmark, spark_payments, spark_records, spark_tpch

SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
#: Rows of a batch of about a second.
ROWS_PER_BATCH: Final = {
    "ads": 600_000,
    "ads-read": 600_000,
    "clicks": 60_000,
    "clicks-read": 100_000,
    "payments": 150_000,
    "payments-arrow": 150_000,
    "payments-read": 300_000,
    "records": 100_000,
    "records-read": 300_000,
    "tpch": 200_000,
    "tpch-read": 500_000,
}
NEXMARK_ROWS_PER_BATCH: Final = 500_000
#: Also of a small run, which warms up. A batch has the watermark of its predecessor, so few batches drop no rows.
MIN_BATCHES: Final = 8
_UPDATES: Final = {f"nexmark-{name}" for name in UPDATES}


class Inputs:
    """The tables of a task as streams, or as a whole."""

    def __init__(self, spark: SparkSession, task: Task, phase: str) -> None:
        self._spark, self._task, self._phase = spark, task, phase
        self._rows = task.check_rows if phase == "check" else task.rows

    def _path(self, name: str) -> str:
        return str(self._task.input(self._phase) / name)

    def _schema(self, name: str) -> str:
        assert self._task.dataset is not None, "the task has a data set"
        columns = DATASETS[self._task.dataset][name].columns
        return ", ".join(f"{column} {kind}" for column, (kind, _) in columns.items())

    def stream(self, name: str, time: str, delay: str = "") -> DataFrame:
        """A table. `time`: its column of event times; `delay`: of the watermark, by default the disorder."""
        rows_per_batch = ROWS_PER_BATCH.get(self._task.kind, NEXMARK_ROWS_PER_BATCH)
        files = max(1, min(round(FILES * rows_per_batch / self._rows), FILES // MIN_BATCHES))
        source = self._spark.readStream.format(str(self._task.files)).schema(self._schema(name))
        rows = source.option("maxFilesPerTrigger", files).load(self._path(name))
        return rows.withWatermark(time, delay or f"{self._task.disorder_ms} milliseconds")

    def table(self, name: str) -> DataFrame:
        return self._spark.read.format(str(self._task.files)).schema(self._schema(name)).load(self._path(name))


def ads_read(inputs: Inputs) -> DataFrame:
    return inputs.stream("events", "event_time")


def ads(inputs: Inputs) -> DataFrame:
    """Views per campaign in windows of 10 s."""
    views = inputs.stream("events", "event_time").where("event_type = 'view'").select("ad_id", "event_time")
    joined = views.join(inputs.table("campaigns"), "ad_id")
    windows = f.window("event_time", "10 seconds")
    counted = joined.groupBy("campaign_id", windows).agg(f.count("*").alias("views"))
    return counted.select("campaign_id", f.col("window.start").cast("timestamp_ntz").alias("window_start"), "views")


def clicks_read(inputs: Inputs) -> DataFrame:
    return inputs.stream("clicks", "event_time")


def clicks(inputs: Inputs) -> DataFrame:
    """Each event once, with its day and hour. An id is kept until the watermark, an hour behind, has passed it."""
    once = inputs.stream("clicks", "event_time", delay="1 hour").dropDuplicatesWithinWatermark(["event_id"])
    return once.withColumns({"day": f.to_date("event_time"), "hour": f.hour("event_time")})


KINDS: Final[dict[str, Callable[[Inputs], DataFrame]]] = {
    "ads": ads,
    "ads-read": ads_read,
    "clicks": clicks,
    "clicks-read": clicks_read,
    **{f"nexmark-{name}": getattr(spark_nexmark, name) for name in QUERIES if name != "q4"},
    "nexmark-q0-read": spark_nexmark.read,
    "payments": spark_payments.sessions,
    "payments-arrow": spark_payments.arrow,
    "payments-read": spark_payments.read,
    "records": spark_records.events,
    "records-read": spark_records.read,
    "tpch": spark_tpch.revenue,
    "tpch-read": spark_tpch.read,
}


def upsert(task: Task, phase: str) -> Callable[[DataFrame, int], None]:
    """Writes a batch in a transaction. A repeated batch has the same rows, so each key has its value once."""
    table, keys = protocol.table_of(phase), task.output_key

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.collect()
        with psycopg.connect(task.database) as connection, connection.cursor() as cursor:
            cursor.execute(f"create temp table batch (like {table}) on commit drop")
            with cursor.copy("copy batch from stdin") as copy:
                for row in rows:
                    copy.write_row(row)
            values = ", ".join(f"{name} = excluded.{name}" for name in batch.columns if name not in keys)
            conflict = f"on conflict ({', '.join(keys)}) do update set {values}"
            cursor.execute(f"insert into {table} select * from batch {conflict}")

    return write


def write_updates(task: Task, phase: str) -> Callable[[DataFrame, int], None]:
    """Writes a batch into a folder of its own: the file sink takes no updates. A repeated batch replaces its folder."""
    return lambda batch, number: batch.write.mode("overwrite").parquet(str(task.output_of(phase) / str(number)))


def run(task: Task, spark: SparkSession, phase: str) -> list[Any]:
    """Runs the query to its end. Returns the progress of each batch."""
    rows = KINDS[task.kind](Inputs(spark, task, phase))
    writer = rows.writeStream.option("checkpointLocation", str(task.checkpoints(phase))).trigger(availableNow=True)
    match task.sink:
        case "postgres":
            query = writer.foreachBatch(upsert(task, phase)).start()
        case "files" if task.kind in _UPDATES:
            query = writer.outputMode("update").foreachBatch(write_updates(task, phase)).start()
        case "files":
            query = (
                writer.partitionBy(*task.partition_by)
                .format("parquet")
                .option("path", str(task.output_of(phase)))
                .start()
            )
        case _:
            query = writer.format("noop").start()
    query.awaitTermination()
    return list(query.recentProgress)


def main(task: Task, spark: SparkSession) -> None:
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    if not task.resumes:
        run(task, spark, "check")
        protocol.send_checked(rows=task.check_rows, format="parquet", columns={}, pattern="**/part-*.parquet")
    protocol.send_started()
    batches = run(task, spark, "measure")
    read = sum(batch.numInputRows for batch in batches)
    counted = {"rows_out": read} if task.sink == "discard" else {}
    took = sum(batch.durationMs.get("triggerExecution", 0) for batch in batches) / 1000
    protocol.send_measured(rows=task.rows, seconds=took, batches=len(batches), **counted)
    spark.stop()
