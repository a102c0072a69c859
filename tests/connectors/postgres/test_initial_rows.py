"""The initial snapshot of change data capture: with the changes behind it, exactly the table, whatever crashes."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.connectors.postgres.changes import PostgresChanges
from runtime.connectors.postgres.initial_rows import _Snapshot
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import permit_from_master
from runtime.errors import DataRejected, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from tests.contracts.files import Reading
from tests.manual_clock import ManualClock
from tests.postgres import address_without_password

NUMBERS = count()


class Table:
    """A table with a key of two columns, whose order is not that of their text; its publication and its slot."""

    def __init__(self, url: str) -> None:
        self.url, self.name = url, f"initial_{os.getpid()}_{next(NUMBERS)}"
        self.connection, self.late = (psycopg.connect(url, autocommit=True) for _ in range(2))
        self.run("SET synchronous_commit = on")
        self.late.execute("SET synchronous_commit = on")
        self.run(
            f"CREATE TYPE {self.name}_code AS ENUM ('b', 'A', 'a', 'c', 'B'); CREATE TABLE {self.name} "
            f"(code {self.name}_code, n int8, id int2, PRIMARY KEY (code, id))"
        )
        self.run(f"CREATE PUBLICATION {self.name} FOR TABLE {self.name}")
        self.run(f"SELECT pg_create_logical_replication_slot('{self.name}', 'pgoutput')")

    def run(self, command: str) -> list[Any]:
        cursor = self.connection.execute(command)
        return cursor.fetchall() if cursor.description else []

    def source(self, **options: Any) -> PostgresChanges:
        options = {"initial_snapshot": True, "poll_interval_ms": 1} | options
        source = PostgresChanges(address_without_password(self.url), self.name, self.name, self.name, **options)
        source.check()
        return source

    def new_slot(self) -> None:
        """Drops the former slot."""
        self.run(f"SELECT pg_drop_replication_slot('{self.name}')")
        self.run(f"SELECT pg_create_logical_replication_slot('{self.name}', 'pgoutput')")

    def rows(self) -> dict[tuple[str, int], int]:
        return {(code, id_): n for code, id_, n in self.run(f"SELECT code, id, n FROM {self.name}")}

    def close(self) -> None:
        self.late.close()
        self.run(f"SELECT pg_drop_replication_slot('{self.name}')")
        self.run(f"DROP PUBLICATION {self.name}; DROP TABLE {self.name}; DROP TYPE {self.name}_code")
        self.connection.close()


@pytest.fixture
def table(database_url: str) -> Iterator[Table]:
    table = Table(database_url)
    yield table
    table.close()


def folded(changes: list[dict[str, Any]]) -> dict[tuple[str, int], int]:
    """The table that the changes leave behind. Each change must fit the rows before it."""
    rows: dict[tuple[str, int], int] = {}
    for change in changes:
        key = (change["code"], change["id"])
        match change["op"]:
            case "delete" | "update_before":
                del rows[key]
            case "insert":
                assert key not in rows, change
                rows[key] = change["n"]
            case _:
                rows[key] = change["n"]
    return rows


def change_rows(random_: random.Random, connection: psycopg.Connection[Any], table: str, parity: int) -> None:
    """A few changes of the rows whose id has this parity, so that two writers never wait for each other."""
    for _ in range(random_.randrange(1, 5)):
        code, other = random_.choice("aAbBc"), random_.choice("aAbBc")
        id_, n = 8 + 2 * random_.randrange(3) + parity, random_.randrange(1_000)
        row = f"code = '{code}' AND id = {id_}"
        free = f"NOT EXISTS (SELECT FROM {table} WHERE code = '{other}' AND id = {id_})"
        connection.execute(
            random_.choice(
                [
                    f"INSERT INTO {table} VALUES ('{code}', {n}, {id_}) ON CONFLICT DO NOTHING",
                    f"UPDATE {table} SET n = {n} WHERE id % 2 = {parity}",
                    f"UPDATE {table} SET code = '{other}' WHERE {row} AND {free}",
                    f"DELETE FROM {table} WHERE {row}",
                ]
            )
        )


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), is_full=st.booleans())
def test_rows_and_changes_are_the_table_whatever_crashes(table: Table, seed: int, is_full: bool) -> None:
    """S1-22, S4-50: crashes in the middle of the snapshot, beside a writer with long transactions."""
    random_ = random.Random(seed)
    table.run(f"DELETE FROM {table.name}")
    table.run(f"ALTER TABLE {table.name} REPLICA IDENTITY {'FULL' if is_full else 'DEFAULT'}")
    for _ in range(10):
        change_rows(random_, table.connection, table.name, random_.randrange(2))
    table.new_slot()
    for _ in range(3):
        change_rows(random_, table.connection, table.name, 0)
    store, clock, snapshots = MemorySnapshotStore(), ManualClock(1_000_000), list[Any]()
    emitted: list[dict[str, Any]] = []
    durable = 0  #: rows before the snapshot
    reading = Reading(table.source(), store=store, clock=clock)
    for step in range(60):
        clock.advance(1_000)
        match random_.choice(["change", "late", "commit", "poll", "poll", "poll", "checkpoint", "crash"]):
            case "change":
                change_rows(random_, table.connection, table.name, 0)
            case "late":
                table.late.execute("BEGIN" if table.late.info.transaction_status == 0 else "SELECT")
                change_rows(random_, table.late, table.name, 1)
            case "commit":
                table.late.execute(random_.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
            case "poll":
                batch = reading.poll(random_.choice([1, 2, 3, 5]))
                emitted += [] if batch is None else batch.to_pylist()
            case "checkpoint":
                reading.reader.snapshot(step)
                snapshots, durable = [reading.state.capture(False).write(store, f"c{step}")[0]], len(emitted)
                if random_.random() < 0.5:
                    reading.reader.checkpoint_completed(permit_from_master("job", Token(1), CheckpointId(step)))
            case "crash":
                reading.reader.close()
                del emitted[durable if snapshots else 0 :]
                reading = Reading(table.source(), store=store, snapshots=snapshots, clock=clock)
    table.late.execute("COMMIT")
    for _ in range(4):  # wait for writers, the rest of the rows, an open window, all that is new
        clock.advance(60_000)
        emitted += reading.rows()
    reading.reader.close()
    assert folded(emitted) == table.rows()


def test_changes_that_the_rows_contain_are_dropped_and_a_late_commit_is_not(table: Table) -> None:
    table.run(f"INSERT INTO {table.name} VALUES ('b', 0, 1), ('a', 0, 1); UPDATE {table.name} SET n = 1")
    reading = Reading(table.source())
    first = reading.poll(1)
    assert first is not None
    assert [(row["code"], row["n"], row["op"]) for row in first.to_pylist()] == [("b", 1, "insert")]
    table.late.execute("BEGIN")
    table.late.execute(f"UPDATE {table.name} SET n = 2")
    table.late.execute("COMMIT")
    changes = [(row["code"], row["n"], row["op"]) for row in [*reading.rows(), *reading.rows()]]
    assert changes == [("a", 1, "insert"), ("b", 2, "update_after"), ("a", 2, "update_after")]
    reading.reader.close()


def test_the_first_row_waits_for_transactions_that_write_the_table(table: Table) -> None:
    """Such a transaction may be in the log before the slot, and not yet visible."""
    table.late.execute("BEGIN")
    table.late.execute(f"INSERT INTO {table.name} VALUES ('a', 0, 1)")
    reading = Reading(table.source())
    assert reading.rows() == []
    table.late.execute("COMMIT")
    assert [row["code"] for row in reading.rows()] == ["a"]
    reading.reader.close()


def test_a_locked_table_does_not_hold_up_the_reader(table: Table) -> None:
    table.run(f"INSERT INTO {table.name} VALUES ('b', 0, 1), ('a', 0, 1)")
    reading = Reading(table.source())
    reading.poll(1)
    snapshot = reading.snapshot("c1")
    reading.reader.close()
    successor = Reading(table.source(), store=reading.store, snapshots=[snapshot])
    table.late.execute("BEGIN")
    table.late.execute(f"LOCK TABLE {table.name} IN ACCESS EXCLUSIVE MODE")
    assert successor.rows() == []
    table.late.execute("COMMIT")
    assert [row["code"] for row in successor.rows()] == ["a"]
    successor.reader.close()


def test_the_state_forgets_the_snapshot_once_no_change_can_be_in_it(table: Table) -> None:
    table.run(f"INSERT INTO {table.name} VALUES ('a', 0, 1)")
    reading = Reading(table.source())
    reading.rows()
    table.run(f"INSERT INTO {table.name} VALUES ('b', 0, 1)")
    assert [row["code"] for row in reading.rows()] == ["b"]
    (position,) = reading.snapshot("c1").unions["position"]
    assert (position["chunks"], position["is_initial"]) == ([], False)
    reading.reader.close()


def test_watermarks_follow_commit_times_also_without_changes(table: Table) -> None:
    table.run(f"INSERT INTO {table.name} VALUES ('a', 0, 1), ('b', 0, 1)")
    source = table.source(commit_time="at", event_time="at", max_disorder_ms=500)
    assert source.has_event_time
    reading = Reading(source)
    reading.poll(1)
    assert reading.reader.watermark() is None  # rows of the table have no order in time
    rows = reading.rows()
    table.run(f"UPDATE {table.name} SET n = 5 WHERE code = 'a'")
    ((now,),) = table.run("SELECT now()")
    (change,) = [*rows[1:], *reading.rows()]
    assert abs(change["at"] - now) < dt.timedelta(seconds=20)
    first = reading.reader.watermark()
    assert first is not None
    assert first >= change["at"].timestamp() * 1_000 - 502
    assert not reading.reader.idle
    snapshot = reading.snapshot("c1")
    table.run("SELECT pg_sleep(0.05)")
    reading.rows()
    later = reading.reader.watermark()
    assert later is not None
    assert later > first
    reading.reader.close()
    successor = Reading(source, store=reading.store, snapshots=[snapshot])
    assert successor.reader.watermark() == first
    successor.reader.close()


def test_an_event_time_of_the_table_needs_all_values_of_deleted_rows(table: Table) -> None:
    with pytest.raises(JobRejected, match="REPLICA IDENTITY FULL, or take commit_time"):
        Reading(table.source(event_time="n"))
    with pytest.raises(JobRejected, match="no such column, only code, n, id"):
        Reading(table.source(event_time="other"))
    table.run(f"ALTER TABLE {table.name} REPLICA IDENTITY FULL; INSERT INTO {table.name} VALUES ('a', 7000, 1)")
    reading = Reading(table.source(event_time="n"))
    reading.rows()
    assert reading.reader.watermark() == 5_999
    reading.reader.close()


def test_a_table_without_a_key_and_a_changed_column_are_named(table: Table) -> None:
    table.run(f"INSERT INTO {table.name} VALUES ('a', 0, 1), ('b', 0, 1)")
    reading = Reading(table.source())
    reading.poll(1)
    snapshot = reading.snapshot("c1")
    reading.reader.close()
    table.run(f"ALTER TABLE {table.name} ALTER n TYPE int4")
    with pytest.raises(JobRejected, match="has another type since the job began"):
        Reading(table.source(), store=reading.store, snapshots=[snapshot])
    table.run(f"ALTER TABLE {table.name} DROP CONSTRAINT {table.name}_pkey")
    with pytest.raises(JobRejected, match="no primary key: ALTER TABLE"):
        Reading(table.source())


def test_a_column_that_is_newer_than_the_slot_is_read(table: Table) -> None:
    """The log before it lacks the column, but those changes are in the rows."""
    table.run(f"INSERT INTO {table.name} VALUES ('a', 0, 1); ALTER TABLE {table.name} ADD text text DEFAULT 'x'")
    reading = Reading(table.source())
    assert [row["text"] for row in reading.rows()] == ["x"]
    table.run(f"UPDATE {table.name} SET text = 'y'")
    assert [(row["op"], row["text"]) for row in reading.rows()] == [("update_after", "y")]
    reading.reader.close()


def test_a_truncation_before_the_snapshot_does_no_harm(table: Table) -> None:
    table.run(f"INSERT INTO {table.name} VALUES ('a', 0, 1)")
    table.run(f"TRUNCATE {table.name}")
    reading = Reading(table.source())
    assert [*reading.rows(), *reading.rows()] == []
    table.run(f"TRUNCATE {table.name}")
    with pytest.raises(DataRejected, match="was truncated"):
        reading.rows()
    reading.reader.close()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"commit_time": "op"}, "bad-name"),
        ({"commit_time": "code", "columns": ["code"]}, "bad-name"),
        ({"event_time": "n", "columns": ["code", "id"]}, "missing-column"),
        ({"max_disorder_ms": -1}, "bad-disorder"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], code: str) -> None:
    with pytest.raises(JobRejected) as error:
        PostgresChanges("postgresql://h/d", "p", "s", "t", **options).check()
    assert error.value.code == code


@given(
    begin=st.integers(3, 2**40),
    length=st.integers(0, 300),
    running=st.sets(st.integers(0, 300)),
    offset=st.integers(-(2**30), 2**30),
)
def test_visibility_is_that_of_the_server(begin: int, length: int, running: set[int], offset: int) -> None:
    """Transaction ids of the log have 32 bits only."""
    end = begin + length
    in_progress = {begin + each for each in running if each < length}
    xid = max(end + offset, 3)
    snapshot = _Snapshot(f"{begin}:{end}:{','.join(map(str, sorted(in_progress)))}")
    assert snapshot.contains(xid & 0xFFFF_FFFF) == (xid < end and xid not in in_progress)


def test_a_restart_within_the_snapshot_makes_no_change_late(table: Table) -> None:
    """Rows that are read after the restart are newer than changes of the rows before it."""
    table.run(f"INSERT INTO {table.name} VALUES ('b', 0, 1), ('a', 0, 1)")
    source = table.source(commit_time="at", event_time="at", max_disorder_ms=0)
    reading = Reading(source)
    reading.poll(1)
    snapshot = reading.snapshot("c1")
    reading.reader.close()
    table.run(f"UPDATE {table.name} SET n = 2 WHERE code = 'b'")
    table.run("SELECT pg_sleep(0.05)")
    successor = Reading(source, store=reading.store, snapshots=[snapshot])
    (row,) = (successor.poll() or pytest.fail("a row is left")).to_pylist()
    assert row["code"] == "a"
    watermark = successor.reader.watermark()
    (change,) = successor.rows()
    assert change["op"] == "update_after"
    assert watermark is None or watermark < change["at"].timestamp() * 1_000
    successor.reader.close()


def test_a_key_of_a_domain_is_stored_as_text(table: Table) -> None:
    table.run(f"CREATE DOMAIN {table.name}_number AS int4")
    table.run(f"ALTER TABLE {table.name} ADD k {table.name}_number")
    table.run(f"ALTER TABLE {table.name} DROP CONSTRAINT {table.name}_pkey, ADD PRIMARY KEY (k)")
    table.run(f"INSERT INTO {table.name} VALUES ('a', 1, 0, 9), ('b', 2, 0, 10), ('c', 3, 0, 11)")
    source = table.source(columns=["n"])
    reading = Reading(source)
    first = reading.poll(2)
    assert first is not None
    snapshot = reading.snapshot("c1")
    reading.reader.close()
    successor = Reading(source, store=reading.store, snapshots=[snapshot])
    assert [row["n"] for row in first.to_pylist() + successor.rows()] == [1, 2, 3]
    successor.reader.close()
    table.run(f"ALTER TABLE {table.name} DROP k; DROP DOMAIN {table.name}_number")


def test_a_publication_with_a_row_filter_is_refused(table: Table) -> None:
    table.run(f"ALTER PUBLICATION {table.name} SET TABLE {table.name} WHERE (id > 3)")
    with pytest.raises(JobRejected, match="filter"):
        Reading(table.source())
    Reading(table.source(initial_snapshot=False)).reader.close()
