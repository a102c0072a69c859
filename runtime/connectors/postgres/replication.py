"""Checks before changes are read: the server, its publication and its replication slot."""

from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from runtime.connectors.postgres.table import ResolvedTable
from runtime.errors import JobRejected

_SLOT_QUERY: Final = """
SELECT plugin, database = current_database(), (confirmed_flush_lsn - '0/0'::pg_lsn)::int8, wal_status
FROM pg_replication_slots WHERE slot_name = %s
"""


def one_row(connection: psycopg.Connection[Any], query: LiteralString, *parameters: object) -> tuple[Any, ...]:
    """The row of a query that always has one."""
    row = connection.execute(query, parameters).fetchone()
    assert row is not None, "the query has no condition"
    return tuple(row)


def check_server(connection: psycopg.Connection[Any]) -> None:
    """Raises JobRejected unless the server writes a logical log, and the database has UTF-8."""
    level, encoding = one_row(connection, "SELECT current_setting('wal_level'), current_setting('server_encoding')")
    if level != "logical":
        remedy = "ALTER SYSTEM SET wal_level = 'logical', then restart the server"
        raise JobRejected("wal-level", "url", f"the server writes no logical log (wal_level is {level}): {remedy}")
    if encoding != "UTF8":
        raise JobRejected("bad-encoding", "url", f"the database has the encoding {encoding}, and not UTF8")


def slot_position(connection: psycopg.Connection[Any], slot: str) -> int:
    """The position of the slot. Raises JobRejected if the slot cannot be read."""
    literal = sql.Literal(slot).as_string(connection)
    create = f"SELECT pg_create_logical_replication_slot({literal}, 'pgoutput')"
    row = connection.execute(_SLOT_QUERY, [slot]).fetchone()
    if row is None:
        raise JobRejected("no-slot", "slot", f"there is no replication slot {slot!r}: {create}")
    plugin, is_here, confirmed, status = row
    if plugin != "pgoutput" or not is_here:
        detail = f"the slot {slot!r} is of another database or plugin ({plugin}): {create} with another name"
        raise JobRejected("bad-slot", "slot", detail)
    if status == "lost":
        detail = f"the server has removed the log of the slot {slot!r} (max_slot_wal_keep_size): changes are lost"
        raise JobRejected("lost-slot", "slot", detail)
    return int(confirmed)


def check_publication(
    connection: psycopg.Connection[Any], publication: str, table: ResolvedTable, *, all_rows: bool
) -> None:
    """Raises JobRejected unless the publication contains the table; `all_rows`: with all its rows."""
    query = (
        "SELECT to_jsonb(p) ->> 'rowfilter' FROM pg_publication_tables p "
        "JOIN pg_namespace n ON n.nspname = p.schemaname "
        "JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename WHERE p.pubname = %s AND c.oid = %s"
    )
    row = connection.execute(query, [publication, table.oid]).fetchone()
    if row is None:
        name = sql.Identifier(publication).as_string(connection)
        remedy = f"CREATE PUBLICATION {name} FOR TABLE {table}, or ALTER PUBLICATION {name} ADD TABLE …"
        detail = f"the publication {publication!r} does not contain {table}: {remedy}"
        raise JobRejected("no-publication", "publication", detail)
    if row[0] is not None and all_rows:
        detail = f"the publication has the row filter {row[0]}, and the initial rows would be all rows"
        remedy = "take a publication without a filter, and filter the stream"
        raise JobRejected("row-filter", "publication", f"{detail}: {remedy}")
