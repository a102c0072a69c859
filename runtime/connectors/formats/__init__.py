"""File formats, one per module: a file is read as a sequence of batches, starting at any row."""

from runtime.connectors.formats.arrow import ArrowFormat
from runtime.connectors.formats.avro import AvroFormat
from runtime.connectors.formats.base import Chunk, Format, Malformed, MalformedFile, ScannedFormat
from runtime.connectors.formats.csv import CsvFormat
from runtime.connectors.formats.json_lines import JsonLinesFormat
from runtime.connectors.formats.lines import LineFormat
from runtime.connectors.formats.parquet import ParquetFormat

__all__ = [
    "ArrowFormat",
    "AvroFormat",
    "Chunk",
    "CsvFormat",
    "Format",
    "JsonLinesFormat",
    "LineFormat",
    "Malformed",
    "MalformedFile",
    "ParquetFormat",
    "ScannedFormat",
]
