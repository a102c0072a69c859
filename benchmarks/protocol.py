"""Events between the harness and a child process. Uses only the standard library, since peers import it.

A system under test is a child process, `python -m benchmarks.systems.NAME TASK`. It first runs the task with few rows
and writes its output to files: this run is checked and warms the process up. Then it runs the task with all rows and
discards the output. It prints a marked line to stdout when the first run ends and when the second starts and ends. All
other output is its log. A measurement of figures (`benchmarks.figures`) is a child process, too: it prints its start,
its steps and its report.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TextIO

MARK: Final = "@bench "
CHECKED, STARTED, STEPPED, TOLD, MEASURED = "checked", "started", "stepped", "told", "measured"


@dataclass(frozen=True, kw_only=True)
class Computation:
    """The computation and the data of a workload, the same for all its systems.

    Args:
        kind: the query; each system implements some kinds.
        check_rows: number of rows of the small run.
        files: format of the input files ("parquet", "json"), which all systems share; a system with fewer rows gets the
            first files. The measured run then writes files, too, which are compared. None: engines generate the rows.
        text_keys: keys are uuids as text, 36 characters, instead of integers; only in files.
        disorder_ms: how far a row's event time may lag behind that of a row before it, unless it is too late; only in
            files.
        dataset: name of a data set (`benchmarks.datasets`); its files are the input instead of the sequence, and all
            systems read all of them. None: the sequence.
        sink: where output goes that is made from a data set: "files", "postgres" (upserts into `Task.database`), or
            "discard".
        output_key: the key by which output is upserted into Postgres.
        partition_by: columns whose values choose the folder of output files.
    """

    kind: str
    keys: int
    check_rows: int = 6_000_000
    files: str | None = None
    text_keys: bool = False
    disorder_ms: int = 0
    dataset: str | None = None
    sink: str = "discard"
    output_key: Sequence[str] = ()
    partition_by: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Task(Computation):
    """A task for a system. `rows`: of the measured run."""

    workload: str
    rows: int
    folder: str  #: for checkpoints and output; on a durable disk
    inputs: str = ""  #: folder of the input files, with a folder per phase
    parallelism: int = 2
    interval_ms: int = 1_000  #: checkpoint interval
    database: str = ""  #: address of the Postgres for output, with an empty table named after each phase
    resumes: bool = False  #: the measured run goes on from its last checkpoint, after SIGKILL of the former process

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def output(self) -> Path:
        return Path(self.folder) / "output"

    @property
    def measured_output(self) -> Path:
        """The output folder of the measured run, if the workload writes files."""
        return Path(self.folder) / "measured"

    def output_of(self, phase: str) -> Path:
        return self.output if phase == "check" else self.measured_output

    def input(self, phase: str) -> Path:
        return Path(self.inputs) / phase

    def checkpoints(self, phase: str) -> Path:
        return Path(self.folder) / f"checkpoints-{phase}"


def table_of(phase: str) -> str:
    """The table in Postgres for the output of a phase."""
    return f"output_{phase}"


def read_task() -> Task:
    """The task given to this process on its command line."""
    _channel()
    return Task(**json.loads(sys.argv[1]))


def send_checked(*, rows: int, format: str, columns: dict[str, str], pattern: str) -> None:
    """Reports the end of the small run.

    Args:
        rows: number of input rows.
        format: of the output files: "parquet", "csv", or "changes": JSON lines with `op` and `after`.
        columns: of the output, name -> DuckDB type.
        pattern: glob of the files below the output folder.
    """
    _send(CHECKED, rows=rows, format=format, columns=columns, pattern=pattern)


def send_started() -> None:
    """Reports the start of the measured run; processor time counts from now on."""
    _send(STARTED)


def send_measured(*, rows: int, seconds: float, rows_worked: int | None = None, **details: Any) -> None:
    """Reports the measured run. `rows_worked`: rows processed since `send_started`, if more than `rows`."""
    _send(MEASURED, rows=rows, seconds=seconds, rows_worked=rows_worked or rows, details=details)


def send_step(text: str) -> None:
    """Reports a completed step of a measurement."""
    _send(STEPPED, text=text)


def send_partial_report(report: dict[str, Any]) -> None:
    """Reports preliminary results, which are the final results if the measurement does not finish."""
    _send(TOLD, report=report)


def send_report(report: dict[str, Any]) -> None:
    """Reports the final results of the measurement."""
    _send(MEASURED, report=report)


def parse_event(line: str) -> dict[str, Any] | None:
    """Parses a line of a child's output; None for a line of its log."""
    if not line.startswith(MARK):
        return None
    event: dict[str, Any] = json.loads(line.removeprefix(MARK))
    return event


def _send(name: str, **values: Any) -> None:
    channel = _channel()
    channel.write(MARK + json.dumps({"event": name, **values}) + "\n")
    channel.flush()


@cache
def _channel() -> TextIO:
    """The original stdout. Stdout itself becomes the log: output of a JVM or worker must not split an event line."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(2, 1)
    return channel
