"""The targets of the contract suite: for each sink, how a test makes its target, writes to it and reads it back.

A new sink needs a class here and a line in `TARGETS`; every test of the suite then runs on it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.request import urlopen

import psycopg
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable

import weir
from runtime.ports import Sink
from tests.kafka import Broker
from tests.postgres import address_without_password


@dataclass(frozen=True)
class Place:
    """Where a target lies. `name` is unique to the test; `servers`: address by name of the fixture."""

    folder: Path
    name: str
    servers: dict[str, str]


class Target(ABC):
    """A target of rows of `job_process.SCHEMA`."""

    servers: ClassVar[tuple[str, ...]] = ()  #: fixtures with the address of a server
    repeats: ClassVar[bool] = False  #: rows may stand there twice: the sink is at-least-once

    def __init__(self, place: Place) -> None:
        self.place = place

    def create(self) -> None:
        """Makes the table or topic, where the sink does not do so itself."""

    @abstractmethod
    def sink(self) -> Sink: ...

    @abstractmethod
    def ids(self) -> list[int]:
        """The `id` of each row that a reader of the target sees."""

    def leftovers(self) -> list[str]:
        """What the sink has left behind in the target besides its rows and its own records of commits."""
        return []


class ParquetFolder(Target):
    def sink(self) -> Sink:
        return weir.ParquetSink(str(self.place.folder / "out"))

    def ids(self) -> list[int]:
        folder = self.place.folder / "out"
        if not any(folder.glob("part-*")):
            return []
        found: list[int] = ds.dataset(folder, format="parquet").to_table(columns=["id"])["id"].to_pylist()
        return found

    def leftovers(self) -> list[str]:
        return [path.name for path in (self.place.folder / "out").glob(".weir-*")]


class DeltaFolder(Target):
    """A partitioned Delta table, created by the first commit."""

    def sink(self) -> Sink:
        return weir.DeltaSink(str(self.place.folder / "table"), partition_by=("day",))

    def ids(self) -> list[int]:
        found: list[int] = DeltaTable(self.place.folder / "table").to_pyarrow_table(columns=["id"])["id"].to_pylist()
        return found

    def leftovers(self) -> list[str]:
        table = DeltaTable(self.place.folder / "table")
        named = {Path(uri).name for uri in table.file_uris()}
        return [path.name for path in (self.place.folder / "table").glob("part-*") if path.name not in named]


class PartitionedFolder(ParquetFolder):
    """Sub-folders by the value of a column, with several files of a checkpoint in each."""

    def sink(self) -> Sink:
        return weir.ParquetSink(str(self.place.folder / "out"), partition_by=("day",), max_bytes=512)

    def ids(self) -> list[int]:
        files = [path for path in (self.place.folder / "out").rglob("part-*") if path.parent.name.startswith("day=")]
        return [number for path in files for number in pq.read_table(path, columns=["id"])["id"].to_pylist()]


class KafkaTopic(Target):
    """A transaction per checkpoint; rows are those of committed transactions by the markers of the log."""

    servers = ("kafka_broker",)

    def create(self) -> None:
        self._broker.topic(3, self.place.name)

    def sink(self) -> Sink:
        format_ = weir.KafkaJson()
        return weir.KafkaSink(
            self._broker.servers, self.place.name, format_, key="name", id_prefix=self.place.name.replace("-", "_")
        )

    def ids(self) -> list[int]:
        return [json.loads(value)["id"] for value in self._broker.committed_values(self.place.name, 3)]

    def leftovers(self) -> list[str]:
        """Open transactions hold back the last stable offset of a partition."""
        ends = [
            [self._broker.end(self.place.name, each, stable=stable) for stable in (True, False)] for each in range(3)
        ]
        return [f"open transaction in partition {number}" for number, (stable, end) in enumerate(ends) if stable < end]

    @property
    def _broker(self) -> Broker:
        return Broker(self.place.servers["kafka_broker"])


class PostgresStaged(Target):
    """Rows staged in a schema of the test, moved by a transaction per checkpoint."""

    servers = ("database_url",)

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


class HeldWebhook(Target):
    """Batches that a server takes once by their idempotency keys, held back until their checkpoint has completed."""

    servers = ("webhook_server",)

    def sink(self) -> Sink:
        url = f"{self.place.servers['webhook_server']}/{self.place.name}"
        return weir.WriteAheadSink(weir.Webhook(url, batch_rows=20, guarantee="exactly-once"), str(self._folder))

    def ids(self) -> list[int]:
        with urlopen(f"{self.place.servers['webhook_server']}/{self.place.name}") as answer:
            return [row["id"] for row in json.load(answer)]

    def leftovers(self) -> list[str]:
        return [path.name for path in self._folder.rglob("*.p*")]

    @property
    def _folder(self) -> Path:
        return self.place.folder / "held"


TARGETS: Final[tuple[type[Target], ...]] = (
    ParquetFolder,
    PartitionedFolder,
    DeltaFolder,
    KafkaTopic,
    PostgresStaged,
    HeldWebhook,
)
