"""Reads what can be read of a block of text in which some rows are malformed: those to blame are found by halving."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa

from runtime.connectors.blocks import Block, RowTooLong, blocks
from runtime.connectors.formats.base import Chunk, Malformed, MalformedFile, RowNumbers

MOST_MALFORMED: Final = 200  #: in one chunk; each is parsed alone, and the reader's loop must not wait for thousands
Parse = Callable[[bytes, int], pa.RecordBatch]
Blame = Callable[[int, str, str], Malformed]


def text_chunks(
    file: BinaryIO,
    first_row: int,
    schema: pa.Schema,
    parse: Parse,
    blame: Blame,
    hopeless: Callable[[Block], Iterable[int]] = lambda block: (),
    reason: str = "",
    *,
    blank_rows: bool = False,
) -> Iterator[Chunk]:
    """The rows of `file` from `first_row` on.

    Args:
        parse: data and its number of rows -> a batch, or an exception.
        blame: row number, its text, the exception's message -> the verdict.
        hopeless: the rows of a block that need not be parsed: they are bad for the `reason`.
        blank_rows: whether blank lines are rows.
    """
    for whole_block in _readable(blocks(file, blank_rows=blank_rows)):
        block = whole_block.from_row(first_row)
        while len(block):
            found = _Salvage(block, parse, blame)
            found.search(hopeless(block), reason)
            chunk = found.chunk(schema)
            yield chunk
            block = block.from_row(chunk.next_row)


def _readable(found: Iterator[Block]) -> Iterator[Block]:
    try:
        yield from found
    except RowTooLong as error:
        raise MalformedFile(str(error)) from error


@dataclass
class _Salvage:
    """Reads as much of a block as can be read, until too many rows of it were malformed."""

    block: Block
    parse: Parse
    blame: Blame
    done: int = 0  #: rows of the block
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: list[RowNumbers] = field(default_factory=list)
    malformed: list[Malformed] = field(default_factory=list)

    def search(self, hopeless: Iterable[int], reason: str) -> None:
        """Reads everything but the rows `hopeless` (offsets within the block), which are bad for that reason."""
        for row in hopeless:
            if self._full:
                return
            self._read(self.done, row)
            self._give_up(row, reason)
        self._read(self.done, len(self.block))

    def chunk(self, schema: pa.Schema) -> Chunk:
        empty = np.empty(0, dtype=np.int64)
        return Chunk(
            batch=pa.concat_batches(self.batches) if self.batches else pa.RecordBatch.from_pylist([], schema),
            rows=np.concatenate([empty, *self.rows]),
            next_row=self.block.first_row + self.done,
            malformed=tuple(self.malformed),
        )

    @property
    def _full(self) -> bool:
        return len(self.malformed) >= MOST_MALFORMED

    def _read(self, start: int, stop: int) -> None:
        if start >= stop or self._full:
            return
        try:
            self.batches.append(self.parse(self.block.data(start, stop), stop - start))
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            self._halve(start, stop, str(error))
        else:
            self.rows.append(np.arange(start, stop) + self.block.first_row)
            self.done = stop

    def _halve(self, start: int, stop: int, error: str) -> None:
        if stop - start == 1:
            self._give_up(start, error)
            return
        middle = (start + stop) // 2
        self._read(start, middle)
        self._read(middle, stop)

    def _give_up(self, row: int, error: str) -> None:
        if self._full:
            return
        text = self.block.data(row, row + 1).decode(errors="backslashreplace").rstrip("\r\n")
        self.malformed.append(self.blame(self.block.first_row + row, text, error))
        self.done = row + 1


def whole(column: pa.ChunkedArray) -> pa.Array:
    """In one piece."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
