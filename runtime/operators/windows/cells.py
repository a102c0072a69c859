"""State columns of aggregates in memory only: plain arrays without keys and without a snapshot."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.state.columns import ColumnRows, storage_dtype

Positions = npt.NDArray[np.intp]


class AggregateCells:
    """Columns of `fields` (types bound) with `count` empty positions. Implements `aggregates.StateColumns`."""

    def __init__(self, fields: Sequence[pa.Field], count: int) -> None:
        self._count = count
        self._fields = {field.name: field for field in fields}
        self._columns = {field.name: np.zeros(count, dtype=storage_dtype(field.type)) for field in fields}
        self._valid = {field.name: np.zeros(count, dtype=bool) for field in fields if field.nullable}

    def __len__(self) -> int:
        return self._count

    def column(self, name: str) -> npt.NDArray[Any]:
        return self._columns[name]

    def valid(self, name: str) -> npt.NDArray[np.bool_]:
        return self._valid[name]

    def value_column(self, name: str, row_ids: Positions) -> pa.Array:
        valid = self._valid.get(name)
        mask = None if valid is None else valid[row_ids]
        return ColumnRows(self._fields[name], self._columns[name][row_ids], mask).to_arrow()

    def clear(self, row_ids: slice) -> None:
        for part in (*self._columns.values(), *self._valid.values()):
            part[row_ids] = 0

    def copy(self, count: int) -> "AggregateCells":
        """A copy with `count` positions; `count` must be at least the present number."""
        copied = AggregateCells([*self._fields.values()], count)
        copied.copy_from(slice(0, self._count), self, slice(0, self._count))
        return copied

    def copy_from(self, at: slice | Positions, other: "AggregateCells", there: slice | Positions) -> None:
        """Copies values from positions `there` of `other`, which has the same columns, to positions `at`."""
        for name, column in self._columns.items():
            column[at] = other._columns[name][there]
        for name, valid in self._valid.items():
            valid[at] = other._valid[name][there]
