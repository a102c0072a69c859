"""Processes of the operating system: identity that survives pid reuse, signals, and the processes of this checkout.

Every process of a stack has `WEIR_SUPERVISED=<var>` in its environment. The supervisor sets it, and all descendants
inherit it: workers, job masters, JVMs, Python workers of Spark.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK: Final = "WEIR_SUPERVISED"
SERVER_PROGRAMS: Final = ("postgres", "redis-server", "valkey-server")
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc = ctypes.CDLL(None, use_errno=True)


class ForeignProcess(Exception):
    """The current user may not signal a process; the text names the process's user."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A pid with its start time in clock ticks since boot, which distinguishes processes that reuse a pid."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The identity of a pid; None if there is no such process or it is a zombie."""
        fields = _stat(pid)
        return cls(pid, int(fields[19])) if fields and fields[0] not in "ZX" else None

    def is_alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Signals the process if it is alive. Raises ForeignProcess: a wait for that process would never return."""
        try:
            if self.is_alive():
                os.kill(self.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            raise ForeignProcess(f"process {self.pid} was started by another user ({_user_of(self.pid)})") from None


def _user_of(pid: int) -> str:
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
        return pwd.getpwuid(uid).pw_name
    except OSError:
        return "unknown"
    except KeyError:
        return str(uid)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command name, which may have spaces and brackets; [] without a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def all_pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def session_members(session: int) -> list[ProcessId]:
    """All living processes of a session, including orphans."""
    stats = ((pid, _stat(pid)) for pid in all_pids())
    return [ProcessId(pid, int(s[19])) for pid, s in stats if s and s[0] not in "ZX" and int(s[3]) == session]


def children_of(parents: Iterable[ProcessId]) -> list[ProcessId]:
    """The living processes among `parents` and their descendants."""
    tree = {pid: (int(s[1]), int(s[19])) for pid in all_pids() if (s := _stat(pid)) and s[0] not in "ZX"}
    below = {parent.pid for parent in parents}
    while children := {pid for pid, (parent, _) in tree.items() if parent in below and pid not in below}:
        below |= children
    return [ProcessId(pid, tree[pid][1]) for pid in below if pid in tree]


def marked_processes(value: Path | str, mark: str = MARK) -> list[ProcessId]:
    """Processes with `mark=value` in their environment, except the current process and its ancestors."""
    entry = f"{mark}={value}".encode()
    spared = set(ancestors(os.getpid()))
    processes = (ProcessId.of(pid) for pid in all_pids() if pid not in spared and entry in _environment(pid))
    return [process for process in processes if process]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def environment_of(process: ProcessId) -> dict[str, str]:
    """The variables with which a process started; empty if it has ended or belongs to another user."""
    return dict(os.fsdecode(line).split("=", 1) for line in _environment(process.pid) if b"=" in line)


def ancestors(pid: int) -> Iterator[int]:
    """`pid` and its ancestors, except pid 1."""
    while pid > 1 and (fields := _stat(pid)):
        yield pid
        pid = int(fields[1])


def end_processes(find: Callable[[], list[ProcessId]], grace_s: float, first: signal.Signals = signal.SIGTERM) -> int:
    """Sends `first`, after `grace_s` SIGKILL, to processes from `find` until it returns none. Returns their number.

    The repetition catches processes that a dying process starts.
    """
    processes: set[ProcessId] = set()
    deadline = time.monotonic() + grace_s
    while matches := find():
        late = time.monotonic() > deadline
        for process in matches:
            if late or process not in processes:
                process.send(signal.SIGKILL if late else first)
        processes.update(matches)
        time.sleep(0.05)
    return len(processes)


def die_with_parent(number: signal.Signals) -> Callable[[], None]:
    """A function to run between fork and exec: the kernel then sends `number` when the parent dies for any reason."""
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the prctl call
            os._exit(1)

    return prepare


def save_identity(path: Path, process: ProcessId) -> None:
    """Writes an identity that `load_identity` accepts only until the next reboot."""
    text = json.dumps({"pid": process.pid, "started_ticks": process.started_ticks, "boot": _boot_id()})
    replace_text(path, text)


def replace_text(path: Path, text: str) -> None:
    """Writes a file atomically, so that readers never see an incomplete file."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def load_identity(path: Path) -> ProcessId | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        process = ProcessId(int(record["pid"]), int(record["started_ticks"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return process if record.get("boot") == _boot_id() and process.is_alive() else None


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def servers_in(folder: Path, programs: tuple[str, ...] = SERVER_PROGRAMS) -> list[ProcessId]:
    """Servers whose working folder is in `folder`. The mark is unreliable: servers overwrite their environment."""
    real = folder.resolve()
    processes = (ProcessId.of(pid) for pid in all_pids() if _works_in(pid, real, programs))
    return [process for process in processes if process]


def _works_in(pid: int, folder: Path, programs: tuple[str, ...]) -> bool:
    try:
        program = Path(f"/proc/{pid}/exe").readlink().name.removesuffix(" (deleted)")
        return program in programs and Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder)
    except OSError:
        return False


def adopt_orphans() -> None:
    """Makes this process the subreaper (prctl(2)): orphaned descendants become its children instead of pid 1's."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(pids: set[int]) -> None:
    """Reaps ended orphans. Stops at an ended process in `pids`, which the caller reaps."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in pids:
                return
            os.waitpid(ended.si_pid, 0)
