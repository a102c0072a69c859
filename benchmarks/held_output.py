"""W18: bytes per 100 ms at a Postgres, for both ways to hold output back until its checkpoint has completed.

- Two-phase commit (`PostgresSink`): rows stream to the target all the time. A commit moves them inside the target.
- Write-ahead (`WriteAheadSink`): rows wait in files. After the checkpoint they are written in a burst.

The job emits rows at a constant rate. A proxy before the server counts the bytes that it receives. Bytes that arrive
while the sink commits belong to the burst of a checkpoint; all others arrive between checkpoints.
"""

import os
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.figures import Figure, MeasurementPlan, Report
from runtime.connectors.postgres.columns import encode_csv
from runtime.connectors.postgres.sink import PostgresSink
from runtime.connectors.sinks.write_ahead import WriteAheadSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import CommitPermit
from runtime.dataflow.builder import Dataflow
from runtime.launch.local import run_local
from runtime.ports import OutputEpoch, Sink, SinkCommitter, SinkWriter
from stack.services import start_postgres

TITLE: Final = "bytes at the target per 100 ms, by the way of holding output back"
TIME_BOX_S: Final = 300.0
STEP_S: Final = 14.0
ROUNDS: Final = 3
PARALLELISM: Final = 2
RATE: Final = 20_000  #: rows per second
ROWS: Final = 200_000
CHECKPOINTS: Final = CoordinatorSettings(interval_ms=2_000)
BIN_MS: Final = 100
MIN_STREAMED: Final = 0.8  #: share of the bytes that two-phase commit sends between checkpoints
TABLE: Final = "held_output"
_REFERENCE: Final = "HELD_OUTPUT"  #: name of the reference to the password
TWO_PHASE, WRITE_AHEAD = "two-phase commit", "write-ahead"

Spans = list[tuple[float, float]]


@dataclass
class Meter:
    """A proxy before a server. Notes time and size of the pieces that clients send."""

    received: list[tuple[float, int]] = field(default_factory=list)  #: (`time.monotonic()`, bytes)
    port: int = 0

    def bytes_in(self, spans: Spans) -> int:
        return sum(size for at, size in self.received if any(start <= at <= end for start, end in spans))

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.received)


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
            for one, other, received in ((client, target, meter.received), (target, client, None)):
                threading.Thread(target=_copy, args=(one, other, received), daemon=True).start()


def _copy(one: socket.socket, other: socket.socket, received: list[tuple[float, int]] | None) -> None:
    with suppress(OSError), one:
        while data := one.recv(65_536):
            if received is not None:
                received.append((time.monotonic(), len(data)))
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


@dataclass(frozen=True)
class PostgresEpochs:
    """Writes epochs to a table, each in a transaction with its identity."""

    url: str = field(repr=False)
    table: str = TABLE
    guarantee: str = "exactly-once"

    def check(self) -> None:
        """Never raises: the address is that of the measurement."""

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


@dataclass(frozen=True)
class TimedSink:
    """A sink that notes when its committers work."""

    inner: Sink
    spans: Spans

    @property
    def guarantee(self) -> str:
        return self.inner.guarantee

    def writer(self) -> SinkWriter:
        return self.inner.writer()

    def committer(self) -> SinkCommitter:
        return _TimedCommitter(self.inner.committer(), self.spans)

    def check(self) -> None:
        self.inner.check()


class _TimedCommitter(SinkCommitter):
    def __init__(self, inner: SinkCommitter, spans: Spans) -> None:
        self._inner, self._spans = inner, spans

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        with self._noted():
            return self._inner.commit(permit, committables)

    def commit_epoch(self, permit: CommitPermit, committables: Sequence[Any]) -> None:
        with self._noted():
            self._inner.commit_epoch(permit, committables)

    def missing(self, committables: Sequence[Any]) -> list[str]:
        return self._inner.missing(committables)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        self._spans.append((start, time.monotonic()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The bytes that a run has sent to the target."""

    way: str
    streamed: float  #: share of the bytes that arrived while no commit was under way
    peak: float  #: largest number of bytes in 100 ms, relative to the mean
    series: tuple[int, ...]  #: bytes per 100 ms, from the first to the last
    commits: tuple[float, ...]  #: beginning of each commit, in seconds from the first byte
    rows: int  #: in the table afterwards


def measure(way: str, url: str, folder: Path, settings: CoordinatorSettings, rows: int, rate: int) -> Traffic:
    """Runs the job once. `url`: the server, with a password."""
    place = conninfo_to_dict(url)
    os.environ[f"WEIR_SECRET_{_REFERENCE}"] = str(place["password"])
    spans: Spans = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}, {TABLE}_epochs")
        connection.execute(f"CREATE TABLE {TABLE} (id int8, key int8, time timestamp)")
        connection.execute(f"CREATE TABLE {TABLE}_epochs (source text, number int8, PRIMARY KEY (source, number))")
        with metered(str(place["host"]), int(place["port"] or 0)) as meter:
            near = make_conninfo(url, host="127.0.0.1", port=meter.port)
            shutil.rmtree(folder, ignore_errors=True)
            sinks: dict[str, Callable[[], Sink]] = {
                TWO_PHASE: lambda: PostgresSink(make_conninfo(near, password=f"${{secret:{_REFERENCE}}}"), TABLE),
                WRITE_AHEAD: lambda: WriteAheadSink(PostgresEpochs(near), str(folder / "held")),
            }
            flow = Dataflow("held-output")
            numbers = flow.source("numbers", SequenceSource(rows=rows, rows_per_second=rate))
            numbers.sink("out", TimedSink(sinks[way](), spans))
            run_local(flow, parallelism=PARALLELISM, storage=str(folder / "state"), settings=settings)
        found = connection.execute(f"SELECT count(DISTINCT id), count(*) FROM {TABLE}").fetchone()
        assert found is not None, "a count has a row"
        connection.execute(f"DROP TABLE {TABLE}, {TABLE}_epochs")
    return _traffic(way, meter, spans, found[0] if found[0] == found[1] else -1)


def _traffic(way: str, meter: Meter, spans: Spans, rows: int) -> Traffic:
    first, last = meter.received[0][0], meter.received[-1][0]
    series = [0] * (int((last - first) * 1_000 // BIN_MS) + 1)
    for at, size in meter.received:
        series[int((at - first) * 1_000 // BIN_MS)] += size
    return Traffic(
        way=way,
        streamed=1 - meter.bytes_in(spans) / meter.bytes,
        peak=max(series) / statistics.mean(series),
        series=tuple(series),
        commits=tuple(start - first for start, end in spans),
        rows=rows,
    )


def steps(plan: MeasurementPlan) -> int:
    return (plan.rounds or ROUNDS) * 2


def run(plan: MeasurementPlan) -> Report:
    plan.folder.chmod(0o711)  # the server's account must reach its folder
    found: list[Traffic] = []
    with start_postgres(plan.folder, durable=True) as server:
        for turn in range(plan.rounds or ROUNDS):
            for way in (TWO_PHASE, WRITE_AHEAD) if turn % 2 == 0 else (WRITE_AHEAD, TWO_PHASE):
                found.append(measure(way, server.url, plan.folder / "job", CHECKPOINTS, ROWS, RATE))
                plan.step(f"round {turn + 1}, {way}")
    return report(found)


def report(found: Sequence[Traffic], rows: int = ROWS) -> Report:
    figures: list[Figure] = []
    for way in (TWO_PHASE, WRITE_AHEAD):
        own = [each for each in found if each.way == way]
        streamed, peaks = tuple(each.streamed for each in own), tuple(each.peak for each in own)
        least = MIN_STREAMED if way == TWO_PHASE else None
        name = f"{way}: share of bytes between checkpoints"
        figures.append(Figure(name=name, value=statistics.median(streamed), at_least=least, runs=streamed))
        name = f"{way}: most bytes in {BIN_MS} ms to the mean"
        figures.append(Figure(name=name, value=statistics.median(peaks), unit="x", digits=1, runs=peaks))
    wrong = [f"{each.way}: {each.rows:,} distinct rows of {rows:,}" for each in found if each.rows != rows]
    last = {each.way: {"bytes": each.series, "commits": each.commits} for each in found}
    return Report(figures=tuple(figures), wrong=tuple(wrong), details={"bin_ms": BIN_MS, "traffic": last})
