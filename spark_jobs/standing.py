"""The process of a standing stage: a PySpark stage that lives as long as a run of its job.

The supervisor's end of this is `console.jobs.stage_supervisor`; the two share a command line, stdin and stdout. What a
stage does is a verb: a function of a `Standing`, which returns when `stopping` is set, between two of its steps.

- Return: the stage has ended as asked, or has done all that there was to do.
- `JobRejected`: the stage can never succeed; the run fails with this code.
- `StageFailure`, or any other exception: the process dies and another one follows, by the job's restart strategy.
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
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TextIO

from runtime.connectors.data_roots import DataRoots
from runtime.connectors.names import safe
from runtime.dataflow import Dataflow
from runtime.errors import JobRejected, WeirError
from runtime.pipelines import Pipeline, PipelineContext

LOCK_S: Final = 30.0  #: for the process before to be gone
LOCK_POLL_S: Final = 0.25
REPORT_S: Final = 1.0
ORPHANED: Final = 7  #: exit code when the supervisor is gone

#: How the console writes a figure.
FigureKind = Literal["count", "rate", "bytes", "ms", "text"]


class StageFailure(WeirError):
    """The process cannot go on; another one may. `code` is a stable word for people and programs."""

    def __init__(self, code: str, field: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.field, self.detail = code, field, detail


@dataclass(frozen=True, slots=True)
class Figure:
    """A number or a text that the job page shows for the stage; None: not known yet."""

    label: str
    value: float | str | None
    kind: FigureKind = "count"


@dataclass(kw_only=True)
class Standing:
    """What a verb may know and use.

    Args:
        pipeline: of the job, with `params`, its raw parameters.
        operator: uid of the source or sink that the stage belongs to.
        run: id of the run.
        token: of this process; no other process of any stage has it.
        inputs: folder of the tables of the run and of those whose checkpoints it continues.
        columns: folder of the version's columns.
        streams: folder of the run and of those whose checkpoints it continues.
        stopping: set when the stage is to end. A verb ends its step and returns.
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
        """Of this stage alone; it outlives the process and the run."""
        return stage_folder(self.streams, self.operator)

    @cached_property
    def dataflow(self) -> Dataflow:
        """The job as its pipeline builds it, with every folder that it names checked. Raises JobRejected."""
        roots = DataRoots.of_environment(os.environ)
        context = PipelineContext(str(self.inputs), roots, str(self.columns), str(self.streams))
        return self.pipeline.dataflow(self.params, context)

    def report(self, figures: Sequence[Figure], *, steps: int) -> None:
        """What the job page shows from now on. `steps` counts what this process has completed: each is progress."""
        self._figures, self._steps = tuple(figures), steps

    def write_reports(self) -> None:
        """Writes the newest report each second, until the process ends: also a sign of life."""
        threading.Thread(target=self._write_reports, name="reports", daemon=True).start()

    def write_report(self) -> bool:
        """Writes the newest report now. False: the supervisor is gone, or the process is ending."""
        figures = [{"label": one.label, "value": _finite(one.value), "kind": one.kind} for one in self._figures]
        line = json.dumps({"report": {"steps": self._steps, "figures": figures}}) + "\n"
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
            pause.wait(REPORT_S)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds a lock that ends with the process: of two processes of one stage, the second waits for the first."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        pause = threading.Event()
        for _ in range(int(LOCK_S / LOCK_POLL_S)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pause.wait(LOCK_POLL_S)
        else:
            raise StageFailure("stage-locked", folder.name, f"another process holds {folder / 'lock'}")
        yield


def stage_folder(streams: Path | str, operator: str) -> Path:
    """The folder of the stage of `operator`."""
    return Path(streams) / safe(operator)


def read_params(stdin: TextIO) -> Mapping[str, Any]:
    """The parameters of the job, from the first line. From then on the end of `stdin` ends this process at once.

    Raises:
        JobRejected: the line is no JSON object.
    """
    try:
        params = json.loads(stdin.readline() or "{}")
    except ValueError as error:
        raise JobRejected("bad-json", "params", f"the first line of stdin is not JSON: {error}") from error
    if not isinstance(params, dict):
        raise JobRejected("bad-json", "params", "the first line of stdin must hold a JSON object")
    threading.Thread(target=_end_with, args=(stdin,), name="lifeline", daemon=True).start()
    return params


def stop_on_sigterm(stopping: threading.Event) -> None:
    """SIGTERM asks the stage to end between two steps."""
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())


def _finite(value: float | str | None) -> float | str | None:
    """JSON has no other numbers; Spark has NaN for a rate that it does not know."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _end_with(stdin: TextIO) -> None:
    """The JVM ends with this process, and Spark's Python workers with the JVM."""
    while stdin.read(4096):
        pass
    os._exit(ORPHANED)
