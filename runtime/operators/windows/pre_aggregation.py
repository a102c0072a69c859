"""Pre-aggregation in front of windows: rows are aggregated per key and pane before the shuffle.

Flink calls this local-global aggregation. A pane is a slice of event time that no window boundary cuts (panes: Li et
al. 2005; Flink SQL: slices).

- Rows of a pane are forwarded before the watermark that closes the pane, and before any other control message: barrier,
  end of data, idleness, termination marker. So the buffer is empty when state is captured, and buffering never changes
  which rows are late.
- Where pre-aggregation does not shrink the data, rows are forwarded unaggregated, in the same columns. By position:
  the keys, the start of the pane (ms), the state columns of the aggregates, the number of input rows. Key columns keep
  their names; the other columns get names that no key has.
- A sum beyond 64 bits is refused by the window, because it may belong to late rows; such rows are forwarded
  unaggregated too. The pre-aggregation refuses a single value that the sum cannot hold (unsigned, from 2^63 on), late
  or not.
- Dictionary-encoded keys are numbered once per dictionary value. Aggregates get plain texts.
- Integer keys that lie close together index arrays (`DensePanes`); all other keys are numbered (`NumberedPanes`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from runtime.core.job.messages import MIN_WATERMARK
from runtime.errors import DataRejected, JobRejected
from runtime.operators.aggregates import Aggregate, AggregateSet, Count, StateColumns, column_type
from runtime.operators.column_names import free_name
from runtime.operators.event_time import Times, pane_numbers
from runtime.operators.windows.cells import AggregateCells
from runtime.operators.windows.dense import DensePanes, Keys
from runtime.operators.windows.numbered_panes import NumberedPanes
from runtime.state.encoded_texts import declared_schema, decode
from runtime.state.index.key_codec import check_key_type, plain_type, to_plain
from runtime.state.index.key_index import RowIds

_PANE_COLUMN: Final = ":pane"
_ROW_COUNT_COLUMN: Final = ":count"
_MAX_BATCH_ROWS: Final = 65_536
_MIN_REDUCTION_RATIO: Final = 1.5  #: minimum rows per forwarded entry
_MIN_SAMPLE_ENTRIES: Final = 1 << 14  #: forwarded entries after which the reduction ratio is evaluated


class PreAggregator(Protocol):
    """Pre-aggregation on an output edge of a subtask. Returned batches must be sent at once, before anything else."""

    def add(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]: ...
    def advance(self, watermark: int) -> list[pa.RecordBatch]:
        """Removes and returns the entries that must be sent before `watermark`."""

    def flush(self) -> list[pa.RecordBatch]:
        """Removes and returns all buffered entries."""


def with_row_count(aggregates: Mapping[str, Aggregate]) -> AggregateSet:
    """The aggregates, plus a hidden last count of all rows if none of them counts all rows."""
    counted = any(type(aggregate) is Count for aggregate in aggregates.values())
    return AggregateSet(aggregates if counted else {**aggregates, free_name("", aggregates): Count()})


def input_row_count(parts: pa.RecordBatch) -> int:
    """The number of input rows from which `parts` were aggregated."""
    return int(pc.sum(parts.column(-1)).as_py())


def state_columns(parts: pa.RecordBatch, keys: int, state: pa.Schema) -> pa.RecordBatch:
    """The state columns of `parts` behind `keys` key columns, named as in the state. The last may be the row count."""
    first = keys + 1
    return pa.RecordBatch.from_arrays(parts.columns[first : first + len(state)], names=state.names)


class WindowPreAggregator:
    """Implements `PreAggregator` for windows.

    Args:
        keys: key columns.
        time: column of event times.
        pane_ms: length of a pane; panes are aligned to the epoch.
        aggregates: aggregates by output column.
        max_keys: number of numbered keys above which all buffered entries are forwarded.
        bypass_rows: number of rows that bypass pre-aggregation before it is attempted again.
    """

    def __init__(
        self,
        keys: Sequence[str],
        time: str,
        pane_ms: int,
        aggregates: Mapping[str, Aggregate],
        max_keys: int = 1 << 20,
        bypass_rows: int = 1 << 22,
    ) -> None:
        self._keys = tuple(keys)
        self._time = time
        self._pane_ms = pane_ms
        self._max_keys, self._bypass_rows = max_keys, bypass_rows
        self._fields = AggregateSet(aggregates).fields()
        self._aggregates = with_row_count(aggregates)
        self._aggregated = _columns_of(aggregates)
        self._is_bound = False
        self._watermark = MIN_WATERMARK
        self._first_end: int | None = None  #: earliest end of a buffered pane, ms
        self._rows, self._entries = 0, 0  #: input rows and entries forwarded since the last evaluation
        self._bypass_rows_left = 0  #: rows that still bypass pre-aggregation

    def add(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        if not batch.num_rows:
            return []
        self._bind_types(declared_schema(batch.schema))
        numbers = pane_numbers(batch, self._time, self._pane_ms)
        if self._bypass_rows_left > 0:
            self._bypass_rows_left -= batch.num_rows
            return self._unaggregated_parts(batch, numbers)
        try:
            is_buffered = self._add_by_value(batch, numbers) or self._add_by_number(batch, numbers)
        except DataRejected:
            return [*self._take_entries(None), *self._unaggregated_parts(batch, numbers)]
        if is_buffered:
            lowest = numbers if isinstance(numbers, int) else int(numbers.min())
            end = (lowest + 1) * self._pane_ms
            self._first_end = end if self._first_end is None else min(self._first_end, end)
            if len(self._numbered) <= self._max_keys:
                return self.advance(self._watermark)
        entries = self._take_entries(None)
        if len(self._numbered) > self._max_keys:  # otherwise there are too many panes, which may be few at other times
            self._evaluate_reduction()
        self._numbered.reset()
        return entries if is_buffered else [*entries, *self._unaggregated_parts(batch, numbers)]

    def advance(self, watermark: int) -> list[pa.RecordBatch]:
        self._watermark = max(self._watermark, watermark)
        if self._first_end is None or self._watermark < self._first_end - 1:
            return []
        entries = self._take_entries((self._watermark + 1) // self._pane_ms)
        self._evaluate_reduction()
        return entries

    def flush(self) -> list[pa.RecordBatch]:
        """Flushes at barriers do not count towards the reduction ratio: early in a pane most entries hold one row."""
        judged = self._rows, self._entries
        entries = [] if self._first_end is None else self._take_entries(None)
        self._rows, self._entries = judged
        return entries

    # ------------------------------------------------------------ input

    def _bind_types(self, schema: pa.Schema) -> None:
        """Binds the types of the state to the data. All batches of a stream have the same types."""
        if self._is_bound:
            return
        kinds = self._aggregates.state_types(schema)
        self._state = [field.with_type(kind) for field, kind in zip(self._aggregates.fields(), kinds, strict=True)]
        keys = [pa.field(key, _key_type(schema, key)) for key in self._keys]
        pane, rows = (
            pa.field(_PANE_COLUMN, pa.int64(), nullable=False),
            pa.field(_ROW_COUNT_COLUMN, pa.int64(), nullable=False),
        )
        self._schema = _with_distinct_names([*keys, pane, *self._state[: len(self._fields)], rows])
        counting = self._aggregates.row_count_column()
        self._dense = DensePanes(self._state, counting)
        self._numbered = NumberedPanes(pa.schema(keys), self._state, counting)
        self._is_bound = True

    def _add_by_value(self, batch: pa.RecordBatch, numbers: Times | int) -> bool:
        keys = self._integer_keys(batch)
        at = None if keys is None else self._dense.positions(keys, numbers)
        if at is None:
            return False
        self._aggregates.accumulate(self._dense.cells, decode(batch, self._aggregated), at)
        return True

    def _integer_keys(self, batch: pa.RecordBatch) -> Keys | None:
        """The keys as integers; None if they are not a single non-null integer column."""
        column = batch.column(self._keys[0])
        kind = column.type
        if len(self._keys) > 1 or not types.is_integer(kind) or types.is_uint64(kind) or column.null_count:
            return None
        return np.asarray(column.to_numpy(), dtype=np.int64)

    def _add_by_number(self, batch: pa.RecordBatch, numbers: Times | int) -> bool:
        at = self._numbered.positions([batch.column(key) for key in self._keys], numbers)
        if at is None:
            return False
        self._aggregates.accumulate(self._numbered.cells, decode(batch, self._aggregated), at)
        return True

    # ------------------------------------------------------------ output

    def _unaggregated_parts(self, batch: pa.RecordBatch, numbers: Times | int) -> list[pa.RecordBatch]:
        cells, at = AggregateCells(self._state, batch.num_rows), np.arange(batch.num_rows)
        self._aggregates.accumulate(cells, decode(batch, self._aggregated), at)
        keys = [to_plain(batch.column(key)) for key in self._keys]
        return [self._parts(keys, self._starts(numbers, batch.num_rows), cells, at)]

    def _starts(self, numbers: Times | int, rows: int) -> pa.Array:
        starts = np.full(rows, numbers) if isinstance(numbers, int) else numbers
        return pa.array(starts * self._pane_ms)

    def _take_entries(self, before: int | None) -> list[pa.RecordBatch]:
        """Removes and returns the buffered entries of panes before number `before`; None: of all panes."""
        entries = [*self._take_by_value(before), *self._take_by_number(before)]
        self._first_end = self._earliest_end()
        for parts in entries:
            self._rows += input_row_count(parts)
            self._entries += parts.num_rows
        return [
            parts.slice(at, _MAX_BATCH_ROWS) for parts in entries for at in range(0, parts.num_rows, _MAX_BATCH_ROWS)
        ]

    def _take_by_value(self, before: int | None) -> Iterator[pa.RecordBatch]:
        if not (due := _due_panes(self._dense.panes, before)):
            return
        keys, numbers, row_ids = self._dense.entries(due)
        if len(row_ids):
            key = pa.array(keys).cast(self._schema.field(0).type)
            yield self._parts([key], pa.array(numbers * self._pane_ms), self._dense.cells, row_ids)
        self._dense.clear(due)

    def _take_by_number(self, before: int | None) -> Iterator[pa.RecordBatch]:
        if not (due := _due_panes(self._numbered.panes, before)):
            return
        keys, numbers, row_ids = self._numbered.entries(due)
        if len(row_ids):
            yield self._parts(keys, pa.array(numbers * self._pane_ms), self._numbered.cells, row_ids)
        self._numbered.clear(due, len(row_ids))
        if self._numbered.is_outdated:
            yield from self._take_by_number(None)
            self._numbered.reset()

    def _parts(
        self, keys: Sequence[pa.Array], starts: pa.Array, state: StateColumns, row_ids: RowIds
    ) -> pa.RecordBatch:
        names = [*self._fields.names, self._aggregates.row_count_column()]
        columns = [state.value_column(name, row_ids) for name in names]
        return pa.RecordBatch.from_arrays([*keys, starts, *columns], schema=self._schema)

    def _earliest_end(self) -> int | None:
        first = [*self._dense.panes[:1], *self._numbered.panes[:1]]
        return (min(first) + 1) * self._pane_ms if first else None

    def _evaluate_reduction(self) -> None:
        """Bypasses pre-aggregation for a while if it does not shrink the data."""
        if self._entries < _MIN_SAMPLE_ENTRIES:
            return
        if self._rows < _MIN_REDUCTION_RATIO * self._entries:
            self._bypass_rows_left = self._bypass_rows
        self._rows, self._entries = 0, 0


def _columns_of(aggregates: Mapping[str, Aggregate]) -> frozenset[str] | None:
    """The columns that the aggregates read; None: an aggregate does not declare its columns."""
    sets = [aggregate.columns() for aggregate in aggregates.values()]
    return None if None in sets else frozenset().union(*(columns for columns in sets if columns is not None))


def _key_type(schema: pa.Schema, key: str) -> Any:
    """The type in which a key column is sent. Raises JobRejected if its values cannot be compared, stored or sorted."""
    kind = plain_type(column_type(schema, key))
    check_key_type(key, kind)
    if types.is_null(kind):
        raise JobRejected("bad-key-type", key, "a column of nulls alone cannot be the key of a window")
    return kind


def _due_panes(panes: range, before: int | None) -> range:
    """The first of `panes`, up to number `before`; None: all."""
    return panes if before is None else range(panes.start, min(panes.stop, before))


def _with_distinct_names(fields: Sequence[pa.Field]) -> pa.Schema:
    """Fields with distinct names; the first field with a name keeps it."""
    names: list[str] = []
    for field in fields:
        names.append(free_name(field.name, names))
    return pa.schema([field.with_name(name) for field, name in zip(fields, names, strict=True)])
