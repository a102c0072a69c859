"""The Postgres source on a real server: late commits, restores, types, refusals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from runtime.connectors.postgres.source import PostgresReader, PostgresSource
from runtime.connectors.sinks.discard import DiscardSink
from runtime.core.job.ids import OperatorId
from runtime.errors import JobRejected, TargetAway
from runtime.ports import OperatorContext
from runtime.state.backend import SubtaskState
from spark_jobs.batch.execute import _with_input
from spark_jobs.batch.plan import BatchStage, ReadSource, WriteSink
from tests.contracts.test_sinks import context
from tests.postgres import address_without_password

NUMBERS = iter(range(1_000_000))


class Table:
    """A table `t` with a sequence, in a schema of its own."""

    def __init__(self, url: str) -> None:
        self.url, self.address = url, address_without_password(url)
        self.schema = f"source_{os.getpid()}_{next(NUMBERS)}"
        self.name = f"{self.schema}.t"
        self.run(f"CREATE SCHEMA {self.schema}; CREATE TABLE {self.name} (id bigserial PRIMARY KEY, text text)")

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url)

    def run(self, command: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(command)

    def insert(self, text: str, connection: psycopg.Connection[Any] | None = None) -> None:
        command = f"INSERT INTO {self.name} (text) VALUES ('{text}')"
        self.run(command) if connection is None else connection.execute(command)

    def source(self, **arguments: Any) -> PostgresSource:
        source = PostgresSource(self.address, self.name, **arguments)
        source.check()
        return source


@pytest.fixture
def table(database_url: str) -> Iterator[Table]:
    table = Table(database_url)
    yield table
    table.run(f"DROP SCHEMA {table.schema} CASCADE")


def reader(source: PostgresSource, restored: list[Any] | None = None, index: int = 0) -> tuple[PostgresReader, Any]:
    """A reader and its list state. Each look at the clock is a minute later, so no poll is skipped."""
    reader, times = source.reader(), iter(range(0, 10**12, 60_000))
    of: OperatorContext = context("7", 1, "in", index)
    state = SubtaskState(range(4), 16, None)
    if restored is not None:
        of.restored = True
    position = state.list_state("position")
    position.replace(restored or [])
    of.state, of.now_ms = SimpleNamespace(list_state=lambda _: position), lambda: next(times)
    reader.open(of)
    return reader, position


def listed(source: PostgresSource) -> PostgresSource:
    """The source with its end, as the job master and BATCH find it before a reader opens."""
    listing = source.list_input()
    assert listing is not None
    return source.with_input(listing)


def texts(of: PostgresReader, max_rows: int = 3, polls: int = 8) -> list[str]:
    batches = [of.poll(max_rows) for _ in range(polls)]
    return [text for batch in batches if batch is not None for text in batch.column("text").to_pylist()]


def test_a_row_with_a_lower_value_that_commits_later_is_neither_lost_nor_doubled(table: Table) -> None:
    of, state = reader(table.source())
    table.insert("a")
    assert texts(of) == ["a"]
    with table.connect() as late, table.connect() as later:
        table.insert("late", late)
        table.insert("b")
        assert texts(of) == [], "row b has a higher value than the row that is not committed"
        table.insert("later", later)
        of.snapshot(1)
        late.commit()
        assert texts(of) == ["late", "b"], "the third transaction began after the bound"
        table.insert("c")
        assert texts(of) == []
        later.rollback()
        assert texts(of) == ["c"]
    successor, _ = reader(table.source(), restored=state.get())
    assert texts(successor) == ["late", "b", "c"]
    of.close()
    successor.close()


def test_rows_are_read_once_over_any_restore_and_a_bound_stays_where_it_was(table: Table) -> None:
    for number in range(10):
        table.insert(str(number))
    source, rows = table.source(bounded=True), list[str]()
    of, state = reader(source)
    other, _ = reader(source, index=1)
    assert other.exhausted
    while not of.exhausted:
        rows += texts(of, max_rows=3, polls=1)
        of.snapshot(1)
        of.close()
        table.insert("after the bound")
        of, state = reader(source, restored=state.get(), index=2)
    assert rows == [str(number) for number in range(10)]
    idle, _ = reader(table.source(), restored=[], index=0)
    assert idle.idle
    assert idle.poll(5) is None


def test_an_empty_bounded_table_ends_at_once(table: Table) -> None:
    of, _ = reader(table.source(bounded=True))
    assert texts(of) == []
    assert of.exhausted
    of.close()


@pytest.mark.parametrize("rows", [0, 3])
def test_each_first_start_of_a_bounded_source_reads_to_the_end_that_was_listed_once(table: Table, rows: int) -> None:
    for number in range(rows):
        table.insert(str(number))
    assert table.source().list_input() is None
    source = listed(table.source(bounded=True))
    for _ in range(2):
        table.insert("after the listing")
        of, _ = reader(source)
        assert texts(of, max_rows=2) == [str(number) for number in range(rows)]
        assert of.exhausted
        of.close()


def test_a_row_below_the_listed_end_that_commits_later_is_awaited(table: Table) -> None:
    with table.connect() as late:
        table.insert("late", late)
        table.insert("b")
        source = listed(table.source(bounded=True))
        of, _ = reader(source)
        assert (texts(of), of.exhausted) == ([], False)
    assert texts(of) == ["late", "b"]
    assert of.exhausted
    of.close()


def test_a_restored_end_has_precedence_over_a_newer_listing(table: Table) -> None:
    for number in range(4):
        table.insert(str(number))
    first = listed(table.source(bounded=True))
    of, state = reader(first)
    assert texts(of, max_rows=3, polls=1) == ["0", "1", "2"]
    of.snapshot(1)
    of.close()
    table.insert("after the first listing")
    successor, _ = reader(listed(table.source(bounded=True)), restored=state.get())
    assert texts(successor) == ["3"]
    assert successor.exhausted
    successor.close()


def test_an_unbounded_source_reads_past_the_restored_end_of_a_bounded_one(table: Table) -> None:
    for number in range(4):
        table.insert(str(number))
    of, state = reader(listed(table.source(bounded=True)))
    assert texts(of, max_rows=3, polls=1) == ["0", "1", "2"]
    of.snapshot(1)
    of.close()
    table.insert("new")
    successor, state = reader(table.source(), restored=state.get())
    assert texts(successor) == ["3", "new"]
    successor.snapshot(2)
    successor.close()
    assert state.get()[0]["end"] is None


def test_batch_lists_the_end_before_its_tasks(table: Table) -> None:
    table.insert("a")
    stage = BatchStage(
        number=0, head=ReadSource(uid=OperatorId("in"), source=table.source(bounded=True), parallelism=1), steps=(),
        tail=WriteSink(uid=OperatorId("out"), sink=DiscardSink()),
    )  # fmt: skip
    head = _with_input(stage).head
    assert isinstance(head, ReadSource)
    assert isinstance(head.source, PostgresSource)
    table.insert("after the start")
    of, _ = reader(head.source)
    assert texts(of) == ["a"]
    of.close()


def test_types_and_event_time(table: Table) -> None:
    table.run(
        f"CREATE TABLE {table.schema}.typed (id bigserial PRIMARY KEY, b bool, i2 int2, f8 float8, d numeric(10, 2), "
        "s varchar, j jsonb, x bytea, day date, at timestamp, tz timestamptz, n numeric, u uuid, c char(3)); "
        f"INSERT INTO {table.schema}.typed VALUES (1, true, -1, 0.5, 1.25, '', '{{\"a\": 1}}', '\\x00ff', "
        "'2026-01-02', '2026-01-02 03:04:05', '1970-01-01 00:00:05.5+00', 0.12345678901234567890, "
        "'6f2f4b8e-25c1-4c5e-8d1a-4f6d1c1f0a11', 'a'); "
        f"INSERT INTO {table.schema}.typed VALUES (2)"
    )
    of, _ = reader(PostgresSource(table.address, f"{table.schema}.typed", event_time="tz", columns=["id", "tz"]))
    batch = of.poll(1)
    assert batch is not None
    assert batch.schema.names == ["id", "tz"]
    assert of.watermark() == 5_499
    of.close()
    of, _ = reader(PostgresSource(table.address, f"{table.schema}.typed"))
    batch = of.poll(10)
    assert batch is not None
    assert batch.schema.types == [
        pa.int64(), pa.bool_(), pa.int16(), pa.float64(), pa.decimal128(10, 2), pa.string(), pa.string(), pa.binary(),
        pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.string(), pa.string(), pa.string(),
    ]  # fmt: skip
    first, second = batch.to_pylist()
    assert (first["b"], first["i2"], first["f8"], str(first["d"]), first["s"]) == (True, -1, 0.5, "1.25", "")
    assert (first["j"], first["x"]) == ('{"a": 1}', b"\x00\xff")
    assert (first["n"], first["u"]) == ("0.12345678901234567890", "6f2f4b8e-25c1-4c5e-8d1a-4f6d1c1f0a11")
    assert [value for name, value in second.items() if name != "id"] == [None] * 13
    of.close()


def test_problems_are_named_before_the_first_row(table: Table) -> None:
    def refused(of: PostgresSource) -> str:
        with pytest.raises(JobRejected) as error:
            reader(of)
        with pytest.raises(JobRejected) as listing_error:
            replace(of, bounded=True).list_input()
        assert listing_error.value.code == error.value.code
        return error.value.code

    assert refused(PostgresSource(table.address, "nowhere.t")) == "missing-table"
    assert refused(table.source(cursor="other")) == "unknown-column"
    assert refused(table.source(cursor="text")) == "bad-cursor"
    table.run(f"ALTER SEQUENCE {table.schema}.t_id_seq CACHE 20")
    assert refused(table.source()) == "bad-sequence"
    table.run(f"ALTER SEQUENCE {table.schema}.t_id_seq CACHE 1; ALTER TABLE {table.name} ADD COLUMN n point")
    assert refused(table.source()) == "no-arrow-type"
    table.run(f"ALTER TABLE {table.name} DROP CONSTRAINT t_pkey")
    assert refused(table.source(columns=["id"])) == "no-unique-index"
    with pytest.raises(TargetAway):
        reader(PostgresSource("postgresql://weir@127.0.0.1:1/weir", "t"))
