"""The tables that the flights job reads through Spark: airlines, hourly weather, and a year of arrivals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import weir
from examples import nycflights
from examples.schemas import AIRLINES, FLIGHTS, HISTORY, WEATHER, WEATHER_FILE, read_csv

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def airlines(spark: SparkSession, path: str = "") -> DataFrame:
    """Airlines of the CSV file at `path` (empty: the demo's file), with a row per carrier.

    Raises:
        JobRejected: the file does not exist.
    """
    source = Path(path) if path else nycflights.locate("airlines.csv")
    if not source.is_file():
        raise weir.JobRejected("missing-file", "airlines_csv", f"{source} is not a file")
    return clean_airlines(read_csv(spark, source, AIRLINES))


def clean_airlines(rows: DataFrame) -> DataFrame:
    """Trims texts, drops rows without carrier or name, sorts by carrier. A carrier gets its alphabetical first name."""
    from pyspark.sql import functions as f

    trimmed = rows.select(*(f.trim(f.col(name)).alias(name) for name in AIRLINES.names))
    airlines = trimmed.where((f.col("carrier") != "") & f.col("name").isNotNull())
    return airlines.groupBy("carrier").agg(f.min("name").alias("name")).orderBy("carrier").select(*AIRLINES.names)


def weather(spark: SparkSession) -> DataFrame:
    """A row per airport and hour. When clocks go back, two hours share a number; the worse weather counts."""
    return clean_weather(read_csv(spark, nycflights.locate("weather.csv"), WEATHER_FILE, nycflights.NULL))


def clean_weather(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    hours = rows.groupBy("origin", "year", "month", "day", "hour")
    wet, wind = f.max(f.col("precip") > 0).alias("wet"), f.max("wind_speed").alias("wind_speed")
    return hours.agg(wet, wind).select(*WEATHER.names)


def history(spark: SparkSession) -> DataFrame:
    """The arrival delay of each flight of the year, by scheduled hour, carrier and flight number."""
    rows = read_csv(spark, nycflights.flights_csv(), FLIGHTS, nycflights.NULL)
    return rows.select(*HISTORY.names)
