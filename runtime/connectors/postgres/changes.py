"""The changes of a table in Postgres as a stream, by logical replication (change data capture).

A subtask peeks into a replication slot by plain SQL, which consumes no change. The position in state is the end of the
last whole transaction, and the number of rows that were emitted of the transaction behind it. The slot advances only to
positions of completed checkpoints, so the log that a restore needs is kept by the server.

A restore skips the transactions before its position. A checkpoint before the slot's position cannot be restored: its
log may be gone, so the job ends with an error.

The stream begins at the slot's creation. To begin with the whole table, create the slot before the first row is
written, or read the table by another source and write both streams with a key.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Final, LiteralString, NamedTuple

import msgspec
import psycopg
import pyarrow as pa
from psycopg import sql

from runtime.connectors.postgres import pgoutput
from runtime.connectors.postgres.connection import check_url, connect, postgres_errors
from runtime.connectors.postgres.pgoutput import UNCHANGED, Row
from runtime.connectors.postgres.table import check_table_name, find_table
from runtime.connectors.postgres.values import TEXT_SETTINGS, arrow_type, from_text
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import DataRejected, JobRejected
from runtime.operators.running_aggregate import DELETE, INSERT, OP_COLUMN, UPDATE_AFTER, UPDATE_BEFORE
from runtime.ports import OperatorContext, SourceReader

_MESSAGES_PER_PEEK: Final = 10_000
_COLUMNS_QUERY: Final = """
SELECT a.attname, a.atttypid::int8, a.atttypmod, t.typname, t.typtype = 'e' FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
"""
_SLOT_QUERY: Final = """
SELECT plugin, database = current_database(), (confirmed_flush_lsn - '0/0'::pg_lsn)::int8, wal_status
FROM pg_replication_slots WHERE slot_name = %s
"""
_PEEK: Final = """
SELECT data FROM pg_logical_slot_peek_binary_changes(
    %s, '0/0'::pg_lsn + %s, %s, 'proto_version', '1', 'publication_names', %s)
"""


@dataclass(frozen=True)
class PostgresChanges:
    """Emits each change of a table as a row, with its kind in the last column `op`.

    The kinds are those of a changelog: `insert`, `update_before` (only with REPLICA IDENTITY FULL), `update_after`,
    `delete`. A deleted row has its key and, without REPLICA IDENTITY FULL, null in other columns. An update of the key
    is a `delete` of the old key and an `insert`.

    Args:
        url: `postgresql://user@host:port/database`; the role needs REPLICATION. A password is `${secret:NAME}`.
        publication: a publication that contains the table.
        slot: a logical replication slot of `pgoutput` that no other job reads.
        table: `table` or `schema.table`.
        columns: the columns to emit; empty: the columns of the table at the first start. A column that is added later
            then ends the job.
        ignore_truncate: False: TRUNCATE of the table ends the job, since a changelog has no such row.
        poll_interval_ms: time between looks into the slot.
    """

    guarantee: ClassVar[str] = "exactly-once"
    bounded: ClassVar[bool] = False

    url: str = field(repr=False)
    publication: str
    slot: str
    table: str
    _: KW_ONLY
    columns: Sequence[str] = ()
    ignore_truncate: bool = False
    poll_interval_ms: int = 200

    def reader(self) -> "ChangesReader":
        return ChangesReader(self)

    def check(self) -> None:
        check_url(self.url)
        check_table_name(self.table)
        for name, value in (("publication", self.publication), ("slot", self.slot)):
            if not value:
                raise JobRejected("bad-name", name, f"must name the {name}")
        if isinstance(self.columns, str) or len(set(self.columns)) < len(self.columns):
            raise JobRejected("bad-columns", "columns", f"must be distinct column names, not {self.columns!r}")
        if OP_COLUMN in self.columns:
            raise JobRejected("bad-columns", "columns", f"{OP_COLUMN!r} is the name of the column of row kinds")
        if self.poll_interval_ms < 1:
            raise JobRejected("bad-interval", "poll_interval_ms", "must be at least 1 ms")


class _Column(msgspec.Struct, frozen=True, array_like=True):
    """A column of the stream, as the first start found it; `type` is an oid."""

    name: str
    type: int
    modifier: int
    type_name: str
    is_enum: bool

    @property
    def arrow(self) -> pa.DataType:
        found = arrow_type(self.type_name, self.modifier, is_enum=self.is_enum)
        if found is None:
            advice = "name the other columns in `columns`"
            raise JobRejected("no-arrow-type", self.name, f"no Arrow type for {self.type_name}: {advice}")
        return found


class _Position(msgspec.Struct, frozen=True):
    """The position in state: end of the last whole transaction, and emitted rows of the next transaction."""

    slot: str
    lsn: int
    rows: int
    columns: list[_Column]


class ChangesReader(SourceReader):
    """Reads the slot in subtask 0; the other subtasks are idle. A slot is a single sequence."""

    def __init__(self, source: PostgresChanges) -> None:
        self._source = source
        self._what = f"slot {source.slot}"
        self._connection: psycopg.Connection[Any] | None = None
        self._window: psycopg.ServerCursor[Any] | None = None  #: messages of the last peek
        self._window_end = self._window_size = 0
        self._limit = _MESSAGES_PER_PEEK
        self._peeked_at: int | None = None
        self._pause_ms = source.poll_interval_ms
        self._places: dict[int, tuple[int, ...] | None] = {}  #: relation -> places of the columns; None: another table
        self._ready: deque[_Change] = deque()
        self._lsn = self._rows = self._confirmed = 0  #: position of the emitted rows
        self._read_lsn = 0  #: end of the last transaction that was read; its rows may wait in `_ready`
        self._is_skipped = False  #: whether the transaction that is read lies before the restored position
        self._read_rows = 0  #: rows of the transaction that is read
        self._to_skip = 0  #: rows of the next transaction that were emitted before the restored checkpoint
        self._positions: dict[int, int] = {}  #: checkpoint -> end of its last whole transaction

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._state = context.state.union_list_state("position")
        stored = [msgspec.convert(each, _Position) for each in self._state.get()]
        self._state.replace(())
        if context.index:
            return
        self._connection = connect(self._source.url)
        with postgres_errors(self._what):
            self._connection.autocommit = True
            self._connection.execute(TEXT_SETTINGS)
            _check_server(self._connection)
            self._confirmed = self._lsn = _slot_position(self._connection, self._source.slot)
            table = find_table(self._connection, self._source.table)
            self._oid, self._name = table.oid, str(table)
            self._check_publication(self._connection)
            self._columns = tuple(stored[0].columns) if stored else self._find_columns(self._connection)
        if stored:
            self._resume(stored[0])
        self._read_lsn = self._lsn
        fields = [pa.field(column.name, column.arrow) for column in self._columns]
        self._schema = pa.schema([*fields, pa.field(OP_COLUMN, pa.string())])

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if self._connection is None:
            return None
        try:
            with postgres_errors(self._what):
                if self._window is None and not self._ready and not self._peek(self._connection):
                    return None
                return self._next_batch(max_rows)
        except JobRejected as error:
            if error.code != "no-privilege":
                raise
            detail = "the role of the address may not read the slot: ALTER ROLE … REPLICATION"
            raise JobRejected(error.code, "url", f"{self._what}: {detail}") from error

    @property
    def exhausted(self) -> bool:
        return False

    @property
    def idle(self) -> bool:
        """True: the rows have no event time."""
        return True

    def snapshot(self, checkpoint: int) -> None:
        if self._connection is not None:
            position = _Position(self._source.slot, self._lsn, self._rows, list(self._columns))
            self._state.replace([msgspec.json.decode(msgspec.json.encode(position))])
            self._positions[checkpoint] = self._lsn

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        """Advances the slot to the position of the checkpoint."""
        done = [checkpoint for checkpoint in self._positions if checkpoint <= permit.checkpoint]
        position = max((self._positions.pop(checkpoint) for checkpoint in done), default=0)
        if self._connection is None or position <= self._confirmed:
            return
        with postgres_errors(self._what), suppress(psycopg.errors.ObjectInUse):
            advance = "SELECT pg_replication_slot_advance(%s, '0/0'::pg_lsn + %s)"
            self._connection.execute(advance, [self._source.slot, position])
            self._confirmed, self._limit = position, _MESSAGES_PER_PEEK

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._window = None

    # ------------------------------------------------------------ the start

    def _check_publication(self, connection: psycopg.Connection[Any]) -> None:
        query = (
            "SELECT FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname "
            "JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename WHERE p.pubname = %s AND c.oid = %s"
        )
        if connection.execute(query, [self._source.publication, self._oid]).fetchone() is None:
            name = sql.Identifier(self._source.publication).as_string(connection)
            remedy = f"CREATE PUBLICATION {name} FOR TABLE {self._name}, or ALTER PUBLICATION {name} ADD TABLE …"
            detail = f"the publication {self._source.publication!r} does not contain {self._name}: {remedy}"
            raise JobRejected("no-publication", "publication", detail)

    def _find_columns(self, connection: psycopg.Connection[Any]) -> tuple[_Column, ...]:
        found = [_Column(*row) for row in connection.execute(_COLUMNS_QUERY, [self._oid]).fetchall()]
        by_name = {column.name: column for column in found}
        for name in self._source.columns:
            if name not in by_name:
                known = ", ".join(by_name)
                raise JobRejected("unknown-column", name, f"the table {self._name} has no such column, only {known}")
        columns = tuple(by_name[name] for name in self._source.columns) or tuple(found)
        if OP_COLUMN in {column.name for column in columns}:
            advice = f"the stream has row kinds in a column of that name: leave {OP_COLUMN!r} out of `columns`"
            raise JobRejected("duplicate-column", OP_COLUMN, advice)
        return columns

    def _resume(self, stored: _Position) -> None:
        if stored.slot != self._source.slot:
            detail = f"the checkpoint is of the slot {stored.slot!r}, and positions of another slot have other changes"
            raise JobRejected("other-slot", "slot", detail)
        if stored.lsn < self._confirmed:
            detail = "the slot has advanced beyond the checkpoint, so changes would be lost: restore a newer checkpoint"
            raise JobRejected("slot-has-advanced", "slot", f"{self._what}: {detail}")
        self._lsn, self._rows, self._to_skip = stored.lsn, stored.rows, stored.rows

    # ------------------------------------------------------------ messages

    def _peek(self, connection: psycopg.Connection[Any]) -> bool:
        """Opens a window on the messages behind the slot's position. False if it is too early, or none is new.

        A peek decodes all messages since the slot's position anew. It is therefore repeated after as long a pause.
        """
        now = self._context.now_ms()
        if self._peeked_at is not None and 0 <= now - self._peeked_at < self._pause_ms:
            return False
        self._peeked_at = now
        (end,) = _row(connection, "SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::int8")
        if end <= self._read_lsn:
            return False
        window = connection.cursor("weir_changes", withhold=True, binary=True)
        publication = sql.Identifier(self._source.publication).as_string(connection)
        window.execute(_PEEK, [self._source.slot, end, self._limit, publication])
        self._peeked_at = self._context.now_ms()
        self._pause_ms = max(self._source.poll_interval_ms, self._peeked_at - now)
        self._window, self._window_end, self._window_size = window, end, 0
        return True

    def _next_batch(self, max_rows: int) -> pa.RecordBatch | None:
        while len(self._ready) < max_rows and self._window is not None:
            messages = self._window.fetchmany(max_rows)
            self._window_size += len(messages)
            for (data,) in messages:
                self._read(pgoutput.decode(bytes(data)))
            if not messages:
                self._end_window(self._window)
        return self._emit(max_rows)

    def _end_window(self, window: psycopg.ServerCursor[Any]) -> None:
        """The next peek returns the messages of this peek again, and more."""
        window.close()
        self._window = None
        if self._window_size >= self._limit:
            self._limit = self._window_size + _MESSAGES_PER_PEEK
            self._peeked_at = None
        elif self._window_end > self._read_lsn:  # every transaction that ends before has been read
            self._end_transaction(self._window_end)

    def _end_transaction(self, lsn: int) -> None:
        self._read_lsn = lsn
        self._ready.append(_Change(None, (), lsn, 0))

    def _read(self, message: pgoutput.Message | None) -> None:
        match message:
            case pgoutput.Relation():
                self._places[message.oid] = self._find_places(message)
            case pgoutput.Begin():
                self._is_skipped = message.commit_lsn < self._read_lsn
                self._read_rows = 0
            case pgoutput.Commit():
                if not self._is_skipped:
                    self._to_skip = 0
                    self._end_transaction(message.end_lsn)
            case pgoutput.Truncate():
                is_ours = any(self._places.get(oid) is not None for oid in message.relations)
                if is_ours and not self._is_skipped and not self._source.ignore_truncate:
                    remedy = "delete rows with DELETE, or set ignore_truncate"
                    raise DataRejected(f"Postgres: {self._name} was truncated, which a changelog cannot show: {remedy}")
            case pgoutput.Insert() | pgoutput.Update() | pgoutput.Delete():
                places = self._places[message.relation]
                if places is not None and not self._is_skipped:
                    for kind, row in _changes(message):
                        self._add(kind, tuple(row[place] for place in places))
            case None:
                pass

    def _add(self, kind: str, row: Row) -> None:
        self._read_rows += 1
        if self._read_rows > self._to_skip:
            self._ready.append(_Change(kind, row, 0, self._read_rows))

    def _find_places(self, relation: pgoutput.Relation) -> tuple[int, ...] | None:
        """The place of each column in rows of the relation; None for another table.

        Raises:
            JobRejected: a column of the stream is gone or has another type, or the table has a new column.
        """
        if relation.oid != self._oid:
            return None
        known = {column.name: place for place, column in enumerate(relation.columns)}
        for column in self._columns:
            found = relation.columns[known[column.name]] if column.name in known else None
            if found is None or (found.type, found.modifier) != (column.type, column.modifier):
                change = "is gone" if found is None else "has another type"
                detail = f"the column {change} since the job began: begin anew with another slot, or name `columns`"
                raise JobRejected("column-changed", column.name, f"table {self._name}: {detail}")
        new = [name for name in known if name not in {column.name for column in self._columns}]
        if new and not self._source.columns:
            detail = f"the table {self._name} has a new column: name the columns to read in `columns`"
            raise JobRejected("new-column", new[0], detail)
        return tuple(known[column.name] for column in self._columns)

    # ------------------------------------------------------------ rows

    def _emit(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows, and the position behind them."""
        kinds: list[str] = []
        rows: list[Row] = []
        while self._ready and (len(rows) < max_rows or self._ready[0].kind is None):
            change = self._ready.popleft()
            if change.kind is None:
                self._lsn, self._rows = max(change.lsn, self._lsn), 0
            else:
                kinds.append(change.kind)
                rows.append(change.row)
                self._rows = change.number
        if not rows:
            return None
        arrays = []
        for place, field_ in enumerate(list(self._schema)[:-1]):
            values = [row[place] for row in rows]
            if UNCHANGED in values:
                detail = f"an update does not contain the unchanged large value of column {field_.name!r}"
                remedy = f"ALTER TABLE {self._name} REPLICA IDENTITY FULL, or leave the column out of `columns`"
                raise DataRejected(f"Postgres: table {self._name}: {detail}: {remedy}")
            arrays.append(from_text(field_.name, values, field_.type))  # type: ignore[arg-type]
        return pa.RecordBatch.from_arrays([*arrays, pa.array(kinds, pa.string())], schema=self._schema)


class _Change(NamedTuple):
    """A row with its number in its transaction; without a kind: the end of a transaction at `lsn`."""

    kind: str | None
    row: Row
    lsn: int
    number: int


def _changes(message: pgoutput.Insert | pgoutput.Update | pgoutput.Delete) -> Iterator[tuple[str, Row]]:
    match message:
        case pgoutput.Insert():
            yield INSERT, message.new
        case pgoutput.Delete():
            yield DELETE, message.row
        case pgoutput.Update(old=old) if old is not None:
            yield UPDATE_BEFORE, old
            pairs = zip(message.new, old, strict=True)
            yield UPDATE_AFTER, tuple(before if after is UNCHANGED else after for after, before in pairs)
        case pgoutput.Update(key=key) if key is not None:
            yield DELETE, key
            yield INSERT, message.new
        case _:
            yield UPDATE_AFTER, message.new


def _row(connection: psycopg.Connection[Any], query: LiteralString) -> tuple[Any, ...]:
    found = connection.execute(query).fetchone()
    assert found is not None, "the query has no condition"
    return tuple(found)


def _check_server(connection: psycopg.Connection[Any]) -> None:
    level, encoding = _row(connection, "SELECT current_setting('wal_level'), current_setting('server_encoding')")
    if level != "logical":
        remedy = "ALTER SYSTEM SET wal_level = 'logical', then restart the server"
        raise JobRejected("wal-level", "url", f"the server writes no logical log (wal_level is {level}): {remedy}")
    if encoding != "UTF8":
        raise JobRejected("bad-encoding", "url", f"the database has the encoding {encoding}, and not UTF8")


def _slot_position(connection: psycopg.Connection[Any], slot: str) -> int:
    """The position of the slot. Raises JobRejected if the slot cannot be read."""
    literal = sql.Literal(slot).as_string(connection)
    create = f"SELECT pg_create_logical_replication_slot({literal}, 'pgoutput')"
    found = connection.execute(_SLOT_QUERY, [slot]).fetchone()
    if found is None:
        raise JobRejected("no-slot", "slot", f"there is no replication slot {slot!r}: {create}")
    plugin, is_here, confirmed, status = found
    if plugin != "pgoutput" or not is_here:
        detail = f"the slot {slot!r} is of another database or plugin ({plugin}): {create} with another name"
        raise JobRejected("bad-slot", "slot", detail)
    if status == "lost":
        detail = f"the server has removed the log of the slot {slot!r} (max_slot_wal_keep_size): changes are lost"
        raise JobRejected("lost-slot", "slot", detail)
    return int(confirmed)
