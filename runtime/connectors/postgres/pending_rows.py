"""Rows that wait for a COPY. A COPY costs two round trips to the server, in which the loop of the slot stands still."""

from collections.abc import Callable
from typing import Final

import pyarrow as pa

MAX_ROWS: Final = 10_000
MAX_BYTES: Final = 1 << 20


class PendingRows:
    """Collects batches until a COPY of them pays. Their transaction is uncommitted, so no reader misses them.

    Args:
        copy: copies a batch into a table.
    """

    def __init__(self, copy: Callable[[pa.RecordBatch], None]) -> None:
        self._copy = copy
        self._batches: list[pa.RecordBatch] = []
        self._rows, self._bytes = 0, 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds a batch, and copies all if they are enough."""
        if self._batches and self._batches[0].schema != batch.schema:
            self.flush()
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= MAX_ROWS or self._bytes >= MAX_BYTES:
            self.flush()

    def flush(self) -> None:
        """Copies all batches. Call before each commit."""
        if self._batches:
            batches, self._batches, self._rows, self._bytes = self._batches, [], 0, 0
            self._copy(pa.concat_batches(batches))
