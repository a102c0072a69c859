"""The sink of Avro object container files. Blocks end with the sync marker of the file, so a file can be continued."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar, Final

import pyarrow as pa

from runtime.connectors.avro_types import avro_schema
from runtime.connectors.sinks.row_file import VALUE_ERRORS, RowEncoder, python_rows
from runtime.connectors.sinks.row_files import RowFileSink
from runtime.errors import DataRejected, JobRejected
from runtime.libraries import import_library

_CODECS: Final = ("deflate", "null")


@dataclass(frozen=True)
class AvroSink(RowFileSink):
    """Writes Avro files `part-….avro` with a record per row. Needs the extra `avro`.

    Dates, times, timestamps and decimals are logical types. A nullable column is a union with `null`. `RowFileSink` has
    the other arguments.

    Args:
        codec: compression of the blocks, "deflate" or "null".
    """

    suffix: ClassVar[str] = "avro"

    codec: str = "deflate"

    def encoder(self, schema: pa.Schema) -> RowEncoder:
        return _Avro(schema, self.codec)

    def check(self) -> None:
        super().check()
        import_library("fastavro", "avro")
        if self.codec not in _CODECS:
            raise JobRejected("bad-codec", "codec", f"must be one of {', '.join(_CODECS)}, not {self.codec!r}")


class _Avro:
    def __init__(self, schema: pa.Schema, codec: str) -> None:
        self._avro = import_library("fastavro", "avro")
        described = avro_schema(schema)
        self._schema, self._codec = self._avro.parse_schema(described), codec
        self.layout = f"{codec}\n{json.dumps(described)}"

    def header(self, marker: bytes) -> bytes:
        return self._write([], marker)

    def encode(self, batch: pa.RecordBatch, marker: bytes) -> bytes:
        """Whole blocks, without the header."""
        rows = python_rows(batch, "Avro")
        try:
            data = self._write(rows, marker)
        except VALUE_ERRORS as error:
            raise DataRejected(f"Avro: a value cannot be written: {error}") from error
        return data[len(self.header(marker)) :]

    def _write(self, records: Sequence[Any], marker: bytes) -> bytes:
        out = BytesIO()
        self._avro.writer(out, self._schema, records, codec=self._codec, sync_marker=marker)
        return out.getvalue()
