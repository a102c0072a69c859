"""The writers of a sink of a job, as a table in the schema of the target: the highest number that each has committed.

A writer is an attempt of a subtask with a random id: a job that starts anew with the same tokens has other writers. The
numbers of a writer ascend, and a commit passes all that are pending. The highest number therefore covers all before it.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec
import psycopg
from psycopg import sql

from runtime.connectors.postgres.connection import limit_transaction
from runtime.connectors.postgres.table import ResolvedTable
from runtime.core.job.ids import Token
from runtime.errors import EnvironmentFailure, JobRejected, TargetAway

_WRITER_ID_BITS: Final = 63
_END_TIMEOUT_MS: Final = 5_000  #: of a session
_SESSIONS_QUERY: Final = (
    "SELECT pid, application_name FROM pg_stat_activity "
    "WHERE datname = current_database() AND usename = session_user AND starts_with(application_name, %s)"
)
#: Errors of CREATE TABLE IF NOT EXISTS if another job creates the table concurrently.
_CREATED_MEANWHILE: Final = (
    psycopg.errors.UniqueViolation, psycopg.errors.DuplicateObject, psycopg.errors.DuplicateTable,
)  # fmt: skip
_Committable = TypeVar("_Committable")


class Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A committable: the output of a writer before a barrier. `number` counts its barriers with output."""

    table: str
    sink: str
    writer_id: int
    token: int
    subtask: int
    number: int
    rows: int


def new_writer_id() -> int:
    return uuid4().int >> (128 - _WRITER_ID_BITS)


class SinkWriters:
    """The records of a sink. `tables`: those that must exist for a commit."""

    def __init__(self, table: ResolvedTable, job: str, uid: str) -> None:
        self.table, self.job, self.uid = table, job, uid
        digest = hashlib.blake2b(repr((job, uid, str(table))).encode(), digest_size=12)
        self._lock = int.from_bytes(digest.digest()[:8], signed=True)
        self.mark = digest.hexdigest()
        self.writers = sql.Identifier(table.schema, "weir_sink_writers")
        self.tables: Sequence[sql.Identifier] = (self.writers,)
        self.prefix = f"weir:{self.mark}:"  #: of the names of sessions and transactions, before the token

    def lock(self, connection: psycopg.Connection[Any]) -> None:
        """Excludes other committers of this sink until the transaction ends, also of older attempts."""
        limit_transaction(connection)
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [self._lock])

    def name_session(self, connection: psycopg.Connection[Any], token: int) -> None:
        """Names the session of a writer, so that newer attempts find it. Other sessions see the name at once."""
        connection.execute("SELECT set_config('application_name', %s, false)", [f"{self.prefix}{token}"])

    def end_older_sessions(self, connection: psycopg.Connection[Any], token: int) -> None:
        """Ends the sessions of writers of older attempts. Raises TargetAway if one does not end in time."""
        if older := self._older_sessions(connection, token):
            with connection.transaction(force_rollback=True):
                connection.execute("SET LOCAL ROLE NONE")  # a role that was set may not end sessions of the login
                for pid in older:
                    connection.execute("SELECT pg_terminate_backend(%s, %s)", [pid, _END_TIMEOUT_MS])
        if left := self._older_sessions(connection, token):
            raise TargetAway(f"Postgres table {self.table}: sessions of an older attempt do not end: {left}")

    def check_newest(self, connection: psycopg.Connection[Any], token: int) -> None:
        """Raises EnvironmentFailure if a writer of a newer attempt has a session."""
        if newer := [session_token for _, session_token in self._sessions(connection) if session_token > token]:
            detail = f"attempt {max(newer)} writes already, and this is attempt {token}"
            raise EnvironmentFailure(f"Postgres table {self.table}: {detail}")

    def token_of(self, name: str) -> int:
        """The token in the name of a session or transaction."""
        return int(name.removeprefix(self.prefix).split(":")[0])

    def _older_sessions(self, connection: psycopg.Connection[Any], token: int) -> list[int]:
        return [pid for pid, session_token in self._sessions(connection) if session_token < token]

    def _sessions(self, connection: psycopg.Connection[Any]) -> list[tuple[int, int]]:
        """Process and token of each session of a writer of the sink."""
        connection.execute("SELECT pg_stat_clear_snapshot()")  # a transaction sees the sessions as of its first query
        rows = connection.execute(_SESSIONS_QUERY, [self.prefix])
        return [(pid, self.token_of(name)) for pid, name in rows]

    def newest_writers(self) -> sql.Composed:
        """A subquery: the writers of the newest attempt."""
        values = [sql.Literal(value) for value in (self.job, self.uid, str(self.table))]
        condition = sql.SQL("job = {} AND sink = {} AND target = {}").format(*values)
        query = "(SELECT writer FROM {table} WHERE {own} AND token = (SELECT max(token) FROM {table} WHERE {own}))"
        return sql.SQL(query).format(table=self.writers, own=condition)

    def has_records(self, connection: psycopg.Connection[Any]) -> bool:
        names = [name.as_string(connection) for name in self.tables]
        query = "SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) AS name"
        row = connection.execute(query, [names]).fetchone()
        return row is not None and bool(row[0])

    def create(self, connection: psycopg.Connection[Any]) -> None:
        columns = (
            "writer int8 PRIMARY KEY, job text NOT NULL, sink text NOT NULL, target text NOT NULL, "
            "token int8 NOT NULL, subtask int4 NOT NULL, moved int8 NOT NULL, moved_at timestamptz"
        )
        create_table(connection, self.writers, columns)

    def moved_numbers(self, connection: psycopg.Connection[Any], writers: Sequence[int]) -> dict[int, int]:
        query = sql.SQL("SELECT writer, moved FROM {} WHERE writer = ANY(%s)").format(self.writers)
        return dict(connection.execute(query, [list(writers)]).fetchall())

    def record(self, connection: psycopg.Connection[Any], moved: Sequence[Written]) -> None:
        """Records the highest number of each writer that was committed; 0 registers a writer."""
        record = sql.SQL(
            "INSERT INTO {} AS w VALUES (%s, %s, %s, %s, %s, %s, %s, now()) ON CONFLICT (writer) "
            "DO UPDATE SET moved = greatest(w.moved, excluded.moved), moved_at = excluded.moved_at"
        ).format(self.writers)
        with connection.cursor() as cursor:
            cursor.executemany(
                record,
                [
                    (each.writer_id, self.job, self.uid, str(self.table), each.token, each.subtask, each.number)
                    for each in moved
                ],
            )

    def forget(self, connection: psycopg.Connection[Any], token: Token, keep: Sequence[int]) -> None:
        """Deletes the records of writers of older attempts, except those in `keep`."""
        delete = sql.SQL(
            "DELETE FROM {} WHERE job = %s AND sink = %s AND target = %s AND token < %s "
            "AND NOT writer = ANY(%s::int8[])"
        )
        values = [self.job, self.uid, str(self.table), int(token), list(keep)]
        connection.execute(delete.format(self.writers), values)


def create_table(connection: psycopg.Connection[Any], name: sql.Identifier, columns: str) -> None:
    """Creates a table unless it exists; another job may do so at the same time. `columns`: in SQL."""
    with suppress(*_CREATED_MEANWHILE), connection.transaction():
        create = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
        connection.execute(create.format(name, sql.SQL(columns)))


def convert_committable(committable: Any, kind: type[_Committable]) -> _Committable:
    """The committable. Raises JobRejected if it is malformed: a manifest is not trusted."""
    try:
        return msgspec.convert(committable, kind)
    except msgspec.ValidationError as error:
        detail = f"a checkpoint names rows to commit that this sink has not written: {committable!r}: {error}"
        advice = "restore with the former value of `commit`"
        raise JobRejected("bad-committable", "sink", f"{detail}: {advice}") from error


def own_committables(committables: Sequence[Any], kind: type[_Committable]) -> list[_Committable]:
    """Without those that the sink has written before its `commit` was changed."""
    result = []
    for each in committables:
        with suppress(msgspec.ValidationError):
            result.append(msgspec.convert(each, kind))
    return result


def check_sink(written: Sequence[Written], table: ResolvedTable) -> str:
    """The uid of the sink. Raises JobRejected unless all output is of the same sink and of this table."""
    targets = {(each.sink, each.table) for each in written}
    if len(targets) > 1 or written[0].table != str(table):
        names = ", ".join(sorted(each.table for each in written))
        detail = f"the checkpoint has staged rows for {names}, not for {table}: restore with that table first"
        raise JobRejected("other-table", "table", detail)
    return written[0].sink
