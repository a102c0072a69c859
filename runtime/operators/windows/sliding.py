"""Event-time windows that overlap: windows of the same size, a new window every `slide`.

The state is a row per key and pane (Li et al. 2005; Flink SQL: slice). A pane is as long as the greatest common divisor
of size and slide. So no window cuts a pane, and a row is stored once, however many windows contain it. A pane is
deleted when its last window has fired. A row whose last window has fired is late; a row with some windows still open
counts for these.

Panes do not show which windows have fired, so the fired watermark is state too (`FiredWatermarks`).
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import gcd
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runtime.errors import JobRejected
from runtime.operators.aggregates import Aggregate, AggregateSet
from runtime.operators.column_names import free_name
from runtime.operators.windows.fired import FiredWatermarks
from runtime.operators.windows.pane_totals import PaneTotals
from runtime.operators.windows.pre_aggregation import state_columns, with_row_count
from runtime.operators.windows.tumbling import WindowOutput
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.index.factorise import factorise
from runtime.state.index.key_index import RowIds
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import OPEN_TYPE, namespace_field

_MAX_PANES: Final = 10_000  #: per window: with more, the slide is most likely a mistake
_MILLISECOND: Final = timedelta(milliseconds=1)
MAX_WINDOW_LENGTH: Final = timedelta(days=36_525)  #: 100 years; from 292 years on its nanoseconds exceed 64 bits


def window_ms(uid: str, size: timedelta, slide: timedelta | None) -> tuple[int, int]:
    """Size and slide in milliseconds; without a slide the windows are tumbling.

    Raises:
        JobRejected: no such windows are possible.
    """
    size_ms = _milliseconds(uid, "size", size)
    slide_ms = size_ms if slide is None else _milliseconds(uid, "slide", slide)
    if slide_ms > size_ms:
        detail = f"the slide of {slide_ms} ms is longer than the window of {size_ms} ms: rows in between would be lost"
        raise JobRejected("bad-window", uid, detail)
    panes = size_ms // gcd(size_ms, slide_ms)
    if panes > _MAX_PANES:
        detail = f"a slide of {slide_ms} ms cuts a window of {size_ms} ms into {panes} panes, more than {_MAX_PANES}"
        raise JobRejected("bad-window", uid, detail)
    return size_ms, slide_ms


def _milliseconds(uid: str, argument: str, length: object) -> int:
    if not isinstance(length, timedelta):
        raise JobRejected("bad-window", uid, f"{argument} must be a timedelta, not {type(length).__name__}")
    if length % _MILLISECOND:
        raise JobRejected("bad-window", uid, f"{argument} must be a whole number of milliseconds, not {length}")
    if length < _MILLISECOND:
        raise JobRejected("bad-window", uid, f"{argument} must be at least 1 ms, not {length}")
    if length > MAX_WINDOW_LENGTH:
        raise JobRejected("bad-window", uid, f"{argument} must be at most {MAX_WINDOW_LENGTH.days} days, not {length}")
    return length // _MILLISECOND


class SlidingWindow(Operator):
    """Aggregates per key and window.

    Args:
        keys: key columns.
        size_ms: length of a window.
        slide_ms: distance between the starts of two consecutive windows, which are aligned to the epoch.
        aggregates: by output column.
    """

    def __init__(self, keys: Sequence[str], size_ms: int, slide_ms: int, aggregates: Mapping[str, Aggregate]) -> None:
        self._keys = tuple(keys)
        self._size_ms, self._slide_ms, self._pane_ms = size_ms, slide_ms, gcd(size_ms, slide_ms)
        self._results = AggregateSet(aggregates)
        self._aggregates = with_row_count(aggregates)
        self._fields = self._aggregates.fields()
        self._output = WindowOutput(self._keys, size_ms, aggregates)
        #: the name refuses state with other panes
        self._pane_column = free_name(f"pane_{self._pane_ms}_ms", self._keys)
        self._bound_schema: pa.Schema | None = None

    def open(self, context: OperatorContext) -> None:
        keys = [*(pa.field(key, OPEN_TYPE) for key in self._keys), namespace_field(self._pane_column, pa.int64())]
        self._table: KeyedTable = context.state.keyed_table("panes", pa.schema(keys), self._fields)
        self._fired = FiredWatermarks(context, self._keys, self._size_ms, self._slide_ms, only_size_ms=None)
        self._totals = PaneTotals(self._table, self._keys, self._aggregates, self._row_ids_of)
        self._restore()

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._bind_types(batch.schema)
        parts = self._fired.drop_late(batch, self._time)
        if not parts.num_rows:
            return
        columns = parts.columns[: len(self._keys) + 1]
        distinct = factorise(columns)
        row_ids = self._table.upsert(distinct.take_keys(columns))
        fresh = row_ids[self._table.column(self._aggregates.row_count_column())[row_ids] == 0]
        self._aggregates.merge(
            self._table, state_columns(parts, len(self._keys), self._fields), row_ids[distinct.key_numbers]
        )
        self._table.touch(row_ids)
        self._add_rows(fresh, columns[-1])

    def on_watermark(self, watermark: int, out: Collector) -> None:
        while self._panes:
            start = self._next_start()
            if start + self._size_ms - 1 > watermark:
                break
            self._fire(start, out)
            self._time = start + self._size_ms - 1
            self._drop_before(start + self._slide_ms)
        self._time = max(self._time, watermark)

    def snapshot(self, checkpoint: int) -> None:
        self._fired.store(self._time)

    # ------------------------------------------------------------ panes

    def _restore(self) -> None:
        self._time = self._fired.min_watermark
        self._panes: list[int] = []  #: starts of the panes with rows, ascending
        self._row_ids: dict[int, list[RowIds]] = {}
        self._add_by_pane(self._table.row_ids())

    def _bind_types(self, schema: pa.Schema) -> None:
        if self._bound_schema is schema or schema.equals(self._bound_schema or pa.schema([])):
            return
        kinds, keys = [field.type for field in schema], len(self._keys) + 1
        before = self._table.schema
        self._table.bind_types(kinds[:keys], kinds[keys : keys + len(self._fields)])
        if self._table.schema is not before:  # totals have the types of the table
            self._totals = PaneTotals(self._table, self._keys, self._aggregates, self._row_ids_of)
        self._bound_schema = schema

    def _add_rows(self, fresh: RowIds, panes: pa.Array) -> None:
        """Record new rows by pane, and invalidate the totals of the changed panes."""
        self._add_by_pane(fresh)
        for pane in pc.unique(panes).to_pylist():
            self._totals.invalidate(pane)

    def _add_by_pane(self, row_ids: RowIds) -> None:
        starts = self._table.key_codes(self._pane_column)[row_ids]
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
        after_fired = (self._time + 1 - self._size_ms) // self._slide_ms + 1
        holding = -((self._size_ms - self._pane_ms - self._panes[0]) // self._slide_ms)
        return max(after_fired, holding) * self._slide_ms

    def _fire(self, start: int, out: Collector) -> None:
        end = start + self._size_ms
        inside = self._panes[bisect_left(self._panes, start) : bisect_left(self._panes, end)]
        keys, results = self._totals.window_totals(inside, start, end)
        if self._fired.max_watermark >= end - 1:
            keys, results = self._filter_open(keys, results, end - 1)
        if len(keys[0]):
            self._output.emit(keys, np.full(len(keys[0]), start), results[: len(self._results.names)], out)

    def _filter_open(
        self, keys: Sequence[pa.Array], results: Sequence[pa.Array], at: int
    ) -> tuple[list[pa.Array], list[pa.Array]]:
        """Only keys of key groups whose restored watermark was below `at`."""
        batch = pa.RecordBatch.from_arrays(list(keys), names=list(self._keys))
        wanted = pa.array(self._fired.restored_watermarks(batch) < at)
        return [key.filter(wanted) for key in keys], [result.filter(wanted) for result in results]

    def _drop_before(self, start: int) -> None:
        gone = self._panes[: bisect_left(self._panes, start)]
        if not gone:
            return
        self._table.delete(np.concatenate([row_ids for pane in gone for row_ids in self._row_ids.pop(pane)]))
        for pane in gone:
            self._totals.drop(pane)
        self._panes = self._panes[len(gone) :]
