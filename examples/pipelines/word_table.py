"""Counts per epoch in a Postgres table and in a Parquet table: a PySpark function gets each committed epoch.

CREATE TABLE words (word text, count bigint);
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import Meta

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class WordTableParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`output_dir`: folder of the Parquet table. `table`: name of the Postgres table at `database_url`."""

    lines_dir: str
    output_dir: str
    database_url: str
    table: str = "words"
    bounded: bool = False
    max_backlog: Annotated[int, Meta(ge=1)] = 100


def words(row: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return ({"word": word} for word in row["line"].lower().split())


def build(params: WordTableParams, context: weir.PipelineContext) -> weir.Dataflow:
    context.check_path("output_dir", params.output_dir)
    postgres, parquet = weir.PostgresTable(params.database_url, params.table), weir.ParquetTable(params.output_dir)
    postgres.check()

    def count(spark: SparkSession, frame: DataFrame, epoch: weir.DeliveredEpoch) -> None:
        counted = frame.groupBy("word").count().coalesce(1)
        postgres.write(counted, epoch)
        parquet.write(counted, epoch)

    flow = weir.Dataflow("word_table")
    lines = flow.source("lines", weir.DirectorySource(params.lines_dir, weir.LineFormat(), bounded=params.bounded))
    each = lines.flat_map("words", words, pa.schema([("word", pa.string())]), repeatable=True)
    each.sink("tables", weir.EpochStage(count, params.max_backlog, guarantee="exactly-once"))
    return flow


PIPELINE = weir.Pipeline(
    name="word_table",
    description="Counts the words of each checkpoint with PySpark, into Postgres and a Parquet table.",
    params=WordTableParams,
    build=build,
)
