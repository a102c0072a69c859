"""Reads the valid rows of a text block with malformed rows, which it finds by bisection."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa

from runtime.connectors.blocks import RowTooLong, TextBlock, read_blocks
from runtime.connectors.formats.base import Chunk, Malformed, MalformedFile, RowNumbers
from runtime.connectors.formats.input_file import Scan

MAX_MALFORMED_ROWS: Final = 200  #: per chunk: each is parsed alone; thousands of rows would block the loop
Parse = Callable[[bytes, int], pa.RecordBatch]
Explain = Callable[[int, str, str], Malformed]


def text_chunks(
    file: BinaryIO,
    scan: Scan,
    schema: pa.Schema,
    parse: Parse,
    blame: Explain,
    hopeless: Callable[[TextBlock], Iterable[int]] = lambda block: (),
    reason: str = "",
    *,
    blank_rows: bool = False,
) -> Iterator[Chunk]:
    """The rows of `file` from row `scan.first_row` on. The file stands at the first row of the split.

    Args:
        parse: (data, number of rows) -> batch. Raises ArrowInvalid or UnicodeDecodeError if a row is malformed.
        blame: (row number, its text, message of the exception) -> the malformed row with column and reason.
        hopeless: block -> offsets of the rows that are malformed for `reason` and are not parsed.
        blank_rows: whether blank lines are rows.
    """
    for whole_block in _with_file_errors(read_blocks(file, blank_rows=blank_rows, stop=scan.stop)):
        block = whole_block.from_row(scan.first_row)
        while len(block):
            reader = _BlockReader(block, parse, blame)
            reader.search(hopeless(block), reason)
            chunk = reader.chunk(schema)
            yield chunk
            block = block.from_row(chunk.next_row)


def _with_file_errors(blocks: Iterator[TextBlock]) -> Iterator[TextBlock]:
    try:
        yield from blocks
    except RowTooLong as error:
        raise MalformedFile(str(error)) from error


@dataclass
class _BlockReader:
    """Reads the valid rows of a block, up to `MAX_MALFORMED_ROWS` malformed rows."""

    block: TextBlock
    parse: Parse
    explain: Explain
    rows_read: int = 0  #: number of rows of the block that have been read
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: list[RowNumbers] = field(default_factory=list)
    malformed: list[Malformed] = field(default_factory=list)

    def search(self, hopeless: Iterable[int], reason: str) -> None:
        """Reads all rows except `hopeless` (offsets within the block), which are malformed for `reason`."""
        for row in hopeless:
            if self._is_full:
                return
            self._read(self.rows_read, row)
            self._add_bad_row(row, reason)
        self._read(self.rows_read, len(self.block))

    def chunk(self, schema: pa.Schema) -> Chunk:
        empty = np.empty(0, dtype=np.int64)
        return Chunk(
            batch=pa.concat_batches(self.batches) if self.batches else pa.RecordBatch.from_pylist([], schema),
            rows=np.concatenate([empty, *self.rows]),
            next_row=self.block.first_row + self.rows_read,
            malformed=tuple(self.malformed),
        )

    @property
    def _is_full(self) -> bool:
        return len(self.malformed) >= MAX_MALFORMED_ROWS

    def _read(self, start: int, stop: int) -> None:
        if start >= stop or self._is_full:
            return
        try:
            self.batches.append(self.parse(self.block.data(start, stop), stop - start))
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            self._bisect(start, stop, str(error))
        else:
            self.rows.append(np.arange(start, stop) + self.block.first_row)
            self.rows_read = stop

    def _bisect(self, start: int, stop: int, error: str) -> None:
        if stop - start == 1:
            self._add_bad_row(start, error)
            return
        middle = (start + stop) // 2
        self._read(start, middle)
        self._read(middle, stop)

    def _add_bad_row(self, row: int, error: str) -> None:
        if self._is_full:
            return
        text = self.block.data(row, row + 1).decode(errors="backslashreplace").rstrip("\r\n")
        self.malformed.append(self.explain(self.block.first_row + row, text, error))
        self.rows_read = row + 1


def as_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
