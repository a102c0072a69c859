"""The batch answer against one worked out by hand, and the comparison against outputs that are wrong in known ways."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.oracle import Comparison, compare, expected_output
from examples.schemas import AIRLINES, DAILY, FLIGHTS, WEATHER_FILE
from spark_jobs.column_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def flight(day: int, carrier: str, delay: int | None) -> tuple[Any, ...]:
    """A flight from JFK in March, at 23:59; without a delay it never left. It arrives a minute later still."""
    values = {"year": 2013, "month": 3, "day": day, "carrier": carrier, "origin": "JFK", "dep_delay": delay}
    values |= {"dep_time": None if delay is None else 900, "sched_dep_time": 2359, "hour": 23}
    values |= {"arr_delay": None if delay is None else delay + 1}
    return tuple(values.get(name) for name in FLIGHTS.names)


def row(day: int, carrier: str, name: str | None, *sums: Any) -> dict[str, Any]:
    start = dt.datetime(2013, 3, day)  # noqa: DTZ001 - local, like the data
    return dict(zip(DAILY.names, (carrier, name, "JFK", start, start + dt.timedelta(days=1), *sums), strict=True))


FLOWN = [
    flight(9, "AA", 10), flight(9, "AA", -3), flight(9, "AA", None),
    flight(10, "AA", 0),
    flight(9, "UA", None),
    flight(31, "XX", 5),
]  # fmt: skip
BY_HAND = [
    row(9, "AA", "American", 3, 3.5, 10, 1, 3, 20.0, 4.5),
    row(9, "UA", "United", 1, None, None, 1, 1, 20.0, None),
    row(10, "AA", "American", 1, 0.0, 0, 0, 0, None, 1.0),
    row(31, "XX", None, 1, 5.0, 5, 0, 0, None, 6.0),
]


def hour(day: int, precip: float, wind: float | None) -> tuple[Any, ...]:
    values = {"origin": "JFK", "year": 2013, "month": 3, "day": day, "hour": 23, "precip": precip, "wind_speed": wind}
    return tuple(values.get(name) for name in WEATHER_FILE.names)


#: The clocks went back on the 9th: its hour is there twice. Nothing is known of the 31st.
OUTSIDE = [hour(9, 0.1, 12.0), hour(9, 0.0, 20.0), hour(10, 0.0, None)]


@pytest.fixture(scope="module")
def expected(spark: SparkSession) -> DataFrame:
    """Computed once: each test compares the same answer with another output."""
    airlines = spark.createDataFrame([("AA", "American"), ("UA", "United")], spark_schema(AIRLINES))
    weather = spark.createDataFrame(OUTSIDE, spark_schema(WEATHER_FILE))
    return expected_output(spark.createDataFrame(FLOWN, spark_schema(FLIGHTS)), airlines, weather).cache()


def compared(spark: SparkSession, expected: DataFrame, folder: Path, rows: list[dict[str, Any]]) -> Comparison:
    pq.write_table(pa.Table.from_pylist(rows, schema=DAILY), folder / "part-1-1-parquet-0-1-0.parquet")
    return compare(spark, expected, len(FLOWN), folder)


def test_the_answer_is_the_one_worked_out_by_hand(expected: DataFrame) -> None:
    rows = [row.asDict() for row in expected.orderBy("window_start", "carrier").collect()]
    assert rows == BY_HAND
    assert expected.schema.names == DAILY.names
    assert [f.dataType for f in expected.schema] == [f.dataType for f in spark_schema(DAILY)]


def test_an_equal_output_is_exact_in_any_order(spark: SparkSession, expected: DataFrame, tmp_path: Path) -> None:
    comparison = compared(spark, expected, tmp_path, BY_HAND[::-1])
    assert comparison.is_exact
    assert (comparison.expected, comparison.committed, comparison.records) == (4, 4, 6)
    assert comparison.files == ("part-1-1-parquet-0-1-0.parquet",)


def test_a_lost_a_repeated_and_a_changed_row_are_each_found(
    spark: SparkSession, expected: DataFrame, tmp_path: Path
) -> None:
    """What differs is shown row by row."""
    changed = BY_HAND[2] | {"max_delay": 1}
    comparison = compared(spark, expected, tmp_path, [BY_HAND[0], BY_HAND[0], changed, BY_HAND[3]])
    assert not comparison.is_exact
    assert (comparison.missing, comparison.unexpected) == (2, 2)
    assert {
        (difference.side, difference.row["carrier"], difference.row["max_delay"])
        for difference in comparison.differences
    } == {
        ("missing", "UA", None),
        ("missing", "AA", 0),
        ("unexpected", "AA", 10),
        ("unexpected", "AA", 1),
    }


def test_hidden_files_are_not_output(spark: SparkSession, expected: DataFrame, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(BY_HAND, schema=DAILY), tmp_path / ".weir-1-1-parquet-0-1.pending")
    (tmp_path / "_notes.txt").write_text("not Parquet")
    assert compared(spark, expected, tmp_path, BY_HAND).is_exact


def test_the_smallest_difference_of_a_mean_counts(spark: SparkSession, expected: DataFrame, tmp_path: Path) -> None:
    nearly = [BY_HAND[0] | {"mean_delay": 3.5000000000000004}, *BY_HAND[1:]]
    comparison = compared(spark, expected, tmp_path, nearly)
    assert (comparison.missing, comparison.unexpected) == (1, 1)
