"""Keeps a list of processes running: starts, watches, restarts with back-off, ends in reverse order.

It decides when a process is started again and how long the end may take. It does not know what the processes are for.
One thread; every wait also listens for SIGCHLD, SIGTERM and SIGINT.
"""

from __future__ import annotations

import contextlib
import json
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
from typing import Final

from stack.folders import Account, identity
from stack.processes import ProcessId, adopt_orphans, die_with_parent, end, reap_orphans, save, session_members

_LONGEST_DELAY_S: Final = 30.0
_SETTLED_S: Final = 30.0  #: after this long without a death, back-off begins anew
_LONGEST_LOG_BYTES: Final = 20_000_000


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  #: died; to be started again
    ENDED = "ended"


class Ended(Exception):
    """Somebody asked the stack to end while it was waiting for something."""


class StartFailed(Exception):
    """A process did not come up; the text ends with its last log lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One process."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    folder: Path
    account: Account | None = None
    is_ready: Callable[[], bool] | None = field(default=None, repr=False)
    stop_signal: signal.Signals = signal.SIGTERM
    grace_s: float = 10.0
    orphan_signal: signal.Signals = signal.SIGTERM  #: what the kernel sends when the supervisor is gone
    pass_fds: tuple[int, ...] = ()
    shows_output: bool = False  #: on our own terminal instead of a log
    runs_once: bool = False  #: its end is no death


@dataclass(slots=True)
class Child:
    """A spec at work."""

    spec: Spec
    state: State = State.STARTING
    popen: subprocess.Popen[bytes] | None = None
    identity: ProcessId | None = None
    started_at_s: float = 0.0
    deaths_in_a_row: int = 0
    restarts: int = 0
    start_at_s: float = 0.0
    is_asked_to_end: bool = False

    @property
    def is_alive(self) -> bool:
        """Looks without reaping: as long as it is a zombie, nobody else is given its pid."""
        if self.popen is None or self.is_buried:
            return False
        return os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    @property
    def is_buried(self) -> bool:
        """Ended, its session cleared, and reaped: its pid may be somebody else's from now on."""
        return self.popen is not None and self.popen.returncode is not None

    @property
    def exit_code(self) -> int | None:
        """None until it is buried. Negative: ended by that signal."""
        return self.popen.returncode if self.popen else None


def delay_s(deaths_in_a_row: int, first_s: float) -> float:
    """How long to wait before the next start: doubled with every death in a row."""
    return min(first_s * 2.0 ** max(deaths_in_a_row - 1, 0), max(_LONGEST_DELAY_S, first_s))


class Supervisor:
    """Owns its children.

    Args:
        on_change: called with a line for people whenever a process changes its state.
    """

    def __init__(self, run: Path, log: Path, restart_delay_s: float, on_change: Callable[[str], None]) -> None:
        self._run = run
        self._log = log
        self._restart_delay_s = restart_delay_s
        self._on_change = on_change
        self.children: list[Child] = []
        self.is_ending = False
        self._in_a_hurry = False
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        adopt_orphans()

    def listen(self) -> None:
        """Takes over SIGINT, SIGTERM and SIGHUP: the first ends in order, the second at once."""
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._asked_to_end)

    def _asked_to_end(self, *_: object) -> None:
        self._in_a_hurry = self.is_ending
        self.is_ending = True

    # ------------------------------------------------------------ starting

    def start(self, spec: Spec) -> Child:
        child = Child(spec)
        self.children.append(child)
        self._launch(child)
        return child

    def forget(self, child: Child) -> None:
        """Ends a child without grace and leaves it out from now on."""
        self._stop(child, time.monotonic())
        self.children.remove(child)

    def wait_ready(self, child: Child, timeout_s: float, *, may_restart: bool = True) -> None:
        """Raises StartFailed, or Ended."""
        deadline = time.monotonic() + timeout_s
        while not self._sees_ready(child):
            if time.monotonic() > deadline or not (may_restart or child.is_alive):
                raise StartFailed(f"{child.spec.name} did not start:\n{self.tail(child.spec.name)}")
            self.wait(0.1)
            self.check_not_ending()
            if may_restart:
                self.tend()

    def run_once(self, spec: Spec) -> None:
        """Runs a process to its end. Raises StartFailed when it fails, or Ended."""
        child = self.start(replace(spec, runs_once=True))
        while child.is_alive:
            self.wait(0.2)
            self.check_not_ending()
            self.tend()
        self.forget(child)
        if child.exit_code != 0:
            raise StartFailed(f"{spec.name} failed:\n{self.tail(spec.name)}")

    def check_not_ending(self) -> None:
        if self.is_ending:
            raise Ended

    def _launch(self, child: Child) -> None:
        spec = child.spec
        with contextlib.ExitStack() as stack:
            sink = None if spec.shows_output else stack.enter_context(self._log_of(spec.name).open("ab"))
            child.popen = subprocess.Popen(
                list(spec.argv), env=dict(spec.environment), cwd=spec.folder, pass_fds=spec.pass_fds,
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
                preexec_fn=die_with_parent(spec.orphan_signal), **identity(spec.account),
            )  # fmt: skip
        child.identity = ProcessId.of(child.popen.pid)
        child.started_at_s = time.monotonic()
        self._move(child, State.STARTING)
        if child.identity:
            save(self._run / f"{spec.name}.pid", child.identity)

    # ------------------------------------------------------------ watching

    def wait(self, longest_s: float) -> None:
        """Until a child ends, a signal comes, or the time is up."""
        if select.select([self._wake], [], [], longest_s)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)

    def tend(self) -> None:
        """One look at everybody: notes deaths and readiness, starts what is due."""
        now = time.monotonic()
        for child in list(self.children):
            if child.is_alive:
                self._sees_ready(child)
            elif child.spec.runs_once:
                if child.state is not State.ENDED:
                    self._bury(child)
                    self._move(child, State.ENDED)
            elif child.state is not State.WAITING:
                self._note_death(child, now)
            elif now >= child.start_at_s and not self.is_ending:
                child.restarts += 1
                self._launch(child)
        reap_orphans({child.popen.pid for child in self.children if child.popen and not child.is_buried})

    def _sees_ready(self, child: Child) -> bool:
        ready = child.spec.is_ready
        waits = child.state is State.STARTING and child.is_alive and not child.spec.runs_once
        if waits and (ready is None or ready()):
            self._move(child, State.READY)
        return child.state is State.READY

    def _note_death(self, child: Child, now: float) -> None:
        assert child.popen is not None
        self._bury(child)
        settled = now - child.started_at_s > _SETTLED_S
        child.deaths_in_a_row = 1 if settled else child.deaths_in_a_row + 1
        wait_s = delay_s(child.deaths_in_a_row, self._restart_delay_s)
        child.start_at_s = now + wait_s
        self._move(child, State.WAITING, f"ended with {child.popen.returncode}, starts again in {wait_s:g} s")

    def _move(self, child: Child, state: State, detail: str = "") -> None:
        child.state = state
        self._on_change(f"{child.spec.name}: {detail or state}")

    # ------------------------------------------------------------ ending

    def stop_all(self) -> None:
        """Ends the children, last started first; a second signal from outside ends the waiting."""
        self.is_ending = True
        for child in reversed(list(self.children)):
            self.stop([child])

    def stop(self, children: Iterable[Child]) -> None:
        """Asks all of these at once, so that their graces run side by side, and waits for each."""
        leaving = list(children)
        asked_at_s = time.monotonic()
        for child in leaving:
            self._ask(child)
        for child in leaving:
            self._stop(child, asked_at_s + child.spec.grace_s)
            self.children.remove(child)

    def _ask(self, child: Child) -> None:
        """Once only: a second signal means something else to many programs."""
        if child.identity and not child.is_asked_to_end:
            child.identity.send(child.spec.stop_signal)
        child.is_asked_to_end = True

    def _stop(self, child: Child, deadline_s: float) -> None:
        self._ask(child)
        while child.is_alive and time.monotonic() < deadline_s and not self._in_a_hurry:
            self.wait(0.1)
        self._bury(child)
        (self._run / f"{child.spec.name}.pid").unlink(missing_ok=True)
        if child.state is not State.ENDED:
            self._move(child, State.ENDED)

    def _bury(self, child: Child) -> None:
        """Kills what there is of its session (pool workers, say, that a dead process left), then reaps it.

        In this order and once only: afterwards its pid, and a session of that number, may be somebody else's.
        """
        popen = child.popen
        if popen is None or child.is_buried:
            return
        end(lambda: session_members(popen.pid), grace_s=0, first=signal.SIGKILL)
        popen.wait()

    # ------------------------------------------------------------ telling

    def tail(self, name: str, lines: int = 25) -> str:
        try:
            text = self._log_of(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def report(self) -> list[dict[str, object]]:
        """Rows for `make status`."""
        return [
            {"name": c.spec.name, "state": c.state, "pid": c.popen.pid if c.popen else None, "restarts": c.restarts}
            for c in self.children
        ]

    def _log_of(self, name: str) -> Path:
        return self._log / f"{name}.log"


def rotate_logs(log: Path, longest_bytes: int = _LONGEST_LOG_BYTES) -> None:
    """Keeps one older part of each log. The file itself stays, for whoever has it open: children append to it."""
    for path in log.glob("*.log"):
        if path.stat().st_size > longest_bytes:
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)


def write_status(path: Path, status: Mapping[str, object]) -> None:
    """At once whole: a reader never sees half a status."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(status, indent=1), encoding="utf-8")
    temporary.replace(path)
