"""The process of a standing stage: a PySpark stage that lives as long as a run of its job.

Its supervisor, `console.runs.stage_supervisor`, starts it, writes its stdin and reads its stdout. A verb implements a
stage: a function of a `StageContext` that returns between two steps once `stopping` is set.

- Return: the stage has ended as asked, or has completed all its work.
- `JobRejected`: the stage can never succeed; the run fails with this code.
- `StageFailure`, or any other exception: the process exits; the job's restart strategy starts another.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeVar

from runtime.access.data_roots import DataRoots
from runtime.access.redaction import redact_json
from runtime.connectors.epochs import stage_folder
from runtime.core.job.ids import OperatorId
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.pipelines import Pipeline, PipelineContext
from runtime.durable import make_folder
from runtime.errors import JobRejected, WeirError
from spark_jobs.session import SparkSettings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
SPARK_CORES: Final = 2  #: cores of a cluster, or threads of a local Spark
_SPARK_CONF: Final = {
    "spark.cores.max": str(SPARK_CORES),  # otherwise this long-lived session would occupy all cores of a cluster
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

LOCK_TIMEOUT_S: Final = 30.0  #: for the preceding process to exit
LOCK_POLL_S: Final = 0.25
REPORT_INTERVAL_S: Final = 1.0
ORPHANED_EXIT_CODE: Final = 7  #: exit code after the death of the supervisor

#: The format in which the console shows a figure.
FigureKind = Literal["count", "rate", "bytes", "ms", "text"]


class StageFailure(WeirError):
    """The process cannot continue; another process may. `code` is a stable identifier."""

    def __init__(self, code: str, field: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.field, self.detail = code, field, detail


@dataclass(frozen=True, slots=True)
class Figure:
    """A number or text on the job page for the stage; None: not known yet."""

    label: str
    value: float | str | None
    kind: FigureKind = "count"


@dataclass(kw_only=True)
class StageContext:
    """The context of a verb.

    Args:
        pipeline: the job's pipeline; `params` are its raw parameters.
        operator: uid of the source or sink that the stage serves.
        run: id of the run.
        token: fencing token of this process, unique among all stage processes.
        inputs: folder of the tables of the run's lineage.
        columns: folder of the version's column schemas.
        streams: folder of the run's lineage. (A lineage: the runs that continue each other's checkpoints.)
        stopping: set when the stage shall end. A verb then completes its step and returns.
    """

    pipeline: Pipeline[Any]
    params: Mapping[str, Any]
    operator: str
    run: int
    token: int
    inputs: Path
    columns: Path
    streams: Path
    answers: TextIO
    stopping: threading.Event = field(default_factory=threading.Event)
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _steps: int = 0
    _figures: Sequence[Figure] = ()

    @property
    def folder(self) -> Path:
        """The folder of this stage; it outlives the process and the run."""
        return Path(stage_folder(self.streams, self.operator))

    @property
    def lock_file(self) -> Path:
        return self.folder / "lock"

    @cached_property
    def dataflow(self) -> Dataflow:
        """The job as its pipeline builds it; all its folders are checked. Raises JobRejected."""
        roots = DataRoots.of_environment(os.environ)
        context = PipelineContext(str(self.inputs), roots, str(self.columns), str(self.streams))
        return self.pipeline.dataflow(self.params, context)

    def endpoint(self, kind: type[T]) -> T:
        """The source or sink that the stage serves. Raises JobRejected: the job has no such `kind`."""
        connector = {**self.dataflow.sources, **self.dataflow.sinks}.get(OperatorId(self.operator))
        if not isinstance(connector, kind):
            detail = f"{self.pipeline.name} has no {kind.__name__} of this name"
            raise JobRejected("unknown-operator", self.operator, detail)
        return connector

    def report(self, figures: Sequence[Figure], *, steps: int) -> None:
        """Sets the figures on the job page. `steps`: number of steps this process has completed, a sign of progress."""
        self._figures, self._steps = tuple(figures), steps

    def write_reports(self) -> None:
        """Starts a thread that writes the newest report each second, also as a heartbeat, until the process ends."""
        threading.Thread(target=self._write_reports, name="reports", daemon=True).start()

    def write_report(self) -> bool:
        """Writes the newest report now. Returns False if the supervisor is gone or the process is ending."""
        figures = [
            {"label": figure.label, "value": _json_value(figure.value), "kind": figure.kind} for figure in self._figures
        ]
        line = json.dumps(redact_json({"report": {"steps": self._steps, "figures": figures}})) + "\n"
        try:
            with self._writing:
                self.answers.write(line)
                self.answers.flush()
        except (OSError, ValueError):
            return False
        return True

    def _write_reports(self) -> None:
        pause = threading.Event()
        while self.write_report():
            pause.wait(REPORT_INTERVAL_S)


@contextmanager
def stage_session(standing: StageContext) -> Iterator[SparkSession]:
    """A Spark session for the life of the stage."""
    settings = SparkSettings.from_environment(f"weir: run {standing.run}, {standing.operator}", cores=SPARK_CORES)
    with spark_session(replace(settings, extra={**_SPARK_CONF, **settings.extra})) as spark:
        yield spark


@contextmanager
def lock_stage(file: Path) -> Iterator[None]:
    """Locks `file` until the process ends: a second process of the stage waits for the first.

    Raises:
        StageFailure: the first process does not end within `LOCK_TIMEOUT_S`.
    """
    make_folder(file.parent)
    with file.open("w") as lock:
        pause = threading.Event()
        for _ in range(int(LOCK_TIMEOUT_S / LOCK_POLL_S)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pause.wait(LOCK_POLL_S)
        else:
            raise StageFailure("stage-locked", file.parent.name, f"another process holds {file}")
        yield


def parse_params(text: str) -> Mapping[str, Any]:
    """The parameters in `text` from stdin; empty if `text` is blank. Raises JobRejected: `text` is no JSON object."""
    try:
        params = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise JobRejected("bad-json", "params", f"stdin is not JSON: {error}") from error
    if not isinstance(params, dict):
        raise JobRejected("bad-json", "params", "stdin must hold a JSON object")
    return params


def read_params(stdin: TextIO) -> Mapping[str, Any]:
    """The parameters of the job, from the first line. Afterwards the end of `stdin` ends this process at once.

    Raises:
        JobRejected: the line is not a JSON object.
    """
    params = parse_params(stdin.readline())
    threading.Thread(target=_exit_at_eof, args=(stdin,), name="lifeline", daemon=True).start()
    return params


def stop_on_sigterm(stopping: threading.Event) -> None:
    """Makes SIGTERM set `stopping`, so that the stage ends after its current step."""
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())


def _json_value(value: float | str | None) -> float | str | None:
    """None for a NaN or infinity, which JSON lacks; Spark reports NaN for an unknown rate."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _exit_at_eof(stdin: TextIO) -> None:
    """Exits at the end of `stdin`. The JVM ends with this process, and Spark's Python workers with the JVM."""
    while stdin.read(4096):
        pass
    os._exit(ORPHANED_EXIT_CODE)
