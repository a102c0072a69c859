"""Event-time tumbling windows per key. The input is pre-aggregated, with a single pane per window.

A window [s, e) is complete when the watermark has reached e - 1. It fires once. Later rows are late: counted and
dropped. The table has a row per key and window start, so a window moves with its key group and leaves a tombstone when
it has fired. The watermark up to which windows have fired is state too (`FiredWatermarks`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.errors import JobRejected
from runtime.operators.aggregates import Aggregate, AggregateSet
from runtime.operators.event_time import Times
from runtime.operators.windows.fired import FiredWatermarks
from runtime.operators.windows.pre_aggregation import state_columns
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.index.factorise import factorise
from runtime.state.index.key_index import RowIds
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import OPEN_TYPE, namespace_field

START_COLUMN, _END_COLUMN = "window_start", "window_end"
_TIME_TYPE: Final = pa.timestamp("ms")
_MAX_ROWS_PER_BATCH: Final = 65_536


class WindowOutput:
    """Windows as rows: the keys, start and end of the window, and the aggregates.

    Raises:
        JobRejected: two of these columns have the same name.
    """

    def __init__(self, keys: Sequence[str], size_ms: int, aggregates: Iterable[str]) -> None:
        self._names = [*keys, START_COLUMN, _END_COLUMN, *aggregates]
        self._order = [(name, "ascending") for name in (START_COLUMN, *keys)]
        self._size_ms = size_ms
        if len(set(self._names)) != len(self._names):
            detail = f"output columns must differ: {', '.join(self._names)}"
            raise JobRejected("duplicate-column", ", ".join(keys), detail)

    def emit(self, keys: Sequence[pa.Array], starts: Times, results: Sequence[pa.Array], out: Collector) -> None:
        """Emit rows in the order of windows, then keys."""
        times = [pa.array(starts).view(_TIME_TYPE), pa.array(starts + self._size_ms).view(_TIME_TYPE)]
        fired = pa.RecordBatch.from_arrays([*keys, *times, *results], names=self._names)
        fired = fired.take(pc.sort_indices(fired, sort_keys=self._order))
        for start in range(0, fired.num_rows, _MAX_ROWS_PER_BATCH):
            out.emit(fired.slice(start, _MAX_ROWS_PER_BATCH))


class TumblingWindow(Operator):
    """Aggregates per key and window.

    Args:
        keys: key columns.
        size_ms: length of a window; windows are aligned to the epoch.
        aggregates: by output column.
    """

    def __init__(self, keys: Sequence[str], size_ms: int, aggregates: Mapping[str, Aggregate]) -> None:
        self._keys = tuple(keys)
        self._size_ms = size_ms
        self._aggregates = AggregateSet(aggregates)
        self._fields = self._aggregates.fields()
        self._output = WindowOutput(self._keys, size_ms, aggregates)
        self._watermark = MIN_WATERMARK
        self._bound_schema: pa.Schema | None = None

    def open(self, context: OperatorContext) -> None:
        keys = [*(pa.field(key, OPEN_TYPE) for key in self._keys), namespace_field(START_COLUMN, pa.int64())]
        self._table: KeyedTable = context.state.keyed_table("windows", pa.schema(keys), self._fields)
        self._fired = FiredWatermarks(context, self._keys, self._size_ms, self._size_ms, self._size_ms)
        self._first_end = self._earliest_end()

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._bind_types(batch.schema)
        parts = self._fired.drop_late(batch, self._watermark)
        if not parts.num_rows:
            return
        columns = parts.columns[: len(self._keys) + 1]
        distinct = factorise(columns)
        row_ids = self._table.upsert(distinct.take_keys(columns))
        self._aggregates.merge(
            self._table, state_columns(parts, len(self._keys), self._fields), row_ids[distinct.key_numbers]
        )
        self._table.touch(row_ids)
        self._first_end = min(self._first_end, pc.min(columns[-1]).as_py() + self._size_ms)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._watermark = max(self._watermark, watermark)
        if self._watermark < self._first_end - 1:
            return
        row_ids = self._table.row_ids()
        due = row_ids[self._table.key_codes(START_COLUMN)[row_ids] <= self._watermark + 1 - self._size_ms]
        self._fire(due, out)
        self._table.delete(due)
        self._first_end = self._earliest_end()

    def snapshot(self, checkpoint: int) -> None:
        self._fired.store(self._watermark)

    def _bind_types(self, schema: pa.Schema) -> None:
        if self._bound_schema is schema or schema.equals(self._bound_schema or pa.schema([])):
            return
        kinds, keys = [field.type for field in schema], len(self._keys) + 1
        self._table.bind_types(kinds[:keys], kinds[keys : keys + len(self._fields)])
        self._bound_schema = schema

    def _earliest_end(self) -> int:
        row_ids = self._table.row_ids()
        if not len(row_ids):
            return MAX_WATERMARK
        return int(self._table.key_codes(START_COLUMN)[row_ids].min()) + self._size_ms

    def _fire(self, row_ids: RowIds, out: Collector) -> None:
        if not len(row_ids):
            return
        starts = self._table.key_codes(START_COLUMN)[row_ids]
        keys = [self._table.key_column(key, row_ids) for key in self._keys]
        self._output.emit(keys, starts, self._aggregates.results(self._table, row_ids), out)
