"""The build side of a broadcast join that is read again: the versions of its table, as an unbounded source.

A single subtask reads the table from its beginning to its end, once per interval. The rows of a version have its
number, and a last row has the number of rows. The join takes a version as a whole when it has this last row
(`BroadcastJoin`).

State holds the number of the last version that was begun, and when. A restore begins an unfinished version anew, under
the next number: no position within a version is needed, and the join drops the rows of the unfinished one. The version
that is in use lies in the state of the join.

The source is idle between two versions: event time never waits for the next one. (Flink: a lookup join with a cache of
the whole table, `lookup.full-cache.reload-strategy = PERIODIC`, whose cache is no state.)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import structlog

from runtime.dataflow.plan import source_with_input
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.operators.broadcast_join import ROWS_COLUMN, VERSION_COLUMN
from runtime.ports import LeavesOutColumns, ListsInput, OperatorContext, Source, SourceReader, UsesFolders
from runtime.state.backend import SubtaskState

MIN_INTERVAL_MS: Final = 1_000
FAILED_REFRESHES: Final = "failed_refreshes"  #: versions that could not be read to their end
EMPTY_VERSIONS: Final = "empty_versions"  #: versions without rows, which do not replace a version
_BEGUN, _BEGUN_AT, _IS_OVER = "begun", "begun_at_ms", "is_over"  #: keys in the broadcast state

log = structlog.get_logger()


@dataclass(frozen=True)
class VersionedTable:
    """Reads `table` anew every `interval_ms`, first so long after the first start."""

    bounded: ClassVar[bool] = False
    has_event_time: ClassVar[bool] = True  #: it is idle, so that a step behind the join need not wait for it

    table: Source
    interval_ms: int

    @property
    def guarantee(self) -> str:
        return self.table.guarantee

    def reader(self) -> "VersionReader":
        return VersionReader(self)

    def check(self) -> None:
        if self.interval_ms < MIN_INTERVAL_MS:
            raise JobRejected("bad-interval", "refresh", f"must be at least {MIN_INTERVAL_MS} ms")

    def with_used_columns(self, used: frozenset[str]) -> "VersionedTable":
        table = self.table
        return replace(self, table=table.with_used_columns(used)) if isinstance(table, LeavesOutColumns) else self

    def folders(self) -> Mapping[str, str]:
        return self.table.folders() if isinstance(self.table, UsesFolders) else {}


class VersionReader(SourceReader):
    """Reads version after version. It may block for a request to the system of the table when a version begins."""

    def __init__(self, source: VersionedTable) -> None:
        self._source = source
        self._reader: SourceReader | None = None  #: of the version in progress
        self._rows = 0  #: emitted rows of the version in progress
        self._columns: pa.Schema | None = None  #: of the version in progress; None: no row so far

    def open(self, context: OperatorContext) -> None:
        assert context.parallelism == 1, "a version has a single order"
        self._context = context
        self._state = context.state.broadcast_map("versions")
        if _BEGUN not in self._state:
            self._state[_BEGUN], self._state[_BEGUN_AT], self._state[_IS_OVER] = 1, context.now_ms(), True

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if self._reader is None and not self._is_due:
            return None
        try:
            return self._next_rows(max_rows)
        except (EnvironmentFailure, DataRejected, JobRejected, OSError) as error:
            self._end_version()
            self._context.count(FAILED_REFRESHES)
            log.warning("version dropped: the table cannot be read", version=self._state[_BEGUN], error=str(error))
            return None

    @property
    def exhausted(self) -> bool:
        return False

    @property
    def idle(self) -> bool:
        return self._reader is None

    def snapshot(self, checkpoint: int) -> None:
        if self._reader is not None:
            self._reader.snapshot(checkpoint)

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    @property
    def _is_due(self) -> bool:
        waited_ms = self._context.now_ms() - self._state[_BEGUN_AT]
        return not self._state[_IS_OVER] or not 0 <= waited_ms < self._source.interval_ms

    def _next_rows(self, max_rows: int) -> pa.RecordBatch | None:
        if self._reader is None:
            self._begin_version()
        assert self._reader is not None, "a version is in progress"
        batch = self._reader.poll(max_rows)
        if batch is not None:
            self._rows += batch.num_rows
            return self._with_version(batch)
        return self._finish_version() if self._reader.exhausted else None

    def _begin_version(self) -> None:
        """Opens a new reader with state of its own, which no checkpoint has."""
        self._state[_BEGUN], self._state[_BEGUN_AT] = self._state[_BEGUN] + 1, self._context.now_ms()
        self._state[_IS_OVER], self._rows, self._columns = False, 0, None
        table, groups = self._source.table, self._context.max_parallelism
        if isinstance(table, ListsInput):
            table = source_with_input(table, table.list_input())
        state = SubtaskState(range(groups), groups, None)
        self._reader = table.reader()
        self._reader.open(replace(self._context, state=state, restored=False))

    def _finish_version(self) -> pa.RecordBatch | None:
        """The last row of the version, which has the number of its rows."""
        self.snapshot(self._state[_BEGUN])  # a rejected row is durable before its version counts
        self._end_version()
        if self._columns is None or not self._rows:
            self._context.count(EMPTY_VERSIONS)
            return None
        names = [*self._columns.names, VERSION_COLUMN, ROWS_COLUMN]
        nulls = [pa.nulls(1, column.type) for column in self._columns]
        return pa.RecordBatch.from_arrays([*nulls, _numbers(self._state[_BEGUN], 1), _numbers(self._rows, 1)], names)

    def _end_version(self) -> None:
        self.close()
        self._state[_IS_OVER] = True

    def _with_version(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._columns = batch.schema
        version, rows = _numbers(self._state[_BEGUN], batch.num_rows), pa.nulls(batch.num_rows, pa.int64())
        names = [*batch.schema.names, VERSION_COLUMN, ROWS_COLUMN]
        return pa.RecordBatch.from_arrays([*batch.columns, version, rows], names)


def _numbers(number: int, count: int) -> pa.Array:
    return pa.array(np.full(count, number, dtype=np.int64))
