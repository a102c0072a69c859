"""Totals of overlapping windows without merging every pane for every window.

Two-stacks sliding aggregation (Tangwongsan et al. 2015, 2017). The front stack holds, for each of its panes, the total
from that pane to the end of the stack. The back is a single total of all later panes. A window's total merges a front
total and the back total. When the windows have passed the front, both stacks are rebuilt from all panes. So a pane is
merged a few times in its life, however many windows contain it. All totals are derived from the state and live in
memory only. A key has the same position in all totals.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.operators.aggregates import AggregateSet
from runtime.operators.windows.cells import AggregateCells, Positions
from runtime.state.index.key_index import RowIds
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import TableSchema

_MAX_FRONT_CELLS: Final = 1 << 22  #: maximum number of cells in the front stack
_MIN_FRONT_PANES: Final = 4  #: panes that the front stack holds in any case
_MAX_UNUSED_KEYS: Final = 1024  #: unused positions up to this number are not worth a clean-up

PaneRowIds = Callable[[int], RowIds]


class PaneTotals:
    """The totals of an operator subtask.

    Args:
        table: the state: a row per key and pane.
        keys: the key columns without the pane.
        aggregates: must include a count of all rows.
        slots_of: returns the row ids of a pane.
    """

    def __init__(self, table: KeyedTable, keys: Sequence[str], aggregates: AggregateSet, slots_of: PaneRowIds) -> None:
        self._table = table
        self._keys = tuple(keys)
        self._aggregates = aggregates
        self._row_ids_of = slots_of
        self._positions: KeyedTable | None = None  #: assigns positions to keys
        self._keys_at_reset = 0  #: number of keys at the last reset of the positions
        self._rows: dict[int, tuple[RowIds, Positions]] = {}  #: by pane, its row ids and their positions
        self._front: dict[int, AggregateCells] = {}  #: by pane, the total from this to the last front pane, in order
        self._front_last: int | None = None
        self._back: AggregateCells | None = None
        self._back_first: int | None = None
        self._covered_end: int | None = None  #: the stacks hold all panes below it; None: rebuild

    def invalidate(self, pane: int) -> None:
        """Invalidates a pane whose state has changed."""
        if self._covered_end is not None and pane < self._covered_end:
            self._covered_end = None
        self._rows.pop(pane, None)

    def drop(self, pane: int) -> None:
        """Drops a pane that has left the state."""
        self._rows.pop(pane, None)
        self._front.pop(pane, None)

    def window_totals(self, panes: Sequence[int], start: int, end: int) -> tuple[list[pa.Array], list[pa.Array]]:
        """Keys and results of window [start, end). `start` must not decrease; `panes`: the window's panes in order."""
        upto = self._covered_end
        if upto is None or not self._covers(start):
            self._rebuild(panes)
        else:
            for pane in panes[bisect_left(panes, upto) :]:
                self._push(pane)
        self._covered_end = end
        cells = self._merge_stacks(start)
        row_ids = np.flatnonzero(cells.column(self._aggregates.row_count_column()) > 0)
        return [self._key_positions.key_column(key, row_ids) for key in self._keys], self._aggregates.results(
            cells, row_ids
        )

    # ------------------------------------------------------------ the stacks

    def _covers(self, start: int) -> bool:
        """Whether the stacks can separate panes from `start` on from earlier panes."""
        if self._front_last is not None and start <= self._front_last:
            return any(pane >= start for pane in self._front)
        return self._back_first is None or self._back_first >= start

    def _rebuild(self, panes: Sequence[int]) -> None:
        """Rebuilds the stacks, with all `panes` in the front stack."""
        renewed = self._reset_positions()
        self._front, self._back, self._back_first = {}, None, None
        self._front_last = panes[-1]
        cells = AggregateCells(self._fields, 0)
        front: dict[int, AggregateCells] = {}
        for number, pane in reversed([*enumerate(panes)]):
            cells = self._add_pane(cells, pane)
            if number < max(_MIN_FRONT_PANES, _MAX_FRONT_CELLS // max(1, len(cells))):
                front[pane] = cells.copy(len(cells))
            else:
                front.clear()  # a gap in the kept totals would give a wrong total for this pane
        self._front = dict(reversed(front.items()))
        if renewed:
            self._keys_at_reset = len(self._key_positions)

    def _push(self, pane: int) -> None:
        self._back = self._add_pane(AggregateCells(self._fields, 0) if self._back is None else self._back, pane)
        if self._back_first is None:
            self._back_first = pane

    def _merge_stacks(self, start: int) -> AggregateCells:
        front = next((cells for pane, cells in self._front.items() if pane >= start), None)
        back = self._back
        if front is None:
            assert back is not None, "a window that fires has a pane"
            return back
        if back is None:
            return front
        total = front.copy(max(len(front), len(back)))
        self._aggregates.merge(total, self._parts(back, np.arange(len(back))), np.arange(len(back)))
        return total

    def _add_pane(self, cells: AggregateCells, pane: int) -> AggregateCells:
        """Adds a pane to `cells`. Returns `cells`, or a longer copy."""
        row_ids, at = self._rows_of(pane)
        count = len(self._key_positions)
        if count > len(cells):
            cells = cells.copy(count + count // 4)
        self._aggregates.merge(cells, self._parts(self._table, row_ids), at)
        return cells

    def _parts(self, state: AggregateCells | KeyedTable, row_ids: Positions) -> pa.RecordBatch:
        names = self._aggregates.fields().names
        return pa.RecordBatch.from_arrays([state.value_column(name, row_ids) for name in names], names=names)

    # ------------------------------------------------------------ positions

    @property
    def _fields(self) -> Sequence[pa.Field]:
        return list(self._table.schema.values)

    @property
    def _key_positions(self) -> KeyedTable:
        if self._positions is None:
            keys = pa.schema([field for field in self._table.schema.keys if field.name in self._keys])
            self._positions = KeyedTable(TableSchema("known", keys, _DUMMY_VALUES), max_parallelism=1)
        return self._positions

    def _rows_of(self, pane: int) -> tuple[RowIds, Positions]:
        if pane not in self._rows:
            row_ids = self._row_ids_of(pane)
            keys = [self._table.key_column(key, row_ids) for key in self._keys]
            self._rows[pane] = row_ids, self._key_positions.upsert(keys)
        return self._rows[pane]

    def _reset_positions(self) -> bool:
        """Resets the positions if most of them may belong to deleted keys."""
        if len(self._key_positions) <= 2 * self._keys_at_reset + _MAX_UNUSED_KEYS:
            return False
        self._positions, self._rows = None, {}
        return True


_DUMMY_VALUES: Final = pa.schema([pa.field("-", pa.bool_(), nullable=False)])
