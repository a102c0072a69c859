"""Index of the open sessions of each key: a chain of row ids of the session table.

The session table has a row per session. Its index finds a row by key and session, but a batch needs all sessions of a
key. The chains are not state: a restore builds them from the table. A key has a few open sessions at most, unless event
time lags by many gaps.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.operators.windows.merging import Numbers
from runtime.state.index.factorise import factorise
from runtime.state.index.growing import GrowingArray
from runtime.state.index.key_index import NOT_FOUND, RowIds
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import OPEN_TYPE, TableSchema

_FIRST_ROW: Final = "first_row"
_END: Final = -1  #: follows the last row of a chain
_MIN_CAPACITY: Final = 64


class OpenSessions:
    """The chains. Keys are passed as their distinct key columns; numbers are positions in them."""

    def __init__(self, keys: Sequence[str]) -> None:
        fields = pa.schema([pa.field(key, OPEN_TYPE) for key in keys])
        values = pa.schema([pa.field(_FIRST_ROW, pa.int64(), nullable=False)])
        self._heads = KeyedTable(TableSchema("chains", fields, values), max_parallelism=1)
        self._next = GrowingArray(np.int64, _MIN_CAPACITY)  #: by row id

    def restore(self, columns: Sequence[pa.Array], rows: RowIds) -> None:
        """Builds the chains of `rows`, which have the keys `columns`."""
        if len(rows):
            distinct = factorise(columns)
            self.link(distinct.take_keys(columns), distinct.key_numbers, rows)

    def find(self, keys: Sequence[pa.Array]) -> tuple[RowIds, Numbers]:
        """The rows of the open sessions of `keys`, and the number of the key of each."""
        if not self._heads.is_typed:
            return np.empty(0, dtype=np.intp), np.empty(0, dtype=np.intp)
        heads = self._heads.find(keys)
        numbers = np.flatnonzero(heads != NOT_FOUND)
        rows = self._heads.column(_FIRST_ROW)[heads[numbers]]
        row_chunks, number_chunks = [rows], [numbers]
        while len(rows):
            following = self._next.data[rows]
            has_next = following != _END
            rows, numbers = following[has_next], numbers[has_next]
            row_chunks.append(rows)
            number_chunks.append(numbers)
        return np.concatenate(row_chunks), np.concatenate(number_chunks)

    def link(self, keys: Sequence[pa.Array], numbers: Numbers, rows: RowIds) -> None:
        """Replaces the chains of `keys` by `rows`; `numbers`: the key of each row. A key without rows is removed."""
        self._heads.bind_types([column.type for column in keys], [pa.int64()])
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows[order], numbers[order]
        if len(rows) and int(rows.max()) >= len(self._next):
            self._next.grow(1 << int(rows.max()).bit_length())
        is_first = np.ones(len(rows), dtype=bool)
        is_first[1:] = numbers[1:] != numbers[:-1]
        following = np.full(len(rows), _END)
        following[:-1] = np.where(is_first[1:], _END, rows[1:])
        self._next.data[rows] = following
        heads = self._heads.upsert(keys)
        self._heads.column(_FIRST_ROW)[heads[numbers[is_first]]] = rows[is_first]
        without = np.ones(len(heads), dtype=bool)
        without[numbers] = False
        self._heads.delete(heads[without])

    def remove(self, columns: Sequence[pa.Array], rows: RowIds) -> None:
        """Removes `rows`, which have the keys `columns`, from their chains."""
        keys = factorise(columns).take_keys(columns)
        chain_rows, numbers = self.find(keys)
        mask = ~np.isin(chain_rows, rows)
        self.link(keys, numbers[mask], chain_rows[mask])
