"""The sink of JSON lines."""

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from runtime.connectors.sinks.row_file import VALUE_ERRORS, RowEncoder, python_rows
from runtime.connectors.sinks.row_files import RowFileSink
from runtime.errors import DataRejected


@dataclass(frozen=True)
class JsonLinesSink(RowFileSink):
    """Writes a JSON object per line, in UTF-8, to files `part-….jsonl`.

    Timestamps, dates and times are ISO 8601 text, decimals are text, bytes are base64. NaN and infinity, which JSON
    lacks, are null. `RowFileSink` has the arguments.
    """

    suffix: ClassVar[str] = "jsonl"

    def encoder(self, schema: pa.Schema) -> RowEncoder:
        return _JsonLines(schema)


class _JsonLines:
    layout = ""  #: each line is complete by itself

    def __init__(self, schema: pa.Schema) -> None:
        if len(set(schema.names)) < len(schema.names):
            raise DataRejected(f"JSON lines: two columns have the same name: {', '.join(schema.names)}")
        for item in schema:
            if "time64[ns]" in str(
                item.type
            ):  # Python's times have microseconds: nanoseconds would be cut off silently
                raise DataRejected(f"JSON lines: column {item.name!r} is {item.type}: cast it to microseconds")
        self._encoder = msgspec.json.Encoder(enc_hook=_text_of)

    def header(self, marker: bytes) -> bytes:
        return b""

    def encode(self, batch: pa.RecordBatch, marker: bytes) -> bytes:
        rows = python_rows(batch, "JSON lines")
        try:
            return self._encoder.encode_lines(rows)
        except VALUE_ERRORS as error:
            raise DataRejected(f"JSON lines: a value cannot be written: {error}") from error


def _text_of(value: Any) -> str:
    """A value that JSON lacks. Times and durations of nanoseconds are objects of pandas with ISO 8601 text."""
    return str(value.isoformat() if hasattr(value, "isoformat") else value)
