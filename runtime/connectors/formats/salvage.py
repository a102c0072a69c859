"""Reads what can be read of a block of text in which some rows are malformed: those to blame are found by halving."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from runtime.connectors.blocks import Block
from runtime.connectors.formats.base import Chunk, Malformed, RowNumbers


@dataclass
class Salvage:
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

    def search(self, hopeless: Sequence[int] = (), reason: str = "") -> None:
        """Reads everything but the rows `hopeless` (offsets within the block), which are bad for that reason."""
        start = 0
        for row in hopeless:
            self._read(start, row)
            self._give_up(row, reason)
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


def whole(column: pa.ChunkedArray) -> pa.Array:
    """In one piece."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
