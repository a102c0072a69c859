"""Aggregates of integer keys that lie close together, in arrays that key and pane point into.

A pane is a row of an array, a key a column. Rows are used in turn, by the number of the pane, and there are as many as
a power of two says: so a position is a shift away, and nothing is looked up. What does not fit is refused.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.operators.event_time import Times
from runtime.operators.windows.cells import Cells, Positions

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
        self.panes = range(0)  #: from the first that holds something to the last

    def positions(self, keys: Keys, panes: Times | int) -> Positions | None:
        """Where each row belongs, and room for it; None where the cells would be too many."""
        first, last = (panes, panes) if isinstance(panes, int) else (int(panes.min()), int(panes.max()))
        if not self._make_room(int(keys.min()), int(keys.max()), first, last, len(keys)):
            return None
        self.panes = self._with(first, last)
        at = keys - self._low
        at += (panes & (self._depth - 1)) * self._span
        return at

    def held(self, panes: range) -> tuple[Keys, Times, Positions]:
        """The key and the pane of everything that these panes hold, and where it is. They are the first of all."""
        counts = self.cells.column(self._counting)
        slots = np.concatenate([np.flatnonzero(counts[piece]) + piece.start for piece in self._pieces(panes)])
        places, keys = np.divmod(slots, self._span)
        return keys + self._low, ((places - panes.start) & (self._depth - 1)) + panes.start, slots

    def drop(self, panes: range) -> None:
        """Forgets what these panes hold. They are the first of all."""
        for piece in self._pieces(panes):
            self.cells.clear(piece)
        self.panes = range(panes.stop, self.panes.stop)

    def _with(self, first: int, last: int) -> range:
        if not self.panes:
            return range(first, last + 1)
        return range(min(first, self.panes.start), max(last + 1, self.panes.stop))

    def _pieces(self, panes: range) -> list[slice]:
        """Where the cells of these panes are: in one piece, or in two where they go round."""
        start, end = (panes.start & (self._depth - 1)) * self._span, self._depth * self._span
        stop = start + len(panes) * self._span
        return [slice(start, min(stop, end)), *([slice(0, stop - end)] if stop > end else [])]

    def _make_room(self, low: int, high: int, first: int, last: int, rows: int) -> bool:
        most = min(_MOST, max(_ALWAYS, _PER_ROW * rows))
        depth = max(_FEWEST_PANES, 1 << (len(self._with(first, last)) - 1).bit_length())
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
        if self.panes:
            panes = np.arange(self.panes.start, self.panes.stop)[:, np.newaxis]
            before, after = (panes & (self._depth - 1)) * self._span, (panes & (depth - 1)) * span + self._low - low
            keys = np.arange(self._span)
            cells.put((after + keys).ravel(), self.cells, (before + keys).ravel())
        self.cells, self._low, self._span, self._depth = cells, low, span, depth
