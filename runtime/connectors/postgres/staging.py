"""Exactly-once output to a table of Postgres: staged rows, and one transaction per checkpoint that moves them.

A writer copies rows into a staging table in its own transaction, which ends at the barrier. The committer moves the
rows of all committables into the target and records them in the same transaction. A repeated commit finds the record
and changes nothing. Flink's `GenericWriteAheadSink` holds rows back in the same manner, in state.

    <schema>.weir_staged_<hash>   staged rows of a sink of a job, each with its writer and the number of its checkpoint
    <schema>.weir_sink_writers    a row per writer: the highest number that was moved
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final

import msgspec
import psycopg
import pyarrow as pa
from psycopg import sql

from runtime.connectors.postgres.columns import encode_csv
from runtime.connectors.postgres.connection import (
    connect,
    lift_time_limits,
    make_durable,
    postgres_errors,
)
from runtime.connectors.postgres.pending_rows import PendingRows
from runtime.connectors.postgres.sink_writers import (
    SinkWriters,
    Written,
    check_sink,
    convert_committable,
    new_writer_id,
    own_committables,
)
from runtime.connectors.postgres.table import (
    DELETED,
    ResolvedTable,
    RowCheck,
    delete_latest,
    find_table,
    identifiers,
    insert_latest,
)
from runtime.connectors.postgres.uncommitted_view import create_view
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.ports import OperatorContext, SinkCommitter, SinkWriter

_OWN_COLUMNS: Final = ("weir_writer", "weir_number", "weir_row")
_CHECKS_QUERY: Final = (
    "SELECT conname, pg_get_expr(conbin, conrelid) FROM pg_constraint WHERE conrelid = %s AND contype = 'c'"
)
_TYPES_QUERY: Final = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
    "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
)
_DUE_ROWS: Final = (
    "{staging} s JOIN unnest(%(writers)s::int8[], %(numbers)s::int8[], %(tokens)s::int8[]) "
    "AS due (writer, number, token) ON s.weir_writer = due.writer AND s.weir_number = due.number"
)


class StagedRows(Written, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rows that a writer staged before a barrier."""

    deletions: int = 0  #: rows that delete their key
    columns: list[str]


class _StagingTarget(SinkWriters):
    """The staging table and the records of a sink, in the schema of its target."""

    def __init__(self, table: ResolvedTable, job: str, uid: str) -> None:
        super().__init__(table, job, uid)
        self.staging = sql.Identifier(table.schema, f"weir_staged_{self.mark}")
        self.tables = (self.staging, self.writers)

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Creates the tables, or makes the staging table follow changes of the target."""
        super().create(connection)
        names = self.staging.as_string(connection)
        row = connection.execute("SELECT to_regclass(%s)::oid", [names]).fetchone()
        if row is None or row[0] is None:
            ids = sql.SQL(", ").join(sql.SQL("{} int8 NOT NULL").format(sql.Identifier(name)) for name in _OWN_COLUMNS)
            create = sql.SQL("CREATE TABLE {} ({}, {} bool NOT NULL DEFAULT false, LIKE {})")
            deleted = sql.Identifier(DELETED)
            connection.execute(create.format(self.staging, ids, deleted, self.table.identifier))
            for column in self.table.columns(connection):
                if column.not_null:  # rows may leave it to its default; `RowCheck` knows
                    self._alter(connection, sql.SQL("ALTER {} DROP NOT NULL").format(sql.Identifier(column.name)))
            row = connection.execute("SELECT to_regclass(%s)::oid", [names]).fetchone()
        assert row is not None, "the query has no condition"
        self._follow_target(connection, row[0])

    def _follow_target(self, connection: psycopg.Connection[Any], staging: int) -> None:
        """Adds and alters columns and CHECK constraints that differ from those of the target.

        The constraints hold for staged rows too, except for deletions, which may lack values. A violation is found
        before the checkpoint. Rows that are staged already are checked when they are moved.
        """
        (types, checks), (own_types, own_checks) = (
            [dict(connection.execute(query, [table]).fetchall()) for query in (_TYPES_QUERY, _CHECKS_QUERY)]
            for table in (self.table.oid, staging)
        )
        for name in own_checks.keys() - checks.keys():
            self._alter(connection, sql.SQL("DROP CONSTRAINT {}").format(sql.Identifier(name)))
        for name, kind in types.items():
            column = {"name": sql.Identifier(name), "type": sql.SQL(kind)}
            if name not in own_types:
                self._alter(connection, sql.SQL("ADD {name} {type}").format(**column))
            elif own_types[name] != kind:
                self._alter(connection, sql.SQL("ALTER {name} TYPE {type} USING {name}::{type}").format(**column))
        for name, condition in checks.items():
            if name not in own_checks:
                add = sql.SQL("ADD CONSTRAINT {} CHECK ({} OR ({})) NOT VALID")
                self._alter(connection, add.format(sql.Identifier(name), sql.Identifier(DELETED), sql.SQL(condition)))

    def _alter(self, connection: psycopg.Connection[Any], action: sql.Composed) -> None:
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(self.staging, action))


class StagedWriter(SinkWriter):
    """Copies rows into the staging table. The transaction of a checkpoint begins with its first COPY."""

    def __init__(
        self, url: str, table: str, key: tuple[str, ...], op_column: str | None, uncommitted: str | None
    ) -> None:
        self._url, self._name, self._key, self._op_column = url, table, key, op_column
        self._uncommitted = uncommitted
        self._connection: psycopg.Connection[Any] | None = None
        self._id = new_writer_id()
        self._number, self._rows, self._deletions = 1, 0, 0
        self._columns: list[str] = []
        self._pending = PendingRows(self._copy)
        self._staged: list[StagedRows] = []

    def open(self, context: OperatorContext) -> None:
        self._connection = connect(self._url)
        with postgres_errors(self._name), self._connection.transaction():
            table = find_table(self._connection, self._name)
            table.check_key(self._connection, self._key)
            self._place = _StagingTarget(table, context.job, context.uid)
            lift_time_limits(self._connection)
            self._place.lock(self._connection)
            self._place.create(self._connection)
            if self._uncommitted is not None:
                owner = f"sink {context.uid!r} of job {context.job!r}"
                staging, writers = self._place.staging, self._place.newest_writers()
                create_view(self._connection, self._uncommitted, table, self._key, staging, writers, owner)
            self._token, self._subtask = int(context.token), context.index
            self._place.record(self._connection, [self._committable(0)])
            self._check = RowCheck(table, table.columns(self._connection), self._key, self._op_column)

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        batch = self._check.check(batch)
        columns = [name for name in batch.schema.names if name != DELETED]
        if self._rows and self._columns != columns:
            self._end_group()
        self._columns = columns
        count = batch.num_rows
        ids = ([self._id] * count, [self._number] * count, range(self._rows, self._rows + count))
        arrays = [*(pa.array(values, pa.int64()) for values in ids), *batch.columns]
        self._pending.add(pa.RecordBatch.from_arrays(arrays, names=[*_OWN_COLUMNS, *batch.schema.names]))
        self._rows += count
        if self._op_column is not None:
            self._deletions += batch.column(DELETED).true_count

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        self._pending.flush()
        if self._rows:
            self._end_group()
        staged, self._staged = self._staged, []
        if staged:
            assert self._connection is not None, "the writer is open"
            with postgres_errors(str(self._place.table)):
                make_durable(self._connection)
                self._connection.commit()
        return tuple(msgspec.to_builtins(each) for each in staged)

    def close(self) -> None:
        """Rolls back rows that belong to no checkpoint."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _copy(self, rows: pa.RecordBatch) -> None:
        assert self._connection is not None, "the writer is open"
        copied = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)")
        command = copied.format(self._place.staging, identifiers(rows.schema.names))
        with postgres_errors(str(self._place.table)), self._connection.cursor().copy(command) as copy:
            copy.write(encode_csv(rows))

    def _end_group(self) -> None:
        """Ends a group of rows with the same columns. A checkpoint has several if the columns changed."""
        self._staged.append(self._committable(self._number))
        self._number, self._rows, self._deletions = self._number + 1, 0, 0

    def _committable(self, number: int) -> StagedRows:
        return StagedRows(
            table=str(self._place.table),
            sink=self._place.uid,
            writer_id=self._id,
            token=self._token,
            subtask=self._subtask,
            number=number,
            rows=self._rows,
            deletions=self._deletions,
            columns=self._columns,
        )


class StagedCommitter(SinkCommitter):
    """Moves staged rows into the target. Any number of committers may run at the same time."""

    commits_in_master = True

    def __init__(self, url: str, table: str, key: tuple[str, ...]) -> None:
        self._url, self._name, self._key = url, table, key

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Moves the rows of all committables in one transaction, except rows that were moved before.

        Raises:
            EnvironmentFailure: Postgres is unreachable, or rows are neither staged in full nor recorded as moved.
            JobRejected: the target refuses rows; none was moved.
        """
        staged = [convert_committable(each, StagedRows) for each in committables]
        if not staged:
            return 0
        try:
            with self._transaction() as (connection, table):
                return self._move(connection, table, permit.job, staged)
        except DataRejected as error:
            detail = f"{error}; {sum(each.rows for each in staged)} staged rows wait for it: correct the table"
            raise JobRejected("refused-rows", "table", detail) from error

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        """Deletes staged rows, and the records of writers that no retained committable names. Returns the rows."""
        committables = own_committables(keep, StagedRows)
        writers = [each.writer_id for each in committables]
        parameters = {
            "token": int(token),
            "writers": writers,
            "numbers": [each.number for each in committables],
        }
        with self._transaction() as (connection, table):
            place = _StagingTarget(table, job, uid)
            if not place.has_records(connection):
                return 0
            place.lock(connection)
            rows = sql.SQL(
                "DELETE FROM {staging} s WHERE NOT EXISTS "
                "(SELECT FROM {writers} w WHERE w.writer = s.weir_writer AND w.token >= %(token)s) AND NOT EXISTS "
                "(SELECT FROM unnest(%(writers)s::int8[], %(numbers)s::int8[]) AS kept (writer, number) "
                "WHERE kept.writer = s.weir_writer AND kept.number = s.weir_number)"
            )
            removed = connection.execute(rows.format(staging=place.staging, writers=place.writers), parameters).rowcount
            place.forget(connection, token, writers)
            return removed

    @contextmanager
    def _transaction(self) -> Iterator[tuple[psycopg.Connection[Any], ResolvedTable]]:
        with connect(self._url) as connection, postgres_errors(self._name), connection.transaction():
            yield connection, find_table(connection, self._name)

    def _move(
        self, connection: psycopg.Connection[Any], table: ResolvedTable, job: str, staged: Sequence[StagedRows]
    ) -> int:
        """Moves the rows that are not recorded as moved, and records them. Returns the number of committables."""
        place = _StagingTarget(table, job, check_sink(staged, table))
        if not place.has_records(connection):
            raise _lost(staged[0], table)
        place.lock(connection)
        moved = place.moved_numbers(connection, [each.writer_id for each in staged])
        due = [each for each in staged if moved.get(each.writer_id, 0) < each.number]
        due.sort(key=lambda each: (each.token, each.number))
        for columns, group in groupby(due, lambda each: each.columns):
            self._insert(connection, place, columns, list(group))
        if due:
            make_durable(connection)
            place.record(connection, due)
        return len(due)

    def _insert(
        self,
        connection: psycopg.Connection[Any],
        place: _StagingTarget,
        columns: Sequence[str],
        group: Sequence[StagedRows],
    ) -> None:
        parameters = {
            "writers": [each.writer_id for each in group],
            "numbers": [each.number for each in group],
            "tokens": [each.token for each in group],
        }
        rows = sql.SQL(_DUE_ROWS).format(staging=place.staging)
        order = "due.token DESC, due.number DESC, s.weir_row DESC"
        if any(each.deletions for each in group):
            if not self._key:
                detail = "the checkpoint has staged rows that delete their key: restore with the former key"
                raise JobRejected("missing-key", "key", detail)
            connection.execute(delete_latest(place.table, self._key, rows, order), parameters)
        connection.execute(insert_latest(place.table, columns, self._key, rows, order), parameters)
        delete = sql.SQL(
            "DELETE FROM {} s USING unnest(%(writers)s::int8[], %(numbers)s::int8[]) AS due (writer, number) "
            "WHERE s.weir_writer = due.writer AND s.weir_number = due.number RETURNING s.weir_writer, s.weir_number"
        )
        counted = sql.SQL("WITH deleted AS ({}) SELECT weir_writer, weir_number, count(*) FROM deleted GROUP BY 1, 2")
        cursor = connection.execute(counted.format(delete.format(place.staging)), parameters)
        counts = {(writer, number): count for writer, number, count in cursor}
        for each in group:
            if (count := counts.get((each.writer_id, each.number), 0)) != each.rows:
                raise _lost(each, place.table, count)


def _lost(each: StagedRows, table: ResolvedTable, count: int = 0) -> EnvironmentFailure:
    what = f"{each.rows} rows of sink {each.sink!r}, subtask {each.subtask}, attempt {each.token}, number {each.number}"
    remedy = "restore the database, or an older checkpoint"
    return EnvironmentFailure(
        f"Postgres table {table}: {what}, are neither staged ({count} found) nor committed: {remedy}"
    )
