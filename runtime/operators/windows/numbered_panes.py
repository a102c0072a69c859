"""Aggregates of any keys in arrays: a table numbers the keys, and the arrays are indexed by pane and number.

Numbers outlive their panes, since most keys recur. Once most keys are outdated, all cells are taken, and the numbers
begin anew.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.operators.event_time import Times
from runtime.operators.windows.cells import AggregateCells, Positions
from runtime.operators.windows.dense import DensePanes
from runtime.state.encoded_texts import codes_of, has_few_values
from runtime.state.index.key_codec import take_rows
from runtime.state.index.key_index import RowIds
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import TableSchema

_MIN_KEPT_KEYS: Final = 1 << 10  #: so many keys are always kept
_KEPT_KEYS_PER_ENTRY: Final = 4  #: keys kept per cell in use
_DECAY: Final = 8  #: an eighth of the cells in use is forgotten with each part that is taken: barriers take small parts


class NumberedPanes:
    """Cells of a few consecutive panes, for keys of any type.

    Args:
        keys: key columns, with their types.
        fields: state columns, with their types.
        counting: the state column that counts rows.
    """

    def __init__(self, keys: pa.Schema, fields: Sequence[pa.Field], counting: str) -> None:
        self._schema = TableSchema("numbered", keys, pa.schema([]))
        self._fields, self._counting = fields, counting
        self.reset()

    def __len__(self) -> int:
        """The number of known keys."""
        return len(self._table)

    @property
    def panes(self) -> range:
        """From the first pane in use to the last."""
        return self._dense.panes

    @property
    def cells(self) -> AggregateCells:
        return self._dense.cells

    @property
    def is_outdated(self) -> bool:
        """Whether most keys have had no cell in use lately."""
        return len(self) > max(_MIN_KEPT_KEYS, _KEPT_KEYS_PER_ENTRY * self._recent_entries)

    def reset(self) -> None:
        """Forgets all cells and keys."""
        self._recent_entries = 0  #: cells in use of the largest recent part
        self._table = KeyedTable(self._schema, max_parallelism=1)
        self._dense = DensePanes(self._fields, self._counting)

    def positions(self, keys: Sequence[pa.Array], panes: Times | int) -> Positions | None:
        """The cell of each row; None if there would be too many cells. Learns the keys in both cases."""
        if len(keys) == 1 and has_few_values(keys[0]):
            numbers = self._numbers_of_codes(keys[0])
        else:
            numbers = self._table.upsert(keys)
        return self._dense.positions(numbers, panes, count=len(self._table))

    def _numbers_of_codes(self, keys: pa.DictionaryArray) -> RowIds:
        """The number of each row's key, looked up once per dictionary value. Unused values get no number."""
        codes, values = codes_of(keys), keys.dictionary
        used = np.zeros(len(values) + 1, dtype=bool)
        used[codes] = True
        occurring = np.flatnonzero(used)
        texts = take_rows(pa.concat_arrays([values, pa.nulls(1, values.type)]), occurring)
        numbers = np.zeros(len(used), dtype=np.intp)
        numbers[occurring] = self._table.upsert([texts])
        return numbers.take(codes)

    def entries(self, panes: range) -> tuple[list[pa.Array], Times, Positions]:
        """Key columns, panes and positions of the cells in use in `panes`, which must be the first panes."""
        numbers, pane_numbers, positions = self._dense.entries(panes)
        return [self._table.key_column(name, numbers) for name in self._schema.keys.names], pane_numbers, positions

    def clear(self, panes: range, entries: int) -> None:
        """Clears `panes`, which must be the first panes and had `entries` cells in use."""
        self._dense.clear(panes)
        self._recent_entries = max(entries, self._recent_entries - self._recent_entries // _DECAY)
