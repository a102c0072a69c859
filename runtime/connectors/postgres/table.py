"""A table in Postgres: its resolved name, its columns, and statements that write rows into it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from runtime.connectors.postgres.columns import TableColumn, check_columns
from runtime.errors import DataRejected, JobRejected
from runtime.operators.retraction import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE

DELETED: Final = "weir_deleted"  #: column of staged rows: whether the row deletes its key
_DELETIONS: Final = pa.array([DELETE, UPDATE_BEFORE])
_OPERATIONS: Final = pa.array([INSERT, UPDATE_AFTER, DELETE, UPDATE_BEFORE])

_TABLE_QUERY = """
SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%s) AND c.relkind IN ('r', 'p')
"""
_COLUMNS_QUERY = """
SELECT a.attname, t.typname, a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND a.attgenerated = '',
    a.attnotnull, a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_KEYS_QUERY = """
SELECT array_agg(a.attname::text) FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid, i.indnkeyatts, i.indnatts HAVING i.indnkeyatts = i.indnatts
"""

#: Transactions with a lock that an INSERT needs, on the table or one of its partitions.
_WRITERS_QUERY: Final = """
SELECT DISTINCT virtualtransaction FROM pg_locks WHERE granted AND locktype = 'relation'
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
AND relation IN (SELECT %(table)s::oid UNION ALL SELECT relid::oid FROM pg_partition_tree(%(table)s::oid::regclass))
"""


def check_table_name(table: str) -> None:
    """Raises JobRejected unless `table` is `table` or `schema.table`."""
    parts = table.split(".")
    if not all(parts) or len(parts) > 2:
        raise JobRejected("bad-table", "table", f"a table, or schema and table, and not {table!r}")


@dataclass(frozen=True)
class ResolvedTable:
    """A table as the search path resolved its name."""

    oid: int
    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    def columns(self, connection: psycopg.Connection[Any]) -> list[TableColumn]:
        return [TableColumn(*row) for row in connection.execute(_COLUMNS_QUERY, [self.oid])]

    def writers(self, connection: psycopg.Connection[Any]) -> frozenset[str]:
        """The transactions that hold a lock to write the table."""
        return frozenset(name for (name,) in connection.execute(_WRITERS_QUERY, {"table": self.oid}))

    def check_key(self, connection: psycopg.Connection[Any], key: Sequence[str]) -> None:
        """Raises JobRejected unless a unique index has exactly the columns of the key."""
        if key and not any(set(index) == set(key) for (index,) in connection.execute(_KEYS_QUERY, [self.oid])):
            columns = ", ".join(key)
            remedy = f"CREATE UNIQUE INDEX ON {self} ({columns}), or correct the key"
            raise JobRejected("no-unique-index", "key", f"the table {self} has no unique index on {columns}: {remedy}")


def find_table(connection: psycopg.Connection[Any], table: str) -> ResolvedTable:
    """The table; raises JobRejected if there is none."""
    spelled = sql.Identifier(*table.split(".")).as_string(connection)
    row = connection.execute(_TABLE_QUERY, [spelled]).fetchone()
    if row is None:
        advice = "create it, then restore from the last checkpoint, which keeps its rows"
        raise JobRejected("missing-table", "table", f"there is no table {table}: {advice}")
    return ResolvedTable(int(row[0]), str(row[1]), str(row[2]))


class RowCheck:
    """Checks that batches fit the table before a row is written, and marks rows that delete their key."""

    def __init__(
        self, table: ResolvedTable, columns: Sequence[TableColumn], key: Sequence[str], op_column: str | None
    ) -> None:
        self._table, self._columns, self._key, self._op_column = table, columns, key, op_column
        self._checked: pa.Schema | None = None
        self._not_null: list[str] = []

    def check(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The checked rows. A column of operations is replaced by the last column, `DELETED`.

        Raises:
            JobRejected: columns or types do not fit the table.
            DataRejected: a column of the key has a null, a column that is NOT NULL has a null in a row that is not
                deleted, or an operation is unknown.
        """
        deleted = None
        if self._op_column is not None:
            deleted, batch = self._take_operations(batch, self._op_column)
        if self._checked is None or not batch.schema.equals(self._checked):
            self._check_schema(batch.schema)
        self._check_nulls(batch, self._key)
        if deleted is None:
            self._check_nulls(batch, self._not_null)
            return batch
        self._check_nulls(batch.filter(pc.invert(deleted)) if self._not_null else batch, self._not_null)
        return batch.append_column(DELETED, deleted)

    def _take_operations(self, batch: pa.RecordBatch, name: str) -> tuple[pa.Array, pa.RecordBatch]:
        """For each row whether it deletes its key, and the rows without the column of operations."""
        place = batch.schema.get_field_index(name)
        if place < 0 or not pa.types.is_string(batch.schema.field(place).type):
            names = ", ".join(f"{field.name} {field.type}" for field in batch.schema)
            raise JobRejected(
                "missing-column", "op_column", f"the rows have no column {name!r} of strings, only {names}"
            )
        operations = batch.column(place)
        is_known = pc.is_in(operations, _OPERATIONS)
        if not pc.all(is_known).as_py() and batch.num_rows:
            unknown = operations.filter(pc.invert(is_known))[0].as_py()
            detail = f"{unknown!r} in column {name!r} is no operation, only {', '.join(_OPERATIONS.to_pylist())}"
            raise DataRejected(f"Postgres table {self._table}: {detail}: correct or filter the rows")
        return pc.is_in(operations, _DELETIONS), batch.remove_column(place)

    def _check_nulls(self, batch: pa.RecordBatch, columns: Sequence[str]) -> None:
        for name in columns:
            if nulls := batch.column(name).null_count:
                reason = "belongs to the key" if name in self._key else "is NOT NULL"
                remedy = "filter the rows, or fill the column"
                raise DataRejected(
                    f"Postgres table {self._table}: {nulls} rows have no {name!r}, which {reason}: {remedy}"
                )

    def _check_schema(self, schema: pa.Schema) -> None:
        for name in self._key:
            if name not in schema.names:
                names = ", ".join(schema.names)
                raise JobRejected("missing-column", "key", f"the rows have no column {name!r} of the key, only {names}")
        check_columns(str(self._table), self._columns, schema)
        strict = {column.name for column in self._columns if column.not_null}.difference(self._key)
        self._not_null = [name for name in schema.names if name in strict]
        self._checked = schema


def identifiers(names: Sequence[str], of: str | None = None) -> sql.Composed:
    """Column names separated by commas, in the order given; `of`: an alias of their table."""
    return sql.SQL(", ").join(sql.Identifier(of, name) if of else sql.Identifier(name) for name in names)


def insert_latest(
    table: ResolvedTable, columns: Sequence[str], key: Sequence[str], rows: sql.Composable, order: str
) -> sql.Composed:
    """INSERT of `rows`. With a key, the last row of each key replaces the row of the table, unless it deletes the key.

    Rows are inserted in the order of the key, so that concurrent statements lock them in the same order.

    Args:
        rows: the tables of a FROM clause; `s` is the alias of the table with the columns and `DELETED`.
        order: a descending order, in SQL, in which the last row of a key comes first.
    """
    parts = {
        "table": table.identifier,
        "columns": identifiers(columns),
        "found": identifiers(columns, "s"),
        "rows": rows,
    }
    if not key:
        return sql.SQL("INSERT INTO {table} ({columns}) SELECT {found} FROM {rows}").format(**parts)
    changed = [name for name in columns if name not in key]
    update = sql.SQL(", ").join(
        sql.SQL("{name} = excluded.{name}").format(name=sql.Identifier(name)) for name in changed
    )
    action = sql.SQL("DO UPDATE SET {}").format(update) if changed else sql.SQL("DO NOTHING")
    return sql.SQL(
        "INSERT INTO {table} ({columns}) SELECT {found} FROM "
        "(SELECT DISTINCT ON ({by}) {found}, s.{deleted} FROM {rows} ORDER BY {by}, {order}) s "
        "WHERE NOT s.{deleted} ORDER BY {by} ON CONFLICT ({key}) {action}"
    ).format(
        by=identifiers(key, "s"),
        key=identifiers(key),
        order=sql.SQL(order),
        action=action,
        deleted=sql.Identifier(DELETED),
        **parts,
    )


def delete_latest(table: ResolvedTable, key: Sequence[str], rows: sql.Composable, order: str) -> sql.Composed:
    """DELETE of the keys whose last row deletes them; arguments as of `insert_latest`.

    It precedes the INSERT, so that a new row may have a unique value of a deleted row.
    """
    matches = sql.SQL(" AND ").join(sql.SQL("t.{name} = s.{name}").format(name=sql.Identifier(name)) for name in key)
    return sql.SQL(
        "DELETE FROM {table} t USING "
        "(SELECT DISTINCT ON ({by}) {by}, s.{deleted} FROM {rows} ORDER BY {by}, {order}) s "
        "WHERE s.{deleted} AND {matches}"
    ).format(
        table=table.identifier,
        by=identifiers(key, "s"),
        deleted=sql.Identifier(DELETED),
        rows=rows,
        order=sql.SQL(order),
        matches=matches,
    )
