"""Incremental word count: file positions are state of the source, counts are state of the aggregate."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa

import weir


class WordCountParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`bounded`: read the existing files, then end."""

    lines_dir: str
    output_dir: str
    bounded: bool = False


def words(row: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return ({"word": word} for word in row["line"].lower().split())


def build(params: WordCountParams, context: weir.PipelineContext) -> weir.Dataflow:
    flow = weir.Dataflow("wordcount")
    lines = flow.source("lines", weir.DirectorySource(params.lines_dir, weir.LineFormat(), bounded=params.bounded))
    each = lines.flat_map("words", words, pa.schema([("word", pa.string())]), repeatable=True)
    counts = each.key_by("word").aggregate("counts", {"count": weir.Count()})
    counts.sink("parquet", weir.ParquetSink(params.output_dir))
    return flow


PIPELINE = weir.Pipeline(
    name="wordcount",
    description="Counts the words of a growing folder of text files.",
    params=WordCountParams,
    build=build,
)
