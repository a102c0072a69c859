"""Postgres → keyed count → Postgres as whole jobs, with a concurrent writer; exact."""

from __future__ import annotations

import os
from collections import Counter as Multiset
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from runtime.ports import OperatorContext, Sink, SinkCommitter, SinkWriter
from runtime.run_store import CompletedCheckpoint
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import PATIENCE_S
from tests.jobs.mortal import Deaths, Mortal
from tests.jobs.test_partial_restart import fail, pids
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

    def upserts(self, deaths: Deaths) -> CompiledJob:
        """Running counts, written at once by a sink whose slot ends when the test wants it."""
        flow = weir.Dataflow("upserts", max_parallelism=16)
        orders = flow.source("orders", weir.PostgresSource(self.address, f"{self.schema}.orders", bounded=False))
        totals = weir.PostgresSink(self.address, f"{self.schema}.totals", key=["amount"], commit="immediate")
        counts = orders.key_by("amount").aggregate("counts", {"count": weir.Count()})
        counts.sink("totals", MortalUpserts(totals, deaths))
        return flow.compile(2)

    def totals(self) -> dict[int, int]:
        return dict(self.run(f"SELECT amount, count FROM {self.schema}.totals"))

    def expected(self) -> dict[int, int]:
        return dict(self.run(f"SELECT amount, count(*) FROM {self.schema}.orders GROUP BY amount"))

    def job(self, parallelism: int, bounded: bool) -> CompiledJob:
        flow = weir.Dataflow("orders", max_parallelism=16)
        orders = flow.source("orders", weir.PostgresSource(self.address, f"{self.schema}.orders", bounded=bounded))
        orders.sink("copies", weir.PostgresSink(self.address, f"{self.schema}.copies"))
        totals = weir.PostgresSink(self.address, f"{self.schema}.totals", key=["amount"], commit="immediate")
        orders.key_by("amount").aggregate("counts", {"count": weir.Count()}).sink("totals", totals)
        return flow.compile(parallelism)

    def copies(self) -> list[int]:
        return [number for (number,) in self.run(f"SELECT id FROM {self.schema}.copies ORDER BY id")]


@dataclass(frozen=True)
class MortalUpserts:
    """A sink that ends its process behind rows that are in the table and in no checkpoint."""

    sink: Sink
    deaths: Deaths

    @property
    def guarantee(self) -> str:
        return self.sink.guarantee

    def writer(self) -> SinkWriter:
        return _MortalWriter(self.sink.writer(), Mortal(self.deaths, "totals"))

    def committer(self) -> SinkCommitter:
        return self.sink.committer()

    def check(self) -> None:
        self.sink.check()


class _MortalWriter(SinkWriter):
    def __init__(self, inner: SinkWriter, mortal: Mortal) -> None:
        self._inner, self._mortal = inner, mortal

    def open(self, context: OperatorContext) -> None:
        self._inner.open(context)

    def write(self, batch: pa.RecordBatch) -> None:
        self._inner.write(batch)
        self._mortal.at("written")

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        return self._inner.prepare(checkpoint)

    def close(self) -> None:
        self._inner.close()


class HeldRecords(MemoryRunStore):
    """Records no checkpoint while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = Event()

    def record_checkpoint(self, completed: CompletedCheckpoint) -> bool:
        self.let_go.wait(PATIENCE_S)
        return super().record_checkpoint(completed)


@pytest.fixture
def tables(database_url: str) -> Iterator[Tables]:
    tables = Tables(database_url)
    yield tables
    tables.run(f"DROP SCHEMA {tables.schema} CASCADE")


def test_a_bounded_copy_is_exact_and_the_upsert_holds_the_last_count_of_each_key(
    jobs: Jobs, tables: Tables, tmp_path: Path
) -> None:
    """S1-25: one job with both kinds of sinks, transactional and idempotent."""
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


def test_upserts_are_exact_though_slots_end_three_times_behind_rows_of_no_checkpoint(
    jobs: Jobs, tables: Tables, tmp_path: Path
) -> None:
    """S1-06, S1-26, S1-27: by SIGKILL on Spark. Nothing is taken back; the sink has no state and nothing to commit."""
    deaths, restart = Deaths(), weir.FixedDelay(attempts=9, delay_ms=20)
    tables.insert(500)
    with jobs.running(tables.upserts(deaths), tmp_path, restart=restart) as run:
        run.wait_for(lambda: tables.totals() == tables.expected())
        for token in (2, 3, 4):
            run.checkpoints(1)
            before = tables.totals()
            deaths.add("totals: written")
            tables.insert(300)
            run.wait_for(lambda token=token: run.records.token == token)  # type: ignore[misc]
            assert tables.totals().keys() >= before.keys()
            run.wait_for(lambda: tables.totals() == tables.expected())
        run.end("stop")
    assert deaths.waiting == []
    for manifest in run.manifests:
        assert not any(s.committables or s.keyed or s.lists for s in manifest.operators["totals"].subtasks.values())


def test_writers_of_other_slots_stage_rows_while_one_restarts(jobs: Jobs, tables: Tables, tmp_path: Path) -> None:
    """S1-26, S4-44: a slot is killed, twice; the others keep counts, writers and open transactions."""
    source, bomb = Gated(total=100, splits=6, keys=7, numbers_rows=True), Bomb()

    def totals() -> dict[int, int]:
        counts = Multiset((value * 31 + split) % source.keys for split in range(6) for value in range(source.total))
        return dict(counts)

    flow = weir.Dataflow("staged", max_parallelism=16)
    counts = flow.source("numbers", source).map_batches("bomb", bomb, repeatable=True).key_by("key")
    counted = counts.aggregate("counts", {"count": weir.Count()})
    sink = weir.PostgresSink(tables.address, f"{tables.schema}.totals", key=["amount"])
    counted.select("columns", amount=pc.field("key"), count=pc.field("count")).sink("totals", sink)
    settings = CoordinatorSettings(interval_ms=1_000, min_pause_ms=0)
    restart = weir.FixedDelay(attempts=9, delay_ms=20)
    with jobs.running(flow.compile(3), tmp_path, settings=settings, restart=restart) as run:
        run.wait_for(lambda: tables.totals() == totals() and len(pids(run)) == 3)
        for token, slot in ((2, 1), (3, 2)):
            source.total += 100
            fail(run, bomb, slot)
            source.total += 20
            run.wait_for(lambda token=token: run.records.token == token)  # type: ignore[misc]
            run.wait_for(lambda: tables.totals() == totals() and len(pids(run)) == 3)
        run.end("drain")
    assert tables.totals() == totals()
    assert [len(failure["kept_slots"]) for failure in run.records.details] == [2, 2]


def test_a_reader_chooses_whether_rows_of_a_pending_checkpoint_count(
    jobs: Jobs, tables: Tables, tmp_path: Path
) -> None:
    """S1-58: the view has them when they are prepared, the table when the checkpoint is recorded."""
    flow, records = weir.Dataflow("read", max_parallelism=16), HeldRecords()
    orders = flow.source("orders", weir.PostgresSource(tables.address, f"{tables.schema}.orders", bounded=False))
    orders.sink("copies", weir.PostgresSink(tables.address, f"{tables.schema}.copies", uncommitted="so_far"))
    tables.insert(70)
    settings = CoordinatorSettings(interval_ms=300, min_pause_ms=0)
    with jobs.running(flow.compile(2), tmp_path, records, settings=settings) as run:
        run.wait_for(lambda: tables.run(f"SELECT to_regclass('{tables.schema}.so_far')") != [(None,)])
        run.wait_for(lambda: tables.run(f"SELECT count(*) FROM {tables.schema}.so_far") == [(70,)])
        assert tables.copies() == []
        records.let_go.set()
        run.wait_for(lambda: tables.copies() == list(range(1, 71)))
        assert tables.run(f"SELECT count(*) FROM {tables.schema}.so_far") == [(70,)]
        run.end("stop")
