"""A file being read in pieces of a requested size, in which every row has an event time.

The source keeps the positions and decides how to treat malformed rows.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.connectors.formats import Chunk, Malformed
from runtime.connectors.sources.event_clock import FUTURE_TIME
from runtime.operators.event_time import event_times_ms, is_in_range


class OpenFile:
    """An open file and the rest of the chunk that was parsed last.

    Args:
        path: path of the file, for messages.
        descriptor: file descriptor from which `chunks` reads; `close` closes it. None: there is none.
        chunks: rows of the file.
    """

    def __init__(self, path: Path | str, descriptor: int | None, chunks: Iterator[Chunk]) -> None:
        self.path = path
        self._descriptor = descriptor
        self._chunks = chunks
        self._rest: Chunk | None = None

    def next_piece(self, max_rows: int, event_time: str | None, latest_ms: int | None = None) -> Chunk | None:
        """Up to `max_rows` next valid rows, with the malformed rows among and directly after them. None at the end.

        Args:
            latest_ms: rows with later event times are malformed. None: no limit.
        """
        chunk = self._rest
        if chunk is None:
            chunk = next(self._chunks, None)
            if chunk is None:
                return None
            chunk = _reject_bad_event_times(chunk, event_time, latest_ms)
        if chunk.batch.num_rows <= max_rows:
            self._rest = None
            return chunk
        next_row = int(chunk.rows[max_rows])
        self._rest = _slice_chunk(chunk, max_rows, chunk.batch.num_rows, next_row, chunk.next_row)
        return _slice_chunk(chunk, 0, max_rows, 0, next_row)

    def close(self) -> None:
        close = getattr(self._chunks, "close", None)  # closing a generator closes the file
        if close is not None:
            close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _slice_chunk(chunk: Chunk, start: int, stop: int, from_row: int, to_row: int) -> Chunk:
    malformed = tuple(m for m in chunk.malformed if m.row is None or from_row <= m.row < to_row)
    batch, rows = chunk.batch.slice(start, stop - start), chunk.rows[start:stop]
    return Chunk(batch=batch, rows=rows, next_row=to_row, malformed=malformed)


def _reject_bad_event_times(chunk: Chunk, event_time: str | None, latest_ms: int | None) -> Chunk:
    """Moves rows whose event time is missing, out of range or too late to the malformed rows."""
    if event_time is None or event_time not in chunk.batch.schema.names:
        return chunk
    column = chunk.batch.column(event_time)
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        chunk = _reject_rows(chunk, missing, event_time, "the event time is missing")
    chunk = _reject_rows(chunk, ~is_in_range(chunk.batch, event_time), event_time, "the event time is out of range")
    if latest_ms is None or not chunk.batch.num_rows:
        return chunk
    return _reject_rows(chunk, event_times_ms(chunk.batch, event_time) > latest_ms, event_time, FUTURE_TIME)


def _reject_rows(chunk: Chunk, bad: npt.NDArray[np.bool_], column: str, reason: str) -> Chunk:
    if not bad.any():
        return chunk
    rejections = [
        Malformed(row=int(number), column=column, reason=reason, text=str(row))
        for number, row in zip(chunk.rows[bad], chunk.batch.filter(pa.array(bad)).to_pylist(), strict=True)
    ]
    malformed = sorted([*chunk.malformed, *rejections], key=lambda item: item.row or 0)
    batch = chunk.batch.filter(pa.array(~bad))
    return Chunk(batch=batch, rows=chunk.rows[~bad], next_row=chunk.next_row, malformed=tuple(malformed))
