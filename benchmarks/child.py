"""Runs a child process: reads its events, measures its processor time, limits its run time. Knows no workloads."""

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

import psutil

from benchmarks import protocol

ROOT: Final = Path(__file__).resolve().parent.parent
BENCH: Final = ROOT / "var" / "bench"  #: results and logs
_SAMPLE_INTERVAL_S: Final = 0.2  #: sampling interval of processor time; usage after a process's last sample is lost
_EXIT_GRACE_S: Final = 20.0  #: for a child to exit after its result
_READER_JOIN_S: Final = 5.0  #: for the child's last output to reach the log


@dataclass(kw_only=True)
class ChildResult:
    """The result of a child. `state`: "done", "did not finish" or "failed"; callers may set other states."""

    state: str = "failed"
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    cpu_seconds: float = 0.0


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    time_box_s: float,
    heard: Callable[[dict[str, Any]], None] = lambda said: None,
) -> ChildResult:
    """Runs `command`. Blocks until the child and all its descendants have exited. Calls `heard` with each event."""
    outcome, lines = ChildResult(), queue.SimpleQueue[str | None]()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as sink:
        child = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, encoding="utf-8",
            errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink, start_new_session=True,
        )  # fmt: skip
        assert child.stdout is not None, "stdout is a pipe"
        reader = threading.Thread(target=_read, args=(child.stdout, sink, lines), daemon=True)
        reader.start()
        meter = CpuMeter(child.pid)
        try:
            _read_events(child, meter, lines, outcome, time.monotonic() + time_box_s, heard)
        finally:
            _end(child, meter, _EXIT_GRACE_S if outcome.state == "done" else 0.0)
            reader.join(_READER_JOIN_S)
    return outcome


def _read(stdout: TextIO, log: TextIO, lines: "queue.SimpleQueue[str | None]") -> None:
    for line in stdout:
        if protocol.parse_event(line) is None:
            log.write(line)
        else:
            lines.put(line)
    lines.put(None)


def _read_events(
    child: "subprocess.Popen[str]",
    meter: "CpuMeter",
    lines: "queue.SimpleQueue[str | None]",
    outcome: ChildResult,
    until: float,
    heard: Callable[[dict[str, Any]], None],
) -> None:
    """Reads events until the last event, the child's exit, or `until` (monotonic seconds)."""
    cpu_before, is_gone = 0.0, False
    while protocol.MEASURED not in outcome.events:
        try:
            line = lines.get(timeout=min(_SAMPLE_INTERVAL_S, max(0.0, until - time.monotonic())))
        except queue.Empty:
            meter.sample()
            if is_gone:  # already at the previous sample: only descendants hold the output open
                return
            is_gone = child.poll() is not None
            if time.monotonic() < until:
                continue
            outcome.state = "did not finish"
            return
        if line is None:
            return
        said = protocol.parse_event(line)
        assert said is not None, "the queue holds events only"
        outcome.events[said["event"]] = said
        heard(said)
        if said["event"] == protocol.STARTED:
            cpu_before = meter.sample()
        elif said["event"] == protocol.MEASURED:
            outcome.cpu_seconds = meter.sample() - cpu_before
    outcome.state = "done"


class CpuMeter:
    """Samples the processor time of a process and all its descendants.

    The operating system adds the time of an exited process to its parent only if the parent waits for it. PySpark's
    daemon never waits for its workers. So the last sample of each process counts.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seconds: dict[psutil.Process, float] = {}

    @property
    def processes(self) -> list[psutil.Process]:
        """All processes seen so far, parents before their children."""
        return list(self._seconds)

    def sample(self) -> float:
        """Takes a sample. Returns the processor seconds of all processes so far."""
        try:
            processes = [psutil.Process(self._pid), *psutil.Process(self._pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            processes = []
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self._seconds[process] = times.user + times.system
        return sum(self._seconds.values())


def _end(child: "subprocess.Popen[str]", meter: CpuMeter, grace_s: float) -> None:
    """Waits for the child's exit, then kills its remaining descendants: only this process knows them."""
    meter.sample()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        meter.sample()
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for process in meter.processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()  # psutil does not kill another process that has reused the pid
    psutil.wait_procs(meter.processes, timeout=5)
