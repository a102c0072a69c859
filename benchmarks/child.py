"""Runs one system as a child process: its events, its processor time, its time box. It knows no workload."""

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
_LOOK_S: Final = 0.2  #: how often processor time is looked at; what a process uses after its last look is lost
_GRACE_S: Final = 20.0  #: how long a child may take to go after it has told its result
_READ_S: Final = 5.0  #: how long what it has said last may take to get into the log


@dataclass(kw_only=True)
class Outcome:
    """What a child said. `state` is "done", "did not finish" or "failed"; its caller may know of others."""

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
) -> Outcome:
    """Blocks until the child has gone, and with it everything that it started. `heard` gets each event."""
    outcome, lines = Outcome(), queue.SimpleQueue[str | None]()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as sink:
        child = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, encoding="utf-8",
            errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink, start_new_session=True,
        )  # fmt: skip
        assert child.stdout is not None, "stdout is a pipe"
        reader = threading.Thread(target=_read, args=(child.stdout, sink, lines), daemon=True)
        reader.start()
        meter = Meter(child.pid)
        try:
            _listen(child, meter, lines, outcome, time.monotonic() + time_box_s, heard)
        finally:
            _end(child, meter, _GRACE_S if outcome.state == "done" else 0.0)
            reader.join(_READ_S)
    return outcome


def _read(stdout: TextIO, log: TextIO, lines: "queue.SimpleQueue[str | None]") -> None:
    for line in stdout:
        if protocol.event(line) is None:
            log.write(line)
        else:
            lines.put(line)
    lines.put(None)


def _listen(
    child: "subprocess.Popen[str]",
    meter: "Meter",
    lines: "queue.SimpleQueue[str | None]",
    outcome: Outcome,
    until: float,
    heard: Callable[[dict[str, Any]], None],
) -> None:
    """Takes events until the last one, the child's end, or the end of its time."""
    cpu_before, is_gone = 0.0, False
    while protocol.MEASURED not in outcome.events:
        try:
            line = lines.get(timeout=min(_LOOK_S, max(0.0, until - time.monotonic())))
        except queue.Empty:
            meter.look()
            if is_gone:  # for a while already; what it has started may keep its output open
                return
            is_gone = child.poll() is not None
            if time.monotonic() < until:
                continue
            outcome.state = "did not finish"
            return
        if line is None:
            return
        said = protocol.event(line)
        assert said is not None, "the log does not come here"
        outcome.events[said["event"]] = said
        heard(said)
        if said["event"] == protocol.STARTED:
            cpu_before = meter.look()
        elif said["event"] == protocol.MEASURED:
            outcome.cpu_seconds = meter.look() - cpu_before
    outcome.state = "done"


class Meter:
    """Processor time of a process and all below it, by looking now and then.

    The system adds the time of an ended process to that of its parent only if the parent waited for it. PySpark's
    daemon, for one, never waits for its workers, so what was seen last of each is what counts.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seconds: dict[psutil.Process, float] = {}

    @property
    def seen(self) -> list[psutil.Process]:
        """Every process there was, parents before those that they started."""
        return list(self._seconds)

    def look(self) -> float:
        """Returns the seconds so far."""
        try:
            processes = [psutil.Process(self._pid), *psutil.Process(self._pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            processes = []
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self._seconds[process] = times.user + times.system
        return sum(self._seconds.values())


def _end(child: "subprocess.Popen[str]", meter: Meter, grace_s: float) -> None:
    """Lets it end, then ends what is left, also of a child that was killed: nobody else knows what that had started."""
    meter.look()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        meter.look()
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for process in meter.seen:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()  # does nothing to another process that has got the number since
    psutil.wait_procs(meter.seen, timeout=5)
