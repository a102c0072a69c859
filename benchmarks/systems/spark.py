"""Structured Streaming: micro-batches of about a second; each batch is a checkpoint.

The source is Spark's own `rate-micro-batch`, which generates rows in the JVM; the sink is Spark's `noop`. The state
store is the default, in memory with change files: the fastest of Spark's state stores.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import protocol
from benchmarks.protocol import Task
from benchmarks.systems import spark_jobs, spark_records
from benchmarks.workload import key_sql

ROWS_PER_BATCH = 2_000_000  #: rows for about a second
COLUMNS = "id bigint, key {key}, time timestamp"
FILES_PER_BATCH = {"parquet": 2, "json": 2}
MODES = {"window": "append", "running": "update"}


def window(rows: DataFrame, task: Task) -> DataFrame:
    windows = f.window("time", "1 second")
    grouped = rows.withWatermark("time", f"{task.disorder_ms} milliseconds").groupBy(windows, "key")
    totals = grouped.agg(f.count("*").alias("count"), f.sum("id").alias("sum"))
    return totals.select("key", f.col("window.start").cast("timestamp_ntz").alias("window_start"), "count", "sum")


def running(rows: DataFrame, _: Task) -> DataFrame:
    return rows.groupBy("key").agg(f.count("*").alias("count"), f.sum("id").alias("sum"))


KINDS: dict[str, Callable[[DataFrame, Task], DataFrame]] = {"window": window, "running": running}


def session(task: Task) -> SparkSession:
    builder = SparkSession.builder.appName("bench").master(f"local[{task.parallelism}]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(task.parallelism),
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "4g",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    if task.kind == "records":
        classes = Path(task.folder) / "classes"
        settings["spark.driver.extraClassPath"] = spark_records.compile_program(classes)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(task: Task, spark: SparkSession, phase: str, rows: int) -> list[Any]:
    """Runs the query over at least `rows` rows. Returns the progress of each batch."""
    if task.files is not None:
        return _files(task, spark, phase)
    per_batch = min(ROWS_PER_BATCH, rows)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", per_batch)
    numbers = source.option("numPartitions", task.parallelism).option("startTimestamp", 0).load()
    sequence = numbers.selectExpr("value as id").selectExpr(
        "id", f"{key_sql(task)} as key", "timestamp_micros(id) as time"
    )
    writer = KINDS[task.kind](sequence, task).writeStream.option("checkpointLocation", str(task.checkpoints(phase)))
    if phase == "measure":
        query = writer.format("noop").outputMode(MODES[task.kind]).start()
    else:
        query = _into_files(writer, task, task.output, most=-(-rows // per_batch)).start()
    batches = _until(query, rows)
    query.stop()
    return batches


def _files(task: Task, spark: SparkSession, phase: str) -> list[Any]:
    """Reads all files in batches, oldest first, and writes files. Returns the progress of each batch."""
    assert task.files is not None, "the rows are in files"
    columns = COLUMNS.format(key="string" if task.text_keys else "bigint")
    source = (
        spark.readStream.format(task.files).schema(columns).option("maxFilesPerTrigger", FILES_PER_BATCH[task.files])
    )
    writer = KINDS[task.kind](source.load(str(task.input(phase))), task).writeStream
    checkpointed = writer.option("checkpointLocation", str(task.checkpoints(phase))).trigger(availableNow=True)
    output = task.measured_output if phase == "measure" else task.output
    query = _into_files(checkpointed, task, output).start()
    query.awaitTermination()
    return [batch for batch in query.recentProgress if batch.numInputRows]


def _into_files(writer: Any, task: Task, output: Path, most: int | None = None) -> Any:
    """Writes to files. `most`: number of batches to write; the query may begin another batch, with later totals."""
    folder = str(output)
    if MODES[task.kind] == "append":
        return writer.format("parquet").option("path", folder)

    def write(batch: DataFrame, number: int) -> None:
        if most is None or number < most:
            batch.write.mode("append").parquet(folder)

    return writer.outputMode("update").foreachBatch(write)


def _until(query: StreamingQuery, rows: int) -> list[Any]:
    while True:
        time.sleep(0.1)
        if not query.isActive:
            raise SystemExit(f"the query ended: {query.exception()}")
        batches = [batch for batch in query.recentProgress if batch.numInputRows]
        if sum(batch.numInputRows for batch in batches) >= rows:
            return batches


def seconds_of(batches: list[Any]) -> float:
    return float(sum(batch.durationMs["triggerExecution"] for batch in batches)) / 1000


def main() -> None:
    task = protocol.read_task()
    spark = session(task)
    if task.dataset is not None:
        spark_jobs.main(task, spark)
        return
    batches = run(task, spark, "check", task.check_rows)
    rows = sum(batch.numInputRows for batch in batches)
    protocol.send_checked(rows=rows, format="parquet", columns={}, pattern="*.parquet")
    protocol.send_started()
    every = run(task, spark, "measure", task.rows)
    batches = every[1:]  # the first batch plans the query
    rows, worked = (sum(batch.numInputRows for batch in some) for some in (batches, every))
    protocol.send_measured(rows=rows, seconds=seconds_of(batches), rows_worked=worked, batches=len(batches))
    spark.stop()


if __name__ == "__main__":
    main()
