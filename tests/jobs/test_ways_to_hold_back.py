"""Three ways to hold output back until its checkpoint has completed, and what arrives at the target when."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import weir
from runtime.connectors.postgres.columns import encode_csv
from runtime.core.job.ids import Token
from runtime.core.job.settings import CoordinatorSettings
from runtime.io.memory.run_store import MemoryRunStore
from runtime.ports import OutputEpoch
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Gated
from tests.jobs.mortal import Deaths
from tests.jobs.test_kafka import MortalSink
from tests.postgres import address_without_password

NUMBERS = iter(range(1_000_000))
ASKED = CoordinatorSettings(interval_ms=None, min_pause_ms=0)
ROWS, SPLITS = 20_000, 4
Way = Literal["prepared", "staged", "write-ahead"]


@dataclass
class Meter:
    """A proxy before a server, which counts the bytes that clients send."""

    bytes: int = 0
    port: int = 0


@contextmanager
def metered(host: str, port: int) -> Iterator[Meter]:
    meter = Meter()
    with socket.create_server(("127.0.0.1", 0)) as server:
        meter.port = server.getsockname()[1]
        threading.Thread(target=_accept, args=(server, (host, port), meter), daemon=True).start()
        yield meter
        server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, behind: tuple[str, int], meter: Meter) -> None:
    with suppress(OSError):
        while True:
            client, _ = server.accept()
            target = socket.create_connection(behind)
            for reader, writer, counted in ((client, target, meter), (target, client, None)):
                threading.Thread(target=_copy, args=(reader, writer, counted), daemon=True).start()


def _copy(reader: socket.socket, writer: socket.socket, meter: Meter | None) -> None:
    with suppress(OSError), reader:
        while data := reader.recv(65_536):
            if meter is not None:
                meter.bytes += len(data)
            writer.sendall(data)
        writer.shutdown(socket.SHUT_WR)


@dataclass(frozen=True)
class PostgresEpochs:
    """Writes epochs to a table, each in a transaction with its identity."""

    url: str = field(repr=False)
    table: str
    guarantee: str = "exactly-once"

    def check(self) -> None: ...

    def write_epoch(self, epoch: OutputEpoch, batches: Iterable[pa.RecordBatch]) -> None:
        with psycopg.connect(self.url) as connection, connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {self.table}_epochs VALUES (%s, %s) ON CONFLICT DO NOTHING", (epoch.source, epoch.number)
            )
            if not cursor.rowcount:
                return
            with cursor.copy(f"COPY {self.table} FROM STDIN (FORMAT csv)") as copy:
                for batch in batches:
                    copy.write(encode_csv(batch))


class Table:
    """A table, and the address of a proxy before its server that counts bytes."""

    def __init__(self, url: str, meter: Meter) -> None:
        self.meter = meter
        self.url = make_conninfo(url, host="127.0.0.1", port=meter.port)
        self.connection = psycopg.connect(url, autocommit=True)
        self.name = f"held_{os.getpid()}_{next(NUMBERS)}"
        self.connection.execute(
            f"CREATE TABLE {self.name} (key int8, value int8);"
            f"CREATE TABLE {self.name}_epochs (source text, number int8, PRIMARY KEY (source, number))"
        )

    def sink(self, way: Way, folder: Path) -> Any:
        if way == "write-ahead":
            return weir.WriteAheadSink(PostgresEpochs(self.url, self.name), str(folder))
        return weir.PostgresSink(address_without_password(self.url), self.name, commit=way)

    def count(self) -> tuple[int, int]:
        """Rows, and distinct rows."""
        row = self.connection.execute(f"SELECT count(*), count(DISTINCT (value, key)) FROM {self.name}").fetchone()
        assert row is not None
        return row[0], row[1]

    def close(self) -> None:
        self.connection.execute(f"DROP TABLE {self.name}, {self.name}_epochs")
        self.connection.close()


@pytest.fixture
def table(database_url: str) -> Iterator[Table]:
    place = conninfo_to_dict(database_url)
    with metered(str(place["host"]), int(place["port"] or 0)) as meter:
        table = Table(database_url, meter)
        yield table
        table.close()


@pytest.mark.parametrize("way", ["prepared", "staged", "write-ahead"])
def test_rows_stream_to_the_target_or_arrive_with_their_checkpoint(
    way: Way, table: Table, jobs: Jobs, tmp_path: Path
) -> None:
    """S1-55, S1-56, S1-57, S1-60: native transactions, staged rows, rows held at the sink; exact after a failure."""
    source, deaths = Gated(total=ROWS, splits=SPLITS, batch=500, keys=1_000_003), Deaths()
    flow = weir.Dataflow("held")
    flow.source("numbers", source).sink("out", MortalSink(table.sink(way, tmp_path / "held"), deaths))
    job, state = flow.compile(2), tmp_path / "state"
    with jobs.running(job, state, settings=ASKED) as run:
        run.wait_for(lambda: run.operator("out").get("records_in", 0) == ROWS * SPLITS)
        before = table.meter.bytes
        assert table.count() == (0, 0), "nothing is committed before the checkpoint"
        savepoint = run.end("stop")
    assert table.count() == (ROWS * SPLITS,) * 2
    share = before / table.meter.bytes  # up to pending_rows.MAX_ROWS of 40,000 wait in each of two writers for a COPY
    assert share < 0.1 if way == "write-ahead" else share > 0.7

    source.total += 1_000
    deaths.add("out: commit")
    records = MemoryRunStore(token=Token(run.records.token + 10), restore_from=savepoint)
    restart = weir.FixedDelay(attempts=9, delay_ms=30)
    with jobs.running(job, state, records, settings=ASKED, restart=restart) as run:
        run.wait_for(lambda: run.operator("out").get("records_in", 0) == 1_000 * SPLITS)
        run.end("drain")
    assert not deaths.waiting
    assert table.count() == ((ROWS + 1_000) * SPLITS,) * 2
