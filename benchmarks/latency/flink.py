"""The jobs of L1 in Flink: the DataStream API in Java, in the mini cluster of the package, over rows at fixed times.

`FlinkLatency.scala` is compiled against Flink's jars and runs in a JVM of its own, one for all runs; no Python is in
it. The source has the same `Pace`: a row is due at a fixed time, which follows from its id. Objects are reused.

Measured is each row: its arrival is the wall clock when the last function before the sink gets it. A row is committed
when that function is notified of the complete checkpoint.

Differences to Weir:

- Every row of the running totals makes an update. In Weir a batch makes one per key, which counts as its newest row.
  At these rates a batch has no key twice.
- All subtasks are threads of a single process, with the default collector of the JVM. Weir's slots are two processes.
- The filter, the computed column and the sink are chained to the source, so no buffer is between them. The buffer
  timeout has no effect there, and the job runs once per rate. Weir's chain is the same.
- The source waits for the time of its next row, at least 100 µs.
- The totals are in RocksDB with managed memory and incremental checkpoints, as Flink's documents recommend for state
  that may grow; a second series has them on the heap, as Weir's are.
"""

import math
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.latency.job import KEYS, Arrivals, Pace
from benchmarks.latency.report import FLINK
from benchmarks.peers import PEERS
from benchmarks.scala import JARS, compile_program, java
from runtime.connectors.sources.sequence import KEY_MULTIPLIER

PARALLELISM: Final = 2
_PROGRAM: Final = Path(__file__).with_name("FlinkLatency.scala")
_PACKAGE: Final = "flink/lib/python*/site-packages/pyflink/lib"  #: below the folder of the peers
_LIBRARIES: Final = ("flink-dist-*.jar", "log4j-*.jar")
_SETTINGS: Final = {
    "parallelism.default": str(PARALLELISM),
    "taskmanager.numberOfTaskSlots": str(PARALLELISM),
    "taskmanager.memory.managed.size": "512mb",
    "taskmanager.memory.network.min": "256mb",
    "taskmanager.memory.network.max": "256mb",
    "pipeline.object-reuse": "true",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.storage": "filesystem",
    "restart-strategy.type": "none",
}
_BACKENDS: Final = {
    "RocksDB": {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"},
    "heap state": {"state.backend.type": "hashmap"},
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A job with settings. `buffer_timeout_ms` None: the job has no exchange of rows."""

    job: str
    backend: str = "heap state"
    buffer_timeout_ms: int | None = None

    @property
    def title(self) -> str:
        if self.buffer_timeout_ms is None:
            return FLINK
        return f"{FLINK}, {self.backend}, buffer timeout {self.buffer_timeout_ms} ms"

    def settings(self, folder: Path) -> dict[str, str]:
        timeout_ms = self.buffer_timeout_ms or 0
        return {
            **_SETTINGS,
            **_BACKENDS[self.backend],
            "execution.buffer-timeout.interval": f"{timeout_ms} ms",
            "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        }


VARIANTS: Final = (
    Variant("stateless"),
    *(Variant("running", "RocksDB", timeout_ms) for timeout_ms in (0, 10, 100)),
    *(Variant("running", "heap state", timeout_ms) for timeout_ms in (0, 10)),
)


def libraries() -> list[Path]:
    """The jars of Flink; empty if it is not installed."""
    return [jar for name in _LIBRARIES for jar in sorted(PEERS.glob(f"{_PACKAGE}/{name}"))]


class Cluster:
    """The process of Flink."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, variant: Variant, pace: Pace, folder: Path) -> Arrivals:
        """Runs a job until all rows are committed. `folder`: new.

        Raises:
            RuntimeError: the job has failed, or rows are missing.
        """
        times = folder / "times"
        times.mkdir(parents=True)
        numbers = (pace.rows, pace.rate, math.ceil(pace.began_s * 1e6), times, KEYS, KEY_MULTIPLIER)
        settings = (f"{name}={value}" for name, value in variant.settings(folder).items())
        assert self._process.stdin is not None, "a pipe"
        assert self._process.stdout is not None, "a pipe"
        self._process.stdin.write("\t".join((variant.job, *map(str, numbers), *settings)) + "\n")
        self._process.stdin.flush()
        if not any(line == "done\n" for line in iter(self._process.stdout.readline, "")):
            raise RuntimeError(f"Flink ended with exit code {self._process.wait()}")
        result = arrivals(times)
        if len(result.ids) != pace.rows:
            raise RuntimeError(f"{len(result.ids):,} rows of {pace.rows:,} arrived in Flink")
        if lost := int(np.isnan(result.committed).sum()):
            raise RuntimeError(f"{lost:,} rows of {pace.rows:,} were not committed in Flink")
        return result


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Starts the JVM. `folder`: for the compiled program."""
    classes = folder / "flink-classes"
    jars = [*libraries(), *sorted(JARS.glob("scala-library-*.jar"))]
    compile_program(_PROGRAM, jars, classes)
    command = [java(), "-Xmx4g", "-cp", os.pathsep.join(map(str, [classes, *jars])), "benchmarks.FlinkLatency"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            yield Cluster(process)
        finally:
            process.kill()


def arrivals(folder: Path) -> Arrivals:
    """Reads the times that the subtasks have noted."""
    return Arrivals.joined([_of_subtask(path) for path in sorted(folder.glob("*.rows"))])


def _of_subtask(path: Path) -> Arrivals:
    ids, arrived_us = np.fromfile(path, ">i8").reshape(-1, 2).T
    ends, commits_us = np.fromfile(path.with_suffix(".commits"), ">i8").reshape(-1, 2).T
    rows = [end - begin for begin, end in pairwise([0, *ends])]
    committed = np.repeat(commits_us / 1e6, rows)
    missing = np.full(len(ids) - len(committed), np.nan)
    return Arrivals(ids.astype(np.int64), arrived_us / 1e6, np.concatenate([committed, missing]))
