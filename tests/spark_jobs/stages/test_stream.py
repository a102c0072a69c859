"""`from_spark_stream` on a real query: its columns, its epochs, and what it refuses by name."""

from __future__ import annotations

import io
import json
import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from examples.pipelines import spark_words
from runtime.connectors.epochs import EpochFolder
from runtime.connectors.sources.epochs import EpochSource, read_columns, schema_file
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.connectors import STAGE_FOLDERS
from runtime.dataflow.pipelines import Pipeline
from runtime.errors import JobRejected
from runtime.ports import StageFolders
from spark_jobs.sources import columns
from spark_jobs.sources.stream import from_spark_stream
from spark_jobs.stages import stream
from spark_jobs.stages.standing import StageContext, StageFailure
from tests.contracts.files import Reading
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Make = Callable[["SparkSession"], Any]
LINES = pa.schema([("value", pa.string())])


def lines_of(folder: Path) -> Make:
    return lambda spark: spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder))


def rate(*expressions: str) -> Make:
    return lambda spark: spark.readStream.format("rate").load().selectExpr(*expressions)


# ---------------------------------------------------------------- columns


def test_columns_are_those_of_arrow(spark: SparkSession) -> None:
    make = rate(
        "value AS id", "timestamp AS at", "cast(value AS decimal(12, 2)) AS price", "cast(value AS string) AS name",
        "array(named_struct('n', cast(value AS int))) AS parts", "cast(timestamp AS date) AS day",
    )  # fmt: skip
    schema = columns.checked_columns(make(spark), "orders", streaming=True)
    assert schema == pa.schema(
        [
            ("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("price", pa.decimal128(12, 2)),
            ("name", pa.string()), ("parts", pa.list_(pa.struct([("n", pa.int32())]))), ("day", pa.date32()),
        ]
    )  # fmt: skip


def _raise(_: SparkSession) -> DataFrame:
    raise ValueError("no such topic")


@pytest.mark.parametrize(
    ("make", "code", "says"),
    [
        (_raise, "input-failed", "its function raised ValueError: no such topic"),
        (lambda spark: "orders", "not-a-dataframe", "its function returned str, not a DataFrame"),
        (lambda spark: spark.range(3), "not-streaming", "its DataFrame has an end"),
        (lambda spark: rate("value")(spark).select(), "no-columns", "its DataFrame has no columns"),
        (rate("value AS id", "value AS ID"), "duplicate-column", "the columns 'id' and 'ID'"),
        (rate("make_ym_interval(1, 2) AS span"), "type-from-spark", "column 'span' is interval year to month"),
        (rate("map('a', null) AS tags"), "type-from-spark", "column 'tags' is void"),
    ],
)  # fmt: skip
def test_what_cannot_feed_a_job_is_refused_by_operator_and_column(
    spark: SparkSession, make: Make, code: str, says: str
) -> None:
    with pytest.raises(JobRejected, match=says) as error:
        columns.checked_columns(columns.make_frame(from_spark_stream(make), spark, "orders"), "orders", streaming=True)
    assert (error.value.code, error.value.field) == (code, "orders")


def test_the_compile_stage_learns_columns_once(spark: SparkSession, tmp_path: Path) -> None:
    calls = []

    def make(spark: SparkSession) -> DataFrame:
        calls.append("called")
        frame: DataFrame = lines_of(tmp_path)(spark)
        return frame

    sources: Any = {"orders": from_spark_stream(make)}
    assert columns.derive_columns(sources, str(tmp_path), "job", lambda _: nullcontext(spark))
    assert not columns.derive_columns(sources, str(tmp_path), "job", lambda _: nullcontext(spark))
    assert calls == ["called"]
    assert read_columns(str(tmp_path), "orders") == LINES
    assert [path.name for path in tmp_path.iterdir()] == [schema_file(str(tmp_path), "orders").name]


# ---------------------------------------------------------------- the query


class Query:
    """A stage in a thread: what it has written, and how it ended."""

    def __init__(
        self, spark: SparkSession, root: Path, make: Make, idle_after_s: float = stream.IDLE_AFTER_S, **settings: Any
    ) -> None:
        self.folder = EpochFolder(root / "streams" / "1" / "orders")
        self.folder.prepare()
        token = STAGE_FOLDERS.set(StageFolders(str(root), str(root / "streams" / "1")))
        try:
            flow = Dataflow("orders")
            flow.source("orders", from_spark_stream(make, trigger_ms=0, **settings))
        finally:
            STAGE_FOLDERS.reset(token)
        (source,) = flow.sources.values()
        assert isinstance(source, EpochSource)
        self.source = source
        pipeline: Pipeline[Any] = spark_words.PIPELINE
        self.standing = StageContext(
            pipeline=pipeline, params={}, operator="orders", run=1, token=1, inputs=root, columns=root,
            streams=root / "streams" / "1", answers=io.StringIO(),
        )  # fmt: skip
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(spark, idle_after_s))
        self._thread.start()

    def _run(self, spark: SparkSession, idle_after_s: float) -> None:
        try:
            stream.run_query(self.standing, self.source, self.folder, spark, idle_after_s)
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        self.standing.stopping.set()
        self.join()
        assert self.error is None

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def wait_for(self, epoch: int) -> None:
        until(lambda: self.error or self.folder.find(epoch), 60)
        assert self.error is None

    def figures(self) -> dict[str, Any]:
        """As the console gets them."""
        self.standing.answers = answers = io.StringIO()
        self.standing.write_report()
        return {figure["label"]: figure["value"] for figure in json.loads(answers.getvalue())["report"]["figures"]}

    def lines(self) -> list[str]:
        return [row["value"] for row in Reading(self.source).rows()]


def feed(folder: Path, *numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        (folder / f".{number}").write_text(f"line {number}\n")
        (folder / f".{number}").rename(folder / f"{number:03}.txt")


@pytest.mark.slow
def test_batches_become_epochs_and_a_new_process_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """An epoch whose batch Spark had not committed is kept, and its batch skipped."""
    feed(tmp_path / "in", 0, 1)
    first = Query(spark, tmp_path, lines_of(tmp_path / "in"))
    first.wait_for(1)
    until((first.folder.spark_checkpoint / "commits/1").exists)
    first.stop()
    before = {path: path.stat().st_mtime_ns for path in (first.folder.epochs / f"{1:012}").iterdir()}
    for name in ("1", ".1.crc"):
        (first.folder.spark_checkpoint / "commits" / name).unlink(missing_ok=True)  # as if killed after the rename
    feed(tmp_path / "in", 2)
    second = Query(spark, tmp_path, lines_of(tmp_path / "in"))
    second.wait_for(2)
    second.stop()
    assert {path: path.stat().st_mtime_ns for path in (first.folder.epochs / f"{1:012}").iterdir()} == before
    assert sorted(second.lines()) == ["line 0", "line 1", "line 2"]
    assert second.source.columns is None, "nothing was compiled here"


@pytest.mark.slow
def test_a_lost_checkpoint_of_sparks_is_refused_instead_of_losing_rows(spark: SparkSession, tmp_path: Path) -> None:
    feed(tmp_path / "in", 0, 1)
    first = Query(spark, tmp_path, lines_of(tmp_path / "in"))
    first.wait_for(1)
    first.stop()
    shutil.rmtree(first.folder.spark_checkpoint)
    second = Query(spark, tmp_path, lines_of(tmp_path / "in"))
    second.join()
    assert isinstance(second.error, JobRejected)
    assert second.error.code == "epochs-out-of-step"
    assert "continues with batch 0, and the next epoch is 2" in second.error.detail


@pytest.mark.slow
def test_a_query_whose_columns_have_changed_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    schema_file(str(tmp_path), "orders").write_bytes(pa.schema([("value", pa.int64())]).serialize().to_pybytes())
    feed(tmp_path / "in", 0)
    query = Query(spark, tmp_path, lines_of(tmp_path / "in"))
    query.join()
    assert isinstance(query.error, JobRejected)
    assert (query.error.code, query.error.field) == ("schema-changed", "orders")
    assert "since the version was compiled: value." in query.error.detail
    assert query.folder.next_number() == 0


@pytest.mark.slow
def test_a_query_that_fails_ends_its_process_by_name(spark: SparkSession, tmp_path: Path) -> None:
    feed(tmp_path / "in", 0)

    def make(spark: SparkSession) -> DataFrame:
        frame: DataFrame = lines_of(tmp_path / "in")(spark)
        return frame.selectExpr("cast(raise_error('bad row') AS string) AS value")

    query = Query(spark, tmp_path, make)
    query.join()
    assert isinstance(query.error, StageFailure)
    assert query.error.code == "query-failed"
    assert "bad row" in query.error.detail
    assert (query.folder.next_number(), query.folder.find(0)) == (0, None)


@pytest.mark.slow
def test_a_function_that_raises_when_the_query_starts_may_be_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, _raise)
    query.join()
    assert isinstance(query.error, StageFailure)
    assert query.error.code == "input-failed"


@pytest.mark.slow
def test_the_query_waits_while_too_much_is_unread_and_goes_on_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    feed(tmp_path / "in", *range(6))
    query = Query(spark, tmp_path, lines_of(tmp_path / "in"), max_backlog=2)
    until(lambda: query.figures().get("Back-pressure"), 60)
    figures = query.figures()
    assert figures["Back-pressure"] == "the query waits: the job has not read 2 epochs, and max_backlog is 2"
    assert (figures["Epochs to read"], figures["Epochs written"], figures["Input rate"]) == (2, 2, 0)
    assert figures["Size to read"] > 0
    assert query.folder.find(2) is None
    reading = Reading(query.source)
    lines = [row["value"] for row in reading.rows()]
    until(lambda: query.folder.next_number() == 4, 60)
    assert query.folder.find(4) is None
    query.stop()  # in the middle of a wait
    assert query.folder.next_number() == 4
    second_query = Query(spark, tmp_path, lines_of(tmp_path / "in"), max_backlog_bytes=1)
    until(lambda: "max_backlog_bytes is 1" in (second_query.figures().get("Back-pressure") or ""), 60)

    def all_lines() -> bool:
        lines.extend(row["value"] for row in reading.rows())
        return len(lines) >= 6

    until(all_lines, 60)
    second_query.stop()
    assert sorted(lines) == [f"line {number}" for number in range(6)]


@pytest.mark.slow
def test_what_is_reported_is_what_spark_counts(spark: SparkSession, tmp_path: Path) -> None:
    """Against the events of Spark's progress; a query to which nothing comes has a rate of 0."""
    feed(tmp_path / "in", 0, 1, 2)
    query = Query(spark, tmp_path, lines_of(tmp_path / "in"), idle_after_s=1.0)
    query.wait_for(2)
    (running,) = [stream_query for stream_query in spark.streams.active if stream_query.name == "orders"]
    until(lambda: query.figures().get("Input rate") == 0 and query.figures()["Epochs written"] == 3, 60)
    events, figures = [event for event in running.recentProgress if event["numInputRows"]], query.figures()
    assert [event["batchId"] for event in events] == [0, 1, 2]
    assert sum(event["numInputRows"] for event in events) == len(query.lines()) == 3
    assert figures["Rows in the last batch"] == events[-1]["numInputRows"] == 1
    assert figures["Batch duration"] == events[-1]["batchDuration"]
    query.stop()
