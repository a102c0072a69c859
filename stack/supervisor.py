"""A process supervisor: starts, watches, restarts with back-off, and stops processes in reverse order.

Single-threaded; every wait also reacts to SIGCHLD, SIGTERM and SIGINT.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, Final

from stack.folders import Account, identity
from stack.processes import (
    ProcessId,
    adopt_orphans,
    die_with_parent,
    end_processes,
    reap_orphans,
    save_identity,
    session_members,
)

_MAX_DELAY_S: Final = 30.0
_BACKOFF_RESET_S: Final = 30.0  #: uptime after which the back-off is reset
_MAX_LOG_BYTES: Final = 20_000_000


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  #: dead, waits for its restart
    ENDED = "ended"


class EndRequested(Exception):
    """A signal requested the end of the stack during a wait."""


class StartFailed(Exception):
    """A process did not start; the text ends with its last log lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    name: str
    argv: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    folder: Path
    account: Account | None = None
    is_ready: Callable[[], bool] | None = field(default=None, repr=False)
    before_restart: Callable[[], None] | None = field(default=None, repr=False)  #: called before each later start
    stop_signal: signal.Signals = signal.SIGTERM
    grace_s: float = 10.0
    orphan_signal: signal.Signals = signal.SIGTERM  #: the kernel sends it when the supervisor dies
    pass_fds: tuple[int, ...] = ()
    runs_once: bool = False  #: not restarted after its end


@dataclass(slots=True)
class ManagedProcess:
    """A process of the supervisor and its state."""

    spec: ProcessSpec
    state: State = State.STARTING
    popen: subprocess.Popen[bytes] | None = None
    identity: ProcessId | None = None
    started_at_s: float = 0.0
    consecutive_deaths: int = 0
    restarts: int = 0
    start_at_s: float = 0.0
    is_asked_to_end: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether the process runs. Checks without reaping: the pid of a zombie is not reused."""
        if self.popen is None or self.is_reaped:
            return False
        return os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    @property
    def is_reaped(self) -> bool:
        """Whether the process has ended, its session is killed, and it is reaped, so that its pid may be reused."""
        return self.popen is not None and self.popen.returncode is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None until the process is reaped."""
        return self.popen.returncode if self.popen else None


def spawn(spec: ProcessSpec, sink: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts a process in a new session, so that Ctrl-C in a terminal reaches only the supervisor."""
    return subprocess.Popen(
        list(spec.argv), env=dict(spec.environment), cwd=spec.folder, pass_fds=spec.pass_fds,
        stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
        preexec_fn=die_with_parent(spec.orphan_signal), **identity(spec.account),
    )  # fmt: skip


def tail(log: Path) -> str:
    """The last lines of a log."""
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])
    except OSError:
        return "(no log)"


def delay_s(deaths_in_a_row: int, first_s: float) -> float:
    """Delay in seconds before the next start, doubled with every consecutive death up to a maximum."""
    return min(first_s * 2.0 ** max(deaths_in_a_row - 1, 0), max(_MAX_DELAY_S, first_s))


class Supervisor:
    """Runs child processes.

    Args:
        on_change: called with a line for the operator whenever a process changes its state.
    """

    def __init__(self, run: Path, log: Path, restart_delay_s: float, on_change: Callable[[str], None]) -> None:
        self._run = run
        self._log = log
        self._restart_delay_s = restart_delay_s
        self._on_change = on_change
        self.children: list[ManagedProcess] = []
        self.is_ending = False
        self._stops_at_once = False
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        adopt_orphans()

    def listen(self) -> None:
        """Installs handlers of SIGINT, SIGTERM and SIGHUP: the first signal stops in order, the second at once."""
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_end_signal)

    def _on_end_signal(self, *_: object) -> None:
        self._stops_at_once = self.is_ending
        self.is_ending = True

    # ------------------------------------------------------------ starting

    def start(self, spec: ProcessSpec) -> ManagedProcess:
        """Starts a process. Raises StartFailed if the system refuses a process or a log."""
        child = ManagedProcess(spec)
        self.children.append(child)
        try:
            self._launch(child)
        except OSError as error:
            self.children.remove(child)
            raise StartFailed(f"{spec.name} did not start: {error}") from error
        return child

    def forget(self, child: ManagedProcess) -> None:
        self._stop(child, time.monotonic())
        self.children.remove(child)

    def wait_ready(self, child: ManagedProcess, timeout_s: float, *, may_restart: bool = True) -> None:
        """Waits until a child is ready. Raises StartFailed, or EndRequested after a signal."""
        deadline = time.monotonic() + timeout_s
        while not self._check_ready(child):
            if time.monotonic() > deadline or not (may_restart or child.is_alive):
                raise StartFailed(f"{child.spec.name} did not start:\n{tail(self._log_of(child.spec.name))}")
            self.wait(0.1)
            self.check_not_ending()
            if may_restart:
                self.check_children()

    def run_once(self, spec: ProcessSpec) -> None:
        """Runs a process to its end. Raises StartFailed if it fails, or EndRequested after a signal."""
        child = self.start(replace(spec, runs_once=True))
        while child.is_alive:
            self.wait(0.2)
            self.check_not_ending()
            self.check_children()
        self.forget(child)
        if child.exit_code != 0:
            raise StartFailed(f"{spec.name} failed:\n{tail(self._log_of(spec.name))}")

    def check_not_ending(self) -> None:
        if self.is_ending:
            raise EndRequested

    def _launch(self, child: ManagedProcess) -> None:
        spec = child.spec
        with self._log_of(spec.name).open("ab") as sink:
            child.popen = spawn(spec, sink)
        child.identity = ProcessId.of(child.popen.pid)
        child.started_at_s = time.monotonic()
        self._set_state(child, State.STARTING)
        if child.identity:
            with contextlib.suppress(OSError):  # the disk may be full; a process is found by its mark too
                save_identity(self._run / f"{spec.name}.pid", child.identity)

    # ------------------------------------------------------------ watching

    def wait(self, longest_s: float) -> None:
        """Waits until a child ends, a signal arrives, or `longest_s` seconds have passed."""
        poll = select.poll()  # unlike select(), it takes descriptors above 1,023
        poll.register(self._wake, select.POLLIN)
        if poll.poll(max(longest_s, 0.0) * 1000):
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)

    def check_children(self) -> None:
        """Checks all children once: records deaths and readiness, and performs due restarts."""
        now = time.monotonic()
        for child in list(self.children):
            if child.is_alive:
                self._check_ready(child)
            elif child.spec.runs_once:
                if child.state is not State.ENDED:
                    self._reap(child)
                    self._set_state(child, State.ENDED)
            elif child.state is not State.WAITING:
                self._on_death(child, now)
            elif now >= child.start_at_s and not self.is_ending:
                self._restart(child, now)
        reap_orphans({child.popen.pid for child in self.children if child.popen and not child.is_reaped})

    def _check_ready(self, child: ManagedProcess) -> bool:
        ready = child.spec.is_ready
        waits = child.state is State.STARTING and child.is_alive and not child.spec.runs_once
        if waits and (ready is None or ready()):
            self._set_state(child, State.READY)
        return child.state is State.READY

    def _on_death(self, child: ManagedProcess, now: float) -> None:
        assert child.popen is not None
        self._reap(child)
        if now - child.started_at_s > _BACKOFF_RESET_S:
            child.consecutive_deaths = 0
        self._await_restart(child, now, f"ended with {child.popen.returncode}")

    def _restart(self, child: ManagedProcess, now: float) -> None:
        child.restarts += 1
        try:
            if child.spec.before_restart is not None:
                child.spec.before_restart()
            self._launch(child)
        except OSError as error:  # the system refuses a process, or a log on a full disk
            self._await_restart(child, now, f"cannot start ({error})")

    def _await_restart(self, child: ManagedProcess, now: float, reason: str) -> None:
        child.consecutive_deaths += 1
        wait_s = delay_s(child.consecutive_deaths, self._restart_delay_s)
        child.start_at_s = now + wait_s
        self._set_state(child, State.WAITING, f"{reason}, starts again in {wait_s:g} s")

    def _set_state(self, child: ManagedProcess, state: State, detail: str = "") -> None:
        child.state = state
        self._on_change(f"{child.spec.name}: {detail or state}")

    # ------------------------------------------------------------ ending

    def stop_all(self) -> None:
        """Stops the children in reverse order of their start. A second signal cuts the grace periods short."""
        self.is_ending = True
        for child in reversed(list(self.children)):
            self.stop([child])

    def stop(self, children: Iterable[ManagedProcess]) -> None:
        """Stops the children concurrently, so that their grace periods overlap, and waits for each."""
        leaving = list(children)
        asked_at_s = time.monotonic()
        for child in leaving:
            self._send_stop_signal(child)
        for child in leaving:
            self._stop(child, asked_at_s + child.spec.grace_s)
            self.children.remove(child)

    def _send_stop_signal(self, child: ManagedProcess) -> None:
        """Sends `stop_signal`, but only once: many programs react differently to a second signal."""
        if child.identity and not child.is_asked_to_end:
            child.identity.send(child.spec.stop_signal)
        child.is_asked_to_end = True

    def _stop(self, child: ManagedProcess, deadline_s: float) -> None:
        self._send_stop_signal(child)
        while child.is_alive and time.monotonic() < deadline_s and not self._stops_at_once:
            self.wait(0.1)
        self._reap(child)
        (self._run / f"{child.spec.name}.pid").unlink(missing_ok=True)
        if child.state is not State.ENDED:
            self._set_state(child, State.ENDED)

    def _reap(self, child: ManagedProcess) -> None:
        """Kills the rest of the child's session (for example pool workers of a dead process), then reaps the child.

        The order matters: after reaping, the child's pid and session id may belong to other processes.
        """
        popen = child.popen
        if popen is None or child.is_reaped:
            return
        end_processes(lambda: session_members(popen.pid), grace_s=0, first=signal.SIGKILL)
        popen.wait()

    # ------------------------------------------------------------ status

    def report(self) -> list[dict[str, object]]:
        """Rows for `make status`."""
        return [
            {"name": c.spec.name, "state": c.state, "pid": c.popen.pid if c.popen else None, "restarts": c.restarts}
            for c in self.children
        ]

    def _log_of(self, name: str) -> Path:
        return self._log / f"{name}.log"


def rotate_logs(log: Path, longest_bytes: int = _MAX_LOG_BYTES) -> None:
    """Copies each long log to `.log.1` and truncates it. The file itself stays, because children have it open.

    On a disk without space for the copy, the log stays as it is.
    """
    for path in log.glob("*.log"):
        copy = path.with_suffix(".log.1")
        try:
            nbytes = path.stat().st_size
            if nbytes > longest_bytes and shutil.disk_usage(log).free > nbytes:
                shutil.copyfile(path, copy)
                os.truncate(path, 0)
        except OSError:
            with contextlib.suppress(OSError):
                copy.unlink(missing_ok=True)  # it is incomplete
