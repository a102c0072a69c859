"""Event-time tumbling windows per key. The input is pre-aggregated, with a single pane per window.

A window [s, e) is complete when the watermark has reached e - 1. A window fires once. Later rows are late: counted and
dropped. The table has a row per key and window start, so a window moves with its key group and leaves a tombstone when
it has fired.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from runtime.core.job.messages import MAX_WATERMARK
from runtime.operators.aggregates import Aggregate, AggregateSet
from runtime.operators.retraction import RetractableSet
from runtime.operators.windows.window import START_COLUMN, RowInput, WindowOperator, is_changelog
from runtime.ports import Collector, OperatorContext
from runtime.state.index.key_index import RowIds


class TumblingWindow(WindowOperator):
    """Aggregates per key and window.

    Args:
        keys: key columns.
        size_ms: length of a window; windows are aligned to the epoch.
        aggregates: aggregates by output column.
        rows: the input, if it is not pre-aggregated; see `WindowOperator`.
    """

    def __init__(
        self, keys: Sequence[str], size_ms: int, aggregates: Mapping[str, Aggregate], rows: RowInput | None = None
    ) -> None:
        in_state = RetractableSet(aggregates) if is_changelog(rows) else AggregateSet(aggregates)
        super().__init__(keys, size_ms, size_ms, aggregates, in_state, ("windows", START_COLUMN), rows)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._first_end = self._earliest_end()

    def on_rows(self, row_ids: RowIds, panes: pa.Array) -> None:
        self._first_end = min(self._first_end, pc.min(panes).as_py() + self._size_ms)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._watermark = max(self._watermark, watermark)
        if self._watermark < self._first_end - 1:
            return
        row_ids = self._table.row_ids()
        due = row_ids[self.pane_starts(row_ids) <= self._watermark + 1 - self._size_ms]
        some = due[self._aggregates.have_rows(self._table, due)]
        if len(some):
            keys = [self._table.key_column(key, some) for key in self._keys]
            self.emit_windows(keys, self.pane_starts(some), self._aggregates.results(self._table, some), out)
        self.delete(due)
        self._first_end = self._earliest_end()

    def _earliest_end(self) -> int:
        row_ids = self._table.row_ids()
        return int(self.pane_starts(row_ids).min()) + self._size_ms if len(row_ids) else MAX_WATERMARK
