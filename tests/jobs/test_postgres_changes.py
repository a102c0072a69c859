"""Change data capture as whole jobs whose slots end: folded changes in Parquet, and a copy of the table in Postgres."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import weir
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs.conftest import Jobs
from tests.jobs.mortal import Deaths
from tests.jobs.numbers import committed
from tests.jobs.test_kafka import PHASES, MortalSink
from tests.postgres import address_without_password

NUMBERS = iter(range(1_000_000))
NOT_OF_WRITER = "id NOT BETWEEN 1000000 AND 1999999"  # two writers of a row could deadlock


class Accounts:
    """A table whose rows are inserted, updated and deleted, with a publication and a slot."""

    def __init__(self, url: str) -> None:
        self.address, self.name = address_without_password(url), f"accounts_{os.getpid()}_{next(NUMBERS)}"
        self.connection = psycopg.connect(url, autocommit=True)
        self.run("SET synchronous_commit = on")
        self.run(f"CREATE TABLE {self.name} (id int8 PRIMARY KEY, n int8)")
        self.run(f"CREATE PUBLICATION {self.name} FOR TABLE {self.name}")
        self.run(f"SELECT pg_create_logical_replication_slot('{self.name}', 'pgoutput')")
        self.round = 0

    def run(self, command: str) -> list[Any]:
        cursor = self.connection.execute(command)
        return cursor.fetchall() if cursor.description else []

    def change(self) -> None:
        """Four transactions: inserts, updates of every row but the writer's, new keys, deletions."""
        first = self.round * 1_000
        self.round += 1
        self.run(f"INSERT INTO {self.name} SELECT n, 0 FROM generate_series({first}, {first + 199}) AS n")
        self.run(f"UPDATE {self.name} SET n = n + 1 WHERE {NOT_OF_WRITER}")
        self.run(f"UPDATE {self.name} SET id = id + 500 WHERE id BETWEEN {first} AND {first + 49}")
        self.run(f"DELETE FROM {self.name} WHERE id % 10 = 3 AND id >= {first} AND {NOT_OF_WRITER}")

    def job(self, parallelism: int, output: Path, deaths: Deaths) -> CompiledJob:
        flow = weir.Dataflow("changes", max_parallelism=16)
        source = weir.PostgresChanges(self.address, self.name, self.name, self.name, poll_interval_ms=20)
        flow.source("accounts", source).sink("out", MortalSink(weir.ParquetSink(str(output)), deaths))
        return flow.compile(parallelism)

    def copy_job(self, parallelism: int, deaths: Deaths) -> CompiledJob:
        """Initial rows, then changes, into another table of the same database."""
        flow = weir.Dataflow("copy", max_parallelism=16)
        source = weir.PostgresChanges(
            self.address, self.name, self.name, self.name, initial_snapshot=True, poll_interval_ms=20
        )
        sink = weir.PostgresSink(self.address, f"{self.name}_copy", key=["id"], op_column="op")
        flow.source("accounts", source).sink("out", MortalSink(sink, deaths))
        return flow.compile(parallelism)

    def rows(self, suffix: str = "") -> dict[int, int]:
        return dict(self.run(f"SELECT id, n FROM {self.name}{suffix}"))

    def close(self) -> None:
        self.run(f"SELECT pg_drop_replication_slot('{self.name}')")
        self.run(f"DROP PUBLICATION {self.name}; DROP TABLE {self.name}; DROP TABLE IF EXISTS {self.name}_copy")
        self.connection.close()


@pytest.fixture
def accounts(database_url: str) -> Iterator[Accounts]:
    accounts = Accounts(database_url)
    yield accounts
    accounts.close()


def folded(output: Path) -> dict[int, int]:
    """The table that the changes leave behind. A change that is lost or repeated does not fit the rows before it.

    Subtask 0 writes all changes, and files of an attempt sort by number. The token in a name orders the attempts.
    """
    balances: dict[int, int] = {}
    for change in committed(output) if output.exists() else ():
        if change["op"] == "insert":
            assert change["id"] not in balances, f"an insert comes twice: {change}"
        else:
            assert change["id"] in balances, f"a change comes before its row: {change}"
        if change["op"] == "delete":
            del balances[change["id"]]
        else:
            before = balances.get(change["id"], change["n"] - 1)
            assert change["op"] == "insert" or change["n"] == before + 1, f"an update comes twice: {change}"
            balances[change["id"]] = change["n"]
    return balances


def is_complete(output: Path, accounts: Accounts) -> bool:
    """A listing that runs beside a commit may lack an older file; `folded` then refuses the newer file."""
    try:
        return folded(output) == accounts.rows()
    except AssertionError:
        return False


def test_changes_arrive_once_though_slots_end_at_each_phase(jobs: Jobs, accounts: Accounts, tmp_path: Path) -> None:
    """S1-06, S1-22, S4-50: then the job goes on from savepoints at other parallelisms."""
    output, storage, restart, deaths = (
        tmp_path / "out",
        tmp_path / "state",
        FixedDelay(attempts=100, delay_ms=30),
        Deaths(),
    )
    accounts.change()
    with jobs.running(accounts.job(2, output, deaths), storage, restart=restart) as run:
        run.wait_for(lambda: is_complete(output, accounts))
        for phase in PHASES:
            before = run.records.token
            deaths.add(f"out: {phase}")
            accounts.change()
            run.wait_for(lambda before=before: run.records.token > before)  # type: ignore[misc]
            run.wait_for(lambda: is_complete(output, accounts))
        savepoint = run.end("stop")
    for parallelism, kind in ((3, "stop"), (1, "drain")):
        records = MemoryRunStore(token=Token(run.records.token + 10), restore_from=savepoint)
        accounts.change()
        with jobs.running(accounts.job(parallelism, output, deaths), storage, records, restart=restart) as run:
            run.wait_for(lambda: is_complete(output, accounts))
            savepoint = run.end(kind)
    assert folded(output) == accounts.rows()


class Writer:
    """A second connection that changes rows of its own until it is closed, sometimes in long transactions."""

    def __init__(self, url: str, table: str) -> None:
        self._url, self._table, self._stop = url, table, threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            for number in itertools.count():
                first, pause_s = 1_000_000 + number % 500, 0.05 if number % 10 == 0 else 0.002
                if self._stop.wait(pause_s):
                    return
                with connection.transaction():
                    connection.execute(
                        f"INSERT INTO {self._table} VALUES ({first}, 0) ON CONFLICT (id) DO UPDATE SET n = {number}"
                    )
                    self._stop.wait(pause_s)
                    connection.execute(f"DELETE FROM {self._table} WHERE id = {first - number % 7 - 1}")

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def test_a_copy_of_the_table_is_exact_with_a_concurrent_writer(
    jobs: Jobs, accounts: Accounts, database_url: str, tmp_path: Path
) -> None:
    """S1-06, S1-22: slots end within the initial rows and at each phase; parallelism 2 -> 3."""
    storage, restart, deaths = tmp_path / "state", FixedDelay(attempts=100, delay_ms=30), Deaths()
    accounts.run(f"CREATE TABLE {accounts.name}_copy (LIKE {accounts.name} INCLUDING ALL)")
    accounts.run(f"INSERT INTO {accounts.name} SELECT n, 0 FROM generate_series(2000000, 2003000) AS n")
    deaths.add("out: prepare")
    writer = Writer(database_url, accounts.name)
    try:
        with jobs.running(accounts.copy_job(2, deaths), storage, restart=restart) as run:
            first = run.records.token
            run.wait_for(lambda: run.records.token > first)
            for phase in PHASES:
                run.wait_for(lambda: accounts.rows("_copy"))
                before = run.records.token
                deaths.add(f"out: {phase}")
                accounts.change()
                run.wait_for(lambda before=before: run.records.token > before)  # type: ignore[misc]
            savepoint = run.end("stop")
        records = MemoryRunStore(token=Token(run.records.token + 10), restore_from=savepoint)
        with jobs.running(accounts.copy_job(3, deaths), storage, records, restart=restart) as run:
            accounts.change()
            writer.close()
            run.wait_for(lambda: accounts.rows("_copy") == accounts.rows())
            run.end("drain")
    finally:
        writer.close()
    assert accounts.rows("_copy") == accounts.rows()
