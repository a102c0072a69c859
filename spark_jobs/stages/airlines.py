"""The bounded input of the flights job: a CSV of airlines, cleaned and in a stable order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import JobRejected
from spark_jobs import nycflights
from spark_jobs.schemas import AIRLINES, read_csv

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(spark: SparkSession, path: str = "") -> DataFrame:
    """Airlines of the CSV at `path` (empty: those of the demo's data), one row per carrier.

    Raises:
        JobRejected: the file is not there.
    """
    source = Path(path) if path else nycflights.locate("airlines.csv")
    if not source.is_file():
        raise JobRejected("missing-file", "airlines_csv", f"{source} is not a file")
    return clean(read_csv(spark, source, AIRLINES))


def clean(rows: DataFrame) -> DataFrame:
    """Trims, drops rows without a carrier, keeps the alphabetically first name of a carrier, orders by carrier."""
    from pyspark.sql import functions as f

    trimmed = rows.select(*(f.trim(f.col(name)).alias(name) for name in AIRLINES.names))
    named = trimmed.where((f.col("carrier") != "") & f.col("name").isNotNull())
    return named.groupBy("carrier").agg(f.min("name").alias("name")).orderBy("carrier").select(*AIRLINES.names)
