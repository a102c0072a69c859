"""Compares the output of an example with the answer of DuckDB, which reads the same input.

Each example has a query `NAME.sql` over tables of its input and output. The query returns the rows that differ.
"""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from psycopg import sql

Difference = tuple[str, str, str]  #: output, "missing" or "wrong", row


def differences(example: str, tables: Mapping[str, pa.Table]) -> list[Difference]:
    """The rows in which the output differs from the answer. `tables`: input and output by name."""
    query = files("examples.samples").joinpath(f"{example}.sql").read_text(encoding="utf-8")
    with duckdb.connect() as database:
        for name, table in tables.items():
            database.register(name, table)
        return database.execute(query).fetchall()


def json_table(folder: Path, schema: pa.Schema) -> pa.Table:
    """The rows of the JSON lines files in a folder."""
    options = pa_json.ParseOptions(explicit_schema=schema)
    parts = [pa_json.read_json(path, parse_options=options) for path in sorted(folder.glob("*.json"))]
    return pa.concat_tables([schema.empty_table(), *(part.select(schema.names) for part in parts)])


def committed_table(folder: Path, schema: pa.Schema) -> pa.Table:
    """The rows that a Parquet sink has committed: those of files whose names are visible."""
    parts = [pq.read_table(path).select(schema.names).cast(schema) for path in sorted(folder.glob("part-*.parquet"))]
    return pa.concat_tables([schema.empty_table(), *parts])


def postgres_table(database: str, table: str, schema: pa.Schema) -> pa.Table:
    """The rows of a table of Postgres."""
    query = sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join(map(sql.Identifier, schema.names)), sql.Identifier(*table.split("."))
    )
    with psycopg.connect(database) as connection:
        rows = connection.execute(query).fetchall()
    return (
        pa.table(
            [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), schema.types, strict=True)],
            schema=schema,
        )
        if rows
        else schema.empty_table()
    )
