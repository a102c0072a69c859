"""Pages of the rows of a state, and saved SQL over it, on Spark: what people get, and how mistakes are named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from examples.pipelines.flights import PIPELINE
from runtime.core.snapshot.contents import StateKind, stored_states
from runtime.dataflow.pipelines import PipelineContext
from runtime.errors import JobRejected
from spark_jobs.savepoints.declared import declared_state
from spark_jobs.state import query
from spark_jobs.state.query import Cursor, PageOfRows, ResultTable, SavedQuery, parse_request, result_table
from spark_jobs.state.rows import find_state, open_checkpoint
from tests.spark_jobs.savepoints.stored_savepoint import Stored, store_savepoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 1_000
AIRLINES = ("AA", "B6", "DL")
WINDOWS = pa.RecordBatch.from_pydict({
    "carrier": [AIRLINES[number % 3] for number in range(COUNT)],
    "number": pa.array(range(COUNT), pa.int32()),
    "window_start": pa.array(range(COUNT), pa.int64()),
    "flights": pa.array([number * 2 for number in range(COUNT)], pa.int64()),
    "late": pa.array([None if number % 7 else number / 7 for number in range(COUNT)], pa.float64()),
})  # fmt: skip
MOMENTS = pa.RecordBatch.from_pydict({
    "at": pa.array([datetime(2013, 1, day, tzinfo=UTC) for day in (1, 2)], pa.timestamp("ms", "UTC")),
    "note": ["a" * 5_000, "b\0c"],
    "length": [5_000, 3],
})  # fmt: skip


#: A table to which no row has come: it is not known yet what its key is.
NEVER = pa.RecordBatch.from_pydict({"user": pa.nulls(0), "n": pa.array([], pa.int64())})


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    states = {
        ("daily", "windows"): Stored(WINDOWS, ["carrier", "number"], ["window_start"]),
        ("by-day", "notes"): Stored(MOMENTS, ["at"], ["note"]),
        ("nothing", "rows"): Stored(MOMENTS.slice(0, 0), ["at"], ["note"]),
        ("never", "seen"): Stored(NEVER, ["user"]),
    }
    return store_savepoint(tmp_path_factory.mktemp("state") / "7", states)


def never() -> SparkSession:
    raise AssertionError("this must be refused before Spark starts")


def page(spark: Callable[[], SparkSession], savepoint: Path, **fields: Any) -> ResultTable:
    request = PageOfRows(**{"operator": "daily", "state": "windows", **fields})
    return result_table(spark, str(savepoint), request, lambda _: None)


def sql(spark: Callable[[], SparkSession], savepoint: Path, text: str) -> ResultTable:
    return result_table(spark, str(savepoint), SavedQuery(name="a query", sql=text), lambda _: None)


# ---------------------------------------------------------------- without Spark


def test_states_are_listed_from_the_manifest(savepoint: Path) -> None:
    states = {(state.operator, state.name): state for state in stored_states(open_checkpoint(str(savepoint)).manifest)}
    windows = states["daily", "windows"]
    assert (windows.kind, windows.subtasks, windows.rows) == (StateKind.KEYED, 2, COUNT)
    assert windows.nbytes == sum(path.stat().st_size for path in savepoint.glob("daily-*/*"))
    assert windows.keys == {"carrier": "string", "number": "int32"}
    assert {state.view for state in states.values()} == {"daily_windows", "by_day_notes", "nothing_rows", "never_seen"}


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"operator": "dayly"}, "unknown-operator", "no operator 'dayly', only by-day, daily, never, nothing"),
        ({"state": "panes"}, "unknown-state", "no state 'panes', only windows"),
        ({"key": {"airline": "AA"}}, "unknown-column", "no key column 'airline', only carrier, number, window_start"),
        ({"key": {"number": "twelve"}}, "bad-key", "'number' is int32; \"twelve\" is not"),
        ({"key": {"number": 2**40}}, "bad-key", "'number' is int32"),
        ({"key": {"number": True}}, "bad-key", "'number' is int32"),
        ({"key": {"carrier": 5.5, "number": [1]}}, "bad-key", "'number' is int32"),
    ],
)
def test_a_page_that_cannot_be_is_refused_before_spark_starts(
    savepoint: Path, fields: dict[str, Any], code: str, text: str
) -> None:
    with pytest.raises(JobRejected, match=text) as error:
        page(never, savepoint, **fields)
    assert error.value.code == code


def test_a_checkpoint_that_is_gone_or_damaged_is_named(savepoint: Path, tmp_path: Path) -> None:
    with pytest.raises(JobRejected, match="there is no such file") as error:
        page(never, tmp_path / "savepoint-9-9")
    assert error.value.code == "corrupt-checkpoint"


def test_a_state_without_rows_is_an_empty_page(savepoint: Path) -> None:
    assert page(never, savepoint, operator="nothing", state="rows").rows == []


def test_a_malformed_request_is_refused() -> None:
    with pytest.raises(JobRejected, match="kind"):
        parse_request({"kind": "everything"})
    with pytest.raises(JobRejected, match="sql"):
        parse_request({"kind": "sql", "name": "x"})


# ---------------------------------------------------------------- on Spark


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_pages_give_every_row_once_with_typed_columns(spark: SparkSession, savepoint: Path) -> None:
    all_rows, cursor, pages = [], Cursor(), 0
    while True:
        table = page(lambda: spark, savepoint, cursor=cursor)
        assert len(table.rows) <= query.PAGE_ROWS
        all_rows += table.rows
        pages += 1
        if table.cursor is None:
            break
        assert table.is_cut
        cursor = table.cursor
    assert pages == COUNT // query.PAGE_ROWS
    names = ["key_group", *WINDOWS.schema.names]
    assert [column.name for column in table.columns] == names
    assert [column.type for column in table.columns] == ["int", "string", "int", "bigint", "bigint", "double"]
    assert [column.name for column in table.columns if column.is_key] == ["carrier", "number", "window_start"]
    findable = [(key.name, key.type) for key in table.keys]
    assert findable == [("carrier", "string"), ("number", "int32"), ("window_start", "int64")]
    rows = [dict(zip(names, row, strict=True)) for row in all_rows]
    assert [row["key_group"] for row in rows] == sorted(row["key_group"] for row in rows)
    windows = sorted(
        ({name: row[name] for name in WINDOWS.schema.names} for row in rows), key=lambda row: row["number"]
    )
    assert windows == WINDOWS.to_pylist()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_rows_are_found_by_their_exact_key(spark: SparkSession, savepoint: Path) -> None:
    (row,) = page(lambda: spark, savepoint, key={"number": "12", "carrier": "AA"}).rows
    assert row[1:5] == ["AA", 12, 12, 24]
    assert page(lambda: spark, savepoint, key={"number": 12, "carrier": "B6"}).rows == []
    first = page(lambda: spark, savepoint, key={"carrier": "DL"})
    assert len(first.rows) == 200
    assert first.cursor is not None
    second = page(lambda: spark, savepoint, key={"carrier": "DL"}, cursor=first.cursor)
    assert sorted(row[2] for row in first.rows + second.rows) == list(range(2, COUNT, 3))
    moment = page(lambda: spark, savepoint, operator="by-day", state="notes", key={"at": "2013-01-02 00:00:00"})
    assert [row[1:] for row in moment.rows] == [["2013-01-02 00:00:00", "b␀c", 3]]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("operator", "name", "key"),
    [("daily", "windows", {"number": "12", "carrier": "AA"}), ("by-day", "notes", {"at": "2013-01-02 00:00:00"})],
)
def test_a_page_of_one_key_reads_its_key_group(
    spark: SparkSession, savepoint: Path, operator: str, name: str, key: dict[str, Any]
) -> None:
    opened = open_checkpoint(str(savepoint))
    (stored,) = [each for each in stored_states(opened.manifest) if (each.operator, each.name) == (operator, name)]
    state = find_state(opened, operator, name)
    options = {"operator": operator, "state": name, "partitions": "8"}
    frame = spark.read.format("weir-state").options(**options).load(str(savepoint))
    condition = query.key_condition(frame, state, stored, query.typed_key(state, stored, key))
    assert condition is not None
    assert frame.where(condition).rdd.getNumPartitions() == 1
    assert frame.where(condition).count() == 1


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_saved_sql_reads_the_views_of_states(spark: SparkSession, savepoint: Path) -> None:
    """Columns of the same name stay apart; rows and cells are bounded, and that is said."""
    text = "SELECT carrier AS airline, count(*) AS n, sum(flights) AS n FROM Daily_Windows GROUP BY 1 ORDER BY 1"
    table = sql(lambda: spark, savepoint, text)
    assert [column.name for column in table.columns] == ["airline", "n", "n"]
    assert [row[:2] for row in table.rows] == [["AA", 334], ["B6", 333], ["DL", 333]]
    assert sum(row[2] for row in table.rows) == COUNT * (COUNT - 1)
    assert not table.is_cut
    many = sql(lambda: spark, savepoint, "SELECT a.number FROM daily_windows a CROSS JOIN by_day_notes b")
    assert (len(many.rows), many.is_cut) == (query.MAX_QUERY_ROWS, True)
    notes = sql(lambda: spark, savepoint, "SELECT note, named_struct('at', at) FROM by_day_notes ORDER BY at")
    assert notes.has_cut_cells
    assert notes.rows[0][0] == "a" * query.MAX_CELL_LENGTH + "…"
    assert json.loads(notes.rows[1][1])["at"].startswith("2013-01-02T00:00:00")
    empty = sql(lambda: spark, savepoint, "SELECT * FROM nothing_rows")
    columns = [("operator", "string"), ("state", "string"), ("key_group", "int"), ("at", "timestamp")]
    columns += [("note", "string"), ("length", "bigint")]
    assert [(column.name, column.type) for column in empty.columns] == columns
    assert empty.rows == []
    totals = "SELECT count(*) AS n, max(length) AS longest FROM nothing_rows WHERE note = 'a'"
    assert sql(lambda: spark, savepoint, totals).rows == [[0, None]]
    kinds = sql(lambda: spark, savepoint, "SELECT DISTINCT operator FROM contents WHERE state IS NOT NULL ORDER BY 1")
    assert kinds.rows == [["by-day"], ["daily"], ["never"], ["nothing"]]
    never = "SELECT user, sum(n) AS total FROM never_seen WHERE user = 'AA' GROUP BY user"
    assert sql(lambda: spark, savepoint, never).rows == []


def open_windows() -> Stored:
    """A window of each of two airlines on two days, in the columns that the flights pipeline declares."""
    params = {"flights_dir": "/in", "output_dir": "/out"}
    flow = PIPELINE.dataflow(params, PipelineContext(""))
    schema = declared_state(flow.compile(1), "daily").tables["windows"].schema
    days = [1_357_000_000_000, 1_357_086_400_000]
    keys = {"carrier": ["AA", "AA", "B6", "B6"], "name": ["American", "American", "JetBlue", "JetBlue"],
            "origin": ["JFK"] * 4, "window_start": pa.array(days * 2, pa.int64())}  # fmt: skip
    values = {field.name: pa.array([1, 2, 3, 4], pa.int64()) for field in schema.values}
    assert list(keys) == schema.keys.names
    return Stored(pa.RecordBatch.from_pydict({**keys, **values}), ["carrier", "name", "origin"], ["window_start"])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_queries_of_the_flights_pipeline_are_answered(spark: SparkSession, tmp_path: Path) -> None:
    savepoint = store_savepoint(tmp_path / "7", {("daily", "windows"): open_windows()})
    by_airline = sql(lambda: spark, savepoint, PIPELINE.queries["open windows by airline"])
    assert by_airline.rows == [
        ["JetBlue", 2, 7, 7, "2013-01-01 00:26:40"],
        ["American", 2, 3, 3, "2013-01-01 00:26:40"],
    ]
    by_day = sql(lambda: spark, savepoint, PIPELINE.queries["open windows by day"])
    assert [row[1:] for row in by_day.rows] == [[2, 4, 1.0], [2, 6, 1.0]]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("SELECT carier FROM daily_windows", "bad-sql", r"a query: \[UNRESOLVED_COLUMN.*`carier`"),
        ("SELECT count( FROM daily_windows", "bad-sql", r"a query: .*\[PARSE_SYNTAX_ERROR\]"),
        ("SELECT * FROM dayly", "bad-sql", "`dayly`.*The views of this checkpoint are contents, by_day_notes, daily_w"),
        ("SELECT 1 / (number - 5) FROM daily_windows", "bad-sql", "DIVIDE_BY_ZERO"),
    ],
)
def test_sql_that_fails_gives_the_short_message_of_spark(
    spark: SparkSession, savepoint: Path, text: str, code: str, message: str
) -> None:
    with pytest.raises(JobRejected, match=message) as error:
        sql(lambda: spark, savepoint, text)
    assert error.value.code == code
    assert error.value.field == "a query"
    assert "\n" not in error.value.detail


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_file_that_goes_missing_is_named(spark: SparkSession, savepoint: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(savepoint, tmp_path / "7" / savepoint.name)
    file = min(damaged.glob("daily-1/*"))
    file.unlink()
    with pytest.raises(JobRejected, match=file.name) as error:
        page(lambda: spark, damaged, cursor=Cursor(group=100))
    assert "Traceback" not in error.value.detail
