"""Event-time windows that overlap: windows of the same size, a new window every `slide`.

The state is a row per key and pane (Li et al. 2005; Flink SQL: slice). A pane is as long as the greatest common divisor
of size and slide. So no window cuts a pane, and a row is stored once, however many windows contain it. A pane is
deleted when its last window has fired. A row whose last window has fired is late; a row with some windows still open
counts for the open windows.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from math import gcd

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runtime.operators.aggregates import Aggregate
from runtime.operators.column_names import free_name
from runtime.operators.retraction import RetractableSet
from runtime.operators.windows.pane_totals import PaneTotals
from runtime.operators.windows.pre_aggregation import with_row_count
from runtime.operators.windows.window import RowInput, WindowOperator, is_changelog
from runtime.ports import Collector, OperatorContext
from runtime.state.index.growing import GrowingArray
from runtime.state.index.key_index import RowIds
from runtime.state.schema import TableSchema


class SlidingWindow(WindowOperator):
    """Aggregates per key and window.

    Args:
        keys: key columns.
        size_ms: length of a window.
        slide_ms: distance between the starts of two consecutive windows, which are aligned to the epoch.
        aggregates: aggregates by output column.
        rows: the input, if it is not pre-aggregated; see `WindowOperator`.
    """

    def __init__(
        self,
        keys: Sequence[str],
        size_ms: int,
        slide_ms: int,
        aggregates: Mapping[str, Aggregate],
        rows: RowInput | None = None,
    ) -> None:
        pane_ms = gcd(size_ms, slide_ms)
        pane_column = free_name(f"pane_{pane_ms}_ms", keys)  # the name refuses state with other panes
        in_state = RetractableSet(aggregates) if is_changelog(rows) else with_row_count(aggregates)
        super().__init__(keys, size_ms, slide_ms, aggregates, in_state, ("panes", pane_column), rows)
        self._pane_ms = pane_ms
        self._output_count = len(aggregates)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._panes: list[int] = []  #: starts of the panes with rows, ascending
        self._row_ids: dict[int, list[RowIds]] = {}
        row_ids = self._table.row_ids()
        self._is_listed = GrowingArray(bool, 1 + int(row_ids.max(initial=0)))  #: by row id, whether `_row_ids` has it
        self._typed_totals: tuple[TableSchema, PaneTotals] | None = None
        self._add_by_pane(row_ids)

    def on_rows(self, row_ids: RowIds, panes: pa.Array) -> None:
        last = int(row_ids.max())
        if last >= len(self._is_listed):
            self._is_listed.grow(2 * (last + 1))
        self._add_by_pane(np.unique(row_ids[~self._is_listed.data[row_ids]]))
        for pane in pc.unique(panes).to_pylist():
            self._totals.invalidate(pane)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        while self._panes:
            start = self._next_start()
            if start + self._size_ms - 1 > watermark:
                break
            self._fire(start, out)
            self._watermark = start + self._size_ms - 1
            self._drop_before(start + self._slide_ms)
        self._watermark = max(self._watermark, watermark)

    def open_results(self) -> Mapping[str, int]:
        return {"panes": len(self._table)}

    # ------------------------------------------------------------ panes

    @property
    def _totals(self) -> PaneTotals:
        """Totals have the types of the table, which the first rows bind and later rows may widen."""
        if self._typed_totals is None or self._typed_totals[0] is not self._table.schema:
            totals = PaneTotals(self._table, self._keys, self._aggregates, self._row_ids_of)
            self._typed_totals = self._table.schema, totals
        return self._typed_totals[1]

    def _add_by_pane(self, row_ids: RowIds) -> None:
        self._is_listed.data[row_ids] = True
        starts = self.pane_starts(row_ids)
        if len(starts) and (starts != starts[0]).any():
            order = np.argsort(starts, kind="stable")
            row_ids, starts = row_ids[order], starts[order]
        borders = np.flatnonzero(np.diff(starts)) + 1
        for begin, end in zip([0, *borders], [*borders, len(starts)], strict=True):
            if begin < end:
                self._add_to_pane(int(starts[begin]), row_ids[begin:end])

    def _add_to_pane(self, pane: int, row_ids: RowIds) -> None:
        if pane not in self._row_ids:
            insort(self._panes, pane)
            self._row_ids[pane] = []
        self._row_ids[pane].append(row_ids)

    def _row_ids_of(self, pane: int) -> RowIds:
        return np.concatenate(self._row_ids[pane])

    # ------------------------------------------------------------ windows

    def _next_start(self) -> int:
        """Start of the first window that has not fired and has a pane."""
        after_fired = (self._watermark + 1 - self._size_ms) // self._slide_ms + 1
        holding = -((self._size_ms - self._pane_ms - self._panes[0]) // self._slide_ms)
        return max(after_fired, holding) * self._slide_ms

    def _fire(self, start: int, out: Collector) -> None:
        end = start + self._size_ms
        inside = self._panes[bisect_left(self._panes, start) : bisect_left(self._panes, end)]
        keys, results = self._totals.window_totals(inside, start, end)
        if self._fired.max_watermark >= end - 1:
            keys, results = self._filter_open(keys, results, end - 1)
        if len(keys[0]):
            self.emit_windows(keys, np.full(len(keys[0]), start), results[: self._output_count], out)

    def _filter_open(
        self, keys: Sequence[pa.Array], results: Sequence[pa.Array], at: int
    ) -> tuple[list[pa.Array], list[pa.Array]]:
        """The keys and results of key groups whose restored watermark was below `at`."""
        batch = pa.RecordBatch.from_arrays(list(keys), names=list(self._keys))
        mask = pa.array(self._fired.restored_watermarks(batch) < at)
        return [key.filter(mask) for key in keys], [result.filter(mask) for result in results]

    def _drop_before(self, start: int) -> None:
        panes = self._panes[: bisect_left(self._panes, start)]
        if not panes:
            return
        due = np.concatenate([row_ids for pane in panes for row_ids in self._row_ids.pop(pane)])
        self._is_listed.data[due] = False
        self.delete(due)
        for pane in panes:
            self._totals.drop(pane)
        self._panes = self._panes[len(panes) :]
