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


@dataclass(kw_only=True)
class Outcome:
    """What a child said. `state` is "done", "did not finish" or "failed"."""

    state: str = "failed"
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    cpu_seconds: float = 0.0


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    time_box_s: float,
    stepped: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Blocks until the child has gone, and with it everything that it started. `stepped` hears of its steps."""
    outcome, lines = Outcome(), queue.SimpleQueue[str | None]()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as sink:
        child = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink, start_new_session=True,
        )  # fmt: skip
        assert child.stdout is not None, "stdout is a pipe"
        threading.Thread(target=_read, args=(child.stdout, sink, lines), daemon=True).start()
        try:
            _listen(child, lines, outcome, time.monotonic() + time_box_s, stepped)
        finally:
            _end(child, _GRACE_S if outcome.state == "done" else 0.0)
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
    lines: "queue.SimpleQueue[str | None]",
    outcome: Outcome,
    until: float,
    stepped: Callable[[str], None],
) -> None:
    """Takes events until the last one, the child's end, or the end of its time."""
    meter, cpu_before = Meter(child.pid), 0.0
    while protocol.MEASURED not in outcome.events:
        try:
            line = lines.get(timeout=min(_LOOK_S, max(0.0, until - time.monotonic())))
        except queue.Empty:
            meter.look()
            if time.monotonic() < until:
                continue
            outcome.state = "did not finish"
            return
        if line is None:
            return
        said = protocol.event(line)
        assert said is not None, "the log does not come here"
        outcome.events[said["event"]] = said
        if said["event"] == protocol.STARTED:
            cpu_before = meter.look()
        elif said["event"] == protocol.STEPPED:
            stepped(said["text"])
        elif said["event"] == protocol.MEASURED:
            outcome.cpu_seconds = meter.look() - cpu_before
    outcome.state = "done"


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all below it, including those that have ended and were waited for.

    Where some may end unwaited for, use a `Meter`.
    """
    total = 0.0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return total
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Meter:
    """Processor time of a process and all below it, by looking now and then.

    The system adds the time of an ended process to that of its parent only if the parent waited for it. PySpark's
    daemon, for one, never waits for its workers, so what was seen last of each is what counts.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seconds: dict[psutil.Process, float] = {}

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


def _end(child: "subprocess.Popen[str]", grace_s: float) -> None:
    """Lets it end, then ends what is left: the child leads a session of its own, its children may lead groups."""
    descendants = _descendants(child.pid)
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        descendants = _descendants(child.pid)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for process in descendants:
        try:
            process.kill()  # does nothing to another process that has got the number since
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(descendants, timeout=5)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
