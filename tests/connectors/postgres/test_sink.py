"""The Postgres sink on a real server: two phases, upserts, repeated commits, clean-up, errors by name."""

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from runtime.connectors.postgres.connection import connect, postgres_errors
from runtime.connectors.postgres.sink import PostgresSink
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import permit_from_master
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, TargetAway
from runtime.ports import SinkWriter
from tests.contracts.test_sinks import context
from tests.example_counts import examples
from tests.postgres import address_without_password

NUMBERS = iter(range(1_000_000))


class Database:
    """A schema of its own, with a table `rows`."""

    def __init__(self, url: str) -> None:
        self.url, self.address = url, address_without_password(url)
        self.schema = f"sink_{os.getpid()}_{next(NUMBERS)}"
        self.table = f"{self.schema}.rows"
        self.run(f"CREATE SCHEMA {self.schema}; CREATE TABLE {self.table} (id int8 NOT NULL, text text)")

    def run(self, command: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(command)
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> list[Any]:
        return sorted(self.run(f"SELECT id, text FROM {self.table}"))

    def staged(self) -> int:
        names = self.run(
            f"SELECT tablename FROM pg_tables WHERE schemaname = '{self.schema}' AND tablename LIKE 'weir_staged%'"
        )
        return sum(self.run(f"SELECT count(*) FROM {self.schema}.{name}")[0][0] for (name,) in names)

    def sink(self, **arguments: Any) -> PostgresSink:
        sink = PostgresSink(self.address, self.table, **arguments)
        sink.check()
        return sink


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.run(f"DROP SCHEMA {database.schema} CASCADE")


def open_writer(of: PostgresSink, *, job: str = "7", token: int = 1, uid: str = "out", index: int = 0) -> SinkWriter:
    writer = of.writer()
    writer.open(context(job, token, uid, index))
    return writer


def rows(*pairs: tuple[int | None, str | None]) -> pa.RecordBatch:
    ids, texts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "text": pa.array(texts, pa.string())})


def write_and_prepare(writer: Any, batch: pa.RecordBatch) -> None:
    """Rows reach the server by the barrier at the latest."""
    writer.write(batch)
    writer.prepare(1)


def commit(of: PostgresSink, *committables: Any, token: int = 1, job: str = "7") -> int:
    return of.committer().commit(permit_from_master(job, Token(token), CheckpointId(1)), committables)


# ---------------------------------------------------------------- staged


def uncommitted(database: Database) -> list[Any]:
    return sorted(database.run(f"SELECT id, text FROM {database.schema}.so_far"))


def test_a_view_shows_staged_rows_before_their_checkpoint_is_complete(database: Database) -> None:
    """S1-58: readers choose between committed and uncommitted rows; each row is there once, before and after."""
    of = database.sink(uncommitted="so_far")
    writer = open_writer(of)
    writer.write(rows((1, "a")))
    assert commit(of, *writer.prepare(1)) == 1
    writer.write(rows((2, "b"), (3, "c")))
    assert uncommitted(database) == [(1, "a")], "the barrier has not passed"
    staged = writer.prepare(2)
    assert (database.rows(), uncommitted(database)) == ([(1, "a")], [(1, "a"), (2, "b"), (3, "c")])
    commit(of, *staged)
    assert database.rows() == uncommitted(database) == [(1, "a"), (2, "b"), (3, "c")]
    writer.write(rows((4, "d")))
    writer.prepare(3)
    writer.close()
    successor = open_writer(of, token=2)
    of.committer().clean("7", "out", Token(2), [])
    assert uncommitted(database) == database.rows(), "the failure has taken the rows back"
    successor.close()


def test_a_view_of_upserts_shows_the_last_row_of_each_key(database: Database) -> None:
    """S1-58."""
    database.run(
        f"CREATE UNIQUE INDEX ON {database.table} (id); INSERT INTO {database.table} VALUES (1, 'a'), (2, 'b')"
    )
    of = database.sink(key=["id"], op_column="op", uncommitted="so_far")
    writer = open_writer(of)
    changes = [(1, "x", "update_after"), (2, None, "delete"), (3, "n", "insert"), (1, "y", "update_after")]
    columns = zip(("id", "text", "op"), zip(*changes, strict=True), strict=True)
    writer.write(pa.RecordBatch.from_pydict({name: list(values) for name, values in columns}))
    staged = writer.prepare(1)
    assert uncommitted(database) == [(1, "y"), (3, "n")]
    assert database.rows() == [(1, "a"), (2, "b")]
    commit(of, *staged)
    assert uncommitted(database) == database.rows() == [(1, "y"), (3, "n")]
    writer.close()


@pytest.mark.parametrize("key", [(), ("id",)])
def test_a_view_leaves_out_rows_of_a_savepoint_that_the_job_has_left_behind(
    database: Database, key: tuple[str, ...]
) -> None:
    """S1-58: the attempt fails, an older checkpoint is restored, and the retained savepoint keeps its staged rows."""
    database.run(f"CREATE UNIQUE INDEX ON {database.table} (id)")
    of = database.sink(key=key, uncommitted="so_far")
    first = open_writer(of)
    first.write(rows((1, "at the savepoint")))
    savepoint = first.prepare(5)
    first.close()
    of.committer().clean("7", "out", Token(2), savepoint)
    assert database.staged() == 1
    second, other = open_writer(of, token=2), open_writer(of, token=2, index=1)
    assert uncommitted(database) == []
    second.write(rows((1, "newest")))
    other.write(rows((2, "other")))
    staged = [*second.prepare(6), *other.prepare(6)]
    assert uncommitted(database) == [(1, "newest"), (2, "other")]
    commit(of, *staged, token=2)
    assert database.rows() == uncommitted(database) == [(1, "newest"), (2, "other")]
    second.close()
    other.close()


def test_a_view_never_replaces_the_relation_of_another(database: Database) -> None:
    database.run(f"CREATE VIEW {database.schema}.so_far AS SELECT id, text FROM {database.table}")
    for relation in ("so_far", "rows"):
        with pytest.raises(JobRejected, match=rf"uncommitted: .*{relation} exists") as error:
            open_writer(database.sink(uncommitted=relation))
        assert error.value.code == "view-exists"
    with pytest.raises(JobRejected, match="uncommitted: must name a view, with commit='staged'"):
        database.sink(commit="prepared", uncommitted="so_far")


def test_a_query_of_the_view_does_not_hold_up_a_restart(database: Database) -> None:
    of = database.sink(uncommitted="so_far")
    open_writer(of).close()
    with psycopg.connect(database.url) as reader:
        reader.execute(f"SELECT count(*) FROM {database.schema}.so_far")
        with psycopg.connect(database.url, autocommit=True) as other:
            blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            opened = threading.Thread(target=lambda: open_writer(of, token=2).close())
            opened.start()
            opened.join(60)
            assert not opened.is_alive(), f"{other.execute(blocked).fetchone()} locks are awaited"


def test_a_view_with_other_columns_is_not_replaced(database: Database) -> None:
    of = database.sink(uncommitted="so_far")
    open_writer(of).close()
    database.run(f"ALTER TABLE {database.table} ADD COLUMN more text")
    open_writer(of).close()  # a further column is added to the view
    database.run(f"ALTER TABLE {database.table} RENAME COLUMN text TO words")
    with pytest.raises(JobRejected, match=r"uncommitted: .*so_far has other columns"):
        open_writer(of)


def test_rows_of_all_subtasks_appear_in_one_transaction_and_a_commit_may_be_repeated(database: Database) -> None:
    """S1-06, S1-25, S1-31, S1-38."""
    of = database.sink()
    first_writer, second_writer = open_writer(of), open_writer(of, index=1)
    first_writer.write(rows((1, "a"), (2, None)))
    second_writer.write(rows((3, 'q"\n\\.')))
    committables = [*first_writer.prepare(5), *second_writer.prepare(5)]
    assert [each["rows"] for each in committables] == [2, 1]
    assert database.rows() == []
    assert commit(of, *committables) == 2
    assert database.rows() == [(1, "a"), (2, None), (3, 'q"\n\\.')]
    database.run(f"DELETE FROM {database.table}")  # a consumer takes the rows away
    for token in (1, 2):
        assert commit(of, *committables, token=token) == 0
    assert database.rows() == []
    assert database.staged() == 0
    first_writer.close()
    second_writer.close()


def test_committables_of_several_checkpoints_are_moved_with_old_and_new_ones(database: Database) -> None:
    of = database.sink()
    writer = open_writer(of)
    pending: list[Any] = []
    for number in (1, 2, 3):
        writer.write(rows((number, None)))
        pending += writer.prepare(number)
        assert writer.prepare(number) == ()
    assert commit(of, *pending[:1]) == 1
    assert commit(of, *pending) == 2
    assert [number for number, _ in database.rows()] == [1, 2, 3]
    writer.close()


def test_rows_without_a_checkpoint_vanish_with_their_writer(database: Database) -> None:
    """S1-39."""
    writer = open_writer(database.sink())
    writer.write(rows((1, "a")))
    writer.close()
    assert database.staged() == 0


def test_batches_with_other_columns_are_committed_together(database: Database) -> None:
    of = database.sink()
    writer = open_writer(of)
    writer.write(rows((1, "a")))
    writer.write(rows((2, "b")).select(["id"]))
    writer.write(rows((3, "c")))
    committables = writer.prepare(1)
    assert commit(of, *committables) == 3
    assert database.rows() == [(1, "a"), (2, None), (3, "c")]
    writer.close()


def test_a_column_that_the_table_gets_later_is_staged_too(database: Database) -> None:
    of = database.sink()
    open_writer(of).close()
    database.run(f"ALTER TABLE {database.table} ADD COLUMN price numeric(10, 2)")
    writer = open_writer(of, token=2)
    writer.write(rows((1, "a")).append_column("price", pa.array([1.25]).cast(pa.decimal128(10, 2))))
    assert commit(of, *writer.prepare(1)) == 1
    assert str(database.run(f"SELECT price FROM {database.table}")[0][0]) == "1.25"
    writer.close()


def test_the_last_row_of_a_key_wins_over_batches_and_checkpoints(database: Database) -> None:
    database.run(
        f"CREATE UNIQUE INDEX ON {database.table} (id); INSERT INTO {database.table} VALUES (1, 'old'), (9, 'x')"
    )
    of = database.sink(key=["id"])
    writer = open_writer(of)
    writer.write(rows((1, "a"), (2, "a"), (1, "b")))
    first = writer.prepare(1)
    writer.write(rows((2, "b"), (3, "b")))
    writer.write(rows((2, "c")))
    second = writer.prepare(2)
    assert commit(of, *first, *second) == 2
    assert database.rows() == [(1, "b"), (2, "c"), (3, "b"), (9, "x")]
    writer.close()


def test_concurrent_committers_move_each_row_once(database: Database) -> None:
    """S1-06: the master, the slots and a zombie of an older attempt at the same time."""
    of = database.sink()
    writer = open_writer(of)
    writer.write(rows(*((number, None) for number in range(2_000))))
    committables = writer.prepare(1)
    moved: list[int] = []
    threads = [threading.Thread(target=lambda: moved.append(commit(of, *committables))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(moved) == [0, 0, 0, 0, 0, 1]
    assert [number for number, _ in database.rows()] == list(range(2_000))
    writer.close()


def test_a_job_that_starts_anew_with_the_same_token_loses_no_row(database: Database) -> None:
    of = database.sink()
    for number in (1, 2):
        writer = open_writer(of)
        writer.write(rows((number, None)))
        assert commit(of, *writer.prepare(1)) == 1
        writer.close()
    assert len(database.rows()) == 2


def test_clean_removes_older_leftovers_of_this_job_and_sink_only(database: Database) -> None:
    of = database.sink()
    survivor, dropped, newer = (open_writer(of, token=token) for token in (1, 1, 2))
    strangers = [open_writer(of, job="8"), open_writer(of, uid="second")]
    committables: list[Any] = []
    for number, writer in enumerate([survivor, dropped, newer, *strangers]):
        writer.write(rows((number, None)))
        committables += writer.prepare(1)
        writer.close()
    assert of.committer().clean("7", "out", Token(2), committables[:1]) == 1
    assert database.staged() == 4
    assert commit(of, committables[0], token=2) == 1
    with pytest.raises(EnvironmentFailure, match=r"1 rows of sink 'out', subtask 0.* neither staged"):
        commit(of, committables[1])  # a zombie
    assert commit(of, committables[2], token=2) == 1
    assert commit(of, committables[3], job="8") == 1
    assert commit(of, committables[4]) == 1
    assert database.rows() == [(0, None), (2, None), (3, None), (4, None)]
    assert of.committer().clean("7", "out", Token(3), []) == 0
    assert database.run(f"SELECT job, sink FROM {database.schema}.weir_sink_writers ORDER BY 1, 2") == [
        ("7", "second"), ("8", "out"),
    ]  # fmt: skip


def test_a_commit_with_lost_rows_moves_none(database: Database) -> None:
    of = database.sink()
    writer = open_writer(of)
    writer.write(rows((1, None), (2, None)))
    committables = [*writer.prepare(1)]
    writer.write(rows((3, None)))
    committables += writer.prepare(2)
    (name,) = database.run(
        f"SELECT tablename FROM pg_tables WHERE schemaname = '{database.schema}' AND tablename LIKE 'weir_staged%'"
    )[0]
    database.run(f"DELETE FROM {database.schema}.{name} WHERE id = 2")
    with pytest.raises(EnvironmentFailure, match=r"2 rows of .*number 1, are neither staged \(1 found\)"):
        commit(of, *committables)
    assert database.rows() == []
    writer.close()


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 4), st.text('ab"\\,\n', max_size=3)), max_size=6), max_size=5),
    st.lists(st.integers(0, 5), max_size=5),
)
def test_any_order_of_repeated_commits_equals_the_oracle(
    database: Database, checkpoints: list[list[tuple[int, str]]], commits: list[int]
) -> None:
    """S1-25: an upsert of the staged rows equals a dictionary, and repetitions change nothing."""
    database.run(f"TRUNCATE {database.table}; CREATE UNIQUE INDEX IF NOT EXISTS by_id ON {database.table} (id)")
    of, oracle, pending = database.sink(key=["id"]), dict[int, str](), list[Any]()
    writer = open_writer(of)
    for number, batch in enumerate(checkpoints, 1):
        writer.write(rows(*batch))
        pending += writer.prepare(number)
        oracle.update(batch)
    writer.close()
    for count in [*sorted(commits), len(pending), *commits]:
        commit(of, *pending[:count])
    assert dict(database.rows()) == oracle
    assert database.staged() == 0


# ---------------------------------------------------------------- deletions

OPERATIONS = ("insert", "update_after", "update_before", "delete")
Change = tuple[int, str | None, str]


def changes(*rows: Change) -> pa.RecordBatch:
    schema = pa.schema([("op", pa.string()), ("id", pa.int64()), ("text", pa.string())])
    return pa.RecordBatch.from_pylist([{"id": id_, "text": text, "op": op} for id_, text, op in rows], schema)


def apply(table: dict[int, str | None], changes: list[Change]) -> None:
    """The oracle: changes one after another."""
    for id_, text, op in changes:
        if op in ("delete", "update_before"):
            table.pop(id_, None)
        else:
            table[id_] = text


CHANGES = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", None]), st.sampled_from(OPERATIONS)), max_size=8
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(CHANGES, CHANGES), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=6),
    st.integers(0, 5),
)
def test_deletions_equal_the_oracle_under_repeats_restores_and_zombies(
    database: Database,
    checkpoints: list[tuple[list[Change], list[Change]]],
    commits: list[tuple[int, bool]],
    crash: int,
) -> None:
    """S1-26: two subtasks with their own keys; a new attempt begins at `crash`; zombies repeat any prefix."""
    database.run(f"TRUNCATE {database.table}; CREATE UNIQUE INDEX IF NOT EXISTS by_id ON {database.table} (id)")
    of, table, pending = database.sink(key=["id"], op_column="op"), dict[int, str | None](), list[Any]()
    writers = [open_writer(of, index=index) for index in range(2)]
    for number, subtasks in enumerate(checkpoints):
        if number == crash:
            for writer in writers:
                writer.write(changes((1, "lost", "insert"), (2, None, "delete")))
                writer.close()
            commit(of, *pending, token=2)
            of.committer().clean("7", "out", Token(2), pending)
            assert dict(database.rows()) == table
            writers = [open_writer(of, token=2, index=index) for index in range(2)]
        for index, (writer, sequence) in enumerate(zip(writers, subtasks, strict=True)):
            writer_changes = [(id_ * 2 + index, text, op) for id_, text, op in sequence]
            for part in (writer_changes[:3], writer_changes[3:]):
                writer.write(changes(*part))
            apply(table, writer_changes)
            pending += writer.prepare(number)
        for count, is_new in commits if number % 2 else ():
            if is_new:
                commit(of, *pending, token=2)
                assert dict(database.rows()) == table
            commit(of, *pending[:count])
            commit(of, *pending)
    commit(of, *pending)
    for count, _ in commits:
        assert commit(of, *pending[:count]) == 0
    assert dict(database.rows()) == table
    assert database.staged() == 0
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("mode", ["staged", "immediate"])
def test_a_deletion_needs_its_key_only_and_frees_unique_values(database: Database, mode: Any) -> None:
    database.run(
        f"ALTER TABLE {database.table} ADD PRIMARY KEY (id), ALTER text SET NOT NULL, ADD UNIQUE (text), "
        f"ADD CHECK (text IS NOT NULL AND text <> 'bad'); INSERT INTO {database.table} VALUES (1, 'x'), (2, 'y')"
    )
    of = database.sink(key=["id"], op_column="op", commit=mode)
    writer = open_writer(of)
    writer.write(changes((1, None, "delete"), (3, "x", "insert"), (9, None, "delete")))
    assert commit(of, *writer.prepare(1)) == (mode == "staged")
    assert database.rows() == [(2, "y"), (3, "x")]
    with pytest.raises(DataRejected, match=r"1 rows have no 'text', which is NOT NULL"):
        writer.write(changes((1, None, "delete"), (4, None, "insert")))
    with pytest.raises(DataRejected, match=r"1 rows have no 'id', which belongs to the key"):
        writer.write(changes((None, None, "delete")))  # type: ignore[arg-type]
    with pytest.raises(DataRejected, match=r"violates check constraint"):
        write_and_prepare(writer, changes((5, "bad", "insert")))
    writer.close()


@pytest.mark.parametrize("mode", ["staged", "immediate"])
def test_bad_operations_are_named(database: Database, mode: Any) -> None:
    database.run(f"ALTER TABLE {database.table} ADD PRIMARY KEY (id)")
    writer = open_writer(database.sink(key=["id"], op_column="op", commit=mode))
    for op in ("remove", None):
        with pytest.raises(DataRejected, match=rf"{op!r} in column 'op' is no operation, only insert, update_after"):
            writer.write(changes((1, "a", op)))  # type: ignore[arg-type]
    with pytest.raises(JobRejected, match="no column 'op' of strings, only id int64, text string"):
        writer.write(rows((1, "a")))
    writer.close()


def test_staged_deletions_are_refused_without_their_key(database: Database) -> None:
    """A job that is restored with other settings must not append them as rows."""
    database.run(f"ALTER TABLE {database.table} ADD PRIMARY KEY (id); INSERT INTO {database.table} VALUES (1, 'x')")
    of = database.sink(key=["id"], op_column="op")
    writer = open_writer(of)
    writer.write(changes((1, None, "delete")))
    committables = writer.prepare(1)
    writer.close()
    with pytest.raises(JobRejected, match="restore with the former key"):
        commit(database.sink(), *committables)
    assert commit(database.sink(key=["id"]), *committables) == 1
    assert database.rows() == []


def test_staged_rows_follow_changes_of_the_table(database: Database) -> None:
    """Types and CHECK constraints change between two attempts; rows of the first are still pending."""
    database.run(f"ALTER TABLE {database.table} ADD small int2, ADD CONSTRAINT few CHECK (small < 5 AND id > 0)")
    of = database.sink()

    def staged(token: int, id_: int, small: int) -> tuple[Any, ...]:
        writer = open_writer(of, token=token)
        kind = pa.int16() if token == 1 else pa.int64()
        columns = {"id": pa.array([id_], pa.int64()), "small": pa.array([small], kind)}
        try:
            writer.write(pa.RecordBatch.from_pydict(columns))
            return writer.prepare(token)
        finally:
            writer.close()

    first = staged(1, 1, 4)
    database.run(
        f"ALTER TABLE {database.table} DROP CONSTRAINT few, ALTER small TYPE int8, "
        "ADD CONSTRAINT even CHECK (small % 2 = 0)"
    )
    second = staged(2, 2, 2**40)
    with pytest.raises(DataRejected, match="even"):
        staged(2, 3, 3)
    assert commit(of, *first, *second, token=2) == 2
    assert database.run(f"SELECT id, small FROM {database.table} ORDER BY id") == [(1, 4), (2, 2**40)]


# ---------------------------------------------------------------- immediate


def test_replayed_deletions_give_the_same_table(database: Database) -> None:
    """S1-26."""
    database.run(f"ALTER TABLE {database.table} ADD PRIMARY KEY (id); INSERT INTO {database.table} VALUES (7, 'x')")
    of = database.sink(key=["id"], op_column="op", commit="immediate")
    interval = [
        changes((1, "a", "insert"), (2, "a", "insert"), (1, None, "delete")),
        changes((7, None, "delete"), (2, "a", "update_before"), (2, "b", "update_after")),
    ]
    for token in (1, 2):
        writer = open_writer(of, token=token)
        for batch in interval:
            writer.write(batch)
        writer.close()
        assert database.rows() == [(2, "b")]


def test_an_interval_that_is_replayed_gives_the_same_table(database: Database) -> None:
    """S1-26, S1-27: the writer is stateless, and nothing is taken back."""
    database.run(f"CREATE UNIQUE INDEX ON {database.table} (id)")
    of = database.sink(key=["id"], commit="immediate")
    assert of.guarantee == "at-least-once"
    interval = [rows((1, "a"), (2, "a"), (1, "b")), rows((2, "c"), (3, None))]
    for token in (1, 2):
        writer = open_writer(of, token=token)
        for batch in interval:
            writer.write(batch)
        assert writer.prepare(1) == ()
        writer.close()
        assert database.rows() == [(1, "b"), (2, "c"), (3, None)]


def test_a_writer_of_an_older_attempt_overwrites_no_newer_row(database: Database) -> None:
    """A slot that was stopped, and replaced, writes its batch when it goes on. Another sink and job are left alone."""
    database.run(f"CREATE UNIQUE INDEX ON {database.table} (id)")
    of = database.sink(key=["id"], commit="immediate")
    strangers = [open_writer(of, uid="second"), open_writer(of, job="8")]
    zombie, current = open_writer(of), open_writer(of, token=2)
    sibling = open_writer(of, token=2, index=1)
    current.write(rows((1, "old")))
    current.write(rows((1, "new")))
    with pytest.raises(TargetAway):
        zombie.write(rows((1, "old")))
    with pytest.raises(EnvironmentFailure, match="attempt 2 writes already, and this is attempt 1"):
        open_writer(of)
    assert database.rows() == [(1, "new")]
    for number, writer in enumerate([current, sibling, *strangers], 2):
        writer.write(rows((number, "own")))
        writer.close()
    assert database.rows() == [(1, "new"), *((number, "own") for number in range(2, 6))]


@pytest.mark.parametrize("mode", ["immediate", "prepared"])
def test_a_writer_that_sets_another_role_is_ended_as_well(database: Database, mode: Any) -> None:
    """The owner of the table is a role that many logins share; it may not end their sessions."""
    database.run(
        f"CREATE UNIQUE INDEX ON {database.table} (id); GRANT ALL ON SCHEMA {database.schema} TO pg_database_owner; "
        f"GRANT ALL ON {database.table} TO pg_database_owner"
    )
    of = PostgresSink(
        make_conninfo(database.address, options="-c role=pg_database_owner"),
        database.table,
        key=["id"] if mode == "immediate" else [],
        commit=mode,
    )
    zombie, current = open_writer(of), open_writer(of, token=2)
    with pytest.raises(TargetAway):
        zombie.write(rows((1, "old")))
    current.write(rows((1, "new")))
    prepared = current.prepare(1)
    current.close()
    assert of.committer().clean("7", "out", Token(3), []) == len(prepared)


def test_an_upsert_without_a_key_is_refused() -> None:
    """S1-28."""
    with pytest.raises(JobRejected, match="would be inserted twice without a key") as error:
        PostgresSink("postgresql://h/d", "t", commit="immediate").check()
    assert error.value.code == "missing-key"


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("sink", "code"),
    [
        (PostgresSink("postgresql://h/d", "a.b.c"), "bad-table"),
        (PostgresSink("no address", "a"), "bad-url"),
        (PostgresSink("postgresql://u:literal@h/d", "a"), "literal-secret"),
        (PostgresSink("postgresql://h/d", "a", commit="later"), "bad-commit"),  # type: ignore[arg-type]
        (PostgresSink("postgresql://h/d", "a", key="id"), "bad-key"),
        (PostgresSink("postgresql://h/d", "a", key=["id", "id"]), "bad-key"),
        (PostgresSink("postgresql://h/d", "a", key=["id"], op_column="id"), "bad-key"),
        (PostgresSink("postgresql://h/d", "a", op_column="op"), "missing-key"),
    ],
)
def test_bad_settings_are_refused(sink: PostgresSink, code: str) -> None:
    with pytest.raises(JobRejected) as error:
        sink.check()
    assert error.value.code == code
    assert "literal" not in repr(sink)


@pytest.mark.parametrize("mode", ["staged", "immediate"])
def test_problems_are_named_before_the_first_row(database: Database, mode: Any) -> None:
    of = database.sink(key=["id"], commit=mode)
    with pytest.raises(JobRejected, match=r"no unique index on id: CREATE UNIQUE INDEX"):
        open_writer(of)
    database.run(f"CREATE UNIQUE INDEX ON {database.table} (id)")
    writer = open_writer(of)
    with pytest.raises(JobRejected, match=r"has no column 'other', only id, text"):
        writer.write(rows((1, None)).append_column("other", pa.array([1])))
    with pytest.raises(JobRejected, match=r"column 'text' of the table .* is text"):
        writer.write(pa.RecordBatch.from_pydict({"id": [1], "text": [1]}))
    with pytest.raises(DataRejected, match=r"1 rows have no 'id', which belongs to the key: filter"):
        writer.write(rows((1, None), (None, None)))
    with pytest.raises(DataRejected, match="invalid byte sequence"):
        write_and_prepare(writer, rows((1, "a\0b")))
    writer.close()
    assert database.rows() == []
    with pytest.raises(JobRejected, match=r"no table nowhere\.rows: create it"):
        open_writer(PostgresSink(database.url, "nowhere.rows", key=["id"], commit=mode))


def test_a_check_of_the_table_fails_before_the_checkpoint(database: Database) -> None:
    database.run(f"ALTER TABLE {database.table} ADD CHECK (id < 5)")
    writer = open_writer(database.sink())
    with pytest.raises(DataRejected, match="violates check constraint"):
        write_and_prepare(writer, rows((7, None)))
    writer.close()


def test_a_commit_that_the_table_refuses_is_final_and_keeps_the_rows(database: Database) -> None:
    database.run(f"CREATE UNIQUE INDEX ON {database.table} (id); INSERT INTO {database.table} VALUES (1, 'old')")
    of = database.sink()
    writer = open_writer(of)
    writer.write(rows((1, "new"), (2, "new")))
    committables = writer.prepare(1)
    writer.close()
    with pytest.raises(JobRejected, match=r"duplicate key.*2 staged rows wait"):
        commit(of, *committables)
    database.run(f"DELETE FROM {database.table}")
    assert commit(of, *committables) == 1
    assert database.rows() == [(1, "new"), (2, "new")]


def test_servers_and_credentials_are_named(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentFailure, match="refused") as away:
        open_writer(PostgresSink("postgresql://weir@127.0.0.1:1/weir", "t"))
    assert isinstance(away.value, TargetAway)
    unknown = psycopg.conninfo.make_conninfo(database_url, user="nobody_at_all", password="${secret:PG}")
    with pytest.raises(JobRejected, match="the secret 'PG' is not set"):
        open_writer(PostgresSink(unknown, "t"))
    monkeypatch.setenv("WEIR_SECRET_PG", "very hidden")
    with pytest.raises(JobRejected, match="check user, password and database") as error:
        open_writer(PostgresSink(unknown, "t"))
    assert "very hidden" not in str(error.value)
    monkeypatch.setenv("WEIR_SECRET_URL", database_url)
    with pytest.raises(JobRejected, match=r"no table nowhere\.t"):
        open_writer(PostgresSink("${secret:URL}", "nowhere.t"))


def test_a_role_without_rights_is_named(database: Database) -> None:
    database.run(f"REVOKE CREATE ON SCHEMA {database.schema} FROM CURRENT_USER")
    with pytest.raises(JobRejected, match=r"permission denied.*GRANT") as error:
        open_writer(database.sink())
    assert error.value.code == "no-privilege"


def test_a_committable_that_the_sink_did_not_write_is_refused(database: Database) -> None:
    of = database.sink()
    writer = open_writer(of)
    writer.write(rows((1, None)))
    (committable,) = writer.prepare(1)
    writer.close()
    with pytest.raises(JobRejected, match="not written"):
        commit(of, {"pending": "x"})
    with pytest.raises(JobRejected, match="restore with that table first"):
        commit(of, committable | {"table": "public.other"})
    assert database.rows() == []


@pytest.mark.parametrize("mode", ["immediate", "staged", "prepared"])
def test_a_quiet_sink_outlives_the_time_limits_of_its_role(database: Database, mode: Any) -> None:
    """The session of a writer waits for rows, and its transaction is open between two checkpoints."""
    limits = "-c idle_session_timeout=300 -c idle_in_transaction_session_timeout=300"  # a busy machine takes time, too
    database.run(f"CREATE UNIQUE INDEX ON {database.table} (id)")
    key = ("id",) if mode == "immediate" else ()
    of = PostgresSink(make_conninfo(database.address, options=limits), database.table, key=key, commit=mode)
    writer = open_writer(of)
    time.sleep(0.5)
    writer.write(rows((1, "a")))
    time.sleep(0.5)
    commit(of, *writer.prepare(1))
    writer.close()
    assert database.rows() == [(1, "a")]


def test_a_time_limit_of_the_server_is_named_with_its_remedy(database: Database) -> None:
    limited = make_conninfo(database.address, options="-c statement_timeout=300")
    with (
        pytest.raises(TargetAway, match=r"Postgres: shop\.rows: .*statement timeout: raise statement_timeout"),
        connect(limited) as connection,
        postgres_errors("shop.rows"),
    ):
        connection.execute("SELECT pg_sleep(10)")
