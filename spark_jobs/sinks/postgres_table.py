"""A table in Postgres that takes each epoch exactly once.

Spark's tasks copy the rows into a staging table. A single transaction of the driver then moves them into the target and
records the epoch in `weir_epochs`. A repeated epoch is skipped if it is recorded there; otherwise it is staged again.

    <schema>.weir_epochs                a row for each source and target: the number of the last epoch
    <schema>.weir_staging_<source>      staged rows, with the task attempt that copied them

A repeated task copies its rows again under another attempt; the driver moves the rows of attempts that Spark accepted.
The staging table is unlogged: Postgres empties it after a crash, which the driver detects by the number of moved rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import uuid4

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import make_conninfo

from runtime.connectors.postgres.columns import check_columns, encode_csv
from runtime.connectors.postgres.connection import check_address, conninfo
from runtime.connectors.postgres.table import ResolvedTable, check_table_name, find_table
from runtime.errors import DataRejected, JobRejected, TargetAway
from spark_jobs.column_types import spark_schema
from spark_jobs.session import first_line
from spark_jobs.sinks.targets import DeliveredEpoch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONNECT_TIMEOUT_S: Final = 10
#: Errors of CREATE TABLE IF NOT EXISTS if another job creates the table concurrently.
_CREATED_MEANWHILE: Final = (
    psycopg.errors.UniqueViolation, psycopg.errors.DuplicateObject, psycopg.errors.DuplicateTable,
)  # fmt: skip
_ATTEMPT_COLUMN: Final = "weir_try"
_REPORT_SCHEMA: Final = pa.schema(
    [("try", pa.string()), ("rows", pa.int64()), ("away", pa.string()), ("refused", pa.string())]
)


@dataclass(frozen=True)
class PostgresTable:
    """Appends each epoch to a table, exactly once. The columns of the DataFrame are found by their names.

    Args:
        url: `postgresql://…` or `${connection:NAME}`, reachable from Spark's executors. A parameter whose URL has a
            literal password needs a name by which it is masked.
        table: as in SQL, with its schema if that is not the first of the search path. It must exist. The role of the
            URL needs CREATE in that schema, for `weir_epochs` and the staging table.
    """

    guarantee: ClassVar[str] = "exactly-once"

    url: str = field(repr=False)
    table: str

    def check(self) -> None:
        check_table_name(self.table)
        check_address(self.url)

    def prepare(self) -> None:
        """Checks the table and creates `weir_epochs`, before the first epoch.

        Raises:
            JobRejected: the table does not exist, or the role may not create tables in its schema.
            TargetAway: Postgres is unreachable.
        """
        try:
            with _connect(self.url) as connection:
                self._prepare(connection, "")
        except psycopg.errors.InsufficientPrivilege as error:
            raise JobRejected("no-privilege", "table", f"{self.table}: {first_line(error)}") from error
        except psycopg.OperationalError as error:
            raise TargetAway(f"{self.table}: {first_line(error)}") from error

    def __call__(self, spark: SparkSession, frame: DataFrame, epoch: DeliveredEpoch) -> None:
        self.write(frame, epoch)

    def write(self, frame: DataFrame, epoch: DeliveredEpoch) -> bool:
        """Appends the rows, unless this epoch is recorded. Returns whether rows were written.

        Raises:
            JobRejected: the table is missing, the columns do not match, or the function has already written into the
                table; no row was written.
            DataRejected: Postgres refuses a value; no row was written.
            TargetAway: Postgres is unreachable, or the connection was lost.
        """
        try:
            with epoch.written_once(self.table):
                return self._write(frame, epoch)
        except psycopg.OperationalError as error:
            raise TargetAway(f"{self.table}: {first_line(error)}") from error

    def _write(self, frame: DataFrame, epoch: DeliveredEpoch) -> bool:
        with _connect(self.url) as connection:
            names = self._prepare(connection, epoch.source)
        if str(names.table) == self.table:
            return self._write_to(names, frame, epoch)
        with epoch.written_once(str(names.table)):  # another target may spell the same table differently
            return self._write_to(names, frame, epoch)

    def _write_to(self, names: _TableNames, frame: DataFrame, epoch: DeliveredEpoch) -> bool:
        with _connect(self.url) as connection:
            if self._is_recorded(connection, names, epoch):
                return False
            columns = self._check(connection, names, frame)
            self._empty_staging(connection, names, columns)
        tries = self._stage(frame, names)
        with _connect(self.url) as connection:
            return self._move(connection, names, epoch, tries, list(frame.columns))

    # ------------------------------------------------------------ steps

    def _prepare(self, connection: psycopg.Connection[Any], source: str) -> _TableNames:
        """Looks up the table and creates `weir_epochs`."""
        names = _TableNames(find_table(connection, self.table), source)
        statement = sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (source text, target text, epoch bigint NOT NULL, job text, sink text, "
            "checkpoint bigint, rows bigint, committed_at timestamptz, PRIMARY KEY (source, target))"
        )
        with suppress(*_CREATED_MEANWHILE), connection.transaction():
            connection.execute(statement.format(names.epochs))
        connection.commit()
        return names

    def _is_recorded(self, connection: psycopg.Connection[Any], names: _TableNames, epoch: DeliveredEpoch) -> bool:
        """Whether the epoch is recorded."""
        query = sql.SQL("SELECT max(epoch) FROM {} WHERE source = %s AND target = %s").format(names.epochs)
        row = connection.execute(query, [epoch.source, str(names.table)]).fetchone()
        return row is not None and row[0] is not None and int(row[0]) >= epoch.number

    def _check(self, connection: psycopg.Connection[Any], names: _TableNames, frame: DataFrame) -> list[str]:
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = names.table.columns(connection)
        check_columns(self.table, columns, to_arrow_schema(frame.schema, timezone="UTC"))
        return list(frame.columns)

    def _empty_staging(self, connection: psycopg.Connection[Any], names: _TableNames, columns: Sequence[str]) -> None:
        """Creates the staging table anew: columns may have changed, and an earlier attempt may have left rows."""
        column_list = sql.SQL(", ").join(map(sql.Identifier, columns))
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(names.staging))
        connection.execute(
            sql.SQL("CREATE UNLOGGED TABLE {} AS SELECT NULL::text AS {}, {} FROM {} WITH NO DATA").format(
                names.staging, sql.Identifier(_ATTEMPT_COLUMN), column_list, names.target
            )
        )
        connection.commit()

    def _stage(self, frame: DataFrame, names: _TableNames) -> dict[str, int]:
        """Copies the rows in Spark's tasks. Returns the number of rows by accepted task attempt."""
        columns = sql.SQL(", ").join(map(sql.Identifier, [_ATTEMPT_COLUMN, *frame.columns]))
        with _connect(self.url) as connection:
            command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(names.staging, columns)
            copy = _Copy(self.url, command.as_string(connection))
        reports = frame.mapInArrow(copy, spark_schema(_REPORT_SCHEMA)).collect()
        for report in reports:
            if report.refused is not None:
                raise DataRejected(f"{self.table}: {report.refused}")
            if report.away is not None:
                raise TargetAway(f"{self.table}: {report.away}")
        return {report["try"]: report.rows for report in reports}

    def _move(
        self,
        connection: psycopg.Connection[Any],
        names: _TableNames,
        epoch: DeliveredEpoch,
        tries: dict[str, int],
        columns: Sequence[str],
    ) -> bool:
        """Commits rows and epoch in one transaction. Returns False if another process recorded the epoch before."""
        with connection.transaction():
            if self._is_recorded(connection, names, epoch):
                return False
            if not self._record(connection, names, epoch, sum(tries.values())):
                return False
            column_list = sql.SQL(", ").join(map(sql.Identifier, columns))
            move = sql.SQL("INSERT INTO {target} ({columns}) SELECT {columns} FROM {staging} WHERE {key} = ANY(%s)")
            query = move.format(
                target=names.target, columns=column_list, staging=names.staging, key=sql.Identifier(_ATTEMPT_COLUMN)
            )
            moved = connection.execute(query, [list(tries)]).rowcount
            if moved != sum(tries.values()):
                lost = f"{sum(tries.values())} rows were staged, {moved} were found: Postgres was restarted meanwhile"
                raise TargetAway(f"{self.table}: {lost}")
            connection.execute(sql.SQL("DROP TABLE {}").format(names.staging))
        return True

    def _record(
        self, connection: psycopg.Connection[Any], names: _TableNames, epoch: DeliveredEpoch, rows: int
    ) -> bool:
        """Records the epoch, which locks the source's row until the transaction ends. False: recorded already."""
        record = sql.SQL(
            "INSERT INTO {epochs} AS e VALUES (%s, %s, %s, %s, %s, %s, %s, now()) "
            "ON CONFLICT (source, target) DO UPDATE SET epoch = excluded.epoch, checkpoint = excluded.checkpoint, "
            "rows = excluded.rows, committed_at = excluded.committed_at WHERE e.epoch < excluded.epoch"
        ).format(epochs=names.epochs)
        values = [epoch.source, str(names.table), epoch.number, epoch.job, epoch.sink, epoch.checkpoint, rows]
        return connection.execute(record, values).rowcount == 1


def _connect(url: str) -> psycopg.Connection[Any]:
    address = make_conninfo(conninfo(url), connect_timeout=CONNECT_TIMEOUT_S, application_name="weir epochs")
    return psycopg.connect(address)


@dataclass(frozen=True)
class _TableNames:
    """The names of the target, the epochs table and the staging table."""

    table: ResolvedTable
    source: str

    @property
    def target(self) -> sql.Identifier:
        return self.table.identifier

    @property
    def epochs(self) -> sql.Identifier:
        return sql.Identifier(self.table.schema, "weir_epochs")

    @property
    def staging(self) -> sql.Identifier:
        """The staging table of this source and target; several jobs may write to the same target."""
        mark = hashlib.blake2b(f"{self.source} {self.table.oid}".encode(), digest_size=12).hexdigest()
        return sql.Identifier(self.table.schema, f"weir_staging_{mark}")


@dataclass(frozen=True)
class _Copy:
    """Copies the rows of a task in a single transaction. Reports the attempt's id, row count and error."""

    url: str
    command: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark, rows, away, refusal = uuid4().hex, 0, None, None
        try:
            with (
                _connect(self.url) as connection,
                connection.cursor().copy(self.command) as copy,
            ):
                for batch in batches:
                    copy.write(encode_csv(batch, {_ATTEMPT_COLUMN: mark}))
                    rows += batch.num_rows
        except psycopg.OperationalError as error:
            away = first_line(error)
        except psycopg.Error as error:  # permanent: a retry would fail too
            refusal = first_line(error)
        report = {"try": [mark], "rows": [rows], "away": [away], "refused": [refusal]}
        yield pa.RecordBatch.from_pydict(report, _REPORT_SCHEMA)
