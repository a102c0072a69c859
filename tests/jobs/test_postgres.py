"""Postgres → keyed count → Postgres as whole jobs, with a concurrent writer; exact."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import weir
from runtime.dataflow.plan import CompiledJob
from tests.jobs.conftest import Jobs
from tests.postgres import address_without_password
from tests.waiting import until

NUMBERS = iter(range(1_000_000))


class Tables:
    def __init__(self, url: str) -> None:
        self.url, self.address = url, address_without_password(url)
        self.schema = f"job_{os.getpid()}_{next(NUMBERS)}"
        self.run(
            f"CREATE SCHEMA {self.schema}; CREATE TABLE {self.schema}.orders (id bigserial PRIMARY KEY, amount int8); "
            f"CREATE TABLE {self.schema}.copies (id int8, amount int8); "
            f"CREATE TABLE {self.schema}.totals (amount int8 PRIMARY KEY, count int8)"
        )

    def run(self, command: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(command)
            return cursor.fetchall() if cursor.description else []

    def insert(self, count: int) -> None:
        self.run(f"INSERT INTO {self.schema}.orders (amount) SELECT n % 7 FROM generate_series(1, {count}) n")

    def job(self, parallelism: int, bounded: bool) -> CompiledJob:
        flow = weir.Dataflow("orders", max_parallelism=16)
        orders = flow.source("orders", weir.PostgresSource(self.address, f"{self.schema}.orders", bounded=bounded))
        orders.sink("copies", weir.PostgresSink(self.address, f"{self.schema}.copies"))
        totals = weir.PostgresSink(self.address, f"{self.schema}.totals", key=["amount"], commit="immediate")
        orders.key_by("amount").aggregate("counts", {"count": weir.Count()}).sink("totals", totals)
        return flow.compile(parallelism)

    def copies(self) -> list[int]:
        return [number for (number,) in self.run(f"SELECT id FROM {self.schema}.copies ORDER BY id")]


@pytest.fixture
def tables(database_url: str) -> Iterator[Tables]:
    tables = Tables(database_url)
    yield tables
    tables.run(f"DROP SCHEMA {tables.schema} CASCADE")


def test_a_bounded_copy_is_exact_and_the_upsert_holds_the_last_count_of_each_key(
    jobs: Jobs, tables: Tables, tmp_path: Path
) -> None:
    """S1-25, S1-26."""
    tables.insert(5_000)
    jobs.run_to_end(tables.job(2, bounded=True), tmp_path)
    assert tables.copies() == list(range(1, 5_001))
    expected = tables.run(f"SELECT amount, count(*) FROM {tables.schema}.orders GROUP BY amount ORDER BY amount")
    assert tables.run(f"SELECT amount, count FROM {tables.schema}.totals ORDER BY amount") == expected


def test_rows_that_commit_late_are_copied_once_while_the_job_runs(jobs: Jobs, tables: Tables, tmp_path: Path) -> None:
    tables.insert(100)
    with jobs.running(tables.job(2, bounded=False), tmp_path):
        until(lambda: tables.copies() == list(range(1, 101)))
        with psycopg.connect(tables.url) as late:
            late.execute(f"INSERT INTO {tables.schema}.orders (amount) VALUES (1)")
            tables.insert(50)
        until(lambda: tables.copies() == list(range(1, 152)))
