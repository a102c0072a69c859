"""A slow table of a million rows: `python -m tests.spark_jobs.stages.slow_table ROOT` writes it as a stage does.

A task ends once the file `ROOT/open` holds a number above that of its partition.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext

from spark_jobs.session import SparkSettings, spark_session
from spark_jobs.sources.table import SparkTable, from_spark
from spark_jobs.stages.standing import lock_stage
from spark_jobs.stages.tables import LOCK_NAME, SPARK_SETTINGS, materialise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 1_000_000
SPLITS: Final = 20
PAUSE_S: Final = 0.1


def let(root: Path, splits: int) -> None:
    """Lets the tasks of so many partitions end."""
    (root / "aside").write_text(str(splits))
    (root / "aside").rename(root / "open")


def source(root: Path) -> SparkTable:
    """Each value once, with a label."""
    gate = root / "open"

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task is not None, "it runs in a Spark task"
        while int(gate.read_text()) <= task.partitionId():
            time.sleep(PAUSE_S)

    def make(spark: SparkSession) -> DataFrame:
        numbers = spark.range(ROWS, numPartitions=SPLITS).selectExpr("id AS value", "id * 31 % 7 AS label")
        return numbers.mapInArrow(slowly, "value long, label long")

    return from_spark(make).in_folder(str(root / "table"))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    settings = SparkSettings.for_batch("slow table")
    settings = replace(settings, scratch_dir=str(place / "spark"), extra={**settings.extra, **SPARK_SETTINGS})
    with lock_stage(place / LOCK_NAME):
        materialise({"table": source(place)}, lambda: spark_session(settings))
