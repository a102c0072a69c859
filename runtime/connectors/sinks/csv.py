"""The sink of comma-separated values."""

from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from runtime.connectors.formats.csv import check_delimiter
from runtime.connectors.sinks.row_file import RowEncoder
from runtime.connectors.sinks.row_files import RowFileSink
from runtime.errors import DataRejected, JobRejected

_TYPES: Final = (
    *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_date, pa.types.is_time, pa.types.is_timestamp),
)
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799  #: years 1 to 9999, in seconds since the epoch


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
        if self.delimiter.isalnum() or self.delimiter in "+-.: ":
            detail = f"{self.delimiter!r} stands in numbers or times, which are not quoted: choose another character"
            raise JobRejected("bad-format", "delimiter", detail)


class _Csv:
    def __init__(self, schema: pa.Schema, has_header: bool, delimiter: str) -> None:
        for item in schema:
            value_type = item.type.value_type if pa.types.is_dictionary(item.type) else item.type
            if not any(test(value_type) for test in _TYPES):
                raise DataRejected(f"CSV: column {item.name!r} is {item.type}, which CSV cannot hold: cast it to text")
        if len(set(schema.names)) < len(schema.names):
            raise DataRejected(f"CSV: two columns have the same name: {', '.join(schema.names)}")
        self._options = pa_csv.WriteOptions(include_header=False, delimiter=delimiter)
        names = pa_csv.WriteOptions(delimiter=delimiter)
        texts = pa.schema([(name, pa.string()) for name in schema.names])
        self._header = _write(pa.RecordBatch.from_pylist([], texts), names)
        self._has_header = has_header
        self.layout = self._header.decode()

    def header(self, marker: bytes) -> bytes:
        return self._header if self._has_header else b""

    def encode(self, batch: pa.RecordBatch, marker: bytes) -> bytes:
        if batch.num_columns == 1 and batch.column(0).null_count:
            name = batch.schema.names[0]
            raise DataRejected(f"CSV: {name!r} is the only column, and a null would be an empty line, which is no row")
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _check_years(name, column)
        try:
            data = _write(batch, self._options)
            data.decode()  # text from a file may be no UTF-8
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise DataRejected(f"CSV: a value cannot be written: {error}") from error
        return data


def _check_years(name: str, column: pa.Array) -> None:
    """Raises DataRejected for a date or timestamp outside the years 1 to 9999.

    Arrow would write it as `<value out of range: …>`, or with a year that is not ISO 8601.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        ends = pc.min_max(column.cast(pa.timestamp("s"), safe=False).cast(pa.int64()))
        if ends["min"].is_valid and (ends["min"].as_py() < _FIRST_S or ends["max"].as_py() > _LAST_S):
            raise DataRejected(f"CSV: column {name!r}: a time lies outside the years 1 to 9999")


def _write(batch: pa.RecordBatch, options: pa_csv.WriteOptions) -> bytes:
    out = pa.BufferOutputStream()
    pa_csv.write_csv(batch, out, options)
    data: bytes = out.getvalue().to_pybytes()
    return data
