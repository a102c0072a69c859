"""What the harness and a system under test say to each other. Only the standard library: peers run it too.

A system is a child process, `python -m benchmarks.systems.NAME TASK`. It first does the task small, with its output in
files (that is the check, and warms it up), then at full size without. It says on stdout, one marked line each, when it
has finished the first, starts the second, and has finished that. Everything else is its log. A measurement of figures
(`benchmarks.figures`) is a child process too: it says when it starts, each step, and its report.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TextIO

MARK: Final = "@bench "
CHECKED, STARTED, STEPPED, TOLD, MEASURED = "checked", "started", "stepped", "told", "measured"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run of one workload on one system. `kind` names what is computed; see the workloads."""

    workload: str
    kind: str
    rows: int
    check_rows: int
    keys: int
    zipf: float | None
    folder: str  #: durable: checkpoints and output go there
    window_s: int = 1  #: of windows, how long they are
    slide_s: int = 1  #: and how long after one the next begins
    parallelism: int = 2
    interval_ms: int = 1_000  #: between checkpoints
    files: str | None = None  #: format of the files that rows come from; None: they are made, and output is discarded
    inputs: str = ""  #: folder of those files, with one folder per phase
    check_us_per_row: int = 1
    text_keys: bool = False
    disorder_ms: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def output(self) -> Path:
        return Path(self.folder) / "output"

    @property
    def measured_output(self) -> Path:
        """Where the output of the measured run goes, if it goes to files."""
        return Path(self.folder) / "measured"

    def input(self, phase: str) -> Path:
        return Path(self.inputs) / phase

    def us_per_row(self, phase: str) -> int:
        """Event time between two rows, in microseconds."""
        return self.check_us_per_row if phase == "check" else 1

    def checkpoints(self, phase: str) -> Path:
        return Path(self.folder) / f"checkpoints-{phase}"


def task() -> Task:
    """The task that this process was started for."""
    _channel()
    return Task(**json.loads(sys.argv[1]))


def checked(*, rows: int, format: str, columns: dict[str, str], pattern: str) -> None:
    """The small run has ended.

    Args:
        rows: how many rows went in.
        format: of the output files: "parquet", "csv", or "changes": JSON lines with `op` and `after`.
        columns: of the output, name -> DuckDB type.
        pattern: glob of the files below the output folder.
    """
    _say(CHECKED, rows=rows, format=format, columns=columns, pattern=pattern)


def started() -> None:
    """The measured run starts: processor time counts from now on."""
    _say(STARTED)


def measured(*, rows: int, seconds: float, rows_worked: int | None = None, **details: Any) -> None:
    """The measured run took `seconds` for `rows`. `rows_worked`: of all processor time since it started, if more."""
    _say(MEASURED, rows=rows, seconds=seconds, rows_worked=rows_worked or rows, details=details)


def stepped(text: str) -> None:
    """One more step of a measurement is done."""
    _say(STEPPED, text=text)


def told(report: dict[str, Any]) -> None:
    """What the report would be if the measurement came to no end."""
    _say(TOLD, report=report)


def reported(report: dict[str, Any]) -> None:
    """The measurement has ended with this report."""
    _say(MEASURED, report=report)


def event(line: str) -> dict[str, Any] | None:
    """What a line of a child's output says; None for its log."""
    if not line.startswith(MARK):
        return None
    found: dict[str, Any] = json.loads(line.removeprefix(MARK))
    return found


def _say(name: str, **values: Any) -> None:
    channel = _channel()
    channel.write(MARK + json.dumps({"event": name, **values}) + "\n")
    channel.flush()


@cache
def _channel() -> TextIO:
    """What was stdout, which is the log from now on: what a JVM or a worker writes must not cut an event in two."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(2, 1)
    return channel
