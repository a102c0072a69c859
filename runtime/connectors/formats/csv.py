"""Comma-separated values. A line break ends a row, also inside quotes: one quote too many spoils one row only."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.csv as pa_csv

from runtime.connectors.blocks import Block, blocks
from runtime.connectors.formats.base import Chunk, Malformed, MalformedFile
from runtime.connectors.formats.salvage import Salvage, whole
from runtime.errors import JobRejected

_CONVERSION: Final = re.compile(
    r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to ([^:]+): (.*)", re.DOTALL
)
_COUNT: Final = re.compile(r"Expected (\d+) columns, got (\d+)")


@dataclass(frozen=True)
class CsvFormat:
    """Comma-separated values.

    Args:
        schema: the columns wanted, with their types; a field that is not nullable must have a value.
        has_header: the first row names the columns, which may stand in any order, with others between them.
        delimiter: one character.
    """

    schema: pa.Schema
    has_header: bool = True
    delimiter: str = ","

    def check(self) -> None:
        if not len(self.schema):
            raise JobRejected("bad-format", "schema", "a CSV file needs at least one column")
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise JobRejected("bad-format", "delimiter", f"must be one character, not {self.delimiter!r}")

    def columns(self) -> pa.Schema:
        return self.schema

    def read(self, path: Path, first_row: int) -> Iterator[Chunk]:
        with path.open("rb") as file:
            names = self._header(file) if self.has_header else self.schema.names
            if names is None:
                return
            parser = _CsvParser(self.schema, names, self.delimiter)
            for block in blocks(file, blank_rows=False):
                if block.first_row + len(block) > first_row:
                    yield parser.parse(block.from_row(first_row))

    def _header(self, file: BinaryIO) -> list[str] | None:
        """The names in the first line that is not blank; None for an empty file."""
        line = next((line for line in file if line.strip()), None)
        if line is None:
            return None
        try:
            names = next(csv.reader([line.decode("utf-8-sig").rstrip("\r\n")], delimiter=self.delimiter))
        except UnicodeDecodeError as error:
            raise MalformedFile(f"the header is not UTF-8: {error}") from error
        for wanted in self.schema.names:
            if names.count(wanted) != 1:
                times = "no" if wanted not in names else "more than one"
                raise MalformedFile(f"the header has {times} column {wanted!r}; it has {', '.join(names)}")
        return names


class _CsvParser:
    """Parses blocks; only a block that fails is searched for the rows to blame, by halving."""

    def __init__(self, schema: pa.Schema, names: Sequence[str], delimiter: str) -> None:
        self._schema = schema
        self._names = list(names)
        self._required = [item.name for item in schema if not item.nullable]
        self._parse_options = pa_csv.ParseOptions(delimiter=delimiter)
        self._convert_options = pa_csv.ConvertOptions(
            include_columns=schema.names, column_types={item.name: item.type for item in schema}
        )

    def parse(self, block: Block) -> Chunk:
        good = Salvage(block, self._parsed, self._blame)
        good.search(block.unclosed_quotes(), "a quote is not closed")
        return good.chunk(self._schema)

    def _parsed(self, data: bytes, count: int) -> pa.RecordBatch:
        """All of `data`, which must be `count` good rows."""
        options = pa_csv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(data) + 1)
        table = pa_csv.read_csv(pa.BufferReader(data), options, self._parse_options, self._convert_options)
        if table.num_rows != count:
            raise pa.ArrowInvalid(f"{table.num_rows} rows in {count} lines")
        for name in self._required:
            if table.column(name).null_count:
                raise pa.ArrowInvalid(f"column {name!r}: a value is missing")
        return pa.RecordBatch.from_arrays([whole(column) for column in table.columns], schema=self._schema)

    def _blame(self, row: int, text: str, error: str) -> Malformed:
        """Names the column that a parser's message is about."""
        column, reason = "", error
        if found := _CONVERSION.search(error):
            column, reason = self._names[int(found[1])], f"{found[3]}, {found[2]} expected"
        elif found := _COUNT.search(error):
            expected, got = int(found[1]), int(found[2])
            column = self._names[got] if got < expected else self._names[-1]
            reason = f"the row has {got} values, {expected} expected"
        else:
            for name in self._required:
                if error.startswith(f"column {name!r}: "):
                    column, reason = name, "a value is missing"
        return Malformed(row=row, column=column, reason=reason, text=text)
