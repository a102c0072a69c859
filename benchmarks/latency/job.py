"""Jobs of the latency benchmark: an open loop of rows that are due at fixed times, and a sink that notes their times.

A row is due at `began_s` + `id` / `rate`, whether or not the job keeps up. A pause delays every row that is due in it,
also if the source itself could not be polled.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import weir
from runtime.connectors.sources.sequence import KEY_MULTIPLIER

KEYS: Final = 100_003
SCHEMA: Final = pa.schema(
    [pa.field(name, pa.int64(), nullable=False) for name in ("id", "key")]
    + [pa.field("value", pa.float64(), nullable=False)]
)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """`rate`: rows per second of all subtasks; `began_s`: Unix time at which row 0 is due."""

    rate: int
    seconds: float
    began_s: float

    @property
    def rows(self) -> int:
        return int(self.rate * self.seconds)

    def due_s(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return self.began_s + ids / self.rate


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The times of rows, in Unix seconds. `committed` is NaN where no commit was noted."""

    ids: npt.NDArray[np.int64]
    arrived: npt.NDArray[np.float64]
    committed: npt.NDArray[np.float64]

    @classmethod
    def joined(cls, parts: Sequence["Arrivals"]) -> "Arrivals":
        columns = zip(*((part.ids, part.arrived, part.committed) for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))


@dataclass(frozen=True)
class OpenLoop:
    """Emits each row when it is due, at the earliest. It stores no position, since the job is never restored."""

    guarantee: ClassVar[str] = "none"
    bounded: ClassVar[bool] = True

    pace: Pace

    def output_columns(self) -> pa.Schema:
        return SCHEMA

    def reader(self) -> "OpenLoopReader":
        return OpenLoopReader(self.pace)

    def check(self) -> None:
        """Never raises."""


class OpenLoopReader(weir.spi.SourceReader):
    """Subtask i of p emits the rows whose id is i modulo p."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._next = pace, 0

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._next, self._step = context.index, context.parallelism

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        due = min(int((time.time() - self._pace.began_s) * self._pace.rate), self._pace.rows)
        ids = np.arange(self._next, min(due, self._next + max_rows * self._step), self._step, dtype=np.int64)
        if not len(ids):
            return None
        self._next = int(ids[-1]) + self._step
        return pa.RecordBatch.from_arrays([ids, ids * KEY_MULTIPLIER % KEYS, ids * 0.5], schema=SCHEMA)

    @property
    def exhausted(self) -> bool:
        return self._next >= self._pace.rows

    def watermark(self) -> None:
        return None


@dataclass(frozen=True)
class TimedSink:
    """Notes when rows arrive, and when their checkpoint is committed, in files of `folder`.

    The times of rows are stored when the job ends. Stored at the barrier, they took 7 ms of the loop and were the
    longest pause of the job with running totals.
    """

    guarantee: ClassVar[str] = "none"

    folder: str

    def writer(self) -> weir.spi.SinkWriter:
        return _Writer(Path(self.folder))

    def committer(self) -> weir.spi.SinkCommitter:
        return _Committer(Path(self.folder))

    def check(self) -> None:
        """Never raises."""


class _Writer(weir.spi.SinkWriter):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids, self._arrived = list[npt.NDArray[np.int64]](), list[float]()
        self._prepared: dict[str, tuple[list[npt.NDArray[np.int64]], list[float]]] = {}

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._index = context.index

    def write(self, batch: pa.RecordBatch) -> None:
        self._arrived.append(time.time())
        self._ids.append(batch.column("id").to_numpy())

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        if not self._ids:
            return ()
        name = f"{self._index}-{checkpoint}"
        self._prepared[name] = self._ids, self._arrived
        self._ids, self._arrived = [], []
        return (name,)

    def close(self) -> None:
        for name, (ids, arrived) in self._prepared.items():
            times = np.repeat(arrived, [len(each) for each in ids])
            np.savez(self._folder / name, ids=np.concatenate(ids), arrived=times)


class _Committer(weir.spi.SinkCommitter):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def commit(self, permit: weir.spi.CommitPermit, committables: Sequence[Any]) -> int:
        missing = [path for name in committables if not (path := self._folder / f"{name}.committed").exists()]
        for path in missing:
            path.write_text(repr(time.time()))
        return len(missing)


def arrivals(folder: Path) -> Arrivals:
    """Reads the times that the writers and the committer have noted."""
    parts = []
    for path in sorted(folder.glob("*.npz")):
        committed = float(path.with_suffix(".committed").read_text())
        with np.load(path) as noted:
            parts.append(Arrivals(noted["ids"], noted["arrived"], np.full(len(noted["ids"]), committed)))
    return Arrivals.joined(parts)


def stateless(rows: weir.Stream) -> weir.Stream:
    return rows.filter("valid", pc.field("value") >= 0).with_columns("doubled", value=pc.field("value") * 2)


def running(rows: weir.Stream) -> weir.Stream:
    """A running total per key. `id` is the newest row in it."""
    totals = {"id": weir.Max("id"), "n": weir.Count(), "total": weir.Sum("value")}
    return rows.key_by("key").aggregate("totals", totals)


JOBS: Final = {"stateless": stateless, "running": running}


def job(name: str, pace: Pace, folder: str) -> weir.Dataflow:
    flow = weir.Dataflow(f"latency-{name}", required_guarantee="none")
    JOBS[name](flow.source("rows", OpenLoop(pace))).sink("out", TimedSink(folder))
    return flow
