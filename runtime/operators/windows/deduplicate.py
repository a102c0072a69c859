"""Removal of duplicates: the first row of a key in each part of event time is forwarded as it arrives, others dropped.

Event time is divided into parts of equal length, aligned to the epoch as windows are. The state has an entry per key
and part, which is freed when the watermark has passed the part (Spark: `dropDuplicates` on a key and a window; Flink
SQL: deduplication within a window). Rows of a passed part are late: it is unknown whether they are duplicates.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.core.job.messages import MAX_WATERMARK
from runtime.operators.event_time import Times, pane_numbers
from runtime.operators.late_rows import LateColumns
from runtime.operators.output_tag import OutputTag
from runtime.operators.windows.fired_watermarks import FiredWatermarks
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import OPEN_TYPE, namespace_field

DUPLICATES_COUNTER: Final = "duplicate_records"
_PART, _SEEN = "part_start", "seen"


class Deduplicate(Operator):
    """Forwards the first row of each key and part.

    Args:
        keys: key columns.
        within_ms: length of a part.
        time: column of event times.
        late_to: side output for late rows; None: they are counted and dropped.
    """

    def __init__(self, keys: Sequence[str], within_ms: int, time: str, late_to: OutputTag | None = None) -> None:
        self._keys, self.within_ms, self.time, self._late_to = tuple(keys), within_ms, time, late_to
        self._late_columns = LateColumns(late_to)

    def open(self, context: OperatorContext) -> None:
        self._context = context
        keys = [*(pa.field(key, OPEN_TYPE) for key in self._keys), namespace_field(_PART, pa.int64())]
        field = pa.field(_SEEN, pa.bool_(), nullable=False)
        self._table: KeyedTable = context.state.keyed_table("seen", pa.schema(keys), pa.schema([field]))
        self._fired = FiredWatermarks(context, self._keys, self.within_ms, self.within_ms)
        self._watermark = self._fired.min_watermark
        self._first_end = self._earliest_end()

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        if not batch.num_rows:
            return
        self._late_columns.check(batch.schema)
        starts = self._part_starts(batch)
        has_output = self._late_to is not None
        rows, late = self._fired.split_late(batch, starts, self._watermark, has_output=has_output)
        if late is not None and self._late_to is not None:
            out.emit_to(self._late_to.name, late)
        if not rows.num_rows:
            return
        if late is not None:
            starts = self._part_starts(rows)
        columns = [*(rows.column(key) for key in self._keys), pa.array(starts)]
        self._table.bind_types([column.type for column in columns], [pa.bool_()])
        row_ids = self._table.upsert(columns)
        marks = self._table.column(_SEEN)
        unseen = np.flatnonzero(~marks[row_ids].astype(bool))
        new_rows = unseen[self._table.first_rows(row_ids[unseen])] if len(unseen) else unseen
        marks[row_ids[new_rows]] = True
        self._table.touch(row_ids[new_rows])
        self._first_end = min(self._first_end, int(starts.min()) + self.within_ms)
        self._context.count(DUPLICATES_COUNTER, rows.num_rows - len(new_rows))
        if len(new_rows):
            out.emit(rows if len(new_rows) == rows.num_rows else rows.take(pa.array(new_rows)))

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._watermark = max(self._watermark, watermark)
        if self._watermark < self._first_end - 1:
            return
        row_ids = self._table.row_ids()
        ends = self._table.key_codes(_PART)[row_ids] + self.within_ms
        self._table.delete(row_ids[ends - 1 <= self._watermark])
        self._first_end = self._earliest_end()

    def snapshot(self, checkpoint: int) -> None:
        self._fired.store(self._watermark)

    def _part_starts(self, rows: pa.RecordBatch) -> Times:
        numbers = pane_numbers(rows, self.time, self.within_ms)
        return np.broadcast_to(np.asarray(numbers, np.int64) * self.within_ms, rows.num_rows)

    def _earliest_end(self) -> int:
        row_ids = self._table.row_ids()
        return int(self._table.key_codes(_PART)[row_ids].min()) + self.within_ms if len(row_ids) else MAX_WATERMARK
