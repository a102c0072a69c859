"""Sessions of a changelog: a row that is taken back may shorten or split its session, or end it.

The table has a row per key and event time, so that sessions are formed from the rows that are left, when they fire. A
row is late as in `SessionWindow`, unless the table has its key and time: then its session has not fired. A row that
takes back an earlier row is late once a row of its time alone would have been a session that has ended.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from runtime.core.job.messages import MAX_WATERMARK
from runtime.operators.event_time import Times, event_times_ms
from runtime.operators.retraction import RetractableSet, signs_of
from runtime.operators.windows.cells import AggregateCells
from runtime.operators.windows.merging import Numbers, merge_sessions, sessions_of_rows
from runtime.operators.windows.session import FIRST, LAST, SessionWindow
from runtime.operators.windows.window import emit_windows
from runtime.ports import Collector, OperatorContext
from runtime.state.index.factorise import factorise
from runtime.state.index.key_index import NOT_FOUND, RowIds


class RetractingSessionWindow(SessionWindow):
    """Aggregates a changelog per key and session. Arguments and errors: those of `SessionWindow`."""

    aggregate_set = RetractableSet
    _aggregates: RetractableSet

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._aggregates.open(context, self._table)

    def open_results(self) -> Mapping[str, int]:
        return {"rows": len(self._table)}

    def process_sorted(self, batch: pa.RecordBatch, out: Collector) -> None:
        self.process(0, batch, out)

    def _add(self, batch: pa.RecordBatch, out: Collector) -> RowIds:
        times = event_times_ms(batch, self.time)
        columns = [batch.column(key) for key in self._keys]
        kinds = [*(column.type for column in columns), pa.int64()]
        self._table.bind_types(kinds, [pa.int64(), pa.int64(), *self._aggregates.state_types(batch.schema)])
        distinct = factorise(columns)
        keys = distinct.take_keys(columns)
        held, numbers = self._open.find(keys)
        panes = [*columns, pa.array(times)]
        is_held = self._table.find(panes) != NOT_FOUND
        is_late = self._is_ended(batch, self._last_times(batch, times, distinct.key_numbers, held, numbers)) & ~is_held
        if is_late.any():
            self._drop_late(batch.filter(pa.array(is_late)), out)
            timely_rows = batch.filter(pa.array(~is_late))
            return self._add(timely_rows, out) if timely_rows.num_rows else held[:0]

        row_ids = self._table.upsert(panes)
        for name in (FIRST, LAST):
            self._table.column(name)[row_ids] = times
        self._aggregates.accumulate(self._table, batch, row_ids)
        self._table.touch(row_ids)
        changed = self._table.first_rows(row_ids)
        added = changed[~is_held[changed]]
        rows, numbers = np.concatenate([held, row_ids[added]]), np.concatenate([numbers, distinct.key_numbers[added]])
        freed = self._aggregates.free(rows[~self._aggregates.have_rows(self._table, rows)])
        kept = ~np.isin(rows, freed)
        rows, numbers = rows[kept], numbers[kept]
        self._open.link(keys, numbers, rows)
        if len(rows):
            self._first_end = min(self._first_end, int(self._session_ends(rows, numbers).min()))
        return row_ids

    def _last_times(
        self, batch: pa.RecordBatch, times: Times, keys: Numbers, held: RowIds, held_keys: Numbers
    ) -> Times:
        """By row of a batch, the last time of its session; its own time if only the state can have its session.

        Args:
            keys: by row, the number of the key.
            held: the rows of the state of these keys; `held_keys`: their key numbers.
        """
        adds = signs_of(batch) > 0
        has_rows = self._aggregates.have_rows(self._table, held)
        of_state = sessions_of_rows(held_keys[has_rows], self._table.column(FIRST)[held[has_rows]], self.gap_ms)
        of_batch = sessions_of_rows(keys[adds], times[adds], self.gap_ms)
        merged = merge_sessions(of_state.sessions, of_batch.sessions, self.gap_ms)
        panes = factorise([pa.array(keys), pa.array(times)])
        last = times[panes.first_rows]  # a row that is taken back may have arrived in the same batch
        last[panes.key_numbers[adds]] = merged.sessions.last[merged.numbers[len(of_state.sessions) :][of_batch.numbers]]
        return np.asarray(last[panes.key_numbers])

    def _ended(self) -> RowIds:
        rows = self._table.row_ids()
        return rows[self._session_ends(rows) <= self._watermark]

    def _earliest_end(self) -> int:
        return int(self._session_ends(self._table.row_ids()).min(initial=MAX_WATERMARK))

    def _session_ends(self, rows: RowIds, numbers: Numbers | None = None) -> Times:
        """By row of the state, the end of its session. A time without rows counts as a session of its own.

        Args:
            numbers: by row, the number of the key; None: not known.
        """
        if not len(rows):
            return np.zeros(0, dtype=np.int64)
        if numbers is None:
            numbers = factorise(self._key_columns(rows)).key_numbers
        last = self._table.column(LAST)[rows]
        has_rows = self._aggregates.have_rows(self._table, rows)
        sessions = sessions_of_rows(numbers[has_rows], last[has_rows], self.gap_ms)
        last[has_rows] = sessions.sessions.last[sessions.numbers]
        return np.asarray(last + self.gap_ms)

    def _fire(self, rows: RowIds, out: Collector) -> None:
        some = rows[self._aggregates.have_rows(self._table, rows)]
        if len(some):
            columns = self._key_columns(some)
            distinct = factorise(columns)
            merged = sessions_of_rows(distinct.key_numbers, self._table.column(FIRST)[some], self.gap_ms)
            sessions, names = merged.sessions, self._fields.names
            cells = AggregateCells([self._table.schema.values.field(name) for name in names], len(sessions))
            parts = [self._table.value_column(name, some) for name in names]
            self._aggregates.merge(cells, pa.RecordBatch.from_arrays(parts, names=names), merged.numbers)
            keys = [key.take(pa.array(sessions.keys)) for key in distinct.take_keys(columns)]
            results = self._aggregates.results(cells, np.arange(len(sessions)))
            emit_windows(self._names, keys, sessions.first, sessions.last + self.gap_ms, results, out)
        if len(rows):
            self._open.remove(self._key_columns(rows), rows)
            self._aggregates.delete(rows)
