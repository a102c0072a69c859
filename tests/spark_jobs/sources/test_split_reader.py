"""Reading the splits of a bounded input while they are being written, without Spark."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

from runtime.connectors.sinks.discard import DiscardSink
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.pipelines import Pipeline, PipelineContext
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import run_local
from spark_jobs.sources.digest import digest_of
from spark_jobs.sources.splits import InputFolder, split_name
from spark_jobs.sources.table import SparkTable, from_spark
from tests.contracts.files import Reading
from tests.manual_clock import ManualClock

COLUMNS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])


class Nothing(msgspec.Struct):
    """No parameters."""


def rows(ids: range) -> pa.Table:
    return pa.table([list(ids), [number * 1_000 for number in ids]], schema=COLUMNS)


def publish(folder: InputFolder, number: int, ids: range) -> None:
    file = folder.staging_path()
    pq.write_table(rows(ids), file, row_group_size=3)
    folder.publish(file, number)


@pytest.fixture
def folder(tmp_path: Path) -> InputFolder:
    input_folder = InputFolder(tmp_path / "weather")
    input_folder.begin(COLUMNS, keep=True)
    return input_folder


def source(folder: InputFolder, **settings: Any) -> SparkTable:
    return from_spark(lambda spark: spark.range(1), **settings).in_folder(str(folder.path))


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in rows]


def test_splits_are_read_in_order_as_they_appear(folder: InputFolder) -> None:
    """A later split waits for an earlier one: the order of rows does not depend on which task was faster."""
    reading = Reading(source(folder))
    assert reading.poll() is None
    publish(folder, 1, range(5, 9))
    assert reading.rows() == []
    publish(folder, 0, range(5))
    assert ids(reading.rows(2)) == list(range(9))
    assert not reading.exhausted()
    publish(folder, 3, range(9, 11))
    assert reading.rows() == []
    folder.finish({0, 1, 3})
    assert ids(reading.rows()) == [9, 10]
    assert reading.exhausted()


def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    input_folder = InputFolder(tmp_path / "later")
    reading = Reading(source(input_folder))
    assert reading.rows() == []
    input_folder.begin(COLUMNS, keep=True)
    input_folder.finish(set())
    assert reading.rows() == []
    assert reading.exhausted()


def test_without_early_nothing_is_read_before_all_is_written(folder: InputFolder) -> None:
    reading = Reading(source(folder, early=False))
    publish(folder, 0, range(5))
    assert reading.rows() == []
    folder.finish({0})
    assert ids(reading.rows()) == list(range(5))


def test_a_restore_reads_on_at_another_parallelism_while_splits_appear(folder: InputFolder) -> None:
    publish(folder, 0, range(10))
    first = Reading(source(folder))
    before = ids((first.poll(4) or pa.RecordBatch.from_pylist([])).to_pylist())
    snapshot = first.snapshot("chk-1")
    for number in range(1, 6):
        publish(folder, number, range(number * 10, number * 10 + 10))
    clock = ManualClock(1_000_000)
    second = [
        Reading(source(folder), store=first.store, snapshots=[snapshot], index=index, parallelism=3, clock=clock)
        for index in range(3)
    ]
    after = [ids(reading.rows(7)) for reading in second]
    folder.finish(set(range(6)))
    assert [reading.rows() for reading in second] == [[], [], []]
    assert all(reading.exhausted() for reading in second)
    assert sorted([*before, *itertools.chain(*after)]) == list(range(60))
    assert all(part == sorted(part) for part in after)


def test_event_times_give_watermarks(folder: InputFolder) -> None:
    publish(folder, 0, range(1, 5))
    reading = Reading(source(folder, schema=COLUMNS, event_time="at", max_disorder_ms=1))
    assert reading.reader.watermark() is None
    reading.rows()
    assert reading.reader.watermark() == 4 - 1 - 1


def test_columns_are_cast_to_the_schema_that_the_author_gives(folder: InputFolder) -> None:
    publish(folder, 0, range(2))
    schema = pa.schema([("at", pa.timestamp("ms"))])
    batch = Reading(source(folder, schema=schema)).poll()
    assert batch is not None
    assert batch.schema.equals(schema)


def test_a_value_that_has_no_place_in_the_schema_is_named(folder: InputFolder) -> None:
    publish(folder, 0, range(300))
    with pytest.raises(DataRejected, match=r"split-000000\.parquet: column 'id'"):
        Reading(source(folder, schema=pa.schema([("id", pa.int8())]))).rows()


def test_positions_of_another_input_are_refused(folder: InputFolder) -> None:
    publish(folder, 0, range(3))
    first = Reading(source(folder))
    first.poll(2)
    snapshot = first.snapshot("chk-1")
    folder.begin(COLUMNS, keep=False)
    publish(folder, 0, range(3))
    with pytest.raises(JobRejected, match="the checkpoint has positions in input") as refusal:
        Reading(source(folder), store=first.store, snapshots=[snapshot]).poll()
    assert refusal.value.code == "input-replaced"


def test_a_split_that_is_gone_is_named(folder: InputFolder) -> None:
    publish(folder, 0, range(3))
    folder.finish({0})
    (folder.path / split_name(0)).unlink()
    with pytest.raises(EnvironmentFailure, match=r"split-000000\.parquet: the split is gone"):
        Reading(source(folder)).poll()


# ---------------------------------------------------------------- the folder


def identity_of(path: Path) -> tuple[int, int]:
    """Without the time of access: the comparison reads the file."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def test_a_split_that_is_there_is_kept_and_compared(folder: InputFolder) -> None:
    publish(folder, 0, range(9))
    before = identity_of(folder.path / split_name(0))
    file = folder.staging_path()
    pq.write_table(rows(range(9)).take(pa.array([8, 2, 3, 0, 1, 4, 5, 6, 7])), file)
    folder.publish(file, 0)
    assert identity_of(folder.path / split_name(0)) == before
    with pytest.raises(JobRejected, match="split 0 has other rows when it is computed again") as refusal:
        publish(folder, 0, range(1, 10))
    assert (refusal.value.code, refusal.value.field) == ("input-changed", "weather")
    assert identity_of(folder.path / split_name(0)) == before


def test_a_split_that_does_not_come_again_is_named(folder: InputFolder) -> None:
    publish(folder, 0, range(9))
    publish(folder, 4, range(9))
    with pytest.raises(JobRejected, match="split 4 has no rows when"):
        folder.finish({0})
    assert folder.completion() is None


def test_columns_that_have_changed_are_named(folder: InputFolder) -> None:
    with pytest.raises(JobRejected, match=r"its columns were id int64, at timestamp\[us\] and are id int32"):
        folder.begin(pa.schema([("id", pa.int32())]), keep=True)


def test_a_folder_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "weather").mkdir()
    (tmp_path / "weather" / "precious.txt").write_text("mine")
    with pytest.raises(JobRejected, match=r"holds 'precious\.txt', which no stage wrote") as refusal:
        InputFolder(tmp_path / "weather").begin(COLUMNS, keep=True)
    assert refusal.value.code == "occupied"
    assert [path.name for path in (tmp_path / "weather").iterdir()] == ["precious.txt"]


def test_a_new_stage_removes_what_a_killed_one_left_aside(folder: InputFolder) -> None:
    left = folder.staging_path()
    left.mkdir()
    (left / "part-00000-x.parquet").write_bytes(b"half a file")
    folder.begin(COLUMNS, keep=True)
    assert not left.exists()


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1.5, None, -2.0]),
        pa.array([[1], [], None], pa.list_(pa.int64())),
        pa.array(["ä", "", None]),
        pa.array([{"x": 1}, None, {"x": None}]),
    ],
)
def test_the_digest_depends_on_rows_and_not_on_their_order(values: pa.Array, tmp_path: Path) -> None:
    for name, order in (("a", [0, 1, 2]), ("b", [2, 0, 1]), ("c", [0, 1, 1])):
        pq.write_table(pa.table({"n": [1, 2, 3], "v": values}).take(pa.array(order)), tmp_path / name)
    assert digest_of(tmp_path / "a") == digest_of(tmp_path / "b")
    assert digest_of(tmp_path / "a") != digest_of(tmp_path / "c")


# ---------------------------------------------------------------- what an author writes


def test_the_function_and_what_it_knows_stay_out_of_the_slots() -> None:
    password = "opensesame"
    bound = from_spark(lambda spark: spark.read.jdbc("…", "t", properties={"password": password})).in_folder("/in")
    pickled = cloudpickle.dumps(bound)  # type: ignore[no-untyped-call]
    assert password.encode() not in pickled
    assert cloudpickle.loads(pickled).path == "/in"


def test_a_pipeline_gives_each_table_a_folder_of_its_own() -> None:
    def build(_: Nothing, __: PipelineContext) -> Dataflow:
        flow = Dataflow("joining")
        flow.source("weather", from_spark(lambda spark: spark.range(1)))
        return flow

    offered = Pipeline(name="joining", description="", params=Nothing, build=build)
    for root, folders in (("/inputs/7/12", {"path": "/inputs/7/12/weather"}), ("", {})):
        (bound,) = offered.dataflow({}, PipelineContext(root)).sources.values()
        assert bound.folders() == folders  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"max_disorder_ms": -1}, "bad-disorder"),
        ({"schema": pa.schema([])}, "bad-format"),
        ({"schema": COLUMNS, "event_time": "when"}, "unknown-column"),
    ],
)
def test_bad_settings_are_refused_when_the_job_is_written(settings: dict[str, Any], code: str) -> None:
    with pytest.raises(JobRejected) as refusal:
        Dataflow("bad").source("weather", from_spark(lambda spark: spark.range(1), **settings))
    assert refusal.value.code == code


def test_something_else_than_a_function_is_refused() -> None:
    with pytest.raises(JobRejected, match="a function of a SparkSession is needed"):
        Dataflow("bad").source("weather", from_spark("SELECT 1"))  # type: ignore[arg-type]


def test_a_local_run_without_a_stage_is_refused_before_any_slot_starts(tmp_path: Path) -> None:
    flow = Dataflow("local")
    flow.source("weather", from_spark(lambda spark: spark.range(1))).sink("out", DiscardSink())
    records = MemoryRunStore()
    with pytest.raises(JobRejected, match=r"weather: .*start it in the console, or run it by weir\.run_batch") as error:
        run_local(flow, storage=str(tmp_path / "state"), records=records)
    assert (error.value.code, error.value.field) == ("no-stage", "weather")
    assert not records.attempts
    assert not (tmp_path / "state").exists()


def test_columns_are_known_to_the_compile_stage_where_they_are_given() -> None:
    stream = Dataflow("known").source("weather", from_spark(lambda spark: spark.range(1), schema=COLUMNS))
    assert stream.columns == COLUMNS
    assert Dataflow("unknown").source("weather", from_spark(lambda spark: spark.range(1))).columns is None
