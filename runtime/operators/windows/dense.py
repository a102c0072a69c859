"""Aggregates of integer keys that lie close together, in arrays indexed by pane and key.

A pane is a row of the array, a key a column. The number of array rows is a power of two, and panes use the rows as a
ring. So a position is computed with a bit mask and needs no look-up. Keys that are too far apart are refused: they are
numbered first (`numbered_panes`).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.operators.event_time import Times
from runtime.operators.windows.cells import AggregateCells, Positions

_MIN_CELL_LIMIT: Final = 1 << 15  #: cells that are always allowed
_CELLS_PER_ROW: Final = 32  #: cells allowed per row of a batch or numbered key, because a pane takes many batches
_MIN_NUMBERS: Final = 1 << 10  #: numbers of keys for which there is always room
_MAX_DENSE_CELLS: Final = 1 << 21
_MIN_INT64: Final = -(2**63)
_MIN_PANES: Final = 2  #: the next pane begins while the present one is being filled

Keys = npt.NDArray[np.int64]


class DensePanes:
    """Cells of a few consecutive panes.

    Args:
        fields: state columns.
        counting: the state column that counts rows.
    """

    def __init__(self, fields: Sequence[pa.Field], counting: str) -> None:
        self._fields = fields
        self._counting = counting
        self._low, self._span, self._depth = 0, 0, 0
        self.cells = AggregateCells(fields, 0)
        self.panes = range(0)  #: from the first pane in use to the last

    def positions(self, keys: Keys, panes: Times | int, count: int | None = None) -> Positions | None:
        """The cell of each row. Grows the arrays if needed; returns None if they would have too many cells.

        Args:
            keys: the keys of the rows.
            panes: the panes of the rows, or of all rows.
            count: the keys are all numbers below `count`, without gaps; None: any integers.
        """
        first, last = (panes, panes) if isinstance(panes, int) else (int(panes.min()), int(panes.max()))
        most = min(_MAX_DENSE_CELLS, max(_MIN_CELL_LIMIT, _CELLS_PER_ROW * max(len(keys), count or 0)))
        if count is None:
            has_room = self._make_room(int(keys.min()), int(keys.max()), first, last, most, spare=True)
        else:  # powers of two, so that the bounds change seldom
            bound = max(_MIN_NUMBERS, 1 << (count - 1).bit_length())
            has_room = self._make_room(0, bound - 1, first, last, most, spare=False)
        if not has_room:
            return None
        self.panes = self._panes_including(first, last)
        at = keys - self._low
        at += (panes & (self._depth - 1)) * self._span
        return at

    def entries(self, panes: range) -> tuple[Keys, Times, Positions]:
        """Keys, panes and positions of the cells in use in `panes`, which must be the first panes."""
        counts = self.cells.column(self._counting)
        row_ids = np.concatenate([np.flatnonzero(counts[piece]) + piece.start for piece in self._cell_slices(panes)])
        places, keys = np.divmod(row_ids, self._span)
        return keys + self._low, ((places - panes.start) & (self._depth - 1)) + panes.start, row_ids

    def clear(self, panes: range) -> None:
        """Clears `panes`, which must be the first panes."""
        for piece in self._cell_slices(panes):
            self.cells.clear(piece)
        self.panes = range(panes.stop, self.panes.stop)

    def _panes_including(self, first: int, last: int) -> range:
        if not self.panes:
            return range(first, last + 1)
        return range(min(first, self.panes.start), max(last + 1, self.panes.stop))

    def _cell_slices(self, panes: range) -> list[slice]:
        """The cells of `panes`: a single slice, or two where the ring wraps around."""
        start, end = (panes.start & (self._depth - 1)) * self._span, self._depth * self._span
        stop = start + len(panes) * self._span
        return [slice(start, min(stop, end)), *([slice(0, stop - end)] if stop > end else [])]

    def _make_room(self, low: int, high: int, first: int, last: int, most: int, spare: bool) -> bool:
        depth = max(_MIN_PANES, 1 << (len(self._panes_including(first, last)) - 1).bit_length())
        if depth <= self._depth and self._low <= low and high < self._low + self._span:
            return True
        if self._span and (self.panes or depth * self._union_span(low, high) <= most):
            low, high = min(low, self._low), max(high, self._low + self._span - 1)
        span = high - low + 1
        if depth * span > most:
            return False
        pad = min(span // 8, (most // depth - span) // 2) if spare else 0  # at both ends, so that bounds change seldom
        self._resize(max(low - pad, _MIN_INT64), span + 2 * pad, depth)
        return True

    def _union_span(self, low: int, high: int) -> int:
        return max(high + 1, self._low + self._span) - min(low, self._low)

    def _resize(self, low: int, span: int, depth: int) -> None:
        """Changes the bounds. The new bounds include all panes and keys in use."""
        cells = AggregateCells(self._fields, depth * span)
        if self.panes:
            panes = np.arange(self.panes.start, self.panes.stop)[:, np.newaxis]
            before, after = (panes & (self._depth - 1)) * self._span, (panes & (depth - 1)) * span + self._low - low
            keys = np.arange(self._span)
            cells.copy_from((after + keys).ravel(), self.cells, (before + keys).ravel())
        self.cells, self._low, self._span, self._depth = cells, low, span, depth
