"""The sink of comma-separated values."""

from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.csv as pa_csv

from runtime.connectors.formats.csv import check_delimiter
from runtime.connectors.sinks.row_file import RowEncoder
from runtime.connectors.sinks.row_files import RowFileSink
from runtime.errors import DataRejected

_TYPES: Final = (
    *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_date, pa.types.is_time, pa.types.is_timestamp),
)


@dataclass(frozen=True)
class CsvSink(RowFileSink):
    """Writes comma-separated values (RFC 4180), in UTF-8, to files `part-….csv`.

    Text is quoted, so an empty text `""` differs from a null, which is empty. Columns are text, numbers, decimals,
    booleans, dates, times and timestamps. `RowFileSink` has the other arguments.

    Args:
        has_header: the first row of each file names the columns.
        delimiter: a single ASCII character.
    """

    suffix: ClassVar[str] = "csv"

    has_header: bool = True
    delimiter: str = ","

    def encoder(self, schema: pa.Schema) -> RowEncoder:
        return _Csv(schema, self.has_header, self.delimiter)

    def check(self) -> None:
        super().check()
        check_delimiter(self.delimiter)


class _Csv:
    def __init__(self, schema: pa.Schema, has_header: bool, delimiter: str) -> None:
        for item in schema:
            held = item.type.value_type if pa.types.is_dictionary(item.type) else item.type
            if not any(test(held) for test in _TYPES):
                raise DataRejected(f"CSV: column {item.name!r} is {item.type}, which CSV cannot hold: cast it to text")
        if len(set(schema.names)) < len(schema.names):
            raise DataRejected(f"CSV: two columns have the same name: {', '.join(schema.names)}")
        self._options = pa_csv.WriteOptions(include_header=False, delimiter=delimiter)
        names = pa_csv.WriteOptions(delimiter=delimiter)
        self._header = _write(pa.RecordBatch.from_pylist([], schema), names)
        self._has_header = has_header
        self.layout = self._header.decode()

    def header(self, marker: bytes) -> bytes:
        return self._header if self._has_header else b""

    def encode(self, batch: pa.RecordBatch, marker: bytes) -> bytes:
        if batch.num_columns == 1 and batch.column(0).null_count:
            name = batch.schema.names[0]
            raise DataRejected(f"CSV: {name!r} is the only column, and a null would be an empty line, which is no row")
        return _write(batch, self._options)


def _write(batch: pa.RecordBatch, options: pa_csv.WriteOptions) -> bytes:
    out = pa.BufferOutputStream()
    pa_csv.write_csv(batch, out, options)
    data: bytes = out.getvalue().to_pybytes()
    return data
