"""Counts of lines that Spark reads: `spark.readStream` watches the folder; the job counts exactly once.

Bounded, `spark.read` reads the files that are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import Meta

import weir
from examples.samples.folders import Bounded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


LINES = pa.schema([("value", pa.string())])


class SparkWordsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`lines_dir`: text files, read as they appear.

    `files_per_epoch`: maximum number of files in a batch of Spark. `max_backlog`: epochs that may wait for the job.
    """

    lines_dir: str
    output_dir: str
    files_per_epoch: Annotated[int, Meta(ge=1, le=10_000)] = 100
    max_backlog: Annotated[int, Meta(ge=1)] = 1_000
    bounded: Bounded = False


def words(row: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return ({"word": word} for word in row["value"].lower().split())


def build(params: SparkWordsParams, context: weir.PipelineContext) -> weir.Dataflow:
    context.check_path("lines_dir", params.lines_dir)

    def table(spark: SparkSession) -> DataFrame:
        return spark.read.text(params.lines_dir)

    def lines(spark: SparkSession) -> DataFrame:
        return spark.readStream.option("maxFilesPerTrigger", params.files_per_epoch).text(params.lines_dir)

    flow = weir.Dataflow("spark_wordcount")
    source = (
        weir.from_spark(table, schema=LINES)
        if params.bounded
        else weir.from_spark_stream(lines, max_backlog=params.max_backlog)
    )
    each = flow.source("lines", source).flat_map("words", words, pa.schema([("word", pa.string())]), repeatable=True)
    counts = each.key_by("word").aggregate("counts", {"count": weir.Count()})
    counts.sink("parquet", weir.ParquetSink(params.output_dir))
    return flow


PIPELINE = weir.Pipeline(
    name="spark_wordcount",
    description="Counts the words of text files that Spark's Structured Streaming reads.",
    params=SparkWordsParams,
    build=build,
)
