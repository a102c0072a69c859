"""A table in Postgres as a source: rows in the order of a column that a sequence fills.

A transaction may commit a row after rows with higher values are visible. A reader therefore takes a bound, the highest
visible value, and then waits for the transactions that hold a lock to write the table. An INSERT has this lock before
it draws a value. Once these transactions have ended, each row up to the bound is visible or will never be. CREATE INDEX
CONCURRENTLY waits in the same manner (`WaitForLockers`). Readers take no lock, so writers never wait.

Updates and deletions are not read. The position is the value of the last row; one subtask reads.

The job master finds the end of a bounded table once, before the first attempt (`ports.ListsInput`). Neither an attempt
without a checkpoint before it, nor a repeated task of BATCH, therefore ends at another row.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Final

import msgspec
import psycopg
import pyarrow as pa
from psycopg import sql

from runtime.connectors.postgres.connection import check_url, connect, postgres_errors
from runtime.connectors.postgres.table import check_table_name, find_table
from runtime.connectors.postgres.values import find_columns
from runtime.connectors.sources.event_clock import BoundedOutOfOrderness, EventClockReader, check_event_time
from runtime.errors import DataRejected, JobRejected
from runtime.ports import OperatorContext

POLL_INTERVAL_MS: Final = 50  #: between two queries of a reader that has read all rows
_BEFORE_ALL: Final = -(2**63)


@dataclass(frozen=True)
class PostgresSource:
    """Reads the rows of a table, then the rows that are inserted.

    Args:
        url: `postgresql://user@host:port/database` of a primary server. A password is written `${secret:NAME}`.
        table: `table` or `schema.table`.
        cursor: an integer column, NOT NULL and unique, that each INSERT fills from a sequence. The sequence must not
            cache values, since a session would insert them later.
        columns: the columns to read; none: all.
        bounded: reads up to the highest value at the first start.
        event_time: column with the event time of a row.
        max_disorder_ms: the time by which a row may follow rows with a later event time. None: 0, and a late row of a
            bounded source fails the job.
    """

    guarantee: ClassVar[str] = "exactly-once"

    url: str = field(repr=False)
    table: str
    _: KW_ONLY
    cursor: str = "id"
    columns: Sequence[str] = ()
    bounded: bool = False
    event_time: str | None = None
    max_disorder_ms: int | None = None
    listed_end: int | None = field(default=None, repr=False)  #: last value of the cursor, set by `with_input`

    @property
    def has_event_time(self) -> bool:
        return self.event_time is not None

    def reader(self) -> "PostgresReader":
        return PostgresReader(self)

    def list_input(self) -> bytes | None:
        """The highest value of the cursor, if the source is bounded.

        Raises:
            JobRejected: the table or its cursor cannot be read, or the login is refused.
            TargetAway: the server cannot be reached.
        """
        if not self.bounded:
            return None
        with closing(self.reader()) as reader:
            return msgspec.msgpack.encode(reader.find_end())

    def with_input(self, listing: bytes) -> "PostgresSource":
        return replace(self, listed_end=msgspec.msgpack.decode(listing, type=int))

    def check(self) -> None:
        check_url(self.url)
        check_table_name(self.table)
        check_event_time(self.event_time, self.max_disorder_ms, None)
        if isinstance(self.columns, str) or len(set(self.columns)) < len(self.columns):
            raise JobRejected("bad-columns", "columns", f"must be a sequence of distinct columns, not {self.columns!r}")
        if self.event_time is not None and self.columns and self.event_time not in self.columns:
            raise JobRejected("missing-column", "event_time", f"columns must contain {self.event_time!r}")


class PostgresReader(EventClockReader):
    """Reads ranges of the cursor. Of a new job, subtask 0 reads; after a restore, the subtask with the position."""

    def __init__(self, source: PostgresSource) -> None:
        self._source = source
        self._connection: psycopg.Connection[Any] | None = None
        self._clock = BoundedOutOfOrderness(source.event_time, source.max_disorder_ms)
        self._is_reading = False
        self._last = _BEFORE_ALL  #: value of the last row that was read
        self._end = source.listed_end  #: the last value of a bounded source; None: not known yet
        self._bound: int | None = None  #: every row up to this value is visible
        self._awaited: tuple[int, frozenset[str]] | None = None  #: the next bound, and the transactions before it
        self._due_ms = 0

    def open(self, context: OperatorContext) -> None:
        self._now_ms = context.now_ms
        self._state = context.state.list_state("position")
        restored = self._state.get()
        self._is_reading = bool(restored) or (not context.restored and context.index == 0)
        if not self._is_reading:
            return
        self._connect()
        if restored:
            self._last = restored[0]["last"]
            if self._source.bounded and restored[0]["end"] is not None:  # an unbounded source reads past it
                self._end = restored[0]["end"]
            latest = restored[0]["event_time"]
            self._clock = BoundedOutOfOrderness(self._source.event_time, self._source.max_disorder_ms, latest)

    def find_end(self) -> int:
        """The highest visible value of the cursor. Needs no `open`."""
        connection = self._connect()
        with postgres_errors(str(self._table)):
            return self._highest_value(connection)

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if not self._is_reading or self.exhausted:
            return None
        assert self._connection is not None, "the reader is open"
        with postgres_errors(str(self._table)):
            if self._bound is None and not self._find_bound(self._connection):
                return None
            cursor = self._connection.cursor(binary=True)
            values = {"after": self._last, "bound": self._bound, "count": max_rows}
            rows = cursor.execute(self._query, values).fetchall()
        if len(rows) < max_rows:
            assert self._bound is not None, "rows were read up to a bound"
            self._last, self._bound = self._bound, None
        else:
            self._last = int(rows[-1][-1])
        if not rows:
            return None
        batch = self._batch(rows)
        self._clock.on_batch(batch)
        return batch

    @property
    def exhausted(self) -> bool:
        if not self._source.bounded:
            return False
        return not self._is_reading or (self._end is not None and self._last >= self._end)

    @property
    def idle(self) -> bool:
        return not self._is_reading

    def snapshot(self, checkpoint: int) -> None:
        position = {"last": self._last, "end": self._end, "event_time": self._clock.max_event_time}
        self._state.replace([position] if self._is_reading else [])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    # ------------------------------------------------------------ table

    def _connect(self) -> psycopg.Connection[Any]:
        self._connection = connect(self._source.url)
        with postgres_errors(self._source.table):
            self._connection.autocommit = True
            self._connection.execute("SET TimeZone = 'UTC'")
            self._prepare(self._connection)
        return self._connection

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Checks the server, the table and the cursor, and prepares the query."""
        source = self._source
        standby = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        if standby is not None and standby[0]:
            raise JobRejected(
                "standby", "url", "a standby server does not show the writers of a table: name its primary"
            )
        self._table = find_table(connection, source.table)
        columns = {column.name: column for column in self._table.columns(connection)}
        for name in (*source.columns, source.cursor, *([source.event_time] if source.event_time else [])):
            if name not in columns:
                alternatives = ", ".join(columns)
                raise JobRejected(
                    "unknown-column", name, f"the table {self._table} has no column {name!r}, only {alternatives}"
                )
        cursor = columns[source.cursor]
        if cursor.type not in ("int2", "int4", "int8") or not cursor.not_null:
            detail = f"column {cursor.name!r} of the table {self._table} must be an integer and NOT NULL"
            raise JobRejected("bad-cursor", "cursor", detail)
        self._table.check_key(connection, [source.cursor])
        self._check_sequence(connection)
        by_name = {column.name: column for column in find_columns(connection, self._table.oid, generated=True)}
        names = tuple(source.columns) or tuple(by_name)
        self._schema = pa.schema([pa.field(name, by_name[name].arrow) for name in names])
        items = [
            sql.SQL("{}::text" if pa.types.is_string(each.type) else "{}").format(sql.Identifier(each.name))
            for each in self._schema
        ]
        self._query = sql.SQL(
            "SELECT {columns}, {cursor}::int8 FROM {table} WHERE {cursor} > %(after)s "
            "AND {cursor} <= %(bound)s ORDER BY {cursor} LIMIT %(count)s"
        ).format(columns=sql.SQL(", ").join(items), cursor=sql.Identifier(source.cursor), table=self._table.identifier)

    def _check_sequence(self, connection: psycopg.Connection[Any]) -> None:
        query = "SELECT seqrelid::regclass::text, seqcache, seqincrement FROM pg_sequence WHERE seqrelid = "
        name = self._table.identifier.as_string(connection)
        sequences = connection.execute(query + "pg_get_serial_sequence(%s, %s)::regclass", [name, self._source.cursor])
        for sequence, cache, increment in sequences:
            if cache != 1 or increment < 1:
                remedy = f"ALTER SEQUENCE {sequence} CACHE 1 INCREMENT 1"
                detail = f"the sequence {sequence} does not ascend in the order of INSERT statements: {remedy}"
                raise JobRejected("bad-sequence", "cursor", detail)

    # ------------------------------------------------------------ rows

    def _find_bound(self, connection: psycopg.Connection[Any]) -> bool:
        """Moves the bound to the next value below which no row can appear. Returns False if there is none yet."""
        if self._now_ms() < self._due_ms:
            return False
        self._due_ms = self._now_ms() + POLL_INTERVAL_MS
        if self._awaited is None:
            highest = self._end
            if highest is None:
                highest = self._highest_value(connection)
                self._end = highest if self._source.bounded else None
            if highest <= self._last:
                return False
            self._awaited = (highest, self._table.writers(connection))
        bound, before = self._awaited
        if before & self._table.writers(connection):
            return False
        self._bound, self._awaited, self._due_ms = bound, None, 0
        return True

    def _highest_value(self, connection: psycopg.Connection[Any]) -> int:
        """The highest visible value of the cursor; of a table without rows, a value below all."""
        query = sql.SQL("SELECT max({}) FROM {}").format(sql.Identifier(self._source.cursor), self._table.identifier)
        row = connection.execute(query).fetchone()
        return _BEFORE_ALL if row is None or row[0] is None else int(row[0])

    def _batch(self, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = list(zip(*rows, strict=True))[:-1]
        arrays = []
        for each, values in zip(self._schema, columns, strict=True):
            try:
                arrays.append(pa.array(values, each.type))
            except (pa.ArrowInvalid, OverflowError) as error:
                raise DataRejected(f"Postgres table {self._table}: column {each.name!r}: {error}") from error
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
