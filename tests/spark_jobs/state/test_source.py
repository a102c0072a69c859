"""State of a real job as DataFrames: columns, Python objects, lists, pending commits, broadcast rows."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.dataflow.builder import Dataflow
from runtime.errors import CorruptState, JobRejected
from runtime.operators.aggregates import Count, Sum
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcessFunction, ProcessContext
from spark_jobs.session import SparkSettings, spark_session
from spark_jobs.state.rows import contents, find_state, open_checkpoint
from tests.jobs.gated import Gated
from tests.jobs.live import running
from tests.jobs.numbers import SCHEMA, expected_counts

SOURCE = Gated(total=100, splits=4, keys=7)
EXPECTED = expected_counts(SOURCE.numbers)


class Seen(KeyedProcessFunction):
    """Keeps the last value of each key, the values below 10, and how often each remainder came."""

    def open(self, context: ProcessContext) -> None:
        self.last = context.value_state("last")
        self.small = context.list_state("small")
        self.by_remainder = context.map_state("by-remainder", ttl_ms=3_600_000)

    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        self.last.update(row["value"])
        if row["value"] < 10:
            self.small.add(row["value"])
        remainder = f"r{row['value'] % 2}"
        self.by_remainder[remainder] = self.by_remainder.get(remainder, 0) + 1
        out.emit(row)


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    flow = Dataflow("state")
    numbers = flow.source("numbers", SOURCE)
    last_values = numbers.key_by("key").process("seen", Seen, SCHEMA)
    counted = last_values.key_by("key").aggregate("counts", {"n": Count(), "total": Sum("value")})
    counted.sink("out", ParquetSink(str(folder / "out")))
    with running(flow.compile(2), folder / "storage") as run:
        run.wait_for(lambda: run.operator("counts").get("records_in", 0) >= SOURCE.total * SOURCE.splits)
        run.ask("savepoint")
        run.wait_for(lambda: "savepoint" in run.records.settled)
        result, _ = run.records.settled["savepoint"]
        assert result is not None
        run.end("cancel")
    return next(
        folder / "storage" / checkpoint.folder
        for checkpoint in run.records.completed
        if checkpoint.manifest.checkpoint == result["checkpoint"]
    )


def read(path: Path, operator: str, state: str, groups: range = range(128)) -> list[dict[str, Any]]:
    opened = open_checkpoint(str(path))
    return [row for batch in find_state(opened, operator, state).rows(groups) for row in batch.to_pylist()]


def test_the_contents_name_every_state(savepoint: Path) -> None:
    rows = contents(open_checkpoint(str(savepoint))).to_pylist()
    states = {(row["operator"], row["kind"], row["state"]) for row in rows if row["state"]}
    assert {("numbers", "keyed", "positions"), ("seen", "keyed", "last"), ("seen", "keyed", "small")} <= states
    assert {row["operator"] for row in rows if row["kind"] == "finished"} == {"numbers", "seen", "counts", "out"}
    assert all(json.loads(row["value"]) == "running" for row in rows if row["kind"] == "finished")


def test_columns_of_a_state_have_their_types(savepoint: Path) -> None:
    """Source positions are state like any other."""
    rows = read(savepoint, "numbers", "positions")
    assert sorted((row["split"], row["next"]) for row in rows) == [(split, SOURCE.total) for split in range(4)]
    assert {(row["operator"], row["state"]) for row in rows} == {("numbers", "positions")}
    halves = read(savepoint, "numbers", "positions", range(64)) + read(
        savepoint, "numbers", "positions", range(64, 128)
    )
    assert sorted(map(str, halves)) == sorted(map(str, rows)), "each row lies in one range of key groups"
    assert all(row["key_group"] < 64 for row in read(savepoint, "numbers", "positions", range(64)))


def test_aggregates_are_what_the_job_had_counted(savepoint: Path) -> None:
    (state,) = {
        row["state"]
        for row in contents(open_checkpoint(str(savepoint))).to_pylist()
        if row["operator"] == "counts" and row["state"]
    }
    rows = {row["key"]: row for row in read(savepoint, "counts", state)}
    assert rows.keys() == EXPECTED.keys()
    numbers = {
        key: [value for name, value in row.items() if name not in ("operator", "state", "key_group", "key")]
        for key, row in rows.items()
    }
    assert all(set(EXPECTED[key]) <= set(numbers[key]) for key in EXPECTED)


def test_python_objects_are_json(savepoint: Path) -> None:
    last = {json.loads(row["key"]): json.loads(row["value"]) for row in read(savepoint, "seen", "last")}
    assert last.keys() == EXPECTED.keys()
    small = [json.loads(row["value"]) for row in read(savepoint, "seen", "small")]
    assert sorted(small) == sorted(list(range(10)) * 4)
    counted = read(savepoint, "seen", "by-remainder")
    assert sum(json.loads(row["value"]) for row in counted) == SOURCE.total * SOURCE.splits
    assert {json.loads(row["place"]) for row in counted} == {"r0", "r1"}
    assert all(row["expires_at"] is not None for row in counted)


def test_a_savepoint_that_was_moved_is_read_where_it_lies(savepoint: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(savepoint, tmp_path / "elsewhere")
    assert read(moved, "seen", "last") == read(savepoint, "seen", "last")


def test_bad_names_and_damage_are_said(savepoint: Path, tmp_path: Path) -> None:
    opened = open_checkpoint(str(savepoint))
    with pytest.raises(JobRejected, match="no operator 'sen', only counts, numbers, out, seen"):
        find_state(opened, "sen", "last")
    with pytest.raises(JobRejected, match=r"no state .lst., only .*last"):
        find_state(opened, "seen", "lst")
    with pytest.raises(CorruptState):
        open_checkpoint(str(tmp_path / "nothing"))
    damaged = shutil.copytree(savepoint, tmp_path / "damaged")
    for path in damaged.rglob("*"):
        if path.is_file() and "last" in path.name:
            path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptState):
        read(damaged, "seen", "last")


# ---------------------------------------------------------------- on Spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    extra = {"spark.authenticate": "false"}  # an earlier local session leaves it in the JVM
    settings = SparkSettings(app_name="state", master="local-cluster[2,1,1024]", extra=extra)
    with spark_session(settings) as session:
        yield session


def on_spark(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("weir-state").options(**options).load(str(path))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_reads_a_state_in_parallel_and_finds_the_source_by_name(spark: SparkSession, savepoint: Path) -> None:
    frame = on_spark(spark, savepoint, operator="numbers", state="positions", partitions="4")
    assert frame.dtypes[2:] == [("key_group", "int"), ("split", "bigint"), ("next", "bigint")]
    assert frame.rdd.getNumPartitions() == 4
    assert sorted((row.split, row.next) for row in frame.collect()) == [(split, SOURCE.total) for split in range(4)]
    counted = on_spark(spark, savepoint).where("kind = 'keyed'").groupBy("operator").count().collect()
    assert {row.operator for row in counted} >= {"numbers", "seen", "counts"}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_filters_on_key_groups_choose_what_is_read(spark: SparkSession, savepoint: Path) -> None:
    frame = on_spark(spark, savepoint, operator="seen", state="last", partitions="8")
    some = frame.where("key_group >= 32 and key_group < 48")
    assert some.rdd.getNumPartitions() == 1
    expected = [row for row in read(savepoint, "seen", "last") if 32 <= row["key_group"] < 48]
    assert sorted(row.key for row in some.collect()) == sorted(row["key"] for row in expected)
    assert frame.where("key_group = 200").count() == 0


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("operator", "state", "condition"),
    [
        ("numbers", "positions", "split = 2"),
        ("numbers", "positions", "split <=> 2 and next > 0"),
        ("numbers", "positions", "split in (2)"),
        ("seen", "last", "key = '3'"),
    ],
)
def test_a_filter_on_a_key_reads_its_key_group(
    spark: SparkSession, savepoint: Path, operator: str, state: str, condition: str
) -> None:
    frame = on_spark(spark, savepoint, operator=operator, state=state, partitions="8")
    some = frame.where(condition)
    assert (frame.rdd.getNumPartitions(), some.rdd.getNumPartitions()) == (8, 1)
    column, value = ("split", 2) if operator == "numbers" else ("key", "3")
    (row,) = [row for row in read(savepoint, operator, state) if row[column] == value]
    assert [record.key_group for record in some.collect()] == [row["key_group"]]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_small_state_is_read_by_one_task(spark: SparkSession, savepoint: Path) -> None:
    assert on_spark(spark, savepoint, operator="seen", state="last").rdd.getNumPartitions() == 1


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_session_that_pushes_no_filters_reads_all_and_filters_itself(spark: SparkSession, savepoint: Path) -> None:
    """As sessions are that are not Weir's: the setting is off by default, and Spark refuses a plain `pushFilters`."""
    plain = spark.newSession()
    plain.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    frame = on_spark(plain, savepoint, operator="seen", state="last", partitions="8")
    some = frame.where("key_group >= 32 and key_group < 48")
    assert some.rdd.getNumPartitions() == 8
    expected = [row["key"] for row in read(savepoint, "seen", "last") if 32 <= row["key_group"] < 48]
    assert sorted(row.key for row in some.collect()) == sorted(expected)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_errors_name_the_option(spark: SparkSession, savepoint: Path) -> None:
    with pytest.raises(Exception, match="no state 'lst', only"):
        on_spark(spark, savepoint, operator="seen", state="lst")
    with pytest.raises(Exception, match="the rows of a state need both"):
        on_spark(spark, savepoint, operator="seen")
    with pytest.raises(Exception, match="partitions: must be between 1 and"):
        on_spark(spark, savepoint, operator="seen", state="last", partitions="many").collect()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_changes_since_an_older_checkpoint_are_a_frame(spark: SparkSession, savepoint: Path) -> None:
    """The older one is of the running job: a base and its deltas."""
    older = min(savepoint.parent.glob("chk-*"), key=lambda path: int(path.name.split("-")[1]))
    state = {"operator": "numbers", "state": "positions"}
    frame = on_spark(spark, savepoint, **state, since=str(older), partitions="3")
    assert frame.columns == ["operator", "state", "key_group", "change", "split", "next", "before"]
    before = {row["split"]: row["next"] for row in read(older, "numbers", "positions")}
    changes = {row.split: (row.change, row.next, row.before and row.before.next) for row in frame.collect()}
    assert changes == {
        split: ("changed" if split in before else "added", SOURCE.total, before.get(split))
        for split in range(4)
        if before.get(split) != SOURCE.total
    }
    assert on_spark(spark, savepoint, operator="seen", state="last", since=str(savepoint)).count() == 0
    with pytest.raises(Exception, match="the rows of a state need both"):
        on_spark(spark, savepoint, since=str(older))
