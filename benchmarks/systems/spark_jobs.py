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
from benchmarks.datasets.nexmark import QUERIES, UPDATES
from benchmarks.protocol import Task
from benchmarks.systems import spark_nexmark, spark_payments, spark_records, spark_tpch
from benchmarks.systems.spark_inputs import SparkInputs

SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
_UPDATES: Final = {f"nexmark-{name}" for name in UPDATES}


def ads_read(inputs: SparkInputs) -> DataFrame:
    return inputs.stream("events", "event_time")


def ads(inputs: SparkInputs) -> DataFrame:
    """Views per campaign in windows of 10 s."""
    views = inputs.stream("events", "event_time").where("event_type = 'view'").select("ad_id", "event_time")
    joined = views.join(inputs.table("campaigns"), "ad_id")
    windows = f.window("event_time", "10 seconds")
    counted = joined.groupBy("campaign_id", windows).agg(f.count("*").alias("views"))
    return counted.select("campaign_id", f.col("window.start").cast("timestamp_ntz").alias("window_start"), "views")


def clicks_read(inputs: SparkInputs) -> DataFrame:
    return inputs.stream("clicks", "event_time")


def clicks(inputs: SparkInputs) -> DataFrame:
    """Each event once, with its day and hour. An id is kept until the watermark, an hour behind, has passed it."""
    once = inputs.stream("clicks", "event_time", delay="1 hour").dropDuplicatesWithinWatermark(["event_id"])
    return once.withColumns({"day": f.to_date("event_time"), "hour": f.hour("event_time")})


KINDS: Final[dict[str, Callable[[SparkInputs], DataFrame]]] = {
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
    rows = KINDS[task.kind](SparkInputs(spark, task, phase))
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
