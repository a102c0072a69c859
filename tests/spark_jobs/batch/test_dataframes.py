"""Sources `from_spark` in both modes, on a Spark with two executors: splits in STREAMING, the DataFrame in BATCH."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

from runtime.connectors.formats import ParquetFormat
from runtime.connectors.formats.csv import CsvFormat
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.hybrid import then
from runtime.core.job.ids import Token
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.connectors import STAGE_FOLDERS
from runtime.dataflow.stream import Stream
from runtime.errors import DataRejected, JobRejected
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import run_local
from runtime.operators.aggregates import Count, Max
from runtime.ports import Source, StageFolders
from spark_jobs.batch.run import BatchRun, plan_batch, run_batch
from spark_jobs.sources.table import from_spark
from spark_jobs.stages.tables import inputs_of, materialise
from tests.spark_jobs.batch.flows import every_type, rows_in, schema_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 3_000
PAIRS = pa.schema([("key", pa.string()), ("twice", pa.int64())])


def events(spark: SparkSession) -> DataFrame:
    """Text keys, times in order within a partition, a nested column and names that Spark reads as something else."""
    columns = [
        "concat('k', id % 7) AS key",
        "id AS `a.b`",
        "timestamp_millis(id * 1000) AS at",
        "IF(id % 5 = 0, NULL, array(id, id + 1)) AS pair",
    ]
    return spark.range(ROWS, numPartitions=4).selectExpr(*columns)


def names(spark: SparkSession) -> DataFrame:
    return spark.range(5).selectExpr("concat('k', id) AS key", "concat('name ', id) AS name")


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("half", pa.array(batch["a.b"].to_numpy() // 2))


def pairs(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": row["key"], "twice": number} for number in row["pair"] or ()]


def windows(stream: Stream) -> Stream:
    return stream.key_by("key").window("minutes", timedelta(minutes=1), "at", {"rows": Count(), "most": Max("a.b")})


def joined(stream: Stream) -> Stream:
    build = stream.flow.source("names", from_spark(names), parallelism=1)
    return stream.join_broadcast("joined", build, on=["key"], take=["name"], how="left").map_batches("half", doubled)


def union(stream: Stream) -> Stream:
    return windows(stream.union("all", stream.flow.source("more", from_spark(events, event_time="at"))))


FAMILY: Mapping[str, Callable[[Stream], Stream]] = {
    "windows": windows,
    "join": joined,
    "union": union,
    "flat_map": lambda stream: stream.flat_map("pairs", pairs, PAIRS),
}


def flow_of(name: str, output: Path) -> Dataflow:
    flow = Dataflow("frames")
    FAMILY[name](flow.source("events", from_spark(events, event_time="at"))).sink("out", ParquetSink(str(output)))
    return flow


@contextlib.contextmanager
def stage_folders(inputs: Path) -> Iterator[None]:
    """As while a pipeline builds its dataflow."""
    token = STAGE_FOLDERS.set(StageFolders("", "", str(inputs)))
    try:
        yield
    finally:
        STAGE_FOLDERS.reset(token)


def test_both_modes_read_a_history_and_then_a_bounded_live_part(cluster: SparkSession, tmp_path: Path) -> None:
    """S0-10."""
    schema = pa.schema([("id", pa.int64())])
    for name, numbers in (("history", range(50)), ("live", range(50, 90))):
        for start in range(numbers.start, numbers.stop, 10):
            (tmp_path / name).mkdir(exist_ok=True)
            text = "id\n" + "".join(f"{number}\n" for number in range(start, start + 10))
            (tmp_path / name / f"{start}.csv").write_text(text)
    parts = [DirectorySource(str(tmp_path / name), CsvFormat(schema), bounded=True) for name in ("history", "live")]
    for mode in ("streaming", "batch"):
        flow = Dataflow("kappa")
        flow.source("rows", then(*parts)).sink("out", ParquetSink(str(tmp_path / mode)))
        if mode == "streaming":
            run_local(flow, parallelism=2, storage=str(tmp_path / "s"))
        else:
            run_batch(flow, parallelism=2, spark=cluster, storage=str(tmp_path / "b"))
        assert rows_in(tmp_path / mode) == rows_in(tmp_path / "streaming")
        assert len(rows_in(tmp_path / mode)) == 90


@pytest.mark.parametrize("name", FAMILY)
def test_both_modes_commit_the_same_rows(name: str, cluster: SparkSession, tmp_path: Path) -> None:
    """S0-10."""
    streaming, batch = tmp_path / "streaming", tmp_path / "batch"
    with stage_folders(tmp_path / "inputs"):
        flow = flow_of(name, streaming)
    materialise(inputs_of(flow), lambda: contextlib.nullcontext(cluster))
    run_local(flow, parallelism=2, storage=str(tmp_path / "s"))
    run_batch(flow_of(name, batch), parallelism=2, spark=cluster, storage=str(tmp_path / "b"))
    assert rows_in(streaming)
    assert rows_in(batch) == rows_in(streaming)
    assert schema_in(batch).equals(schema_in(streaming))


def test_partitions_with_the_same_times_are_refused_as_streaming_drops_their_rows(
    cluster: SparkSession, tmp_path: Path
) -> None:
    """S0-10."""

    def run(make: Callable[[SparkSession], DataFrame]) -> None:
        flow = Dataflow("frames")
        windows(flow.source("events", from_spark(make, event_time="at"))).sink(
            "out", ParquetSink(str(tmp_path / "out"))
        )
        run_batch(flow, parallelism=1, spark=cluster, storage=str(tmp_path / "b"))

    def by_number(spark: SparkSession) -> DataFrame:
        columns = ["'k' AS key", "id AS `a.b`", "timestamp_millis(id % 100 * 60000) AS at"]
        return spark.range(200, numPartitions=2).selectExpr(*columns)

    with pytest.raises(JobRejected, match=r"minutes: .* order the DataFrame") as error:
        run(by_number)
    assert error.value.code == "late-rows-in-batch"
    assert rows_in(tmp_path / "out") == []
    run(lambda spark: by_number(spark).orderBy("at"))
    assert len(rows_in(tmp_path / "out")) == 100


def test_late_rows_of_a_dataframe_in_a_union_are_refused_by_its_own_partitions(
    cluster: SparkSession, tmp_path: Path
) -> None:
    """Spark numbers the tasks of a union anew: those of the second DataFrame follow the four of the first."""

    def unordered(spark: SparkSession) -> DataFrame:
        columns = ["'k' AS key", "id AS `a.b`", "timestamp_millis(id % 100 * 60000) AS at", "array(id) AS pair"]
        return spark.range(200, numPartitions=2).selectExpr(*columns)

    flow = Dataflow("frames")
    first, second = (
        flow.source(uid, from_spark(make, event_time="at")) for uid, make in (("first", events), ("second", unordered))
    )
    second.sink("copy", ParquetSink(str(tmp_path / "copy")))  # its rows are stored, and read with other task numbers
    windows(first.union("all", second)).sink("out", ParquetSink(str(tmp_path / "out")))
    with pytest.raises(JobRejected, match=r"minutes: partition 1 of the DataFrame .* order the DataFrame"):
        run_batch(flow, parallelism=2, spark=cluster, storage=str(tmp_path / "b"))
    assert rows_in(tmp_path / "out") == []


def test_late_rows_of_a_dataframe_end_the_run_before_its_later_stages(cluster: SparkSession, tmp_path: Path) -> None:
    computed = tmp_path / "computed"

    def hours_of_work(batch: pa.RecordBatch) -> pa.RecordBatch:
        if TaskContext.get() is not None:  # the driver calls the function too, to learn its columns
            time.sleep(30)
            computed.touch()
        return batch

    def unordered(spark: SparkSession) -> DataFrame:
        columns = ["'k' AS key", "id AS `a.b`", "timestamp_millis(id % 100 * 60000) AS at"]
        return spark.range(200, numPartitions=2).selectExpr(*columns)

    flow = Dataflow("frames")
    after = windows(flow.source("events", from_spark(unordered, event_time="at"))).map_batches("hours", hours_of_work)
    after.sink("out", ParquetSink(str(tmp_path / "out")))
    with pytest.raises(JobRejected, match=r"minutes: .* order the DataFrame"):
        run_batch(flow, parallelism=1, spark=cluster, storage=str(tmp_path / "b"))
    assert not computed.exists()


def test_a_frame_that_cannot_be_read_is_refused_before_anything_is_computed(
    cluster: SparkSession, tmp_path: Path
) -> None:
    flow = Dataflow("bad")
    flow.source("ids", from_spark(lambda s: s.range(1).selectExpr("INTERVAL 1 DAY AS d"))).sink(
        "out", ParquetSink(str(tmp_path / "out"))
    )
    with pytest.raises(JobRejected, match="column 'd' is interval day") as refusal:
        plan_batch(flow.compile(1), cluster)
    assert (refusal.value.code, refusal.value.field) == ("type-from-spark", "ids")


def test_a_value_that_has_no_place_in_the_schema_fails_the_run_and_is_named(
    cluster: SparkSession, tmp_path: Path
) -> None:
    flow = Dataflow("bad")
    source = from_spark(lambda s: s.range(300), schema=pa.schema([("id", pa.int8())]))
    flow.source("ids", source).sink("out", ParquetSink(str(tmp_path / "out")))
    with pytest.raises(DataRejected, match="operator 'ids': column 'id'"):
        run_batch(flow, parallelism=1, spark=cluster, storage=str(tmp_path / "b"))
    assert rows_in(tmp_path / "out") == [] if (tmp_path / "out").exists() else True


#: Columns that Spark finds in Parquet files in types that a `from_spark` source can cast back.
PARQUET_COLUMNS = ["key", "ms", "s", "zoned", "uint8", "large", "decimal", "date", "word", "list", "struct", "map"]


def test_files_that_spark_reads_give_the_same_rows_and_are_in_its_metrics(
    cluster: SparkSession, tmp_path: Path
) -> None:
    """S0-10: a `from_spark` source is read by Spark, with Spark's counts; a folder is read by Weir in Spark's tasks."""
    folder, table = tmp_path / "in", every_type().select(PARQUET_COLUMNS)
    folder.mkdir()
    for number in range(3):
        pq.write_table(table.slice(0, number), folder / f"{number}.parquet", row_group_size=1)
    pq.write_table(table.select([*reversed(PARQUET_COLUMNS)]), folder / "other-order.parquet")
    sources: dict[str, Source] = {
        "weir": DirectorySource(str(folder), ParquetFormat(table.schema), bounded=True),
        "spark": from_spark(lambda spark: spark.read.parquet(str(folder)), schema=table.schema),
    }
    counts: dict[str, int] = {}
    for name, source in sources.items():
        flow = Dataflow("read")
        flow.source("rows", source).sink("out", ParquetSink(str(tmp_path / name)))
        job = flow.compile(2)
        records, store = MemoryRunStore(token=Token(1)), FileStore(str(tmp_path / "end" / name))
        run = BatchRun(job=job, job_id=name, token=Token(1), records=records, store=store)
        run.run(plan_batch(job, cluster), cluster)
        counts[name] = input_records(cluster, run.group)
    rows = 0 + 1 + 2 + table.num_rows
    assert len(rows_in(tmp_path / "weir")) == rows
    assert rows_in(tmp_path / "spark") == rows_in(tmp_path / "weir")
    assert schema_in(tmp_path / "spark") == schema_in(tmp_path / "weir")
    assert counts == {"weir": 2, "spark": rows}, "of a folder, Spark counts the subtasks"


def input_records(spark: SparkSession, group: str) -> int:
    """The input records of all stages of a job group, by Spark's metrics."""
    tracker, store = spark.sparkContext.statusTracker(), spark.sparkContext._jsc.sc().statusStore()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = {number for job in jobs if job is not None for number in job.stageIds}
    return sum(int(store.lastStageAttempt(number).inputRecords()) for number in stages)
