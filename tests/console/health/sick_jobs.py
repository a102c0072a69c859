"""Small real jobs, each with one sickness; they import no Django, so that a process of its own can run one."""

import json
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import weir
from runtime.clock import SystemClock
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.io.filesystem import FileStore
from runtime.io.postgres.store import PostgresRunStore
from runtime.launch.local import LocalLauncher
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.master.launcher import Launcher
from tests.jobs.test_own_sink import LinesSink, LinesWriter

PARALLELISM = 2
INTERVAL_MS = 2_000
TIMEOUT_MS = 5_000  #: of a checkpoint
OUT = pa.schema([("key", pa.int64())])
_LEAKED: list[bytearray] = []


@dataclass(frozen=True)
class Ticks:
    """Ten rows every 20 ms in each subtask, with the wall clock as event time; after `rows` rows it is silent.

    `waits`: rows that no poll takes in time wait, with the time at which they were due.
    """

    keys: int = 50
    rows: int = 1 << 60
    waits: bool = False
    bounded = False
    guarantee = "none"

    def reader(self) -> "TicksReader":
        return TicksReader(self)

    def check(self) -> None:
        return None


class TicksReader(weir.spi.SourceReader):
    def __init__(self, source: Ticks) -> None:
        self._source, self._read, self._due = source, 0, 0.0
        self._newest: int | None = None

    def open(self, context: weir.spi.OperatorContext) -> None:
        return None

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if self._read >= self._source.rows or time.monotonic() < self._due:
            return None
        late_s = time.monotonic() - self._due if self._source.waits and self._due else 0.0
        self._due, self._newest = time.monotonic() + 0.02 - late_s, int((time.time() - late_s) * 1000)
        keys = [(self._read + n) % self._source.keys for n in range(10)]
        self._read += 10
        return pa.record_batch({"key": pa.array(keys, pa.int64()), "time": pa.array([self._newest] * 10, pa.int64())})

    @property
    def exhausted(self) -> bool:
        return False

    def watermark(self) -> int | None:
        return self._newest


class SlowRows(weir.KeyedProcessFunction):
    """5 ms for each row."""

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        time.sleep(0.005)
        out.emit({"key": row["key"]})


class RefusedWriter(LinesWriter):
    def write(self, batch: pa.RecordBatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=1).close()


@dataclass(frozen=True)
class RefusedSink(LinesSink):
    """A sink whose target refuses connections."""

    def writer(self) -> LinesWriter:
        return RefusedWriter(self.folder)


class FullWriter(LinesWriter):
    """Writes each batch at once, so that a full disk is met."""

    def write(self, batch: pa.RecordBatch) -> None:
        with (self._folder / f"_{self._name}-rows").open("a") as file:
            file.write("".join(json.dumps(row) for row in batch.to_pylist()))


@dataclass(frozen=True)
class FullSink(LinesSink):
    def writer(self) -> LinesWriter:
        return FullWriter(self.folder)


class SlowStore(FileStore):
    """Storage that needs 4 s for each file of the job master."""

    def put(self, path: str, data: Iterable[bytes]) -> None:
        time.sleep(4)
        super().put(path, data)


def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise RuntimeError("the rate of EUR is missing")


def block(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Blocks for longer than a checkpoint may take, again and again."""
    time.sleep(3 * TIMEOUT_MS / 1000)
    return batch


def parse(row: dict[str, Any]) -> dict[str, Any]:
    if row["key"] == 7:
        raise ValueError("no number: seven")
    return {"key": row["key"]}


class MissingModel(weir.KeyedProcessFunction):
    """A deployment without one of its files."""

    def open(self, context: weir.ProcessContext) -> None:
        Path("/nowhere/model.bin").read_bytes()

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        out.emit({"key": row["key"]})


def leak(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keeps half a megabyte for each batch."""
    _LEAKED.append(bytearray(b"x") * (1 << 19))
    return batch


def files(folder: Path) -> weir.JsonLinesSink:
    return weir.JsonLinesSink(str(folder), roll_on_checkpoint=True)


def chain(name: str, folder: Path, sink: weir.spi.Sink | None = None, **steps: Callable[..., Any]) -> weir.Dataflow:
    """`ticks`, the steps, counts by key, and a sink."""
    folder.mkdir(exist_ok=True)
    flow = weir.Dataflow(name, required_guarantee="none")
    stream = flow.source("ticks", Ticks())
    for uid, step in steps.items():
        stream = stream.map_batches(uid, step)
    stream.key_by("key").aggregate("counts", {"n": weir.Count()}).sink("out", sink or LinesSink(folder / "out"))
    return flow


def undeployable(folder: Path) -> weir.Dataflow:
    folder.mkdir(exist_ok=True)
    flow = weir.Dataflow("undeployable", required_guarantee="none")
    flow.source("ticks", Ticks()).key_by("key").process("score", MissingModel, OUT).sink(
        "out", LinesSink(folder / "out")
    )
    return flow


def slow(folder: Path) -> weir.Dataflow:
    """Each slot could process 200 of 500 rows a second."""
    folder.mkdir(exist_ok=True)
    flow = weir.Dataflow("slow", required_guarantee="none")
    flow.source("ticks", Ticks()).key_by("key").process("slow", SlowRows, OUT).sink("out", LinesSink(folder / "out"))
    return flow


def slow_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """5 ms for each row."""
    time.sleep(0.005 * batch.num_rows)
    return batch


def starved(folder: Path) -> weir.Dataflow:
    """The map takes all the time of its slot, whose source cannot keep up with its input."""
    folder.mkdir(exist_ok=True)
    flow = weir.Dataflow("starved", required_guarantee="none")
    flow.source("ticks", Ticks(waits=True)).map_batches("greedy", slow_rows).sink("out", LinesSink(folder / "out"))
    return flow


def skewed(folder: Path) -> weir.Dataflow:
    folder.mkdir(exist_ok=True)
    flow = weir.Dataflow("skewed", required_guarantee="none")
    flow.source("ticks", Ticks(keys=1)).key_by("key").process("hot", SlowRows, OUT).sink(
        "out", LinesSink(folder / "out")
    )
    return flow


def stopped(folder: Path) -> weir.Dataflow:
    """Its only input stops after a second."""
    folder.mkdir(exist_ok=True)
    flow = weir.Dataflow("stopped", required_guarantee="none")
    flow.source("ticks", Ticks(rows=500)).sink("out", LinesSink(folder / "out"))
    return flow


def poisoned(folder: Path) -> weir.Dataflow:
    """A row in 50 cannot be parsed, and is set aside."""
    folder.mkdir(exist_ok=True)
    flow = weir.Dataflow("poisoned", required_guarantee="none")
    aside = weir.SetAside(str(folder / "aside"), max_per_minute=100_000)
    flow.source("ticks", Ticks()).map("parse", parse, OUT, on_error=aside).sink("out", LinesSink(folder / "out"))
    return flow


def held(folder: Path) -> weir.Dataflow:
    folder.mkdir(exist_ok=True)
    flow = weir.Dataflow("held", required_guarantee="none")
    orders, payments = flow.source("orders", Ticks()), flow.source("payments", Ticks(rows=100))
    union = orders.union("both", payments)
    union.key_by("key").aggregate("counts", {"n": weir.Count()}).sink("out", LinesSink(folder / "out"))
    return flow


def master_of(
    flow: weir.Dataflow,
    records: PostgresRunStore,
    job: int,
    token: int,
    folder: Path,
    store: type[FileStore] = FileStore,
    launcher: Launcher | None = None,
    parallelism: int = PARALLELISM,
    slot_memory_bytes: int | None = None,
) -> JobMaster:
    """A job master with a launcher of its own, or with one that no other running job has."""
    storage = str(folder / "state")
    config = MasterConfig(
        job_id=str(job), token=Token(token), job=flow.compile(parallelism), storage=storage,
        coordinator=CoordinatorSettings(interval_ms=INTERVAL_MS, timeout_ms=TIMEOUT_MS, min_pause_ms=50),
        restart=FixedDelay(attempts=100_000, delay_ms=300), slot_memory_bytes=slot_memory_bytes,
    )  # fmt: skip
    return JobMaster(config, records, store(storage), launcher or LocalLauncher(), SystemClock())


def run_alone(run: int, job: int, token: int, url: str, folder: Path) -> None:
    """Runs a job that is well in this process, until the process is killed."""
    records = PostgresRunStore(url, run, Token(token), 128)
    master_of(chain("dying", folder), records, job, token, folder).run()
