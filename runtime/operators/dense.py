"""Aggregates of integer keys that lie close together, in arrays that key and pane point into.

A pane is a row of an array, a key a column. Rows are used in turn, by the number of the pane, and there are as many as
a power of two says: so a position is a shift away, and nothing is looked up. What does not fit is refused.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.operators.cells import Cells, Positions
from runtime.operators.event_time import Times

_ALWAYS: Final = 1 << 15  #: cells that are never too many
_PER_ROW: Final = 32  #: and so many for each row of a batch: a pane takes many batches
_MOST: Final = 1 << 21
_LEAST: Final = -(2**63)
_FEWEST_PANES: Final = 2  #: while one is being filled, the next begins

Keys = npt.NDArray[np.int64]


class DensePanes:
    """Cells of some panes.

    Args:
        fields: state columns.
        counting: the one that counts rows.
    """

    def __init__(self, fields: Sequence[pa.Field], counting: str) -> None:
        self._fields = fields
        self._counting = counting
        self._low, self._span, self._depth = 0, 0, 0
        self.cells = Cells(fields, 0)
        self.panes: list[int] = []  #: those that hold something, in order

    def positions(self, keys: Keys, panes: Times | int) -> Positions | None:
        """Where each row belongs, and room for it; None where the cells would be too many."""
        first, last = (panes, panes) if isinstance(panes, int) else (int(panes.min()), int(panes.max()))
        if not self._make_room(int(keys.min()), int(keys.max()), first, last, len(keys)):
            return None
        if any(pane not in self.panes for pane in range(first, last + 1)):
            self.panes = sorted({*self.panes, *range(first, last + 1)})
        at = keys - self._low
        at += (panes & (self._depth - 1)) * self._span
        return at

    def held(self, panes: Sequence[int]) -> tuple[Keys, Times, Positions]:
        """The key and the pane of everything that these panes hold, and where it is."""
        rows = self.cells.column(self._counting).reshape(self._depth, self._span)
        places = [pane & (self._depth - 1) for pane in panes]
        occupied = [np.flatnonzero(rows[place]) for place in places]
        slots = np.concatenate([found + place * self._span for found, place in zip(occupied, places, strict=True)])
        return np.concatenate(occupied) + self._low, np.repeat(panes, [len(found) for found in occupied]), slots

    def drop(self, panes: Sequence[int]) -> None:
        """Forgets what these panes hold."""
        for pane in panes:
            at = (pane & (self._depth - 1)) * self._span
            self.cells.clear(slice(at, at + self._span))
        self.panes = [pane for pane in self.panes if pane not in panes]

    def _make_room(self, low: int, high: int, first: int, last: int, rows: int) -> bool:
        most = min(_MOST, max(_ALWAYS, _PER_ROW * rows))
        if self.panes:
            first, last = min(first, self.panes[0]), max(last, self.panes[-1])
        depth = max(_FEWEST_PANES, 1 << (last - first).bit_length())
        if depth <= self._depth and self._low <= low and high < self._low + self._span:
            return True
        if self._span and (self.panes or depth * self._united(low, high) <= most):
            low, high = min(low, self._low), max(high, self._low + self._span - 1)
        span = high - low + 1
        if depth * span > most:
            return False
        spare = min(span // 8, (most // depth - span) // 2)  # at both ends, so that it seldom moves
        self._move(max(low - spare, _LEAST), span + 2 * spare, depth)
        return True

    def _united(self, low: int, high: int) -> int:
        return max(high + 1, self._low + self._span) - min(low, self._low)

    def _move(self, low: int, span: int, depth: int) -> None:
        """Has other bounds from now on, which hold all that is there."""
        cells = Cells(self._fields, depth * span)
        for pane in self.panes:
            before, after = (pane & (self._depth - 1)) * self._span, (pane & (depth - 1)) * span + self._low - low
            cells.put(slice(after, after + self._span), self.cells, slice(before, before + self._span))
        self.cells, self._low, self._span, self._depth = cells, low, span, depth
