"""The rows of a table before its changes are read: the initial snapshot of change data capture.

The rows are read in the order of a key, in one REPEATABLE READ transaction per attempt. A chunk is the range of keys
that one transaction has read. Its `pg_current_snapshot()` names the transactions that the rows contain.

The log is read afterwards, from a position before the first chunk. A change is in the rows already if its transaction
is visible in the snapshot of the chunk with its key, and is dropped. DBLog (Andreakis and Papapanagiotou, 2020) and
the incremental snapshot of Flink CDC compare positions of the log instead. Visibility is exact: the commit record of a
transaction is in the log before others see its rows.

A transaction before the first position must be visible in the first chunk. The first chunk therefore waits for the
transactions that hold a lock to write the table.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import psycopg
from psycopg import sql
from psycopg.types.string import TextLoader

from runtime.connectors.postgres.pgoutput import UNCHANGED, Row
from runtime.connectors.postgres.table import ResolvedTable, identifiers
from runtime.errors import DataRejected, JobRejected

_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 0"
_KEY_QUERY: Final = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid
CROSS JOIN unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = %s AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END ORDER BY k.place
"""
#: The position behind every transaction that a snapshot may contain, once all of them have ended.
_END_QUERY: Final = """
SELECT CASE WHEN pg_snapshot_xmin(pg_current_snapshot()) >= %s::text::xid8
THEN (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8 END
"""


class KeyColumn(NamedTuple):
    """A column of the key; `type` in SQL."""

    name: str
    type: str


class SnapshotChunk(msgspec.Struct, frozen=True, array_like=True):
    """Keys behind the preceding chunk up to `last`, in text; None: up to the end of the table."""

    snapshot: str
    last: tuple[str, ...] | None


def find_key(connection: psycopg.Connection[Any], table: ResolvedTable) -> tuple[KeyColumn, ...]:
    """The columns that identify a row in the log. Raises JobRejected if there are none."""
    key = tuple(KeyColumn(*row) for row in connection.execute(_KEY_QUERY, [table.oid]))
    if not key:
        remedy = f"ALTER TABLE {table} ADD PRIMARY KEY (…), or leave out initial_snapshot"
        raise JobRejected("no-primary-key", "table", f"the table {table} has no primary key: {remedy}")
    return key


class InitialRows:
    """Reads the rows behind the last chunk. The connection is in autocommit mode and used by no other cursor."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        table: ResolvedTable,
        columns: Sequence[tuple[str, int]],
        key: Sequence[KeyColumn],
        chunks: Sequence[SnapshotChunk],
    ) -> None:
        """`columns`: names and the oids of their types."""
        self._connection, self._table, self._columns, self._key = connection, table, columns, key
        self._before = tuple(chunks)
        self._cursor: psycopg.ServerCursor[Any] | None = None
        self._awaited: frozenset[str] | None = frozenset() if chunks else None
        self._snapshot = ""
        self._last = chunks[-1].last if chunks else None
        self._has_rows = False
        self.is_complete = False
        self.time_us = 0  #: of the transaction, since the epoch

    @property
    def chunks(self) -> tuple[SnapshotChunk, ...]:
        """The chunks of all rows so far."""
        return (*self._before, SnapshotChunk(self._snapshot, self._last)) if self._has_rows else self._before

    def read(self, max_rows: int) -> list[Row]:
        """The next rows, in text. None of them: the table is complete, or other transactions have yet to end."""
        if self._cursor is None and not self._begin():
            return []
        assert self._cursor is not None, "the transaction has begun"
        rows = self._cursor.fetchmany(max_rows)
        self._has_rows = True
        if len(rows) < max_rows:
            self._cursor.close()
            self._connection.execute("COMMIT")
            self._last, self.is_complete = None, True
        else:
            self._last = tuple(rows[-1][len(self._columns) :])
        return [tuple(row[: len(self._columns)]) for row in rows]

    def _begin(self) -> bool:
        if self._awaited is None:
            self._awaited = self._table.writers(self._connection)
        if self._awaited and self._awaited & self._table.writers(self._connection):
            return False
        # The lock precedes the snapshot, since TRUNCATE and ALTER TABLE remove rows from older snapshots too.
        self._connection.execute(_BEGIN)
        try:
            lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE NOWAIT")
            self._connection.execute(lock.format(self._table.identifier))
        except psycopg.errors.LockNotAvailable:  # ALTER TABLE or VACUUM FULL may take long, and barriers must pass
            self._connection.execute("ROLLBACK")
            return False
        statement = "SELECT pg_current_snapshot()::text, (extract(epoch FROM now()) * 1000000)::int8"
        row = self._connection.execute(statement).fetchone()
        assert row is not None, "the query has no condition"
        self._snapshot, self.time_us = row
        order = identifiers([each.name for each in self._key], "t")  # a bare name would be that of its text
        bound = sql.SQL("true")
        if self._last is not None:
            bound = sql.SQL("ROW({}) > {}").format(order, _row_of(self._key))  # type: ignore[assignment]
        columns = identifiers([name for name, _ in self._columns], "t")
        key = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier("t", each.name)) for each in self._key)
        query = sql.SQL("SELECT {}, {} FROM {} t WHERE {} ORDER BY {}").format(
            columns, key, self._table.identifier, bound, order
        )
        self._cursor = self._connection.cursor("weir_initial_rows")
        for _, oid in self._columns:
            self._cursor.adapters.register_loader(oid, TextLoader)
        self._cursor.execute(query, self._last)
        return True


class InitialRowsFilter:
    """Drops the changes that the initial rows contain already."""

    def __init__(
        self, connection: psycopg.Connection[Any], name: str, key: Sequence[KeyColumn], chunks: Sequence[SnapshotChunk]
    ) -> None:
        self._connection, self._name, self._key = connection, name, key
        self._snapshots = [_Snapshot(each.snapshot) for each in chunks]
        self._bounds = [each.last for each in chunks if each.last is not None]

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(each.name for each in self._key)

    def end(self) -> int | None:
        """A position in the log behind which no change is dropped; None: not yet known."""
        row = self._connection.execute(_END_QUERY, [str(max(each.end for each in self._snapshots))]).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    def is_seen_by_all(self, xid: int) -> bool:
        return all(each.contains(xid) for each in self._snapshots)

    def is_new(self, xid: int, key: Row) -> bool:
        """Whether the rows lack the effect of a transaction on the row with the key.

        Raises:
            DataRejected: the log does not contain the key.
        """
        visibility = [each.contains(xid) for each in self._snapshots]
        if all(visibility) or not any(visibility):
            return not visibility[0]
        if UNCHANGED in key:
            remedy = f"ALTER TABLE {self._name} REPLICA IDENTITY FULL"
            raise DataRejected(f"Postgres: table {self._name}: an update does not contain its large key: {remedy}")
        return not visibility[self._chunk_of(key)]

    def _chunk_of(self, key: Row) -> int:
        """The number of chunks that end before the key, in the order of the server."""
        row = _row_of(self._key)
        tests = sql.SQL(" + ").join(sql.SQL("({} > {})::int").format(row, row) for _ in self._bounds)
        values = [value for bound in self._bounds for value in (*key, *bound)]
        answer = self._connection.execute(sql.SQL("SELECT {}").format(tests), values).fetchone()
        assert answer is not None, "the query has no condition"
        return int(answer[0])


class _Snapshot:
    """A `pg_snapshot` of the form `xmin:xmax:xid,…`. `end`: the first transaction id that had not begun."""

    def __init__(self, text: str) -> None:
        begin, end, running = text.split(":")
        self._begin, self.end = int(begin), int(end)
        self._running = frozenset(int(each) for each in running.split(",") if each)

    def contains(self, xid: int) -> bool:
        """Whether the snapshot sees a committed transaction. `xid` has 32 bits and lies within 2^31 of the snapshot."""
        distance = (xid - self.end) & 0xFFFF_FFFF
        if distance < 1 << 31:
            return False
        full = self.end + distance - (1 << 32)
        return full < self._begin or full not in self._running


def _row_of(key: Sequence[KeyColumn]) -> sql.Composed:
    """A row of placeholders with the types of the key."""
    values = sql.SQL(", ").join(sql.SQL("%s::{}").format(sql.SQL(each.type)) for each in key)
    return sql.SQL("ROW({})").format(values)
