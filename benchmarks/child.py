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
from benchmarks.footprint import Footprint
from stack.launch.java import ADVICE
from stack.launch.java import find_java as java_of

ROOT: Final = Path(__file__).resolve().parent.parent
BENCH: Final = ROOT / "var" / "bench"  #: results and logs
_SAMPLE_INTERVAL_S: Final = 0.2  #: sampling interval of processor time; usage after a process's last sample is lost
_EXIT_GRACE_S: Final = 20.0  #: for a child to exit after its result
_READER_JOIN_S: Final = 5.0  #: for the child's last output to reach the log


def find_java() -> None:
    """Finds Java for Spark and the peers, which inherit it from this process.

    Raises:
        SystemExit: there is none.
    """
    java = java_of(os.environ)
    if java is None:
        raise SystemExit(ADVICE)
    os.environ["JAVA_HOME"] = java
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # all processes are local; the host name need not resolve


@dataclass(kw_only=True)
class ChildResult:
    """The result of a child. `state`: "done", "killed", "did not finish" or "failed"; callers may set other states."""

    state: str = "failed"
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    heard_at: dict[str, float] = field(default_factory=dict)  #: event -> monotonic seconds
    cpu_seconds: float = 0.0


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    time_box_s: float,
    on_event: Callable[[dict[str, Any]], None] = lambda event: None,
    footprint: Footprint | None = None,
    kill_after_s: float | None = None,
) -> ChildResult:
    """Runs `command`. Blocks until the child and all its descendants have exited. Calls `on_event` with each event.

    Args:
        footprint: samples memory and checkpoint files from the start of the measured run on.
        kill_after_s: seconds from the start of the measured run to a SIGKILL of all its processes.
    """
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
            watch = _Watch(meter, footprint, time.monotonic() + time_box_s, kill_after_s)
            _read_events(child, watch, lines, outcome, on_event)
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


@dataclass
class _Watch:
    """Samples of a running child, and the time of its end by force. Times are monotonic seconds."""

    meter: "CpuMeter"
    footprint: Footprint | None
    until: float
    kill_after_s: float | None
    _kill_at: float | None = None

    def on_start(self) -> float:
        """The measured run starts. Returns the processor seconds so far."""
        if self.kill_after_s is not None:
            self._kill_at = time.monotonic() + self.kill_after_s
        return self.meter.sample()

    def sample(self, *, is_measured: bool) -> float:
        seconds = self.meter.sample()
        if self.footprint is not None and is_measured:
            self.footprint.sample(self.meter.processes)
        return seconds

    @property
    def forced_state(self) -> str | None:
        """The state of a child that has to end now; None: it goes on."""
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            return "killed"
        return "did not finish" if time.monotonic() >= self.until else None


def _read_events(
    child: "subprocess.Popen[str]",
    watch: _Watch,
    lines: "queue.SimpleQueue[str | None]",
    outcome: ChildResult,
    on_event: Callable[[dict[str, Any]], None],
) -> None:
    """Reads events until the last event, the child's exit, or its end by force."""
    cpu_before, is_gone = 0.0, False
    while protocol.MEASURED not in outcome.events:
        try:
            line = lines.get(timeout=_SAMPLE_INTERVAL_S)
        except queue.Empty:
            watch.sample(is_measured=protocol.STARTED in outcome.events)
            if is_gone:  # already at the previous sample: only descendants hold the output open
                return
            is_gone = child.poll() is not None
            if (forced := watch.forced_state) is None:
                continue
            outcome.state = forced
            return
        if line is None:
            return
        event = protocol.parse_event(line)
        assert event is not None, "the queue holds events only"
        outcome.events[event["event"]], outcome.heard_at[event["event"]] = event, time.monotonic()
        on_event(event)
        if event["event"] == protocol.STARTED:
            cpu_before = watch.on_start()
        elif event["event"] == protocol.MEASURED:
            outcome.cpu_seconds = watch.sample(is_measured=True) - cpu_before
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
