"""Incremental word count: the file position is the source's state, the counts are the counter's."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa

from runtime.connectors.formats import LineFormat
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.dataflow import Dataflow
from runtime.operators.aggregates import Count
from runtime.pipelines import Pipeline, PipelineContext


class WordCountParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`bounded`: read the files that are there, then end."""

    lines_dir: str
    output_dir: str
    bounded: bool = False


def words(row: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return ({"word": word} for word in row["line"].lower().split())


def build(params: WordCountParams, context: PipelineContext) -> Dataflow:
    flow = Dataflow("wordcount")
    lines = flow.source("lines", DirectorySource(params.lines_dir, LineFormat(), bounded=params.bounded))
    each = lines.flat_map("words", words, pa.schema([("word", pa.string())]))
    each.key_by("word").aggregate("counts", {"count": Count()}).sink("parquet", ParquetSink(params.output_dir))
    return flow


PIPELINE = Pipeline(
    name="wordcount",
    description="Counts the words of a growing folder of text files.",
    params=WordCountParams,
    build=build,
)
