"""Ends of a process at a chosen point of a checkpoint: before prepare, after prepare, … in the middle of a commit.

`WatchedSink` wraps a sink of a compiled job. It kills its process (SIGKILL) or stops it (SIGSTOP) at the chosen window,
once earlier checkpoints have committed output. In the middle of a commit the process dies at a line of the connector:
the lines of an earlier commit are counted, and a fraction of them is the line at which the process dies.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pyarrow as pa

from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import EnvironmentFailure
from runtime.ports import OperatorContext, Sink, SinkCommitter, SinkWriter
from tests.contracts.sinks.holds import wait_while_held
from tests.contracts.sinks.run_lock import without_run_lock

ROOT: Final = Path(__file__).resolve().parents[3]
CONNECTORS: Final = tuple(str(ROOT / folder) for folder in ("runtime/connectors", "spark_jobs"))
RELEASE_FILE: Final = "released"  #: in the folder of a job: its source hurries
MIN_LINES: Final = 5  #: a commit of fewer lines does nothing: the connector commits elsewhere
RESTORE_LINE: Final = 20  #: line of a commit at a restore at which a process dies; at its end if it is shorter


@dataclass
class Kill:
    """The window at which this process ends. `armed` is set once checkpoints have been recorded."""

    window: str = ""
    armed: bool = False
    fraction: float = 0.5
    outages: int = 0  #: commits that fail before the target is reachable again
    folder: Path = Path()  #: of the job, see `holds`
    _lines: dict[str, int] = field(default_factory=dict)  #: method -> lines of its longest commit so far
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def at(self, window: str) -> None:
        """Ends the process if it is armed for this window."""
        if self.armed and self.window == window:
            if window == "zombie":
                self.armed = False
                with without_run_lock():
                    # To this thread: it could leave the block before the process stops if another got the signal.
                    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    def fail(self) -> None:
        """Raises as a target does that is away, a few times."""
        with self._lock:
            if self.armed and self.window == "away" and self.outages > 0:
                self.outages -= 1
                if not self.outages:
                    (self.folder / RELEASE_FILE).touch()
                raise EnvironmentFailure("the target is away")

    @contextmanager
    def in_commit(self, method: str) -> Iterator[None]:
        """Counts the lines of a commit, or dies at one of them."""
        dies = self.armed and self.window in ("commit", "restore")
        last = 0
        if dies:
            last = RESTORE_LINE if self.window == "restore" else max(1, int(self._lines.get(method, 0) * self.fraction))
            if self.window == "commit" and self._lines.get(method, 0) < MIN_LINES:
                dies = False
        count = 0

        def on_line(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal count
            if not frame.f_code.co_filename.startswith(CONNECTORS):
                return None
            if event == "line":
                count += 1
                if dies and count == last:
                    os.kill(os.getpid(), signal.SIGKILL)
            return on_line

        before = sys.gettrace()
        sys.settrace(on_line)
        try:
            yield
        finally:
            sys.settrace(before)
            self._lines[method] = max(count, self._lines.get(method, 0))
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class WatchedSink:
    """A sink whose process may die at each step."""

    inner: Sink
    kill: Kill

    @property
    def guarantee(self) -> str:
        return self.inner.guarantee

    def writer(self) -> SinkWriter:
        return _Writer(self.inner.writer(), self.kill)

    def committer(self) -> SinkCommitter:
        return _Committer(self.inner.committer(), self.kill)

    def check(self) -> None:
        self.inner.check()


class _Writer(SinkWriter):
    def __init__(self, inner: SinkWriter, kill: Kill) -> None:
        self._inner, self._kill = inner, kill

    def open(self, context: OperatorContext) -> None:
        self._inner.open(context)

    def write(self, batch: pa.RecordBatch) -> None:
        self._inner.write(batch)

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        self._kill.at("before-prepare")
        wait_while_held(self._kill.folder, "before-prepare")
        prepared = self._inner.prepare(checkpoint)
        self._kill.at("after-prepare")
        return prepared

    def next_processing_timer(self) -> int | None:
        return self._inner.next_processing_timer()

    def on_processing_time(self, now_ms: int) -> None:
        self._inner.on_processing_time(now_ms)

    def finish(self) -> None:
        self._inner.finish()

    def close(self) -> None:
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Committer(SinkCommitter):
    def __init__(self, inner: SinkCommitter, kill: Kill) -> None:
        self._inner, self._kill = inner, kill
        self.list_states, self.commits_in_master = inner.list_states, inner.commits_in_master

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        return int(self._run("commit", self._inner.commit, permit, committables))

    def commit_epoch(self, permit: CommitPermit, committables: Sequence[Any]) -> None:
        wait_while_held(self._kill.folder, "before-commit")
        self._run("commit_epoch", self._inner.commit_epoch, permit, committables)
        self._kill.at("after-commit")

    def _run(self, method: str, act: Callable[..., Any], permit: CommitPermit, committables: Sequence[Any]) -> Any:
        self._kill.at("zombie")
        self._kill.fail()
        with self._kill.in_commit(method):
            return act(permit, committables)

    def missing(self, committables: Sequence[Any]) -> list[str]:
        return self._inner.missing(committables)

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        return self._inner.clean(job, uid, token, keep)
