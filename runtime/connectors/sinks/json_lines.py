"""The sink of JSON lines."""

from dataclasses import dataclass
from typing import ClassVar

import msgspec
import pyarrow as pa

from runtime.connectors.sinks.row_file import RowEncoder
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
        self._encoder = msgspec.json.Encoder(enc_hook=str)

    def header(self, marker: bytes) -> bytes:
        return b""

    def encode(self, batch: pa.RecordBatch, marker: bytes) -> bytes:
        try:
            return self._encoder.encode_lines(batch.to_pylist(maps_as_pydicts="strict"))
        except KeyError as error:
            raise DataRejected(f"JSON lines: a map has a key twice: {error}") from error
