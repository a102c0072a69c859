"""A table in Postgres as a sink: staged rows that a checkpoint moves in one transaction, or upserts without delay.

With `commit="staged"` the rows of a checkpoint are durable in a staging table before the barrier passes. When the
checkpoint has completed, the job master moves the rows of all subtasks into the table in one transaction (`staging`).
With `commit="immediate"` each batch is upserted when it arrives. A repeated interval gives the same table again, so
the sink needs neither state nor a second phase. A writer ends the sessions of older attempts before its first row: a
stopped process would write older rows later.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import psycopg
import pyarrow as pa
from psycopg import sql

from runtime.connectors.postgres.columns import encode_csv
from runtime.connectors.postgres.connection import (
    check_url,
    connect,
    lift_time_limits,
    limit_transaction,
    make_durable,
    postgres_errors,
)
from runtime.connectors.postgres.prepared import PreparedCommitter, PreparedWriter
from runtime.connectors.postgres.sink_writers import SinkWriters
from runtime.connectors.postgres.staging import StagedCommitter, StagedWriter
from runtime.connectors.postgres.table import (
    DELETED,
    RowCheck,
    check_table_name,
    delete_latest,
    find_table,
    identifiers,
    insert_latest,
)
from runtime.connectors.sinks.no_committer import NoCommitter
from runtime.errors import JobRejected
from runtime.ports import OperatorContext, SinkCommitter, SinkWriter


@dataclass(frozen=True)
class PostgresSink:
    """Writes rows into a table. Columns are found by name; columns that the rows lack get their defaults.

    Args:
        url: `postgresql://user@host:port/database`, reachable from slots and job master. A password is written
            `${secret:NAME}`.
        table: `table` or `schema.table`; it must exist.
        key: columns of a unique index. A row replaces the row of the table with the same key; the last row wins.
            Without a key, rows are appended.
        op_column: a column of strings that is not written. Rows with `delete` or `update_before` delete their key, and
            need values in its columns only; rows with `insert` or `update_after` are upserted. The last row of a key
            wins. Changes of a key must reach one subtask, in order.
        commit: how the rows of a checkpoint become visible.
            "staged": exactly once. Readers see all rows of a checkpoint, or none. The role of the address needs CREATE
            in the schema, for staged rows and the record of commits.
            "prepared": exactly once. Rows are written once, in a prepared transaction per subtask. Readers see the
            subtasks of a checkpoint one after another. Takes no key: an upsert would wait for the transaction with
            its row. The server needs `max_prepared_transactions`; the role needs CREATE as before.
            "immediate": at least once, without delay; needs a key. The table is exact if the rows of a key are the same
            when they are repeated. Not in BATCH.
        uncommitted: with commit="staged", the name of a view in the schema of the table. It has the rows of the table
            and the staged rows of the newest attempt, which a failure takes back (Kafka: `read_uncommitted`). Columns
            that staged rows lack are null. The sink creates the view, or replaces its own.
    """

    url: str = field(repr=False)
    table: str
    _: KW_ONLY
    key: Sequence[str] = ()
    op_column: str | None = None
    commit: Literal["staged", "prepared", "immediate"] = "staged"
    uncommitted: str | None = None

    @property
    def guarantee(self) -> str:
        return "at-least-once" if self.is_immediate else "exactly-once"

    @property
    def is_immediate(self) -> bool:
        return self.commit == "immediate"

    @property
    def has_independent_writers(self) -> bool:
        """Staged rows of a lost writer block none. The view shows writers of one attempt; the others hold locks.

        If the target was altered, a new writer alters the staging table, and waits for open COPYs of kept writers. It
        then fails as `TargetAway`; after some restarts in part all writers restart.
        """
        return self.commit == "staged" and self.uncommitted is None

    def writer(self) -> SinkWriter:
        if self.commit == "prepared":
            return PreparedWriter(self.url, self.table)
        if self.commit == "immediate":
            return UpsertWriter(self.url, self.table, tuple(self.key), self.op_column)
        return StagedWriter(self.url, self.table, tuple(self.key), self.op_column, self.uncommitted)

    def committer(self) -> SinkCommitter:
        if self.commit == "staged":
            return StagedCommitter(self.url, self.table, tuple(self.key))
        if self.commit == "prepared":
            return PreparedCommitter(self.url, self.table)
        return NoCommitter()

    def check(self) -> None:
        check_url(self.url)
        check_table_name(self.table)
        if self.commit not in ("staged", "prepared", "immediate"):
            raise JobRejected("bad-commit", "commit", f"must be staged, prepared or immediate, not {self.commit!r}")
        if isinstance(self.key, str) or len(set(self.key)) < len(self.key):
            raise JobRejected("bad-key", "key", f"must be a sequence of distinct columns, not {self.key!r}")
        if self.op_column is not None and not self.key:
            advice = "name the columns of a unique index, or leave out op_column"
            raise JobRejected("missing-key", "key", f"a row is deleted by its key: {advice}")
        if self.op_column is not None and self.op_column in self.key:
            raise JobRejected("bad-key", "op_column", f"{self.op_column!r} belongs to the key, and is not written")
        if self.commit == "prepared" and self.key:
            advice = "use commit='staged', or leave out the key"
            detail = "an upsert would wait for the prepared transaction with its row, and hold up the next checkpoint"
            raise JobRejected("key-of-prepared", "key", f"{detail}: {advice}")
        if self.uncommitted is not None and (self.commit != "staged" or not self.uncommitted):
            detail = f"must name a view, with commit='staged', and not {self.uncommitted!r} with {self.commit!r}"
            raise JobRejected("bad-view", "uncommitted", detail)
        if self.commit == "immediate" and not self.key:
            advice = "name the columns of a unique index, or use commit='staged', which needs no key"
            raise JobRejected("missing-key", "key", f"repeated rows would be inserted twice without a key: {advice}")


class UpsertWriter(SinkWriter):
    """Upserts each batch in a transaction of its own.

    Of two writers that open at the same time, at least one sees the session of the other: a session has its name before
    it looks for others. The older writer is ended, or fails.
    """

    def __init__(self, url: str, table: str, key: tuple[str, ...], op_column: str | None) -> None:
        self._url, self._name, self._key, self._op_column = url, table, key, op_column
        self._connection: psycopg.Connection[Any] | None = None

    def open(self, context: OperatorContext) -> None:
        self._connection = connect(self._url)
        with postgres_errors(self._name), self._connection.transaction():
            self._table = find_table(self._connection, self._name)
            self._table.check_key(self._connection, self._key)
            self._check = RowCheck(self._table, self._table.columns(self._connection), self._key, self._op_column)
            create = sql.SQL(
                "CREATE TEMP TABLE weir_rows ON COMMIT DELETE ROWS AS SELECT 0::int8 AS weir_row, false AS {deleted}, "
                "* FROM {table} WITH NO DATA; ALTER TABLE pg_temp.weir_rows ALTER {deleted} SET DEFAULT false"
            )
            self._connection.execute(create.format(table=self._table.identifier, deleted=sql.Identifier(DELETED)))
            lift_time_limits(self._connection)
            writers, token = SinkWriters(self._table, context.job, context.uid), int(context.token)
            writers.name_session(self._connection, token)
            writers.check_newest(self._connection, token)
            writers.end_older_sessions(self._connection, token)

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        batch = self._check.check(batch)
        assert self._connection is not None, "the writer is open"
        names = [name for name in batch.schema.names if name != DELETED]
        batch = batch.add_column(0, "weir_row", pa.array(range(batch.num_rows), pa.int64()))
        copied = sql.SQL("COPY pg_temp.weir_rows ({}) FROM STDIN (FORMAT csv)").format(identifiers(batch.schema.names))
        rows = sql.SQL("pg_temp.weir_rows s")
        with postgres_errors(str(self._table)), self._connection.transaction():
            limit_transaction(self._connection)
            with self._connection.cursor().copy(copied) as copy:
                copy.write(encode_csv(batch))
            if self._op_column is not None:
                self._connection.execute(delete_latest(self._table, self._key, rows, "s.weir_row DESC"))
            self._connection.execute(insert_latest(self._table, names, self._key, rows, "s.weir_row DESC"))
            make_durable(self._connection)

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        return ()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
