"""W17: rows written to Postgres and over HTTP in micro-batches, by batch size: rows per second, and p99 latency.

The motive of micro-batches (seed 003): a store takes a batch in hardly more time than a row. Each batch is a statement
with a commit, or a request; size 1 is the row-wise write. Latency is from the creation of a row to the end of its write
at a rate that all sizes can sustain; a batch waits 20 ms at most.
"""

import http.client
import json
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import slots
from benchmarks.figures import Figure, MeasurementPlan, Report, ratio
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from runtime.launch.slot_pool import SlotPoolLauncher
from runtime.launch.spark import SparkLauncher
from runtime.ports import OperatorContext, SourceReader
from stack.services import start_postgres

TITLE: Final = "batched writes to Postgres and over HTTP, relative to single rows"
TIME_BOX_S: Final = 1_200.0
STEP_S: Final = 6.0
ROUNDS: Final = 3
PARALLELISM: Final = 2
SIZES: Final = (1, 10, 100, 1_000)
ROWS_PER_SIZE: Final = 2_000  #: rows of a run per row of a batch
MAX_ROWS: Final = 200_000
MAX_WAIT_MS: Final = 20
RATE: Final = 200  #: rows per second of the latency run
LATENCY_ROWS: Final = 800
CHECKPOINTS: Final = CoordinatorSettings(interval_ms=1_000)
MIN_GAIN: Final = 5.0  #: of batches of 1,000 rows
TABLE: Final = "batched_writes"

Write = Callable[[pa.RecordBatch], pa.RecordBatch]


class PostgresUpsert:
    """Upserts a batch by a single statement, which is a transaction. Adds the latency of each row."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._connection is None:
            self._connection = psycopg.connect(self._url, autocommit=True)
        self._connection.execute(
            f"INSERT INTO {TABLE} SELECT * FROM unnest(%s::bigint[], %s::bigint[]) "
            "ON CONFLICT (id) DO UPDATE SET key = excluded.key",
            (batch.column("id").to_pylist(), batch.column("key").to_pylist()),
        )
        return with_latency(batch)


class HttpPost:
    """Posts a batch as a JSON array over a connection that is kept. Adds the latency of each row."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._connection: http.client.HTTPConnection | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._host)
        self._connection.request("POST", "/", json.dumps(batch.select(["id", "key"]).to_pylist()))
        answer = self._connection.getresponse()
        answer.read()
        if answer.status != http.HTTPStatus.NO_CONTENT:
            raise RuntimeError(f"the server answered {answer.status}")
        return with_latency(batch)


def with_latency(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The ids and the microseconds since the creation of each row; 0 without a time of creation."""
    latency = np.zeros(batch.num_rows, np.int64)
    if "created_us" in batch.schema.names:
        latency = time.time_ns() // 1_000 - batch.column("created_us").to_numpy()
    return pa.record_batch({"id": batch.column("id"), "latency_us": latency})


class _Counting(BaseHTTPRequestHandler):
    """Counts the rows of each request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(self.server, _Server)
        self.server.add(row["id"] for row in rows)
        self.send_response(http.HTTPStatus.NO_CONTENT)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""


class _Server(ThreadingHTTPServer):
    """Keeps the ids that it has received."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Counting)
        self.ids: set[int] = set()
        self._lock = threading.Lock()

    def add(self, ids: Iterator[int]) -> None:
        with self._lock:
            self.ids.update(ids)


@dataclass(frozen=True, slots=True)
class Target:
    """A store, with its write function and the number of distinct rows that it has received since `clear`."""

    name: str
    write: Callable[[], Write]
    count: Callable[[], int]
    clear: Callable[[], object]


@contextmanager
def http_target() -> Iterator[Target]:
    server = _Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        yield Target("HTTP", lambda: HttpPost(url), lambda: len(server.ids), server.ids.clear)
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def postgres_target(url: str) -> Iterator[Target]:
    with psycopg.connect(url, autocommit=True) as connection:

        def count() -> int:
            row = connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone()
            assert row is not None, "a count has a row"
            return int(row[0])

        connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
        connection.execute(f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, key bigint NOT NULL)")
        clear = f"TRUNCATE {TABLE}"
        yield Target("Postgres", lambda: PostgresUpsert(url), count, lambda: connection.execute(clear))
        connection.execute(f"DROP TABLE {TABLE}")


# ---------------------------------------------------------------- runs


@dataclass(frozen=True)
class Ticker:
    """Emits `rows` rows at `rate` rows per second, each with its time of creation."""

    rows: int
    rate: int
    bounded = True
    guarantee = "exactly-once"

    def reader(self) -> "TickerReader":
        return TickerReader(self)

    def check(self) -> None:
        return None


class TickerReader(SourceReader):
    def __init__(self, ticker: Ticker) -> None:
        self._ticker, self._next, self._first_us = ticker, 0, 0

    def open(self, context: OperatorContext) -> None:
        self._stored = context.state.list_state("next")

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        now = time.time_ns() // 1_000
        self._first_us = self._first_us or now
        due = min(self._ticker.rows, (now - self._first_us) * self._ticker.rate // 1_000_000, self._next + max_rows)
        if due <= self._next:
            return None
        ids, self._next = np.arange(self._next, due), due
        created = self._first_us + ids * 1_000_000 // self._ticker.rate
        return pa.record_batch({"id": ids, "key": ids, "created_us": created})

    @property
    def exhausted(self) -> bool:
        return self._next >= self._ticker.rows

    def snapshot(self, checkpoint: int) -> None:
        self._stored.replace([self._next])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A setting of a round: the rate at full speed, and the latency at a fixed rate."""

    target: str
    size: int
    rows_per_s: float
    p50_ms: float
    p99_ms: float


def rows_of(size: int) -> int:
    """The rows of a run at full speed, so that runs of all sizes take seconds."""
    return min(MAX_ROWS, ROWS_PER_SIZE * size)


def full_speed(size: int, write: Write) -> Dataflow:
    flow = Dataflow("batched-writes")
    rows = flow.source("numbers", SequenceSource(rows=rows_of(size), keys=1_000_003)).key_by("id")
    rows.batches("write", write, max_rows=size).sink("out", DiscardSink())
    return flow


def at_a_rate(size: int, write: Write, output: Path, ticker: Ticker) -> Dataflow:
    flow = Dataflow("batched-writes")
    rows = flow.source("ticker", ticker, parallelism=1).key_by("id")
    batches = rows.batches("write", write, max_rows=size, max_wait_ms=MAX_WAIT_MS)
    batches.sink("out", ParquetSink(str(output)))
    return flow


def latencies_ms(output: Path) -> list[float]:
    """The latency of each row."""
    return [us / 1_000 for us in pq.read_table(output).column("latency_us").to_pylist()]


def measure(target: Target, size: int, folder: Path, launcher: SlotPoolLauncher, wrong: list[str]) -> Sample:
    """Runs a setting at full speed and at a fixed rate. Adds a text to `wrong` if a row is missing."""

    def run(flow: Dataflow, rows: int) -> float:
        target.clear()
        shutil.rmtree(folder / "state", ignore_errors=True)
        took = slots.run(flow, PARALLELISM, launcher, str(folder / "state"), CHECKPOINTS)
        if (found := target.count()) != rows:
            wrong.append(f"{target.name}, batches of {size}: {found:,} rows of {rows:,}")
        return took.seconds

    seconds = run(full_speed(size, target.write()), rows_of(size))
    shutil.rmtree(folder / "out", ignore_errors=True)
    run(at_a_rate(size, target.write(), folder / "out", Ticker(LATENCY_ROWS, RATE)), LATENCY_ROWS)
    found = latencies_ms(folder / "out")
    return Sample(
        target=target.name,
        size=size,
        rows_per_s=rows_of(size) / seconds,
        p50_ms=float(np.percentile(found, 50)),
        p99_ms=float(np.percentile(found, 99)),
    )


def steps(plan: MeasurementPlan) -> int:
    return (plan.rounds or ROUNDS) * 2 * len(SIZES)


def run(plan: MeasurementPlan) -> Report:
    plan.folder.chmod(0o711)  # the server's account must reach its folder
    rounds: list[list[Sample]] = []
    wrong: list[str] = []
    with (
        start_postgres(plan.folder, durable=True) as server,
        postgres_target(server.url) as postgres,
        http_target() as posts,
        closing(SparkLauncher("weir-batched-writes", f"local[{PARALLELISM}]")) as launcher,
    ):
        measure(postgres, SIZES[-1], plan.folder, launcher, wrong)  # warms the slots up
        for turn in range(plan.rounds or ROUNDS):
            rounds.append([])
            for size in SIZES if turn % 2 == 0 else reversed(SIZES):
                for target in (postgres, posts):
                    rounds[-1].append(measure(target, size, plan.folder, launcher, wrong))
                    plan.step(f"round {turn + 1}, {target.name}, batches of {size:,}")
            plan.report_partial(report(rounds, wrong))
    return report(rounds, wrong)


def report(rounds: Sequence[Sequence[Sample]], wrong: Sequence[str]) -> Report:
    figures: list[Figure] = []
    for target in dict.fromkeys(sample.target for sample in rounds[0]):
        pairs = [(_sample(each, target, SIZES[-1]).rows_per_s, _sample(each, target, 1).rows_per_s) for each in rounds]
        name = f"{target}: rows/s in batches of {SIZES[-1]:,} to single rows"
        figures.append(Figure.of_ratio(name, ratio(pairs), unit="x", at_least=MIN_GAIN))
    return Report(
        figures=tuple(figures),
        lines=tuple(_line(rounds, target) for target in dict.fromkeys(sample.target for sample in rounds[0])),
        wrong=tuple(wrong),
        details={"rounds": [[asdict(sample) for sample in each] for each in rounds]},
    )


def _sample(samples: Sequence[Sample], target: str, size: int) -> Sample:
    return next(sample for sample in samples if (sample.target, sample.size) == (target, size))


def _line(rounds: Sequence[Sequence[Sample]], target: str) -> str:
    told = []
    for size in SIZES:
        found = [_sample(each, target, size) for each in rounds]
        rate, p99 = (statistics.median(getattr(one, name) for one in found) for name in ("rows_per_s", "p99_ms"))
        told.append(f"{size:,}: {rate:,.0f} rows/s, p99 {p99:.0f} ms at {RATE} rows/s")
    return f"{target}, rows per batch {'; '.join(told)} (medians)"
