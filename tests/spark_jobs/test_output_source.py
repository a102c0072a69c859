"""The data source `weir-output`: whole epochs while a job commits, bounds, schemas, what is refused."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from runtime.connectors.sinks.json_lines import JsonLinesSink
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import CorruptState, DataRejected, JobRejected
from spark_jobs.output_source import OutputSource
from tests.connectors.sinks.test_row_files import commit, opened
from tests.contracts.test_commit_log import epoch, prepared
from tests.contracts.test_sinks import writer


def read(folder: Path, schema: StructType | None = None, **options: Any) -> list[dict[str, Any]]:
    """As Spark does it, in this process."""
    source = OutputSource({"path": str(folder), **{name: str(value) for name, value in options.items()}})
    columns = schema or source.schema()
    reader = source.reader(columns)
    batches: list[Any] = [batch for each in reader.partitions() for batch in reader.read(each)]
    assert all(batch.schema == to_arrow_schema(columns, timezone="UTC") for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def write_epoch(folder: Path, checkpoint: int, batch: dict[str, Any], *, token: int = 1) -> None:
    sink = writer(folder, token=token)
    sink.write(pa.RecordBatch.from_pydict(batch))
    permit = CommitPermit("7", Token(token), CheckpointId(checkpoint), Token(token))
    ParquetSink(str(folder)).committer().commit_epoch(permit, sink.prepare(checkpoint))


def test_a_reader_sees_both_files_of_a_checkpoint_or_none(tmp_path: Path) -> None:
    """While a master commits."""
    committed = threading.Event()

    def commit_all() -> None:
        writers = [writer(tmp_path, index=index) for index in (0, 1)]
        for checkpoint in range(1, 60):
            files = list[Any]()
            for sink in writers:
                sink.write(pa.RecordBatch.from_pydict({"n": [checkpoint]}))
                files += sink.prepare(checkpoint)
            epoch(tmp_path, files, checkpoint=checkpoint)
        committed.set()

    write_epoch(tmp_path, 1, {"n": [0, 0]}, token=0)
    thread = threading.Thread(target=commit_all)
    thread.start()
    reads = 0
    while not committed.is_set():
        counts = Counter(row["n"] for row in read(tmp_path))
        assert set(counts.values()) == {2}, counts
        reads += 1
    thread.join()
    assert len(read(tmp_path)) == 2 * 60
    assert reads > 3


def test_bounds_choose_epochs(tmp_path: Path) -> None:
    for checkpoint in (3, 4, 7):
        write_epoch(tmp_path, checkpoint, {"n": [checkpoint]}, token=checkpoint)
    assert [row["n"] for row in read(tmp_path)] == [3, 4, 7]
    assert [row["n"] for row in read(tmp_path, from_epoch=2)] == [4, 7]
    assert [row["n"] for row in read(tmp_path, to_epoch=2)] == [3, 4]
    assert [row["n"] for row in read(tmp_path, from_epoch=2, to_epoch=2)] == [4]
    with pytest.raises(JobRejected, match="has no such epoch yet"):
        read(tmp_path, from_epoch=4)
    only = StructType([StructField("n", LongType())])
    assert read(tmp_path, only, from_epoch=4) == [], "an incremental reader that knows its columns waits"


def test_two_sinks_are_read_together_or_chosen(tmp_path: Path) -> None:
    epoch(tmp_path, prepared(tmp_path, 1, 1), checkpoint=1)
    epoch(tmp_path, prepared(tmp_path, 1, 2, uid="copy-1"), checkpoint=1)
    assert sorted(row["n"] for row in read(tmp_path)) == [1, 2]
    assert [row["n"] for row in read(tmp_path, sink="copy-1")] == [2]
    assert [row["n"] for row in read(tmp_path, job="7", sink="out", from_epoch=1)] == [1]
    with pytest.raises(JobRejected, match=r"select a `job` and `sink` of job 7 sink copy~2D1, job 7 sink out"):
        read(tmp_path, from_epoch=1)
    with pytest.raises(JobRejected, match=r"no such output in .*, only job 7"):
        read(tmp_path, sink="nothing")
    with pytest.raises(JobRejected, match=r"no such output in .*, only job 7"):
        read(tmp_path, job="8")


def test_older_files_lack_columns_and_have_narrower_types(tmp_path: Path) -> None:
    write_epoch(tmp_path, 1, {"n": pa.array([1], pa.int32())}, token=1)
    write_epoch(tmp_path, 2, {"n": pa.array([2], pa.int64()), "text": pa.array(["b"], pa.large_string())}, token=2)
    assert read(tmp_path) == [{"n": 1, "text": None}, {"n": 2, "text": "b"}]
    schema = StructType([StructField("text", StringType()), StructField("n", LongType())])
    assert read(tmp_path, schema) == [{"text": None, "n": 1}, {"text": "b", "n": 2}]


def test_a_column_that_the_newest_epoch_lacks_is_refused_unless_columns_are_named(tmp_path: Path) -> None:
    write_epoch(tmp_path, 1, {"n": [1], "old": [1]}, token=1)
    write_epoch(tmp_path, 2, {"n": [2]}, token=2)
    with pytest.raises(DataRejected, match=r"schema-differs: .*epoch 1 has a column 'old'"):
        read(tmp_path)
    schema = StructType([StructField("n", LongType()), StructField("old", LongType())])
    assert read(tmp_path, schema) == [{"n": 1, "old": 1}, {"n": 2, "old": None}]
    write_epoch(tmp_path, 3, {"n": ["text"]}, token=3)
    with pytest.raises(DataRejected, match=r"schema-differs: .*column 'n' is string; requested is int64"):
        read(tmp_path, StructType([StructField("n", LongType())]))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobRejected, match="name the output folder") as error:
        OutputSource({}).schema()
    assert error.value.code == "no-path"
    with pytest.raises(JobRejected, match="has no commit log") as error:
        read(tmp_path)
    assert error.value.code == "no-commit-log"
    write_epoch(tmp_path, 1, {"n": [1]}, token=1)
    write_epoch(tmp_path, 2, {"n": [2]}, token=2)
    with pytest.raises(JobRejected, match="the number of an epoch"):
        read(tmp_path, from_epoch="last")
    (tmp_path / "part-7-1-out-0-1-1.parquet").unlink()
    with pytest.raises(CorruptState, match=r"part-7-1-out-0-1-1.parquet: epoch 1 names it, but it was moved"):
        read(tmp_path)
    assert [row["n"] for row in read(tmp_path, from_epoch=2)] == [2]
    (tmp_path / "part-7-2-out-0-2-1.parquet").write_bytes(b"no Parquet")
    with pytest.raises(CorruptState, match="it is not a Parquet file"):
        read(tmp_path, from_epoch=2)


# ---------------------------------------------------------------- on Spark


@pytest.mark.slow
@pytest.mark.spark
def test_spark_finds_the_source_by_name_and_reads_whole_epochs(spark: SparkSession, tmp_path: Path) -> None:
    for checkpoint in range(1, 6):
        files = prepared(tmp_path, checkpoint, checkpoint, token=checkpoint)
        files += prepared(tmp_path, checkpoint, -checkpoint, token=checkpoint, index=1)
        epoch(tmp_path, files, checkpoint=checkpoint)
    committables = prepared(tmp_path, 6, 6, token=6) + prepared(tmp_path, 6, -6, token=6, index=1)
    ParquetSink(str(tmp_path)).committer().commit(
        CommitPermit("7", Token(6), CheckpointId(6), Token(6)), committables[:1]
    )
    frame = spark.read.format("weir-output").load(str(tmp_path))
    assert frame.dtypes == [("n", "bigint")]
    assert sorted(row.n for row in frame.collect()) == [*range(-5, 0), *range(1, 6)]
    assert spark.read.parquet(str(tmp_path)).count() == 11, "by the names, half of epoch 6 is seen"
    later = spark.read.format("weir-output").option("from_epoch", 4).load(str(tmp_path))
    assert later.where("n > 0").count() == 2
    with pytest.raises(Exception, match="has no commit log"):
        spark.read.format("weir-output").load(str(tmp_path / "nowhere"))
    assert spark.read.format("weir-state").option("path", "x")._jreader is not None, "both names are known"


def test_files_of_rows_are_refused(tmp_path: Path) -> None:
    """The source reads Parquet only."""
    sink = JsonLinesSink(str(tmp_path))
    subtask = opened(sink)
    subtask.write(pa.RecordBatch.from_pydict({"n": [1]}))
    subtask.finish()
    commit(sink, subtask.snapshot(1)[0])
    with pytest.raises(JobRejected, match="no Parquet file"):
        read(tmp_path)
