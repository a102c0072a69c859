"""A slow table of a million rows: `python -m tests.spark_jobs.slow_table ROOT` writes it as a stage does."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_jobs.session import SparkSettings, spark_session
from spark_jobs.sources import SparkTable, from_spark
from spark_jobs.stages.materialise import SETTINGS, alone, materialise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 1_000_000
SPLITS: Final = 20
PAUSE_S: Final = 1.0  #: of each task


def table(spark: SparkSession) -> DataFrame:
    """Each value once, with a label."""

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        time.sleep(PAUSE_S)

    numbers = spark.range(ROWS, numPartitions=SPLITS).selectExpr("id AS value", "id * 31 % 7 AS label")
    return numbers.mapInArrow(slowly, "value long, label long")


def source(root: Path) -> SparkTable:
    return from_spark(table).in_folder(str(root / "table"))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    settings = SparkSettings.for_batch("slow table")
    settings = replace(settings, scratch_dir=str(place / "spark"), extra={**settings.extra, **SETTINGS})
    with alone(place):
        materialise({"table": source(place)}, lambda: spark_session(settings))
