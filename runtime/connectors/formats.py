"""How files become batches: CSV, lines of text, Parquet; read in pieces, from any row on.

A format gives chunks: a batch, the number of the row after it, and the rows that could not be read, each with its
number, column and reason. What to do about those is the source's policy. Rows are counted from 0 in code and from 1 in
messages, without header and blank lines (lines of text: with blank ones). A line break always ends a row, also inside
quotes: so one quote too many spoils one row and not the rest of the file.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from runtime.connectors.blocks import Block, blocks
from runtime.errors import JobRejected, WeirError

_PARQUET_ROWS: Final = 65_536
_CONVERSION: Final = re.compile(
    r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to ([^:]+): (.*)", re.DOTALL
)
_COUNT: Final = re.compile(r"Expected (\d+) columns, got (\d+)")

RowNumbers = npt.NDArray[np.int64]


class MalformedFile(WeirError):
    """A file that cannot be read as a whole: a wrong header, not Parquet. The message says why, without the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A row that could not be read. `row` counts from 0; None: the whole file."""

    row: int | None
    column: str
    reason: str
    text: str  #: what is there

    def __str__(self) -> str:
        where = "" if self.row is None else f"row {self.row + 1}, " if self.column else f"row {self.row + 1}: "
        column = f"column {self.column!r}: " if self.column else ""
        return f"{where}{column}{self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of a file. `rows` are the numbers of the batch's rows."""

    batch: pa.RecordBatch
    rows: RowNumbers
    next_row: int
    malformed: tuple[Malformed, ...] = ()


class Format(Protocol):
    """Describes how files are read. Must survive cloudpickle."""

    def check(self) -> None:
        """Refuses bad settings. Raises JobRejected."""

    def columns(self) -> pa.Schema | None:
        """The columns of every batch; None when the files say."""

    def read(self, path: Path, first_row: int) -> Iterator[Chunk]:
        """The rows of `path` from `first_row` on, piece by piece. Closing the iterator closes the file.

        Raises:
            MalformedFile: it cannot be read at all, now or later.
            OSError: it cannot be read now; nothing is said about the file.
        """


# ---------------------------------------------------------------- CSV


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
        good = _Salvage(block, self._parsed, self._blame)
        good.search(block.unclosed_quotes())
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
        return pa.RecordBatch.from_arrays([_whole(column) for column in table.columns], schema=self._schema)

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


# ---------------------------------------------------------------- lines


@dataclass(frozen=True)
class LineFormat:
    """Lines of UTF-8 text, in a column `line`, without their line ends."""

    def check(self) -> None:
        """Nothing can be wrong."""

    def columns(self) -> pa.Schema:
        return _LINES

    def read(self, path: Path, first_row: int) -> Iterator[Chunk]:
        with path.open("rb") as file:
            for block in blocks(file, blank_rows=True):
                if block.first_row + len(block) > first_row:
                    good = _Salvage(block.from_row(first_row), _lines, _not_text)
                    good.search(())
                    yield good.chunk(_LINES)


_LINES: Final = pa.schema([pa.field("line", pa.string(), nullable=False)])


def _lines(data: bytes, count: int) -> pa.RecordBatch:
    text = data.decode()
    lines = text.replace("\r\n", "\n").removesuffix("\n").removesuffix("\r").split("\n")
    assert len(lines) == count, "a block knows its rows"
    return pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], schema=_LINES)


def _not_text(row: int, text: str, error: str) -> Malformed:
    return Malformed(row=row, column="line", reason=f"the line is not UTF-8: {error}", text=text)


# ---------------------------------------------------------------- salvage


@dataclass
class _Salvage:
    """Reads as much of a block as can be read.

    Args:
        parse: data and its number of rows -> a batch, or an exception.
        blame: row number, its text, the exception's message -> the verdict.
    """

    block: Block
    parse: Callable[[bytes, int], pa.RecordBatch]
    blame: Callable[[int, str, str], Malformed]
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: list[RowNumbers] = field(default_factory=list)
    malformed: list[Malformed] = field(default_factory=list)

    def search(self, hopeless: Sequence[int]) -> None:
        """Reads everything but the rows `hopeless` (offsets within the block), which are known to be bad."""
        start = 0
        for row in hopeless:
            self._read(start, row)
            self._give_up(row, "a quote is not closed")
            start = row + 1
        self._read(start, len(self.block))

    def chunk(self, schema: pa.Schema) -> Chunk:
        empty = np.empty(0, dtype=np.int64)
        return Chunk(
            batch=pa.concat_batches(self.batches) if self.batches else pa.RecordBatch.from_pylist([], schema),
            rows=np.concatenate([empty, *self.rows]),
            next_row=self.block.first_row + len(self.block),
            malformed=tuple(self.malformed),
        )

    def _read(self, start: int, stop: int) -> None:
        if start >= stop:
            return
        try:
            self.batches.append(self.parse(self.block.data(start, stop), stop - start))
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            self._halve(start, stop, str(error))
        else:
            self.rows.append(np.arange(start, stop) + self.block.first_row)

    def _halve(self, start: int, stop: int, error: str) -> None:
        if stop - start == 1:
            self._give_up(start, error)
            return
        middle = (start + stop) // 2
        self._read(start, middle)
        self._read(middle, stop)

    def _give_up(self, row: int, error: str) -> None:
        text = self.block.data(row, row + 1).decode(errors="backslashreplace").rstrip("\r\n")
        self.malformed.append(self.blame(self.block.first_row + row, text, error))


# ---------------------------------------------------------------- Parquet


@dataclass(frozen=True)
class ParquetFormat:
    """Parquet files.

    Args:
        schema: the columns wanted; None: all, as the first file has them.
    """

    schema: pa.Schema | None = None

    def check(self) -> None:
        """Nothing can be wrong before a file is there."""

    def columns(self) -> pa.Schema | None:
        return self.schema

    def read(self, path: Path, first_row: int) -> Iterator[Chunk]:
        try:
            with pq.ParquetFile(path) as file:
                yield from self._chunks(file, first_row)
        except (pa.ArrowException, OSError) as error:
            if not _blames_the_file(error):
                raise
            raise MalformedFile(f"it is not a readable Parquet file: {error}") from error

    def _chunks(self, file: Any, first_row: int) -> Iterator[Chunk]:
        at = 0
        names = self._names(file)
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if at + rows <= first_row:
                at += rows
                continue
            for batch in file.iter_batches(_PARQUET_ROWS, row_groups=[group], columns=names):
                stop = at + batch.num_rows
                if stop > first_row:
                    skipped = max(0, first_row - at)
                    numbers = np.arange(at + skipped, stop)
                    yield Chunk(batch=self._fitted(batch.slice(skipped)), rows=numbers, next_row=stop)
                at = stop

    def _names(self, file: Any) -> list[str] | None:
        if self.schema is None:
            return None
        missing = [name for name in self.schema.names if name not in file.schema_arrow.names]
        if missing:
            raise MalformedFile(f"it has no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}")
        return list(self.schema.names)

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without the metadata of whoever wrote the file, so that all files look alike."""
        if self.schema is None:
            return pa.RecordBatch.from_arrays(batch.columns, schema=plain_schema(batch.schema))
        columns = [batch.column(item.name).cast(item.type) for item in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _blames_the_file(error: Exception) -> bool:
    """Whether reading it again would fail again. What the system refuses (a full table of open files, a disk that does
    not answer, memory that is short) carries its number or a type of its own; Arrow's verdicts on a file have none.
    """
    return getattr(error, "errno", None) is None and not isinstance(error, MemoryError | pa.ArrowCancelled)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Without metadata."""
    return pa.schema([item.remove_metadata() for item in schema])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
