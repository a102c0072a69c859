"""Change data capture on a real server: every change once and in order, whatever crashes; types; refusals."""

import datetime as dt
import decimal
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.connectors.postgres.changes import PostgresChanges
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import permit_from_master
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from tests.contracts.files import Reading
from tests.manual_clock import ManualClock
from tests.postgres import address_without_password
from tests.waiting import until

NUMBERS = count()


class Database:
    """A table with a publication, and slots that go with it."""

    def __init__(self, url: str) -> None:
        self.url, self.name = url, f"changes_{os.getpid()}_{next(NUMBERS)}"
        self.slots: list[str] = []
        self.connection = psycopg.connect(url, autocommit=True)
        self.run("SET synchronous_commit = on")  # a slot shows transactions whose log is on disk
        self.run(f"CREATE TABLE {self.name} (id int8 PRIMARY KEY, text text)")
        self.run(f"CREATE PUBLICATION {self.name} FOR TABLE {self.name}")

    def run(self, command: str) -> list[Any]:
        cursor = self.connection.execute(command)
        return cursor.fetchall() if cursor.description else []

    def slot(self) -> str:
        self.slots.append(f"{self.name}_{len(self.slots)}")
        self.run(f"SELECT pg_create_logical_replication_slot('{self.slots[-1]}', 'pgoutput')")
        return self.slots[-1]

    def source(self, slot: str, **options: Any) -> PostgresChanges:
        address = address_without_password(self.url)
        source = PostgresChanges(address, options.pop("publication", self.name), slot, self.name, **options)
        source.check()
        return source

    def confirmed(self, slot: str) -> str:
        query = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{slot}'"
        return str(self.run(query)[0][0])

    def drop_slots(self) -> None:
        """The server has few."""
        self.run(
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ '^{self.name}_'"
        )

    def close(self) -> None:
        self.drop_slots()
        self.run(f"DROP PUBLICATION {self.name}; DROP TABLE {self.name}")
        self.connection.close()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


@contextmanager
def held(database: Database, slot: str) -> Iterator[None]:
    """Another session reads the slot, as the server shows."""
    other = psycopg.connect(database.url, replication="database", autocommit=True)
    active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'"
    try:
        options = f"proto_version '1', publication_names '{database.name}'"
        other.pgconn.send_query(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})".encode())
        other.pgconn.flush()
        until(lambda: database.run(active)[0][0])
        yield
    finally:
        other.close()
    until(lambda: not database.run(active)[0][0])


def complete(reading: Reading, checkpoint: int) -> None:
    reading.reader.checkpoint_completed(permit_from_master("job", Token(1), CheckpointId(checkpoint)))


def folded(changes: Sequence[dict[str, Any]]) -> dict[int, str | None]:
    """The table that the changes leave behind."""
    rows: dict[int, str | None] = {}
    for change in changes:
        if change["op"] in ("delete", "update_before"):
            del rows[change["id"]]
        else:
            assert (change["op"] == "insert") == (change["id"] not in rows) or change["op"] == "update_after"
            rows[change["id"]] = change["text"]
    return rows


def change_rows(random_: random.Random, database: Database) -> None:
    """A transaction of a few changes, sometimes rolled back."""
    with database.connection.transaction() as transaction:
        for _ in range(random_.randrange(1, 6)):
            key, other, text = random_.randrange(8), random_.randrange(8), f"v{random_.randrange(1_000)}"
            free = f"NOT EXISTS (SELECT FROM {database.name} WHERE id = {other})"
            database.run(
                random_.choice(
                    [
                        f"INSERT INTO {database.name} VALUES ({key}, '{text}') ON CONFLICT DO NOTHING",
                        f"UPDATE {database.name} SET text = '{text}' WHERE id >= {key}",
                        f"UPDATE {database.name} SET id = {other} WHERE id = {key} AND {free}",
                        f"DELETE FROM {database.name} WHERE id = {key}",
                    ]
                )
            )
        if random_.random() < 0.1:
            raise psycopg.Rollback(transaction)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), is_full=st.booleans())
def test_every_change_comes_once_and_in_order_whatever_crashes(database: Database, seed: int, is_full: bool) -> None:
    """S1-22, S4-50: snapshots lie within transactions too; the slot advances at completion only."""
    random_ = random.Random(seed)
    database.run(f"DELETE FROM {database.name}")
    database.run(f"ALTER TABLE {database.name} REPLICA IDENTITY {'FULL' if is_full else 'DEFAULT'}")
    slot, reference = database.slot(), database.slot()
    store, clock, snapshots = MemorySnapshotStore(), ManualClock(1_000_000), list[Any]()
    emitted: list[dict[str, Any]] = []
    durable = 0  #: rows before the snapshot
    source = database.source(slot)
    reading = Reading(source, store=store, clock=clock)
    for step in range(40):
        match random_.choice(["change", "change", "poll", "poll", "checkpoint", "crash"]):
            case "change":
                change_rows(random_, database)
            case "poll":
                clock.advance(random_.choice([50, 10_000]))
                batch = reading.poll(random_.choice([1, 2, 3, 100]))
                emitted += [] if batch is None else batch.to_pylist()
                assert not emitted or emitted[-1]["op"] != "update_before", "a barrier may follow"
            case "checkpoint":
                reading.reader.snapshot(step)
                snapshots, durable = [reading.state.capture(False).write(store, f"c{step}")[0]], len(emitted)
                if random_.random() < 0.5:
                    complete(reading, step)
            case "crash":
                reading.reader.close()
                if snapshots:
                    del emitted[durable:]
                else:
                    emitted.clear()
                reading = Reading(source, store=store, snapshots=snapshots, clock=clock)
    for _ in range(2):  # the rest of an open window, then all that is new
        clock.advance(60_000)
        emitted += reading.rows()
    reading.reader.close()
    reference_reading = Reading(database.source(reference))
    assert emitted == reference_reading.rows()
    reference_reading.reader.close()
    database.drop_slots()
    assert folded(emitted) == dict(database.run(f"SELECT id, text FROM {database.name}"))


def test_the_slot_does_not_pass_rows_that_are_read_and_not_emitted(database: Database) -> None:
    """The end of their transaction is known, but their position is not behind it. An update is never halved."""
    database.run(f"ALTER TABLE {database.name} REPLICA IDENTITY FULL")
    database.run(f"INSERT INTO {database.name} VALUES (1, 'a'), (2, 'a'), (3, 'a')")
    slot = database.slot()
    database.run(f"UPDATE {database.name} SET text = 'b'")
    reading = Reading(database.source(slot))
    first = reading.poll(3)
    assert first is not None
    assert first.num_rows == 4
    snapshot = reading.snapshot("c1")
    complete(reading, 1)
    reading.reader.close()
    successor = Reading(database.source(slot), store=reading.store, snapshots=[snapshot])
    ops = [row["op"] for row in [*first.to_pylist(), *successor.rows()]]
    successor.reader.close()
    assert ops == ["update_before", "update_after"] * 3


def test_the_slot_moves_with_completed_checkpoints_only(database: Database) -> None:
    slot = database.slot()
    start = database.confirmed(slot)
    reading = Reading(database.source(slot))
    database.run(f"INSERT INTO {database.name} VALUES (1, 'a')")
    assert [row["id"] for row in reading.rows()] == [1]
    reading.reader.snapshot(1)
    assert database.confirmed(slot) == start
    complete(reading, 1)
    assert database.confirmed(slot) != start
    reading.reader.close()


def test_the_position_moves_while_only_other_tables_change(database: Database) -> None:
    """Otherwise the server would keep its log without bound."""
    slot = database.slot()
    reading = Reading(database.source(slot))
    start = database.confirmed(slot)
    database.run(f"CREATE TABLE {database.name}_x AS SELECT 1 AS n; DROP TABLE {database.name}_x")
    assert reading.rows() == []
    reading.reader.snapshot(1)
    complete(reading, 1)
    assert database.confirmed(slot) != start
    reading.reader.close()


def test_more_changes_than_a_peek_has_are_all_read(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = database.slot()
    for first in range(0, 26_000, 6_500):
        database.run(f"INSERT INTO {database.name} SELECT n FROM generate_series({first}, {first + 6_499}) AS n")
    reading = Reading(database.source(slot))
    assert [row["id"] for row in reading.rows(4_000)] == list(range(26_000))
    reading.reader.close()


def test_other_subtasks_read_nothing(database: Database) -> None:
    slot = database.slot()
    database.run(f"INSERT INTO {database.name} VALUES (1, 'a')")
    readings = [Reading(database.source(slot), index=index, parallelism=3) for index in range(3)]
    assert [len(reading.rows()) for reading in readings] == [1, 0, 0]
    assert all(reading.reader.idle for reading in readings[1:])
    readings[0].reader.close()


def test_every_type(database: Database) -> None:
    database.run(
        f"CREATE TYPE {database.name}_mood AS ENUM ('sad', 'ok'); ALTER TABLE {database.name} "
        f"ADD b bool, ADD i int2, ADD f float8, ADD d numeric(10, 2), ADD n numeric, ADD u uuid, ADD x bytea, "
        f"ADD day date, ADD at timestamp, ADD tz timestamptz, ADD j jsonb, ADD mood {database.name}_mood"
    )
    slot = database.slot()
    uid = "6f2f4b8e-25c1-4c5e-8d1a-4f6d1c1f0a11"
    database.run(
        f"""INSERT INTO {database.name} VALUES (1, 'ü"\\ , ', true, -3, 'NaN', 1.5, 0.12345678901234567890, '{uid}', """
        """'\\x00ff', '2026-01-02', '2026-01-02 03:04:05.5', '2026-01-02 03:04:05+02', '{"a": 1}', 'ok')"""
    )
    database.run(f"INSERT INTO {database.name} (id, b) VALUES (2, false)")
    reading = Reading(database.source(slot))
    first, second = reading.rows()
    reading.reader.close()
    assert str(first.pop("f")) == "nan"
    assert first == {
        "id": 1, "text": 'ü"\\ , ', "b": True, "i": -3, "d": decimal.Decimal("1.50"), "n": "0.12345678901234567890",
        "u": uid, "x": b"\0\xff", "day": dt.date(2026, 1, 2), "at": dt.datetime(2026, 1, 2, 3, 4, 5, 500_000),  # noqa: DTZ001
        "tz": dt.datetime(2026, 1, 2, 1, 4, 5, tzinfo=dt.UTC), "j": '{"a": 1}', "mood": "ok", "op": "insert",
    }  # fmt: skip
    assert (second["b"], second["text"], second["x"], second["d"]) == (False, None, None, None)
    database.run(f"ALTER TABLE {database.name} DROP mood; DROP TYPE {database.name}_mood")


def test_a_large_value_that_an_update_leaves_alone_is_known_or_refused(database: Database) -> None:
    """It is not in the log; null in its place would be wrong."""
    database.run(f"ALTER TABLE {database.name} ADD n int8; ALTER TABLE {database.name} ALTER text SET STORAGE EXTERNAL")
    slot, large = database.slot(), "x" * 20_000
    database.run(f"INSERT INTO {database.name} VALUES (1, '{large}', 0); UPDATE {database.name} SET n = 1")
    reading = Reading(database.source(slot))
    with pytest.raises(DataRejected, match=r"large value of column 'text': ALTER TABLE .* REPLICA IDENTITY FULL"):
        reading.rows()
    reading.reader.close()
    narrow = Reading(database.source(slot, columns=["id", "n"]))
    assert [(row["op"], row["n"]) for row in narrow.rows()] == [("insert", 0), ("update_after", 1)]
    narrow.reader.close()
    database.run(f"ALTER TABLE {database.name} REPLICA IDENTITY FULL")
    later = database.slot()
    database.run(f"UPDATE {database.name} SET n = 2")
    full = Reading(database.source(later))
    assert [(row["op"], row["n"], row["text"] == large) for row in full.rows()] == [
        ("update_before", 1, True), ("update_after", 2, True),
    ]  # fmt: skip
    full.reader.close()


def test_truncate_and_new_columns_end_the_job_by_name(database: Database) -> None:
    slot = database.slot()
    database.run(f"INSERT INTO {database.name} VALUES (1, 'a'); TRUNCATE {database.name}")
    reading = Reading(database.source(slot))
    with pytest.raises(DataRejected, match="was truncated"):
        reading.rows()
    reading.reader.close()
    ignoring = Reading(database.source(slot, ignore_truncate=True))
    assert [row["id"] for row in ignoring.rows()] == [1]
    database.run(f"ALTER TABLE {database.name} ADD more int; INSERT INTO {database.name} VALUES (2, 'b', 3)")
    with pytest.raises(JobRejected, match="new column: name the columns to read in `columns`"):
        ignoring.rows()
    ignoring.reader.close()
    narrow = Reading(database.source(slot, ignore_truncate=True, columns=["id"]))
    assert [row["id"] for row in narrow.rows()] == [1, 2]
    database.run(f"ALTER TABLE {database.name} ALTER id TYPE int4; INSERT INTO {database.name} VALUES (3)")
    with pytest.raises(JobRejected, match="has another type since the job began"):
        narrow.rows()
    narrow.reader.close()


@pytest.mark.parametrize("replace", ["ALTER TABLE {name} RENAME TO {name}_old", "DROP TABLE {name}"])
def test_a_table_that_takes_over_the_name_ends_the_job(database: Database, replace: str) -> None:
    """Its changes would be lost, also if it is published. A table that is only renamed is read on."""
    slot, name = database.slot(), database.name
    reading = Reading(database.source(slot))
    database.run(f"INSERT INTO {name} VALUES (1, 'a'); ALTER TABLE {name} RENAME TO {name}_old")
    assert [row["id"] for row in reading.rows()] == [1]
    database.run(f"INSERT INTO {name}_old VALUES (2, 'b'); ALTER TABLE {name}_old RENAME TO {name}")
    assert [row["id"] for row in reading.rows()] == [2]
    older = reading.snapshot("older")
    database.run(f"{replace.format(name=name)}; CREATE TABLE {name} (id int8 PRIMARY KEY, text text)")
    database.run(f"ALTER PUBLICATION {name} ADD TABLE {name}; INSERT INTO {name} VALUES (3, 'c')")
    try:
        with pytest.raises(JobRejected, match=r"another table has the name .*begin anew with another slot") as error:
            reading.rows()
        assert error.value.code == "table-replaced"
        with pytest.raises(JobRejected, match="another table has the name"):
            Reading(database.source(slot), store=reading.store, snapshots=[older])
    finally:
        database.run(f"DROP TABLE IF EXISTS {name}_old")
    reading.reader.close()


def test_a_checkpoint_whose_log_is_gone_is_refused(database: Database) -> None:
    """Its changes would be lost without an error."""
    slot = database.slot()
    reading = Reading(database.source(slot))
    older = reading.snapshot("older")
    database.run(f"INSERT INTO {database.name} VALUES (1, 'a')")
    reading.rows()
    reading.reader.snapshot(2)
    complete(reading, 2)
    reading.reader.close()
    with pytest.raises(JobRejected, match="advanced beyond the checkpoint") as error:
        Reading(database.source(slot), store=reading.store, snapshots=[older])
    assert error.value.code == "slot-has-advanced"
    with pytest.raises(JobRejected, match="of the slot"):
        Reading(database.source(database.slot()), store=reading.store, snapshots=[older])


def test_a_slot_that_another_session_holds_is_read_once_it_is_free(database: Database) -> None:
    """A session of an ended attempt may live on for a moment. Each look at the slot then ended the next attempt."""
    slot = database.slot()
    reading = Reading(database.source(slot))
    database.run(f"INSERT INTO {database.name} VALUES (1, 'a')")
    with held(database, slot):
        assert reading.rows() == []
        reading.clock.advance(59_000)
        assert reading.rows() == []
    assert [row["id"] for row in reading.rows()] == [1]
    database.run(f"INSERT INTO {database.name} VALUES (2, 'b')")
    with held(database, slot):
        assert reading.rows() == []
        reading.clock.advance(61_000)
        with pytest.raises(EnvironmentFailure, match="is active for PID"):
            reading.rows()
    reading.reader.close()


def test_what_the_server_lacks_is_named_with_the_command(database: Database) -> None:
    with pytest.raises(JobRejected, match=r"SELECT pg_create_logical_replication_slot\('none', 'pgoutput'\)"):
        Reading(database.source("none"))
    slot = database.slot()
    with pytest.raises(JobRejected, match=rf"CREATE PUBLICATION \"none\" FOR TABLE public\.{database.name}"):
        Reading(database.source(slot, publication="none"))
    with pytest.raises(JobRejected, match="no such column, only id, text"):
        Reading(database.source(slot, columns=["other"]))
    away = PostgresChanges("postgresql://weir@127.0.0.1:1/weir", "p", "s", "t")
    with pytest.raises(EnvironmentFailure, match="refused"):
        Reading(away)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"slot": ""}, "bad-name"),
        ({"table": "a.b.c"}, "bad-table"),
        ({"url": "postgresql://u:literal@h/d"}, "literal-secret"),
        ({"columns": "id"}, "bad-columns"),
        ({"columns": ["op"]}, "bad-columns"),
        ({"poll_interval_ms": 0}, "bad-interval"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], code: str) -> None:
    arguments = {"url": "postgresql://h/d", "publication": "p", "slot": "s", "table": "t"} | options
    with pytest.raises(JobRejected) as error:
        PostgresChanges(**arguments).check()
    assert error.value.code == code
