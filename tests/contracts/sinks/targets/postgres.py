"""Tables of the Postgres server of the tests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import psycopg

import weir
from runtime.ports import Sink
from tests.contracts.sinks.holds import held
from tests.contracts.sinks.targets.target import Target
from tests.postgres import address_without_password, locked
from tests.waiting import until


class PostgresStaged(Target):
    """Rows staged in a schema of the test, moved by a transaction per checkpoint."""

    servers = ("postgres",)
    on_deletion = "there is no table|does not exist"
    expiries: ClassVar[Mapping[str, str]] = {
        "session with rows": "",
        "session before commit": "",
        "session in commit": "",
    }

    def delete(self) -> None:
        self._run(f"DROP TABLE {self._table}")

    def create(self) -> None:
        self._run(f"CREATE SCHEMA {self.place.name}; CREATE TABLE {self._table} (id int8 PRIMARY KEY, name text, "
                  "day text, amount float8, arrived timestamptz DEFAULT now())")  # fmt: skip

    def sink(self) -> Sink:
        return weir.PostgresSink(address_without_password(self._url), self._table)

    def ids(self) -> list[int]:
        return [number for (number,) in self._run(f"SELECT id FROM {self._table}")]

    def stalled(self) -> AbstractContextManager[None]:
        return self.place.servers["postgres"].stall.closed()

    def expire(self, name: str) -> None:
        """Ends the sessions of the sink, as a time limit of the server or its shutdown does."""
        if name == "session in commit":
            # All rows are moved, or the first transaction is committed; the record of the commit waits for the lock.
            with locked(self._url, f"{self.place.name}.weir_sink_writers", "EXCLUSIVE"):
                until(lambda: self._end_sessions("AND wait_event_type = 'Lock'"))
        else:
            point = {"session with rows": "before-prepare", "session before commit": "before-commit"}[name]
            with held(self.place.job, point):
                assert self._end_sessions(), "the writers have sessions"

    def _end_sessions(self, condition: str = "") -> list[Any]:
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'weir%'"
        return self._run(f"{ended} AND datname = current_database() {condition}")

    def leftovers(self) -> list[str]:
        query = f"SELECT tablename FROM pg_tables WHERE schemaname = '{self.place.name}' AND tablename LIKE 'weir_st%'"
        return [
            f"{count} staged rows"
            for (name,) in self._run(query)
            for (count,) in self._run(f"SELECT count(*) FROM {self.place.name}.{name}")
            if count
        ]

    @property
    def _url(self) -> str:
        return self.place.servers["postgres"].address

    @property
    def _table(self) -> str:
        return f"{self.place.name}.rows"

    def _run(self, command: str) -> list[Any]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(command)
            return cursor.fetchall() if cursor.description else []


class PostgresPrepared(PostgresStaged):
    """A prepared transaction per checkpoint and subtask."""

    expiries: ClassVar[Mapping[str, str]] = {
        **PostgresStaged.expiries,
        "prepared transaction": r"Postgres table \S+: \d+ rows .* are lost: the transaction .* is neither prepared nor "
        "committed: restore",
    }

    def expire(self, name: str) -> None:
        if name == "prepared transaction":
            with held(self.place.job, "before-commit"):
                self._roll_back_prepared()
        else:
            super().expire(name)

    def delete(self) -> None:
        """Ends the sessions of the writers first: their next rows would wait for the table, as the deletion does."""
        self._end_sessions()
        super().delete()

    def _roll_back_prepared(self) -> None:
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'weir:%'"
        rows = self._run(query)
        assert rows, "the transactions of the checkpoint are prepared"
        for (name,) in rows:
            self._run(f"ROLLBACK PREPARED '{name}'")

    def sink(self) -> Sink:
        return weir.PostgresSink(address_without_password(self._url), self._table, commit="prepared")

    def leftovers(self) -> list[str]:
        """Prepared transactions with a lock on the table, and marks that no record covers."""
        locks = f"SELECT 1 FROM pg_locks WHERE relation = '{self._table}'::regclass AND pid IS NULL"
        marks = f"SELECT 1 FROM {self.place.name}.weir_prepared_marks"
        return [
            what for what, query in (("a prepared transaction", locks), ("a mark", marks)) for _ in self._run(query)
        ]
