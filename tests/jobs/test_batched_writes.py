"""Rows written to Postgres by a step of the job: each by itself, or in micro-batches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import weir
from runtime.access.secrets import resolve
from tests.jobs.conftest import Jobs
from tests.jobs.numbers import Numbers
from tests.postgres import address_without_password
from tests.shared import Notes

ROWS = 2_000


@pytest.fixture
def table(database_url: str) -> Iterator[str]:
    """A table that counts the statements which insert into it."""
    name = f"batched_{os.getpid()}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} (value int8 PRIMARY KEY); CREATE TABLE {name}_statements (at int8)")
        connection.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN INSERT INTO {name}_statements VALUES (1); RETURN NULL; END'"
        )
        connection.execute(f"CREATE TRIGGER counted AFTER INSERT ON {name} EXECUTE FUNCTION {name}()")
        yield name
        connection.execute(f"DROP TABLE {name}, {name}_statements; DROP FUNCTION {name}")


class Insert:
    """Inserts each batch by a statement, which is a transaction, and notes the time that this takes."""

    def __init__(self, url: str, table: str, seconds: Notes) -> None:
        self._url, self._table, self._seconds = url, table, seconds
        self._connection: psycopg.Connection[Any] | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._connection is None:
            self._connection = psycopg.connect(resolve("url", self._url, ()), autocommit=True)
        begin = time.perf_counter()
        self._connection.execute(
            f"INSERT INTO {self._table} SELECT unnest(%s::int8[]) ON CONFLICT DO NOTHING", [batch["value"].to_pylist()]
        )
        self._seconds.add(time.perf_counter() - begin)
        return batch


def test_batched_writes_take_fewer_statements_and_less_time(
    jobs: Jobs, table: str, database_url: str, tmp_path: Path
) -> None:
    """S3-05: the motive of micro-batches. All rows arrive either way."""

    def write(max_rows: int) -> tuple[int, float]:
        seconds = Notes()
        flow = weir.Dataflow("written")
        rows = flow.source("numbers", Numbers(ROWS, splits=1)).key_by("key")
        insert: Callable[[pa.RecordBatch], pa.RecordBatch] = Insert(
            address_without_password(database_url), table, seconds
        )
        rows.batches("insert", insert, max_rows=max_rows, max_wait_ms=60_000).sink("out", weir.DiscardSink())
        jobs.run_to_end(flow.compile(2), tmp_path / str(max_rows))
        with psycopg.connect(database_url, autocommit=True) as connection:
            counts = f"SELECT (SELECT count(*) FROM {table}), (SELECT count(*) FROM {table}_statements)"
            row = connection.execute(counts).fetchone()
            connection.execute(f"TRUNCATE {table}, {table}_statements")
        assert row is not None
        assert row[0] == ROWS
        return row[1], sum(seconds.values)

    single, batched = write(1), write(100)
    assert single[0] == ROWS
    assert batched[0] < ROWS / 20
    assert batched[1] < single[1]
