"""Comma-separated values. A line break ends a row even inside quotes, so a stray quote makes only its own row bad."""

import codecs
import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.csv as pa_csv

from runtime.connectors.blocks import BLOCK_BYTES, TextBlock, skip_to_row
from runtime.connectors.formats.base import (
    Chunk,
    Malformed,
    MalformedFile,
    ScannedFormat,
    check_schema,
    require_columns,
)
from runtime.connectors.formats.bisect_malformed import as_array, text_chunks
from runtime.connectors.formats.input_file import InputFile, Scan
from runtime.errors import JobRejected

_CONVERSION_ERROR: Final = re.compile(
    r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to ([^:]+): (.*)", re.DOTALL
)
_OPEN_QUOTE: Final = "a quote is not closed"
_LINE_BREAK_INSIDE: Final = "there is a line break inside the row"
#: By default Arrow takes NaN for null, also the one that our sink has written.
_NULL_VALUES: Final = [text for text in pa_csv.ConvertOptions().null_values if text.lower().strip("-") != "nan"]
_COLUMN_COUNT: Final = re.compile(r"Expected (\d+) columns, got (\d+)")


@dataclass(frozen=True)
class CsvFormat(ScannedFormat):
    """Comma-separated values.

    Args:
        schema: the wanted columns with their types; a field that is not nullable must have a value. Except in text
            columns, an empty value, `NA`, `N/A`, `NULL` and similar spellings are null. `NaN` is a number.
        has_header: the first row names the columns, in any order; other columns are ignored.
        delimiter: a single ASCII character.
    """

    schema: pa.Schema
    has_header: bool = True
    delimiter: str = ","

    def check(self) -> None:
        check_schema(self.schema)
        check_delimiter(self.delimiter)
        for item in self.schema:
            try:
                _CsvParser(pa.schema([item]), [item.name], self.delimiter).try_types()
            except pa.ArrowNotImplementedError:
                raise JobRejected("bad-format", "schema", f"{item.name!r}: no {item.type} from CSV") from None

    def columns(self) -> pa.Schema:
        return self.schema

    def scan(self, file: InputFile, scan: Scan) -> Iterator[Chunk]:
        schema = scan.narrow(self.schema)
        with file.open() as content:
            skip_to_row(content, 0)
            names = self._header(content) if self.has_header else self.schema.names
            if names is None:
                return
            if scan.start > content.tell():
                content.seek(0)
                skip_to_row(content, scan.start)
            parser = _CsvParser(schema, names, self.delimiter)
            yield from text_chunks(
                content, scan, schema, parser.parse, parser.explain, TextBlock.rows_with_open_quote, _OPEN_QUOTE
            )

    def _header(self, file: BinaryIO) -> list[str] | None:
        """The names in the first non-blank line; None for an empty file."""
        line = next((line for line in iter(partial(file.readline, BLOCK_BYTES), b"") if line.strip()), None)
        if line is None:
            return None
        if len(line) == BLOCK_BYTES:
            raise MalformedFile(f"the header is longer than {BLOCK_BYTES >> 20} MB")
        try:
            text = line.decode().rstrip("\r\n")
            if "\r" in text:
                raise MalformedFile("the header cannot be read: there is a line break inside it")
            names = next(csv.reader([text], delimiter=self.delimiter))
        except UnicodeDecodeError as error:
            raise MalformedFile(f"the header is not UTF-8: {error}") from error
        except csv.Error as error:
            raise MalformedFile(f"the header cannot be read: {error}") from error
        require_columns(self.schema.names, names, "the header")
        return names


def check_delimiter(delimiter: str) -> None:
    """Raises JobRejected if values cannot be separated by `delimiter`."""
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise JobRejected("bad-format", "delimiter", f"must be a single ASCII character, not {delimiter!r}")


class _CsvParser:
    """Parses rows and explains why a row cannot be parsed."""

    def __init__(self, schema: pa.Schema, names: Sequence[str], delimiter: str) -> None:
        self._schema = schema
        self._names = list(names)
        self._required = [item.name for item in schema if not item.nullable]
        widths = {item.name: item.type.byte_width for item in schema if pa.types.is_fixed_size_binary(item.type)}
        probe = delimiter.join(f'"{"0" * widths.get(name, 0)}"' for name in names)
        self._probe = probe.encode() + b"\n"  #: a row that is valid for all types
        self._parse_options = pa_csv.ParseOptions(delimiter=delimiter)
        self._convert_options = pa_csv.ConvertOptions(
            include_columns=schema.names,
            column_types={item.name: item.type for item in schema},
            null_values=_NULL_VALUES,
        )

    def try_types(self) -> None:
        """Raises ArrowNotImplementedError if a type of the schema cannot be read from text."""
        self._read(self._probe)

    def parse(self, data: bytes, count: int) -> pa.RecordBatch:
        """The rows of `data`. Raises ArrowInvalid unless `data` holds exactly `count` valid rows."""
        if count > 1 and b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
            raise pa.ArrowInvalid(_LINE_BREAK_INSIDE)  # a split and a merged row leave the count unchanged
        table = self._read(data) if b'"' not in data else self._read_with_probe(data)
        if table.num_rows != count:
            raise pa.ArrowInvalid(_LINE_BREAK_INSIDE if table.num_rows > count else _OPEN_QUOTE)
        for name in self._required:
            if table.column(name).null_count:
                raise pa.ArrowInvalid(f"column {name!r}: a value is missing")
        return pa.RecordBatch.from_arrays([as_array(column) for column in table.columns], schema=self._schema)

    def _read(self, data: bytes) -> pa.Table:
        if data.startswith(codecs.BOM_UTF8):  # the parser strips a byte order mark even inside a file
            data = codecs.BOM_UTF8 + data
        options = pa_csv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(data) + 1)
        return pa_csv.read_csv(pa.BufferReader(data), options, self._parse_options, self._convert_options)

    def _read_with_probe(self, data: bytes) -> pa.Table:
        """Parses `data` with a probe row at the end, then drops the last row. An open quote swallows the probe row."""
        table = self._read(data + (b"" if data.endswith(b"\n") else b"\n") + self._probe)
        return table.slice(0, table.num_rows - 1)

    def explain(self, row: int, text: str, error: str) -> Malformed:
        """The malformed row, with the column to which the parser's message refers."""
        column, reason = "", error
        if match := _CONVERSION_ERROR.search(error):
            column, reason = self._names[int(match[1])], f"{match[3]}, {match[2]} expected"
        elif match := _COLUMN_COUNT.search(error):
            expected, count = int(match[1]), int(match[2])
            column = self._names[count] if count < expected else self._names[-1]
            reason = f"the row has {count} values, {expected} expected"
        else:
            for name in self._required:
                if error.startswith(f"column {name!r}: "):
                    column, reason = name, "a value is missing"
        return Malformed(row=row, column=column, reason=reason, text=text)
