"""Broadcast state: rows that every subtask holds alike, such as the build side of a join. Rows are only ever added."""

from collections.abc import Iterable

import pyarrow as pa

from runtime.errors import JobRejected


class BroadcastTable:
    """Batches in the order in which they came.

    Args:
        name: of the state.
        batches: what was restored.
    """

    def __init__(self, name: str, batches: Iterable[pa.RecordBatch] = ()) -> None:
        self._name = name
        self._batches = list(batches)
        self._captured = 0  #: so many batches are in the chain

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self._batches)

    @property
    def batches(self) -> tuple[pa.RecordBatch, ...]:
        return tuple(self._batches)

    def append(self, batch: pa.RecordBatch) -> None:
        """Adds rows.

        Raises:
            JobRejected: their schema is not that of the rows before.
        """
        if self._batches and not batch.schema.equals(self._batches[0].schema):
            raise JobRejected("state-type-changed", self._name, "the columns of this broadcast state have changed")
        self._batches.append(batch)

    def table(self) -> pa.Table | None:
        """All rows; None when none ever came, since then the columns are not known."""
        return pa.Table.from_batches(self._batches) if self._batches else None

    def capture_all(self) -> list[pa.RecordBatch]:
        self._captured = len(self._batches)
        return list(self._batches)

    def capture_changes(self) -> list[pa.RecordBatch]:
        added = self._batches[self._captured :]
        self._captured = len(self._batches)
        return added
