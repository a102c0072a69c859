"""A view with the rows of a table and the rows staged for it: reading uncommitted output, as a reader's choice.

Staged rows appear once their barrier has passed, before their checkpoint is complete. A failure takes them back. Their
move into the table is one transaction, so a query sees each row once.

Only rows of the newest attempt are shown. Before its writers open, the job master has moved the rows that the restored
checkpoint names. Other staged rows of older attempts wait for a restore of their savepoint, and may never be moved.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from runtime.connectors.postgres.table import DELETED, ResolvedTable, identifiers
from runtime.errors import JobRejected

_RELATION_QUERY: Final = """
SELECT c.relkind = 'v', obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
#: Of the staged rows of a key, the row that a commit would leave comes first.
_ORDER: Final = "s.weir_number DESC, s.weir_row DESC"


def create_view(
    connection: psycopg.Connection[Any],
    name: str,
    table: ResolvedTable,
    key: Sequence[str],
    staging: sql.Identifier,
    writers: sql.Composable,
    owner: str,
) -> None:
    """Creates the view `name` in the schema of the table, or replaces it if its query has changed.

    An equal view stays as it is: its replacement would wait for its readers.

    Args:
        writers: a subquery with the ids of the writers whose staged rows are shown.
        owner: identifies the sink; the comment of the view, with a digest of its query.

    Raises:
        JobRejected: the name belongs to another relation, or the columns of the view have changed.
    """
    columns = [column.name for column in table.columns(connection)]
    parts = {
        "table": table.identifier,
        "columns": identifiers(columns),
        "found": identifiers(columns, "s"),
        "staged": sql.SQL("{} s JOIN {} w ON w.writer = s.weir_writer").format(staging, writers),
    }
    if key:
        query = sql.SQL(
            "SELECT {columns} FROM {table} t WHERE NOT EXISTS (SELECT FROM {staged} WHERE {matches}) "
            "UNION ALL SELECT {columns} FROM (SELECT DISTINCT ON ({by}) {found}, s.{deleted} FROM {staged} "
            "ORDER BY {by}, {order}) s WHERE NOT s.{deleted}"
        ).format(
            matches=sql.SQL(" AND ").join(
                sql.SQL("t.{name} = s.{name}").format(name=sql.Identifier(column)) for column in key
            ),
            by=identifiers(key, "s"),
            deleted=sql.Identifier(DELETED),
            order=sql.SQL(_ORDER),
            **parts,
        )
    else:
        query = sql.SQL("SELECT {columns} FROM {table} UNION ALL SELECT {found} FROM {staged}").format(**parts)
    view = sql.Identifier(table.schema, name)
    comment = f"{owner}, {hashlib.blake2b(query.as_string(connection).encode(), digest_size=8).hexdigest()}"
    relation = connection.execute(_RELATION_QUERY, [table.schema, name]).fetchone()
    if relation == (True, comment):
        return
    if relation is not None and not (relation[0] and (relation[1] or "").startswith(f"{owner}, ")):
        advice = "choose another name, or drop it"
        raise JobRejected("view-exists", "uncommitted", f"{table.schema}.{name} exists and is not of {owner}: {advice}")
    try:
        with connection.transaction():
            connection.execute(sql.SQL("CREATE OR REPLACE VIEW {} AS {}").format(view, query))
    except psycopg.errors.InvalidTableDefinition as error:
        detail = f"{table.schema}.{name} has other columns than {table}: drop the view, then restore the job"
        raise JobRejected("view-differs", "uncommitted", detail) from error
    connection.execute(sql.SQL("COMMENT ON VIEW {} IS {}").format(view, sql.Literal(comment)))
