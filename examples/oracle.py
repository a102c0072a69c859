"""Compares the demo job's output with the answer of a plain Spark batch query over the package's own files.

    python -m examples.oracle --output DIR [--partial]

The query shares only the output's schema with the job: days come from calendar columns, not from windows. Rows are
compared as a multiset, without tolerance (here sums of integers are exact in a double).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from examples import nycflights
from examples.schemas import AIRLINES, DAILY, FLIGHTS, WEATHER_FILE, read_csv
from spark_jobs.session import SparkSettings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_SHOWN_ROWS: Final = 20  #: maximum number of differing rows shown per side


@dataclass(frozen=True, slots=True)
class Difference:
    """A row of only the answer (`side` "missing") or only the job's output (`side` "unexpected")."""

    side: str
    row: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.side:>10}  {', '.join(f'{name}={value}' for name, value in self.row.items())}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of the job's committed output with the answer of the plain Spark query.

    Args:
        records: number of flights in the answer.
        expected, committed: number of rows in the answer, and in the job's output.
        files: names of the output files that Spark read.
        missing, unexpected: number of differing rows; `differences` shows the first.
    """

    records: int
    expected: int
    committed: int
    files: tuple[str, ...]
    missing: int
    unexpected: int
    differences: tuple[Difference, ...]

    @property
    def is_exact(self) -> bool:
        return self.missing == self.unexpected == 0


def expected_output(flights: DataFrame, airlines: DataFrame, weather: DataFrame) -> DataFrame:
    """A row per airline, airport and day.

    The archive of arrivals is the flights themselves, so arrivals need no join. Weather is joined: duplicate hours
    change neither the maximum wind nor whether a flight had a wet hour.
    """
    from pyspark.sql import functions as f

    day = f.make_date("year", "month", "day").cast("timestamp_ntz")
    dated, group = flights.withColumn("window_start", day), ["carrier", "origin", "window_start"]
    hour = ["origin", "year", "month", "day", "hour"]
    sums = dated.groupBy(group).agg(
        f.count("*").alias("flights"),
        f.avg("dep_delay").alias("mean_delay"),
        f.max("dep_delay").alias("max_delay"),
        f.count_if(f.isnull("dep_time")).alias("cancelled"),
        f.avg("arr_delay").alias("mean_arrival_delay"),
    )
    rainy = dated.join(weather.where("precip > 0"), hour, "left_semi").groupBy(group).agg(f.count("*").alias("rainy"))
    windy = dated.join(weather, hour).groupBy(group).agg(f.max("wind_speed").alias("max_wind"))
    frame = sums.join(rainy, group, "left").join(windy, group, "left").join(airlines, "carrier", "left")
    wet, end = f.coalesce("rainy", f.lit(0)), f.col("window_start") + f.expr("INTERVAL 1 DAY")
    return frame.withColumn("wet", wet).withColumn("window_end", end).select(*DAILY.names)


def expected_year(spark: SparkSession, scratch: Path) -> tuple[int, DataFrame]:
    """The number of flights in the package, and the answer for all of them."""
    flights = read_csv(spark, nycflights.extract_flights(scratch), FLIGHTS, nycflights.NULL)
    airlines = read_csv(spark, nycflights.locate("airlines.csv"), AIRLINES)
    weather = read_csv(spark, nycflights.locate("weather.csv"), WEATHER_FILE, nycflights.NULL)
    return flights.count(), expected_output(flights, airlines, weather)


def compare(spark: SparkSession, expected: DataFrame, records: int, output: Path) -> Comparison:
    """Reads `output` as a plain Spark user would, and compares it with `expected` row by row."""
    frame = spark.read.parquet(output.as_uri())
    files = frame.inputFiles()  # before caching: a cached frame has no input files
    committed, expected_rows = frame.select(*DAILY.names).cache(), expected.cache()
    sides = {"missing": expected_rows.exceptAll(committed), "unexpected": committed.exceptAll(expected_rows)}
    counts = {side: rows.count() for side, rows in sides.items()}
    differences = tuple(Difference(side, row.asDict()) for side, rows in sides.items() for row in _first_rows(rows))
    return Comparison(
        records=records,
        expected=expected_rows.count(),
        committed=committed.count(),
        files=tuple(sorted(Path(name).name for name in files)),
        differences=differences,
        **counts,
    )


def _first_rows(rows: DataFrame) -> list[Any]:
    return rows.orderBy("carrier", "origin", "window_start").limit(MAX_SHOWN_ROWS).collect()


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the comparison as a line of JSON, and the differing rows on stderr."""
    description = "Compare the output with plain Spark."
    parser = argparse.ArgumentParser(prog="python -m examples.oracle", description=description)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--partial", action="store_true", help="the job is still running: accept missing rows, but no wrong rows"
    )
    arguments = parser.parse_args(argv)
    with spark_session(SparkSettings.from_environment("weir: oracle")) as spark, TemporaryDirectory() as scratch:
        records, expected = expected_year(spark, Path(scratch))
        comparison = compare(spark, expected, records, arguments.output.absolute())
    hidden = {"missing"} if arguments.partial else set()
    differences = [difference for difference in comparison.differences if difference.side not in hidden]
    sys.stderr.writelines(f"{difference}\n" for difference in differences)
    report = asdict(comparison) | {"differences": [str(difference) for difference in differences]}
    sys.stdout.write(json.dumps(report) + "\n")
    return 1 if comparison.unexpected or (comparison.missing and not arguments.partial) else 0


if __name__ == "__main__":
    sys.exit(main())
