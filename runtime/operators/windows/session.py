"""Event-time session windows per key: rows whose pauses are at most the gap belong to one session.

A session is the window [first row, last row + gap) (Flink: `EventTimeSessionWindows`, whose windows merge while they
intersect or touch). It is emitted once, when the watermark has reached its end: 1 ms later than in Flink. So a row
exactly a gap later, which is not late, always finds its session. A row is late if its session has ended by then. Rows
of a batch arrive at once: a later row of the batch may hold the session of an earlier row open.

The table has a row per key and session, named by the first row that opened the session: later rows may extend it in
both directions, and may join two sessions.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.job.messages import MAX_WATERMARK
from runtime.errors import JobRejected
from runtime.operators.aggregates import Aggregate, AggregateSet
from runtime.operators.column_names import free_name
from runtime.operators.event_time import Times, event_times_ms
from runtime.operators.group_watermarks import GroupWatermarks
from runtime.operators.late_rows import LateColumns, count_late_rows
from runtime.operators.output_tag import OutputTag
from runtime.operators.windows.merging import Intervals, Merged, merge_sessions, sessions_of_rows
from runtime.operators.windows.open_sessions import OpenSessions
from runtime.operators.windows.window import END_COLUMN, START_COLUMN, emit_windows
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.index.factorise import factorise
from runtime.state.index.key_index import NOT_FOUND, RowIds
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import OPEN_TYPE, namespace_field

FIRST: Final = ":first"  #: time of the first row
LAST: Final = ":last"  #: time of the last row


class SessionWindow(Operator):
    """Aggregates per key and session.

    Args:
        keys: key columns.
        gap_ms: the longest pause within a session.
        time: column of event times.
        aggregates: aggregates by output column.
        late: the side output for late rows; None: they are counted and dropped.

    Raises:
        JobRejected: two output columns have the same name.
    """

    aggregate_set: ClassVar[type[AggregateSet]] = AggregateSet

    def __init__(
        self,
        keys: Sequence[str],
        gap_ms: int,
        time: str,
        aggregates: Mapping[str, Aggregate],
        late: OutputTag | None = None,
    ) -> None:
        self._keys, self.gap_ms, self.time = tuple(keys), gap_ms, time
        self._session = free_name(":session", keys)  #: state column: time of the row that opened the session
        self._aggregates = self.aggregate_set(aggregates)
        self._late = late
        self._late_columns = LateColumns(late)
        self._names = [*keys, START_COLUMN, END_COLUMN, *aggregates]
        if len(set(self._names)) != len(self._names):
            detail = f"output columns must differ: {', '.join(self._names)}"
            raise JobRejected("duplicate-column", ", ".join(keys), detail)

    def open(self, context: OperatorContext) -> None:
        keys = [*(pa.field(key, OPEN_TYPE) for key in self._keys), namespace_field(self._session, pa.int64())]
        times = [pa.field(name, pa.int64(), nullable=False) for name in (FIRST, LAST)]
        self._fields = self._aggregates.fields()
        values = pa.schema([*times, *self._fields])
        self._table: KeyedTable = context.state.keyed_table("sessions", pa.schema(keys), values)
        self._context = context
        self._groups = GroupWatermarks(
            context, context.state.object_table("fired"), msgspec.msgpack.encode(self.gap_ms)
        )
        self._check_gap()
        self._watermark = self._groups.min_watermark
        rows = self._table.row_ids()
        self._open = OpenSessions(self._keys)
        self._open.restore(self._key_columns(rows), rows)
        self._first_end = self._earliest_end()

    def open_results(self) -> Mapping[str, int]:
        return {"sessions": len(self._table)}

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._late_columns.check(batch.schema)
        if batch.num_rows:
            self._add(batch, out)

    def process_sorted(self, batch: pa.RecordBatch, out: Collector) -> None:
        """Rows are sorted by key, then time, so every session is complete but that of the last row."""
        if batch.num_rows:
            last = self._add(batch, out)[-1]
            rows = self._table.row_ids()
            self._fire(rows[rows != last], out)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._watermark = max(self._watermark, watermark)
        if not len(self._table) or self._watermark < self._first_end:
            return
        self._fire(self._ended(), out)
        self._first_end = self._earliest_end()

    def snapshot(self, checkpoint: int) -> None:
        self._groups.store(self._watermark)

    def _check_gap(self) -> None:
        """Raises JobRejected if restored sessions were formed by another gap, by which they may belong together."""
        for name in self._groups.restored_names:
            if (gap_ms := msgspec.msgpack.decode(name)) != self.gap_ms:
                detail = f"the state holds sessions with a gap of {gap_ms} ms, not of {self.gap_ms} ms"
                raise JobRejected("window-changed", self._context.uid, detail)

    # ------------------------------------------------------------ rows

    def _add(self, batch: pa.RecordBatch, out: Collector) -> RowIds:
        """Adds the rows of a batch to sessions. Returns the session of each row that is not late, as a table row."""
        times = event_times_ms(batch, self.time)
        columns = [batch.column(key) for key in self._keys]
        kinds = [*(column.type for column in columns), pa.int64()]
        self._table.bind_types(kinds, [pa.int64(), pa.int64(), *self._aggregates.state_types(batch.schema)])
        distinct = factorise(columns)
        keys = distinct.take_keys(columns)
        rows, numbers = self._open.find(keys)
        opened = Intervals(numbers, self._table.column(FIRST)[rows], self._table.column(LAST)[rows])
        row_sessions = sessions_of_rows(distinct.key_numbers, times, self.gap_ms)
        merged = merge_sessions(opened, row_sessions.sessions, self.gap_ms)
        session_of_row = merged.numbers[len(rows) :][row_sessions.numbers]

        is_late = self._is_ended(batch, merged.sessions.last[session_of_row])
        if is_late.any():  # the other sessions are the same without these rows
            self._drop_late(batch.filter(pa.array(is_late)), out)
            timely_rows = batch.filter(pa.array(~is_late))
            return self._add(timely_rows, out) if timely_rows.num_rows else rows[:0]

        targets = self._merge_open(keys, rows, merged)
        self._aggregates.accumulate(self._table, batch, targets[session_of_row])
        changed = np.zeros(len(targets), dtype=bool)
        changed[session_of_row] = True
        self._table.column(FIRST)[targets[changed]] = merged.sessions.first[changed]
        self._table.column(LAST)[targets[changed]] = merged.sessions.last[changed]
        self._table.touch(targets[changed])
        self._first_end = min(self._first_end, int(merged.sessions.last.min()) + self.gap_ms)
        return targets[session_of_row]

    def _is_ended(self, rows: pa.RecordBatch, last: Times) -> npt.NDArray[np.bool_]:
        """By row, whether a session of its key with the last row at `last` has ended."""
        watermarks: Times | int = self._watermark
        if self._groups.max_watermark > self._watermark:
            watermarks = np.maximum(self._groups.restored_watermarks(rows, self._keys), self._watermark)
        return np.asarray(last + self.gap_ms <= watermarks)

    def _drop_late(self, rows: pa.RecordBatch, out: Collector) -> None:
        count_late_rows(self._context, rows.num_rows, has_output=self._late is not None)
        if self._late is not None:
            out.emit_to(self._late.name, rows)

    def _merge_open(self, keys: Sequence[pa.Array], rows: RowIds, merged: Merged) -> RowIds:
        """The table row of each merged session. Open sessions (`rows`) that belong together become one row."""
        sessions = merged.sessions
        targets = np.full(len(sessions), NOT_FOUND)
        numbers = merged.numbers[: len(rows)]
        targets[numbers] = rows  # one of those that belong together
        missing = np.flatnonzero(targets == NOT_FOUND)
        if len(missing):
            which = pa.array(sessions.keys[missing])
            targets[missing] = self._table.upsert([*(k.take(which) for k in keys), pa.array(sessions.first[missing])])
        joined = targets[numbers] != rows
        if joined.any():
            parts = [self._table.value_column(name, rows[joined]) for name in self._fields.names]
            states = pa.RecordBatch.from_arrays(parts, names=self._fields.names)
            self._aggregates.merge(self._table, states, targets[numbers[joined]])
            self._table.delete(rows[joined])
        if len(missing) or joined.any():
            self._open.link(keys, sessions.keys, targets)
        return targets

    # ------------------------------------------------------------ sessions

    def _ended(self) -> RowIds:
        """The sessions that have ended, as table rows."""
        rows = self._table.row_ids()
        return rows[self._table.column(LAST)[rows] <= self._watermark - self.gap_ms]

    def _fire(self, rows: RowIds, out: Collector) -> None:
        if not len(rows):
            return
        keys, first = self._key_columns(rows), self._table.column(FIRST)[rows]
        ends = self._table.column(LAST)[rows] + self.gap_ms
        emit_windows(self._names, keys, first, ends, self._aggregates.results(self._table, rows), out)
        self._open.remove(keys, rows)
        self._table.delete(rows)

    def _key_columns(self, rows: RowIds) -> list[pa.Array]:
        return [self._table.key_column(key, rows) for key in self._keys] if len(rows) else []

    def _earliest_end(self) -> int:
        rows = self._table.row_ids()
        return int(self._table.column(LAST)[rows].min()) + self.gap_ms if len(rows) else MAX_WATERMARK
