"""Exactly-once output to a table of Postgres by PREPARE TRANSACTION: a transaction per subtask and checkpoint.

A writer copies rows into the table and prepares its transaction at the barrier; a committer commits it by name. The
transaction contains a mark. A name that the server does not know was therefore committed if its mark is visible, or if
the record of its writer covers its number. Otherwise its rows are lost. Flink's `JdbcXaSinkFunction` commits in the
same manner, but takes an unknown name for a committed transaction.

    weir:<sink>:<token>:<writer>:<number>   name of a transaction; <sink> is a hash of job, uid and table
    <schema>.weir_prepared_marks            marks that no record of a writer covers yet
    <schema>.weir_sink_writers              a row per writer: the highest number that was committed

Prepared transactions survive the process and the server, and hold their locks until they are committed or rolled back.
A session is named `weir:<sink>:<token>`. A new attempt ends the sessions of older attempts: a stopped process would
hold the locks of its rows, and the new attempt would wait for them. The clean-up before the attempt ends them first, so
that none prepares a transaction after the clean-up has listed them. A writer that opens later prepares nothing: a
checkpoint begins when all writers of its attempt are open, and only the newest attempt gets an id for it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
import psycopg
import pyarrow as pa
from psycopg import sql

from runtime.connectors.postgres.columns import encode_csv
from runtime.connectors.postgres.connection import connect, lift_time_limits, postgres_errors
from runtime.connectors.postgres.pending_rows import PendingRows
from runtime.connectors.postgres.sink_writers import (
    SinkWriters,
    Written,
    check_sink,
    convert_committable,
    create_table,
    new_writer_id,
    own_committables,
)
from runtime.connectors.postgres.table import ResolvedTable, RowCheck, find_table, identifiers
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.ports import OperatorContext, SinkCommitter, SinkWriter

_PER_SUBTASK: Final = 2  #: a transaction that waits for its commit, and the next
_NAMES_QUERY: Final = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)"


class PreparedRows(Written, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prepared transaction with the rows of a writer before a barrier."""

    transaction: str


class _PreparedTarget(SinkWriters):
    """The marks and the records of a sink, in the schema of its target."""

    def __init__(self, table: ResolvedTable, job: str, uid: str) -> None:
        super().__init__(table, job, uid)
        self.marks = sql.Identifier(table.schema, "weir_prepared_marks")
        self.tables = (self.marks, self.writers)

    def create(self, connection: psycopg.Connection[Any]) -> None:
        super().create(connection)
        create_table(connection, self.marks, "writer int8, number int8, PRIMARY KEY (writer, number)")

    def name(self, token: int, writer: int, number: int) -> str:
        return f"{self.prefix}{token}:{writer:x}:{number}"

    def names(self, connection: psycopg.Connection[Any]) -> list[str]:
        """The prepared transactions of the sink."""
        return [name for (name,) in connection.execute(_NAMES_QUERY, [self.prefix])]

    def is_committed(self, connection: psycopg.Connection[Any], each: PreparedRows) -> bool:
        query = sql.SQL(
            "SELECT EXISTS (SELECT FROM {} WHERE writer = %(writer)s AND number = %(number)s) "
            "OR EXISTS (SELECT FROM {} WHERE writer = %(writer)s AND moved >= %(number)s)"
        ).format(self.marks, self.writers)
        row = connection.execute(query, {"writer": each.writer_id, "number": each.number}).fetchone()
        return row is not None and bool(row[0])

    def cover_marks(self, connection: psycopg.Connection[Any]) -> None:
        """Deletes the marks that the records of their writers cover."""
        delete = sql.SQL("DELETE FROM {} m USING {} w WHERE w.writer = m.writer AND m.number <= w.moved")
        connection.execute(delete.format(self.marks, self.writers))


class PreparedWriter(SinkWriter):
    """Copies rows into the table. The transaction of a checkpoint begins with its first row."""

    def __init__(self, url: str, table: str) -> None:
        self._url, self._name = url, table
        self._connection: psycopg.Connection[Any] | None = None
        self._id = new_writer_id()
        self._number, self._rows = 1, 0
        self._pending = PendingRows(self._copy)

    def open(self, context: OperatorContext) -> None:
        self._connection = connect(self._url)
        with postgres_errors(self._name), self._connection.transaction():
            _check_server(self._connection, context.parallelism)
            table = find_table(self._connection, self._name)
            self._place = _PreparedTarget(table, context.job, context.uid)
            lift_time_limits(self._connection)
            self._place.lock(self._connection)
            self._place.create(self._connection)
            self._token, self._subtask = int(context.token), context.index
            self._place.name_session(self._connection, self._token)
            self._place.end_older_sessions(self._connection, self._token)
            self._place.record(self._connection, [self._committable(0)])
            self._check = RowCheck(table, table.columns(self._connection), (), None)

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        batch = self._check.check(batch)
        if not self._rows:  # a unique value of a prepared transaction must not block the barrier for ever
            assert self._connection is not None, "the writer is open"
            with postgres_errors(str(self._place.table)):
                self._connection.execute("SET LOCAL lock_timeout = '20s'")
        self._pending.add(batch)
        self._rows += batch.num_rows

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        if not self._rows:
            return ()
        assert self._connection is not None, "the writer is open"
        self._pending.flush()
        prepared = self._committable(self._number)
        insert = sql.SQL("INSERT INTO {} VALUES (%s, %s)").format(self._place.marks)
        with postgres_errors(str(self._place.table)):
            self._connection.execute(insert, [self._id, self._number])
            self._connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(prepared.transaction)))
        self._number, self._rows = self._number + 1, 0
        return (msgspec.to_builtins(prepared),)

    def close(self) -> None:
        """Rolls back rows that belong to no checkpoint."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _copy(self, batch: pa.RecordBatch) -> None:
        assert self._connection is not None, "the writer is open"
        copied = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)")
        command = copied.format(self._place.table.identifier, identifiers(batch.schema.names))
        with postgres_errors(str(self._place.table)), self._connection.cursor().copy(command) as copy:
            copy.write(encode_csv(batch))

    def _committable(self, number: int) -> PreparedRows:
        return PreparedRows(
            table=str(self._place.table),
            sink=self._place.uid,
            writer_id=self._id,
            token=self._token,
            subtask=self._subtask,
            number=number,
            rows=self._rows,
            transaction=self._place.name(self._token, self._id, number),
        )


class PreparedCommitter(SinkCommitter):
    """Commits prepared transactions by name. Any number of committers may run at the same time."""

    commits_in_master = True

    def __init__(self, url: str, table: str) -> None:
        self._url, self._name = url, table

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Commits the transactions that are prepared, and records all.

        Raises:
            EnvironmentFailure: Postgres is unreachable, another committer is in the middle of the same commit, or a
                transaction is neither prepared nor committed.
        """
        prepared = [convert_committable(each, PreparedRows) for each in committables]
        if not prepared:
            return 0
        with self._connection() as (connection, table):
            place = _PreparedTarget(table, permit.job, check_sink(prepared, table))
            if not place.has_records(connection):
                raise _lost(prepared[0])
            recorded = place.moved_numbers(connection, [each.writer_id for each in prepared])
            due = [each for each in prepared if recorded.get(each.writer_id, 0) < each.number]
            count = sum(self._commit(connection, place, each) for each in sorted(due, key=lambda each: each.number))
            if due:
                with connection.transaction():
                    place.lock(connection)
                    place.record(connection, due)
                    place.cover_marks(connection)
            return count

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        """Rolls back transactions of older attempts that no retained committable names. Returns their number."""
        committables = own_committables(keep, PreparedRows)
        names = {each.transaction for each in committables}
        with self._connection() as (connection, table):
            place = _PreparedTarget(table, job, uid)
            if not place.has_records(connection):
                return 0
            place.end_older_sessions(connection, token)
            leftovers = [name for name in place.names(connection) if place.token_of(name) < token and name not in names]
            for name in leftovers:
                with suppress(psycopg.errors.UndefinedObject):  # another master has rolled it back
                    connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(name)))
            with connection.transaction():
                place.lock(connection)
                place.cover_marks(connection)
                place.forget(connection, token, [each.writer_id for each in committables])
            return len(leftovers)

    def _commit(self, connection: psycopg.Connection[Any], place: _PreparedTarget, each: PreparedRows) -> bool:
        """Whether the transaction was prepared until now. Raises EnvironmentFailure if it is lost."""
        try:
            connection.execute(sql.SQL("COMMIT PREPARED {}").format(sql.Literal(each.transaction)))
        except psycopg.errors.UndefinedObject:
            if not place.is_committed(connection, each):
                raise _lost(each) from None
            return False
        return True

    @contextmanager
    def _connection(self) -> Iterator[tuple[psycopg.Connection[Any], ResolvedTable]]:
        """A connection in autocommit mode: COMMIT PREPARED is no part of a transaction."""
        with connect(self._url) as connection, postgres_errors(self._name):
            connection.autocommit = True
            yield connection, find_table(connection, self._name)


def _check_server(connection: psycopg.Connection[Any], parallelism: int) -> None:
    """Raises JobRejected if the server allows too few prepared transactions."""
    row = connection.execute("SELECT current_setting('max_prepared_transactions')::int").fetchone()
    allowed, minimum = row[0] if row else 0, _PER_SUBTASK * parallelism
    if allowed < minimum:
        remedy = f"ALTER SYSTEM SET max_prepared_transactions = {max(minimum, 50)}, then restart the server"
        detail = (
            f"max_prepared_transactions is {allowed}, and parallelism {parallelism} needs {minimum} or more: {remedy}"
        )
        raise JobRejected("max-prepared-transactions", "commit", f"{detail}; or use commit='staged'")


def _lost(each: PreparedRows) -> EnvironmentFailure:
    what = f"{each.rows} rows of sink {each.sink!r}, subtask {each.subtask}, attempt {each.token}, number {each.number}"
    detail = f"the transaction {each.transaction!r} is neither prepared nor committed"
    remedy = "restore the database, or an older checkpoint"
    return EnvironmentFailure(f"Postgres table {each.table}: {what}, are lost: {detail}: {remedy}")
