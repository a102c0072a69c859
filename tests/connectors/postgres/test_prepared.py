"""Prepared transactions on a real server: two phases, repeated commits, lost sessions, clean-up, refusals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.connectors.postgres import connection
from runtime.connectors.postgres.sink import PostgresSink
from runtime.core.job.ids import Token
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, TargetAway
from runtime.ports import SinkWriter
from tests.connectors.postgres.test_sink import Database, commit, open_writer, rows
from tests.contracts.test_sinks import context


class Prepared(Database):
    def sink(self, **arguments: Any) -> PostgresSink:
        return super().sink(commit="prepared", **arguments)

    def prepared(self) -> list[str]:
        """The prepared transactions that have locks on the table."""
        query = (
            "SELECT gid FROM pg_prepared_xacts p "
            "JOIN pg_locks own ON own.transactionid = p.transaction AND own.pid IS NULL "
            "JOIN pg_locks held ON held.virtualtransaction = own.virtualtransaction AND held.pid IS NULL "
            f"WHERE held.relation = '{self.table}'::regclass"
        )
        return [name for (name,) in self.run(query)]

    def marks(self) -> int:
        return int(self.run(f"SELECT count(*) FROM {self.schema}.weir_prepared_marks")[0][0])

    def ids(self) -> list[int]:
        return [number for number, _ in self.rows()]


@pytest.fixture
def database(database_url: str) -> Iterator[Prepared]:
    database = Prepared(database_url)
    yield database
    for name in database.prepared():
        database.run(f"ROLLBACK PREPARED '{name}'")
    database.run(f"SET lock_timeout = '10s'; DROP SCHEMA {database.schema} CASCADE")


def prepare(writer: SinkWriter, *ids: int) -> tuple[Any, ...]:
    writer.write(rows(*((number, None) for number in ids)))
    return writer.prepare(1)


def test_a_transaction_is_committed_by_name_and_a_repeated_commit_finds_its_mark(database: Prepared) -> None:
    """S1-06, S1-25, S1-38: also after the rows are gone, and after the server has lost the session."""
    of = database.sink()
    assert of.guarantee == "exactly-once"
    first_writer, second_writer = open_writer(of), open_writer(of, index=1)
    committables = [*prepare(first_writer, 1, 2), *prepare(second_writer, 3)]
    assert first_writer.prepare(2) == ()
    first_writer.close()
    second_writer.close()
    assert (database.ids(), len(database.prepared())) == ([], 2)
    assert commit(of, *committables) == 2
    assert (database.ids(), database.prepared(), database.marks()) == ([1, 2, 3], [], 0)
    database.run(f"DELETE FROM {database.table}")
    assert [commit(of, *committables, token=token) for token in (1, 2)] == [0, 0]
    assert database.ids() == []


def test_a_commit_that_ended_before_its_record_is_proved_by_the_mark(database: Prepared) -> None:
    of = database.sink()
    writer = open_writer(of)
    committables = prepare(writer, 1)
    database.run(f"COMMIT PREPARED '{committables[0]['transaction']}'")  # the committer is killed here
    assert database.marks() == 1
    assert [commit(of, *committables) for _ in range(2)] == [0, 0]
    assert (database.ids(), database.marks()) == ([1], 0)
    writer.close()


def test_a_transaction_that_is_gone_is_lost_and_not_taken_for_committed(database: Prepared) -> None:
    """Flink's XA sink would go on without the rows."""
    of = database.sink()
    writer = open_writer(of)
    first, second = prepare(writer, 1), prepare(writer, 2)
    database.run(f"ROLLBACK PREPARED '{second[0]['transaction']}'")
    with pytest.raises(EnvironmentFailure, match=r"1 rows of sink 'out', subtask 0.*neither prepared nor committed"):
        commit(of, *first, *second)
    assert database.ids() == [1]
    writer.close()


def test_clean_rolls_back_older_transactions_of_this_job_and_sink_only(database: Prepared) -> None:
    """S1-39, S1-54."""
    of = database.sink()
    committables: list[Any] = []
    attempts: list[dict[str, Any]] = [{}, {}, {"token": 2}, {"job": "8"}, {"uid": "second"}]
    for number, attempt in enumerate(attempts):
        writer = open_writer(of, **attempt)
        committables += prepare(writer, number)
        writer.close()
    assert of.committer().clean("7", "out", Token(2), committables[:1]) == 1
    assert len(database.prepared()) == 4
    assert commit(of, committables[0], token=2) == 1
    with pytest.raises(EnvironmentFailure, match="neither prepared nor committed"):
        commit(of, committables[1])  # a zombie
    assert commit(of, committables[2], token=2) == 1
    assert commit(of, committables[3], job="8") == 1
    assert commit(of, committables[4]) == 1
    assert database.ids() == [0, 2, 3, 4]
    assert of.committer().clean("7", "out", Token(3), []) == 0
    assert len(database.run(f"SELECT 1 FROM {database.schema}.weir_sink_writers")) == 2
    assert database.prepared() == []


def test_concurrent_committers_commit_each_transaction_once(database: Prepared) -> None:
    """S1-06: the master, the slots and a zombie; a committer that meets another in the same commit repeats."""
    of = database.sink()
    writer = open_writer(of)
    committables = [each for number in range(12) for each in prepare(writer, number)]
    committed: list[int] = []

    def run() -> None:
        while True:
            try:
                committed.append(commit(of, *committables))
                return
            except EnvironmentFailure as error:
                if "busy" not in str(error):
                    raise

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.ids() == list(range(12))
    assert len(committed) == 4
    writer.close()


def test_a_stopped_writer_of_an_older_attempt_does_not_block_its_successor(database: Prepared) -> None:
    """Its rows have the same unique values, so each insert would wait for its transaction."""
    database.run(f"CREATE UNIQUE INDEX ON {database.table} (id)")
    of = database.sink()
    stopped, other = open_writer(of), open_writer(of, uid="second")
    stopped.write(rows((1, None)))
    other.write(rows((2, None)))
    writer = open_writer(of, token=2)
    assert commit(of, *prepare(writer, 1), token=2) == 1
    with pytest.raises(TargetAway):
        stopped.prepare(1)
    assert commit(of, *other.prepare(1)) == 1
    assert database.ids() == [1, 2]
    for each in (stopped, other, writer):
        each.close()


def test_a_stopped_writer_prepares_nothing_after_the_clean_up_of_a_newer_attempt(database: Prepared) -> None:
    """S1-11: its transaction would keep its locks until the next restart."""
    of = database.sink()
    stopped = open_writer(of)
    stopped.write(rows((1, None)))
    of.committer().clean("7", "out", Token(2), [])
    with pytest.raises(TargetAway):
        stopped.prepare(1)
    assert database.prepared() == []
    stopped.close()


@pytest.mark.parametrize("act", ["commit", "clean"])
def test_a_row_that_another_session_holds_is_not_waited_for_without_end(
    database: Prepared, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """A stopped process holds the records of the writers: the metadata thread of the master must not wait for it."""
    monkeypatch.setattr(connection, "_LIMITS", "SET LOCAL lock_timeout = '300ms'")
    of = database.sink()
    writer = open_writer(of)
    committables = prepare(writer, 1)
    writer.close()
    acts = {
        "commit": lambda: commit(of, *committables),
        "clean": lambda: of.committer().clean("7", "out", Token(2), []),
    }
    with psycopg.connect(database.url) as holder:  # it ends in time for a test that would wait without a limit
        holder.execute("SET LOCAL idle_in_transaction_session_timeout = '5s'")
        holder.execute(f"SELECT FROM {database.schema}.weir_sink_writers FOR UPDATE")
        with pytest.raises(EnvironmentFailure, match="lock timeout"):
            acts[act]()
    if act == "commit":
        assert commit(of, *committables) == 0, "its mark proves the commit"
    assert database.ids() == ([1] if act == "commit" else [])


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["write", "barrier", "commit", "slot", "zombie", "crash"]), max_size=25))
def test_any_order_of_steps_equals_the_oracle(database: Prepared, steps: list[str]) -> None:
    """S1-25: rows before the last barrier of each attempt, each once."""
    database.run(f"TRUNCATE {database.table}")
    of, token, number = database.sink(), 1, 0
    writer = open_writer(of)
    open_rows, durable, visible = list[int](), list[int](), list[int]()
    pending, older = list[Any](), list[Any]()
    for step in [*steps, "commit"]:
        match step:
            case "write":
                number += 1
                writer.write(rows((number, None)))
                open_rows.append(number)
            case "barrier":
                pending += writer.prepare(1)
                durable, open_rows = durable + open_rows, []
            case "commit" | "slot":
                commit(of, *pending, token=token)
                visible, older = list(durable), older + pending
                pending = [] if step == "slot" else pending
            case "zombie":
                for each in older:
                    assert commit(of, each) == 0
            case "crash":  # the restored checkpoint is the last barrier
                writer.close()
                token, open_rows = token + 1, []
                commit(of, *pending, token=token)
                visible, older = list(durable), older + pending
                pending = []
                of.committer().clean("7", "out", Token(token), older)
                writer = open_writer(of, token=token)
        assert database.ids() == visible
    writer.close()
    assert database.prepared() == []


# ---------------------------------------------------------------- refusals


def test_a_key_is_refused() -> None:
    """The next upsert of the key would wait for the prepared transaction, and its barrier with it."""
    with pytest.raises(JobRejected, match="wait for the prepared transaction") as error:
        PostgresSink("postgresql://h/d", "t", key=["id"], commit="prepared").check()
    assert error.value.code == "key-of-prepared"


def test_a_server_with_too_few_prepared_transactions_is_refused(database: Prepared) -> None:
    """Before the first row, with the command."""
    writer = database.sink().writer()
    wide = context("7", 1, "out", 0)
    wide.parallelism = 26
    with pytest.raises(JobRejected, match=r"is 50, and parallelism 26 needs 52 .*max_prepared_transactions = 52") as no:
        writer.open(wide)
    assert no.value.code == "max-prepared-transactions"
    writer.close()


def test_a_table_that_cannot_be_written_in_a_prepared_transaction_is_named(database: Prepared) -> None:
    database.run(
        f"CREATE FUNCTION {database.schema}.hear() RETURNS trigger LANGUAGE plpgsql "
        "AS 'BEGIN NOTIFY x; RETURN NEW; END'"
    )
    database.run(f"CREATE TRIGGER hear AFTER INSERT ON {database.table} EXECUTE FUNCTION {database.schema}.hear()")
    writer = open_writer(database.sink())
    with pytest.raises(JobRejected, match="cannot PREPARE a transaction that has executed LISTEN, UNLISTEN, or NOTIFY"):
        prepare(writer, 1)
    writer.close()


def test_a_unique_value_that_exists_is_found_before_the_checkpoint(database: Prepared) -> None:
    database.run(f"CREATE UNIQUE INDEX ON {database.table} (id); INSERT INTO {database.table} VALUES (1, 'old')")
    writer = open_writer(database.sink())
    with pytest.raises(DataRejected, match="duplicate key"):
        prepare(writer, 1)
    writer.close()


def test_committables_of_another_mode_are_refused(database: Prepared) -> None:
    writer = open_writer(database.sink())
    committables = prepare(writer, 1)
    writer.close()
    for of in (PostgresSink(database.address, database.table), database.sink()):
        with pytest.raises(JobRejected, match="restore with the former value of `commit`"):
            commit(of, *({**each, "columns": ["id"]} for each in committables))
        assert of.committer().clean("7", "out", Token(1), [{"other": 1}]) == 0
    assert commit(database.sink(), *committables) == 1


def test_a_server_that_does_not_answer_is_away(database: Prepared) -> None:
    with pytest.raises(EnvironmentFailure, match="refused"):
        commit(PostgresSink("postgresql://weir@127.0.0.1:1/weir", "t", commit="prepared"), *prepare_one(database))


def prepare_one(database: Prepared) -> tuple[Any, ...]:
    writer = open_writer(database.sink())
    committables = prepare(writer, 1)
    writer.close()
    return committables
