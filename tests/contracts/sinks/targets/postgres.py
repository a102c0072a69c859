"""Tables of the Postgres server of the tests."""

from __future__ import annotations

from typing import Any

import psycopg

import weir
from runtime.ports import Sink
from tests.contracts.sinks.targets.target import Target
from tests.postgres import address_without_password


class PostgresStaged(Target):
    """Rows staged in a schema of the test, moved by a transaction per checkpoint."""

    servers = ("database_url",)
    on_deletion = "there is no table|does not exist"

    def delete(self) -> None:
        self._run(f"DROP TABLE {self._table}")

    def create(self) -> None:
        self._run(f"CREATE SCHEMA {self.place.name}; CREATE TABLE {self._table} (id int8 PRIMARY KEY, name text, "
                  "day text, amount float8, arrived timestamptz DEFAULT now())")  # fmt: skip

    def sink(self) -> Sink:
        return weir.PostgresSink(address_without_password(self._url), self._table)

    def ids(self) -> list[int]:
        return [number for (number,) in self._run(f"SELECT id FROM {self._table}")]

    def leftovers(self) -> list[str]:
        found = f"SELECT tablename FROM pg_tables WHERE schemaname = '{self.place.name}' AND tablename LIKE 'weir_st%'"
        return [
            f"{count} staged rows"
            for (name,) in self._run(found)
            for (count,) in self._run(f"SELECT count(*) FROM {self.place.name}.{name}")
            if count
        ]

    @property
    def _url(self) -> str:
        return self.place.servers["database_url"]

    @property
    def _table(self) -> str:
        return f"{self.place.name}.rows"

    def _run(self, command: str) -> list[Any]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(command)
            return cursor.fetchall() if cursor.description else []


class PostgresPrepared(PostgresStaged):
    """A prepared transaction per checkpoint and subtask."""

    def sink(self) -> Sink:
        return weir.PostgresSink(address_without_password(self._url), self._table, commit="prepared")

    def leftovers(self) -> list[str]:
        """Prepared transactions with a lock on the table, and marks that no record covers."""
        locks = f"SELECT 1 FROM pg_locks WHERE relation = '{self._table}'::regclass AND pid IS NULL"
        marks = f"SELECT 1 FROM {self.place.name}.weir_prepared_marks"
        return [
            what for what, query in (("a prepared transaction", locks), ("a mark", marks)) for _ in self._run(query)
        ]
