"""A child process in its own session, so that it can be killed with all its descendants.

Job masters and stages start further processes (a JVM, Python workers, their daemons), which would survive a kill of the
child alone. The child is reaped only after its session is empty. Until then the kernel cannot reuse its pid, which is
also the session id.
"""

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

import psutil

_KILL_TIMEOUT_S = 10.0
_TAIL_BYTES = 8192
#: Lines that a JVM and Spark write at every start.
STARTUP_LINES = re.compile(
    r"^WARNING: Using incubator modules: "
    r"|^Using Spark's default log4j profile: "
    r"|^Setting (?:default|Spark) log level to "
    r"|^To adjust logging level use sc\.setLogLevel"
    r"| WARN NativeCodeLoader: Unable to load native-hadoop library "
    r"| WARN Utils: Your hostname, .* resolves to a loopback address"
    r"| WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address"
    r"| WARN SparkConf: Note that spark\.local\.dir will be overridden by "
)


class Child:
    """A running child process. As a context manager it kills the remaining session on exit.

    `environment` replaces the whole environment; None inherits that of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        stdin: IO[bytes] | int,
        stdout: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log = log
        with log.open("ab") as stderr:
            self._log_start = stderr.tell()
            self._process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout or stderr,
                stderr=stderr,
                start_new_session=True,
                env=environment,
            )
        self._pidfd = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def wait(self, timeout_s: float) -> bool:
        """Waits until the child has ended, at most `timeout_s`. Returns whether it has ended; does not reap it."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def terminate(self) -> None:
        """Sends SIGTERM to the child only."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def end(self) -> int:
        """Kills the rest of the session and reaps the child. Returns its exit code, negative for a signal."""
        if self._process.returncode is None:
            _kill_session(self._process.pid)
            self._process.wait()
            os.close(self._pidfd)
            if self._process.stdin is not None:
                self._process.stdin.close()
        return self._process.returncode

    def log_tail(self, lines: int = 20) -> list[str]:
        """The last lines that this child wrote to its log, without the lines of every Spark start."""
        with self._log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            start = self._log_start if self._log_start <= end else 0  # the log was rotated meanwhile
            log.seek(max(start, end - _TAIL_BYTES))
            written = log.read().decode(errors="replace").splitlines()
        return [line for line in written if not STARTUP_LINES.search(line)][-lines:]


def describe_exit(code: int) -> str:
    """An exit code as text: exit code 1, signal SIGKILL."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _kill_session(session: int) -> None:
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while (members := list(_session_members(session))) and time.monotonic() < deadline:
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def _session_members(session: int) -> Iterator[int]:
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                yield pid
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
