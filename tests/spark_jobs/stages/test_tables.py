"""Materialising the inputs of a run on Spark: ordered splits, published one by one, kept over kills."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.pipelines import flight_tables
from examples.schemas import AIRLINES, WEATHER_FILE
from runtime.errors import JobRejected
from spark_jobs.column_types import spark_schema
from spark_jobs.session import SparkSettings, spark_session
from spark_jobs.sources.splits import InputFolder, split_name
from spark_jobs.sources.table import from_spark
from spark_jobs.stages.tables import SPARK_SETTINGS, Report, TableProgress, Tables, materialise
from tests.contracts.files import Reading
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Make = Callable[["SparkSession"], Any]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """As the stage starts it."""
    scratch = str(tmp_path_factory.mktemp("spark"))
    settings = SparkSettings.for_batch("weir tests")
    settings = replace(settings, scratch_dir=scratch, shuffle_partitions=2, extra={**settings.extra, **SPARK_SETTINGS})
    with spark_session(settings) as session:
        yield session


def write(spark: SparkSession, root: Path, report: Report = lambda _: None, **makes: Make) -> dict[str, TableProgress]:
    """Materialises a source for each of `makes` below `root`."""
    sources = {uid: from_spark(make).in_folder(str(root / uid)) for uid, make in makes.items()}
    return materialise(sources, lambda: contextlib.nullcontext(spark), report)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """As a job reads them."""
    reading = Reading(from_spark(lambda spark: spark.range(0)).in_folder(str(folder)))
    rows = reading.rows()
    assert reading.exhausted()
    return rows


def never(_: SparkSession) -> DataFrame:
    raise AssertionError("must not be computed again")


def test_inputs_are_written_as_ordered_splits_with_statistics(spark: SparkSession, tmp_path: Path) -> None:
    tables = write(
        spark,
        tmp_path,
        ids=lambda s: s.range(5_000, numPartitions=3),
        airlines=flight_tables.airlines,
        weather=flight_tables.weather,
    )
    counted = {uid: (table.state, table.splits, table.rows, table.tasks_done) for uid, table in tables.items()}
    assert counted["ids"] == ("complete", 3, 5_000, 3)
    assert counted["airlines"][:1] + counted["airlines"][2:3] == ("complete", 16)
    assert counted["weather"][2] == 26_112
    assert [row["id"] for row in rows_of(tmp_path / "ids")] == list(range(5_000))
    carriers = [row["carrier"] for row in rows_of(tmp_path / "airlines")]
    assert carriers == sorted(carriers)
    first = pq.read_metadata(tmp_path / "ids" / split_name(0)).row_group(0).column(0).statistics
    assert (first.min, first.max) == (0, 1_665)
    assert {path.name for path in (tmp_path / "ids").iterdir()} == {
        "input.json", "complete.json", *(split_name(number) for number in range(3))
    }  # fmt: skip


def test_a_complete_input_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    first = write(spark, tmp_path, ids=lambda s: s.range(10))
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "ids").iterdir()}
    tables = write(spark, tmp_path, ids=never)
    assert tables["ids"].rows == first["ids"].rows == 10
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "ids").iterdir()} == before


def test_a_split_is_there_while_others_are_computed(spark: SparkSession, tmp_path: Path) -> None:
    """The job reads the first splits while a task still runs, and Spark's retry of a task changes nothing."""
    gate, tried = tmp_path / "gate", tmp_path / "tried"

    def slow(session: SparkSession) -> DataFrame:
        def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if batch.num_rows and batch.column(0)[0].as_py() >= 200:
                    if not tried.exists():
                        tried.touch()
                        raise OSError("the first try")
                    until(gate.exists)
                yield batch

        return session.range(300, numPartitions=3).mapInArrow(wait, "id long")

    reading = Reading(from_spark(slow).in_folder(str(tmp_path / "ids")))
    ids: list[int] = []

    def look(_: Tables) -> None:
        ids.extend(row["id"] for row in reading.rows())
        if len(ids) == 200:
            gate.touch()

    write(spark, tmp_path, look, ids=slow)
    assert ids[:200] == list(range(200)), "read before the last task could end"
    assert [*ids, *(row["id"] for row in reading.rows())] == list(range(300))
    assert reading.exhausted()


def test_a_second_stage_goes_on_where_the_first_was_killed(spark: SparkSession, tmp_path: Path) -> None:
    """Splits that are there stay as they are, though rows of a shuffle come in another order."""

    def shuffled(session: SparkSession) -> DataFrame:
        return session.range(1_000, numPartitions=4).repartition(5, "id")

    write(spark, tmp_path, ids=shuffled)
    folder = tmp_path / "ids"
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("split-*")}
    (folder / "complete.json").unlink()
    for number in (1, 3):
        (folder / split_name(number)).unlink()
    write(spark, tmp_path, ids=shuffled)
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("split-*")}
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] == before[name]} == {split_name(number) for number in (0, 2, 4)}
    assert sorted(row["id"] for row in rows_of(folder)) == list(range(1_000))


def test_rows_that_do_not_come_again_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(spark, tmp_path, ids=lambda s: s.range(100, numPartitions=2))
    folder = InputFolder(tmp_path / "ids")
    (folder.path / "complete.json").unlink()
    with pytest.raises(JobRejected, match=r"split [01] has other rows when it is computed again") as refusal:
        write(spark, tmp_path, ids=lambda s: s.range(1, 101, numPartitions=2))
    assert (refusal.value.code, refusal.value.field) == ("input-changed", "ids")
    assert rows_now(folder, 0) == list(range(50)), "what a job has read stays"
    assert write(spark, tmp_path, ids=lambda s: s.range(100, numPartitions=2))["ids"].state == "complete"


def rows_now(folder: InputFolder, number: int) -> list[int]:
    ids: list[int] = pq.read_table(folder.path / split_name(number))["id"].to_pylist()
    return ids


def test_without_early_a_killed_stage_begins_anew(spark: SparkSession, tmp_path: Path) -> None:
    source = from_spark(lambda s: s.range(7, 9), early=False).in_folder(str(tmp_path / "ids"))
    folder = InputFolder(tmp_path / "ids")
    first = folder.begin(pa.schema([("id", pa.int64())]), keep=False)
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "left")
    folder.publish(tmp_path / "left", 0)
    materialise({"ids": source}, lambda: contextlib.nullcontext(spark))
    manifest = folder.manifest()
    assert manifest is not None
    assert manifest.id != first.id
    assert [row["id"] for row in rows_of(folder.path)] == [7, 8]


# ---------------------------------------------------------------- bad input


def raises(_: SparkSession) -> DataFrame:
    raise ValueError("no such table\nat line 7")


BAD: dict[str, tuple[Make, str, str]] = {
    "raises": (raises, "input-failed", "its function raised ValueError: no such table"),
    "a missing table": (lambda s: s.table("nowhere"), "input-failed", "TABLE_OR_VIEW_NOT_FOUND"),
    "not a DataFrame": (lambda s: [1, 2], "not-a-dataframe", "its function returned list"),
    "streaming": (lambda s: s.readStream.format("rate").load(), "streaming-dataframe", "use from_spark_stream"),
    "no columns": (lambda s: s.range(3).select(), "no-columns", "its DataFrame has no columns"),
    "duplicate columns": (lambda s: s.range(3).selectExpr("id", "id AS ID"), "duplicate-column", "'id' and 'ID'"),
    "an interval": (
        lambda s: s.sql("SELECT INTERVAL 1 DAY AS pause"), "type-from-spark", "column 'pause' is interval day",
    ),
    "a variant inside": (
        lambda s: s.sql("SELECT array(parse_json('1')) AS vs"), "type-from-spark", "column 'vs' is variant",
    ),
    "a row that fails": (
        lambda s: s.range(3, numPartitions=1).selectExpr("1 / id AS x"),
        "input-failed",
        "Spark could not compute it: .*DIVIDE_BY_ZERO",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_named_and_leaves_nothing_half_written(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """The other input is refused with it, before anything is computed."""
    make, code, words = BAD[kind]
    with pytest.raises(JobRejected, match=words) as refusal:
        write(spark, tmp_path, bad=make)
    assert (refusal.value.code, refusal.value.field) == (code, "bad")
    assert "\n" not in refusal.value.detail
    assert InputFolder(tmp_path / "bad").splits() == set()
    assert InputFolder(tmp_path / "bad").completion() is None


def test_nothing_is_computed_when_another_input_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(JobRejected):
        write(spark, tmp_path, ids=lambda s: s.range(10), bad=lambda s: None)
    assert InputFolder(tmp_path / "ids").splits() == set()


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([("name", pa.string())]), "has no column 'name'; it has id"),
        (pa.schema([("id", pa.list_(pa.int64()))]), "column 'id' is int64, which cannot be cast to list"),
    ],
)
def test_a_schema_that_the_frame_does_not_have_is_named(
    schema: pa.Schema, words: str, spark: SparkSession, tmp_path: Path
) -> None:
    source = from_spark(lambda s: s.range(3), schema=schema).in_folder(str(tmp_path / "ids"))
    with pytest.raises(JobRejected, match=words):
        materialise({"ids": source}, lambda: contextlib.nullcontext(spark))


# ---------------------------------------------------------------- the tables of the demo


def test_airlines_are_trimmed_and_unique(spark: SparkSession) -> None:
    raw = [(" AA", "American "), ("AA", "Zzz"), ("", "nobody"), (None, "nobody"), ("UA", None), ("B6", "JetBlue")]
    rows = flight_tables.clean_airlines(spark.createDataFrame(raw, spark_schema(AIRLINES))).collect()
    assert [tuple(row) for row in rows] == [("AA", "American"), ("B6", "JetBlue")]


def test_an_hour_that_is_there_twice_counts_with_its_worse_weather(spark: SparkSession) -> None:
    def hour(precip: float, wind: float | None) -> tuple[Any, ...]:
        values = {"origin": "JFK", "year": 2013, "month": 11, "day": 3, "hour": 1, "precip": precip, "wind_speed": wind}
        return tuple(values.get(name) for name in WEATHER_FILE.names)

    frame = spark.createDataFrame([hour(0.0, 7.0), hour(0.2, None)], spark_schema(WEATHER_FILE))
    assert [tuple(row) for row in flight_tables.clean_weather(frame).collect()] == [("JFK", 2013, 11, 3, 1, True, 7.0)]


def test_a_missing_airlines_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(JobRejected, match=r"nowhere\.csv is not a file") as refusal:
        flight_tables.airlines(spark, str(tmp_path / "nowhere.csv"))
    assert refusal.value.field == "airlines_csv"
