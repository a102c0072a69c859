"""The changes of a table in Postgres as a stream, by logical replication (change data capture).

A subtask peeks into a replication slot by plain SQL, which consumes no change. The position in state is the end of the
last whole transaction, and the number of rows that were emitted of the transaction behind it. The slot advances only to
positions of completed checkpoints, so the log that a restore needs is kept by the server.

With `initial_snapshot`, the rows of the table come first (`initial_rows`), and changes that they contain are dropped.
Without, the stream begins at the slot's creation.

A restore skips the transactions before its position. A checkpoint before the slot's position cannot be restored: its
log may be gone, so the job ends with an error.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
import psycopg
import pyarrow as pa
from psycopg import sql

from runtime.connectors.postgres import pgoutput
from runtime.connectors.postgres.change_columns import ChangeColumns, choose_columns
from runtime.connectors.postgres.connection import check_url, connect, postgres_errors
from runtime.connectors.postgres.initial_rows import InitialRows, InitialRowsFilter, SnapshotChunk, find_key
from runtime.connectors.postgres.pgoutput import UNCHANGED, Row
from runtime.connectors.postgres.replication import check_publication, check_server, one_row, slot_position
from runtime.connectors.postgres.table import ResolvedTable, check_table_name, find_table
from runtime.connectors.postgres.values import TEXT_SETTINGS, Column, find_columns
from runtime.connectors.sources.event_clock import BoundedOutOfOrderness, EventClockReader
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import DataRejected, JobRejected
from runtime.operators.retraction import DELETE, INSERT, OP_COLUMN, UPDATE_AFTER, UPDATE_BEFORE
from runtime.ports import OperatorContext

_MESSAGES_PER_PEEK: Final = 10_000
_MAX_HELD_MS: Final = 60_000  #: how long another session may hold the slot, as an earlier attempt that has not ended
_NOW_QUERY: Final = (
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8, (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::int8, "
    "to_regclass(%s)::oid::int8"
)
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
        initial_snapshot: emit the rows of the table as inserts, then its changes. The table needs a primary key. Until
            all rows are read, a transaction stays open, and there is no watermark.
        commit_time: name of a further column with the time of the commit; for rows of the initial snapshot, the time
            of their transaction.
        event_time: column with the event time of a row, for example that of `commit_time`. Watermarks of commit times
            advance without changes too. A column of the table needs REPLICA IDENTITY FULL, since deletions lack it.
        max_disorder_ms: the time by which a row may follow rows with a later event time. Commits appear in the log up
            to 600 ms late if they are asynchronous.
        ignore_truncate: False: TRUNCATE of the table ends the job, since a changelog has no such row.
        poll_interval_ms: time between looks into the slot.
    """

    guarantee: ClassVar[str] = "exactly-once"
    bounded: ClassVar[bool] = False
    exclusive: ClassVar[bool] = True  #: a slot has a single reader
    emits_changelog: ClassVar[bool] = True

    url: str = field(repr=False)
    publication: str
    slot: str
    table: str
    _: KW_ONLY
    columns: Sequence[str] = ()
    initial_snapshot: bool = False
    commit_time: str | None = None
    event_time: str | None = None
    max_disorder_ms: int = 1_000
    ignore_truncate: bool = False
    poll_interval_ms: int = 200

    @property
    def has_event_time(self) -> bool:
        return self.event_time is not None

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
        if self.commit_time in (OP_COLUMN, "", *self.columns):
            raise JobRejected(
                "bad-name", "commit_time", f"must be the name of a further column, not {self.commit_time!r}"
            )
        if self.event_time is not None and self.columns and self.event_time not in (self.commit_time, *self.columns):
            raise JobRejected("missing-column", "event_time", f"columns must contain {self.event_time!r}")
        if self.max_disorder_ms < 0:
            raise JobRejected("bad-disorder", "max_disorder_ms", "must not be negative")
        if OP_COLUMN in self.columns:
            raise JobRejected("bad-columns", "columns", f"{OP_COLUMN!r} is the name of the column of row kinds")
        if self.poll_interval_ms < 1:
            raise JobRejected("bad-interval", "poll_interval_ms", "must be at least 1 ms")


class _Position(msgspec.Struct, frozen=True):
    """The position in state: end of the last whole transaction, and emitted rows of the next transaction.

    `chunks` are those of the initial snapshot, until no change can be in its rows. `is_initial`: it is not complete.
    """

    slot: str
    lsn: int
    rows: int
    columns: list[Column]
    chunks: list[SnapshotChunk]
    is_initial: bool
    event_time: int | None
    oid: int  #: of the table


class ChangesReader(EventClockReader):
    """Reads the slot in subtask 0; the other subtasks are idle. A slot is a single sequence."""

    def __init__(self, source: PostgresChanges) -> None:
        self._source = source
        self._what = f"slot {source.slot}"
        self._connection: psycopg.Connection[Any] | None = None
        self._window: psycopg.ServerCursor[Any] | None = None  #: messages of the last peek
        self._window_end = self._window_size = 0
        self._limit = _MESSAGES_PER_PEEK
        self._peeked_at: int | None = None
        self._held_since: int | None = None  #: since when another session has held the slot
        self._pause_ms = source.poll_interval_ms
        self._relations: dict[int, pgoutput.Relation] = {}  #: of this table only
        self._places: dict[int, tuple[int, ...]] = {}  #: relation -> places of the columns
        self._initial: InitialRows | None = None  #: until all rows of the initial snapshot are emitted
        self._chunks: tuple[SnapshotChunk, ...] = ()
        self._filter: InitialRowsFilter | None = None
        self._filter_end: int | None = None  #: position behind which no change is in the initial rows
        self._transaction = pgoutput.Begin(0, 0, 0)  #: the transaction that is read
        self._ready: deque[_Change] = deque()
        self._lsn = self._rows = self._confirmed = 0  #: position of the emitted rows
        self._read_lsn = 0  #: end of the last transaction that was read; its rows may wait in `_ready`
        self._is_skipped = False  #: whether the transaction that is read lies before the restored position
        self._read_rows = 0  #: rows of the transaction that is read
        self._to_skip = 0  #: rows of the next transaction that were emitted before the restored checkpoint
        self._server_ms = 0  #: time of the server before the last peek
        self._clock = BoundedOutOfOrderness(source.event_time, source.max_disorder_ms)
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
            check_server(self._connection)
            self._confirmed = self._lsn = slot_position(self._connection, self._source.slot)
            table = find_table(self._connection, self._source.table)
            self._oid, self._name = table.oid, str(table)
            if stored and stored[0].oid != table.oid:
                raise self._replaced_error()
            check_publication(self._connection, self._source.publication, table, all_rows=self._source.initial_snapshot)
            source = self._source
            columns = tuple(stored[0].columns) if stored else self._choose_columns(self._connection)
            self._columns = ChangeColumns(
                self._name, columns, are_named=bool(source.columns), commit_time=source.commit_time
            )
            if stored:
                self._resume(stored[0])
            self._check_event_time(self._connection)
            if stored[0].is_initial if stored else self._source.initial_snapshot:
                self._begin_initial(self._connection, table)
            elif self._chunks:
                self._filter = self._make_filter(self._connection, table)
        self._table = table
        self._read_lsn = self._lsn

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if self._connection is None:
            return None
        try:
            with postgres_errors(self._what):
                if self._initial is not None:
                    return self._read_initial(self._connection, self._initial, max_rows)
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
        return self._connection is None or not self._source.has_event_time

    def watermark(self) -> int | None:
        return None if self._initial is not None else self._clock.watermark

    def snapshot(self, checkpoint: int) -> None:
        if self._connection is not None:
            chunks = self._chunks if self._initial is None else self._initial.chunks
            if self._filter_end is not None and self._lsn >= self._filter_end:
                chunks = ()
            position = _Position(
                self._source.slot,
                self._lsn,
                self._rows,
                list(self._columns.columns),
                list(chunks),
                self._initial is not None,
                self._clock.max_event_time,
                self._oid,
            )
            self._state.replace([msgspec.json.decode(msgspec.json.encode(position))])
            self._positions[checkpoint] = self._lsn

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        """Advances the slot to the position of the checkpoint."""
        checkpoints = [checkpoint for checkpoint in self._positions if checkpoint <= permit.checkpoint]
        position = max((self._positions.pop(checkpoint) for checkpoint in checkpoints), default=0)
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

    def _all_columns(self, connection: psycopg.Connection[Any]) -> list[Column]:
        return find_columns(connection, self._oid, generated=False)

    def _choose_columns(self, connection: psycopg.Connection[Any]) -> tuple[Column, ...]:
        source = self._source
        return choose_columns(self._name, self._all_columns(connection), source.columns, source.commit_time)

    def _check_event_time(self, connection: psycopg.Connection[Any]) -> None:
        """Raises JobRejected unless each row has the event time, also a deletion."""
        name = self._source.event_time
        if name is None or name == self._source.commit_time:
            return
        names = [column.name for column in self._columns.columns]
        if name not in names:
            alternatives = ", ".join(names)
            raise JobRejected("unknown-column", name, f"the table {self._name} has no such column, only {alternatives}")
        (identity,) = one_row(connection, "SELECT relreplident FROM pg_class WHERE oid = %s", self._oid)
        if identity not in ("f", b"f"):
            remedy = f"ALTER TABLE {self._name} REPLICA IDENTITY FULL, or take commit_time as event_time"
            raise JobRejected("replica-identity", "event_time", f"a deletion has no value of {name!r}: {remedy}")

    def _resume(self, stored: _Position) -> None:
        if stored.slot != self._source.slot:
            detail = f"the checkpoint is of the slot {stored.slot!r}, and positions of another slot have other changes"
            raise JobRejected("other-slot", "slot", detail)
        if stored.lsn < self._confirmed:
            detail = "the slot has advanced beyond the checkpoint, so changes would be lost: restore a newer checkpoint"
            raise JobRejected("slot-has-advanced", "slot", f"{self._what}: {detail}")
        self._lsn, self._rows, self._to_skip = stored.lsn, stored.rows, stored.rows
        self._chunks = tuple(stored.chunks)
        source = self._source
        self._clock = BoundedOutOfOrderness(source.event_time, source.max_disorder_ms, stored.event_time)

    def _replaced_error(self) -> JobRejected:
        """The error for another table under the name. A table that was only renamed keeps its identity."""
        detail = f"another table has the name {self._name} since the job began, and its changes would be lost"
        return JobRejected("table-replaced", "table", f"{detail}: begin anew with another slot")

    # ------------------------------------------------------------ the initial snapshot

    def _begin_initial(self, connection: psycopg.Connection[Any], table: ResolvedTable) -> None:
        self._columns.check_present({column.name: column for column in self._all_columns(connection)})
        columns = [(column.name, column.type) for column in self._columns.columns]
        self._initial = InitialRows(connection, table, columns, find_key(connection, table), self._chunks)

    def _read_initial(
        self, connection: psycopg.Connection[Any], initial: InitialRows, max_rows: int
    ) -> pa.RecordBatch | None:
        now = self._context.now_ms()
        if self._peeked_at is not None and 0 <= now - self._peeked_at < self._source.poll_interval_ms:
            return None
        rows = initial.read(max_rows)
        batch = self._columns.batch([INSERT] * len(rows), rows, [initial.time_us] * len(rows)) if rows else None
        if batch is not None and not self._chunks:
            # Rows that are read after a restart are newer than changes of the rows before it, which are still to come.
            self._clock.on_batch(batch)
        self._peeked_at = None if rows else now
        if initial.is_complete:
            self._chunks, self._initial = initial.chunks, None
            self._filter = self._make_filter(connection, self._table)
            self._peeked_at = None
        return batch

    def _make_filter(self, connection: psycopg.Connection[Any], table: ResolvedTable) -> InitialRowsFilter:
        return InitialRowsFilter(connection, self._name, find_key(connection, table), self._chunks)

    # ------------------------------------------------------------ messages

    def _peek(self, connection: psycopg.Connection[Any]) -> bool:
        """Opens a window on the messages behind the slot's position. False if it is too early, or none is new.

        A peek decodes all messages since the slot's position anew. It is therefore repeated after as long a pause.
        While another session holds the slot, no message is known.
        """
        now = self._context.now_ms()
        if self._peeked_at is not None and 0 <= now - self._peeked_at < self._pause_ms:
            return False
        self._peeked_at = now
        if self._filter is not None and self._filter_end is None:
            self._filter_end = self._filter.end()
        name = self._table.identifier.as_string(connection)
        self._server_ms, end, oid = one_row(connection, _NOW_QUERY, name)
        if oid not in (None, self._oid):
            raise self._replaced_error()
        if end <= self._read_lsn:
            self._advance_clock(self._server_ms)
            return False
        window = connection.cursor("weir_changes", withhold=True, binary=True)
        publication = sql.Identifier(self._source.publication).as_string(connection)
        try:
            window.execute(_PEEK, [self._source.slot, end, self._limit, publication])
        except psycopg.errors.ObjectInUse:
            window.close()
            self._held_since = now if self._held_since is None else self._held_since
            if now - self._held_since > _MAX_HELD_MS:
                raise
            return False
        self._held_since = None
        self._peeked_at = self._context.now_ms()
        self._pause_ms = max(self._source.poll_interval_ms, self._peeked_at - now)
        self._window, self._window_end, self._window_size = window, end, 0
        return True

    def _next_batch(self, max_rows: int) -> pa.RecordBatch | None:
        while len(self._ready) < max_rows and self._window is not None:
            messages = self._window.fetchmany(max_rows)
            self._window_size += len(messages)
            for (data,) in messages:
                if not (self._is_skipped and pgoutput.is_change(data)):
                    self._read(pgoutput.decode(data))
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
            self._end_transaction(self._window_end, self._server_ms)

    def _end_transaction(self, lsn: int, time_ms: int | None = None) -> None:
        self._read_lsn = lsn
        self._ready.append(_Change(None, (), lsn, 0, 0 if time_ms is None else time_ms))
        if self._filter_end is not None and lsn >= self._filter_end:
            self._filter = None

    def _advance_clock(self, time_ms: int) -> None:
        """All commits before this time of the server have been emitted."""
        if self._source.event_time is not None and self._source.event_time == self._source.commit_time:
            self._clock.advance(time_ms)

    def _read(self, message: pgoutput.Message | None) -> None:
        match message:
            case pgoutput.Relation():
                if message.oid == self._oid:
                    self._relations[message.oid] = message
                    self._places.pop(message.oid, None)
            case pgoutput.Begin():
                self._is_skipped = message.commit_lsn < self._read_lsn
                self._read_rows, self._transaction = 0, message
            case pgoutput.Commit():
                if not self._is_skipped:
                    self._to_skip = 0
                    self._end_transaction(message.end_lsn)
            case pgoutput.Truncate():
                is_seen = self._filter is not None and self._filter.is_seen_by_all(self._transaction.xid)
                is_ours = self._oid in message.relations and not self._is_skipped and not is_seen
                if is_ours and not self._source.ignore_truncate:
                    remedy = "delete rows with DELETE, or set ignore_truncate"
                    raise DataRejected(f"Postgres: {self._name} was truncated, which a changelog cannot show: {remedy}")
            case pgoutput.Insert() | pgoutput.Update() | pgoutput.Delete():
                if message.relation in self._relations and not self._is_skipped:
                    changes = self._without_initial(message.relation, list(_changes(message)))
                    places = self._find_places(message.relation) if changes else ()
                    for number, (kind, row) in enumerate(changes, 1):
                        self._add(kind, tuple(row[place] for place in places), is_half=number < len(changes))
            case None:
                pass

    def _add(self, kind: str, row: Row, *, is_half: bool) -> None:
        self._read_rows += 1
        if self._read_rows > self._to_skip:
            self._ready.append(_Change(kind, row, 0, self._read_rows, self._transaction.time_us, is_half))

    def _without_initial(self, relation: int, changes: list[tuple[str, Row]]) -> list[tuple[str, Row]]:
        """The changes that the initial rows lack. Half of an update of the key is a deletion or an insert."""
        if self._filter is None:
            return changes
        by_name = {column.name: place for place, column in enumerate(self._relations[relation].columns)}
        places = [by_name.get(name) for name in self._filter.key]
        new = [
            (kind, row)
            for kind, row in changes
            if self._filter.is_new(self._transaction.xid, tuple(None if at is None else row[at] for at in places))
        ]
        if len(new) == 1 and len(changes) == 2:
            return [({UPDATE_BEFORE: DELETE, UPDATE_AFTER: INSERT}.get(kind, kind), row) for kind, row in new]
        return new

    def _find_places(self, oid: int) -> tuple[int, ...]:
        if oid not in self._places:
            self._places[oid] = self._columns.places(self._relations[oid])
        return self._places[oid]

    # ------------------------------------------------------------ rows

    def _emit(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows, and the position behind them. Exceeds `max_rows` by one row rather than halve an update."""
        kinds: list[str] = []
        rows: list[Row] = []
        times: list[int] = []
        clock_time = change = None
        while self._ready and (len(rows) < max_rows or self._ready[0].kind is None or (change and change.is_half)):
            change = self._ready.popleft()
            if change.kind is None:
                self._lsn, self._rows = max(change.lsn, self._lsn), 0
                clock_time = change.time or clock_time
            else:
                kinds.append(change.kind)
                rows.append(change.row)
                times.append(change.time)
                self._rows = change.number
        batch = self._columns.batch(kinds, rows, times) if rows else None
        if batch is not None:
            self._clock.on_batch(batch)
        if clock_time is not None:
            self._advance_clock(clock_time)
        return batch


class _Change(NamedTuple):
    """A row with its number in its transaction, and the time of the commit in us.

    Without a kind: the end of a transaction at `lsn`. `time`, unless 0: the server's time in ms before which all
    commits have been read. `is_half`: the next row belongs to the same update. A barrier between them would show a
    checkpoint without the row.
    """

    kind: str | None
    row: Row
    lsn: int
    number: int
    time: int
    is_half: bool = False


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
