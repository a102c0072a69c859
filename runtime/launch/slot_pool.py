"""Slot pool: processes or threads that outlive an attempt and run a slot of each attempt.

A slot belongs to a single attempt: its connections are fenced by the attempt's token and close with it. A pool member
(the task of a Spark stage, or a thread) stays. It has a control connection of its own to the master, fenced by the
token of the attempt for which the pool was launched. The whole pool ends if a member is lost, or if its slot does not
exit in time. The pool is independent of Spark; the master decides when an attempt is over.
"""

import os
import queue
import secrets
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import structlog

from runtime.core.job.ids import Token
from runtime.dataflow.plan import CompiledJob
from runtime.io.control.endpoints import ControlClient, ControlServer, Hello
from runtime.master.launcher import SlotPhase, SlotStatus

_DETAIL_CHARACTERS: Final = 1_000
RELAUNCH_S: Final = 1.0  #: between launches of a pool that loses a member before any slot runs
EMPTY_S: Final = 5.0  #: how long slots have to exit after `Shutdown`; then their pool is stopped

log = structlog.get_logger()

Ended = Callable[[str | None], None]


class Assignment(msgspec.Struct, frozen=True):
    """To a pool member: run a slot of this attempt."""

    token: int
    secret: str
    master: str


class Vacant(msgspec.Struct, frozen=True, tag=True):
    """From a pool member: the slot of attempt `token` has exited, with its connections and threads."""

    token: int


class Broken(msgspec.Struct, frozen=True, tag=True):
    """From a pool member: it has failed and runs no further slots."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Address and credentials of the pool, passed to each member at its start."""

    token: Token
    secret: str
    master: str


def stand_ready(stand: Stand, index: int, run: Callable[[Assignment], None]) -> None:
    """Runs slots until the master closes the connection. `run` returns when the slot of that attempt has exited."""
    inbox: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
    hello = Hello(
        token=stand.token, secret=stand.secret, slot=index, pid=os.getpid(), host=socket.gethostname(), address=""
    )
    master = ControlClient(
        stand.master, hello, Assignment, on_message=inbox.put, on_lost=lambda reason: inbox.put(None)
    )
    try:
        while (assignment := inbox.get()) is not None:
            run(assignment)
            master.send(Vacant(assignment.token))
    except Exception as error:
        master.send(Broken(repr(error)[:_DETAIL_CHARACTERS]))
        raise
    finally:
        master.close()


class Stage:
    """Master's view of the pool members of a single launch. Thread-safe."""

    def __init__(self, token: Token, size: int, host: str) -> None:
        self._places = size
        self._changed = threading.Condition()
        self._assignment: Assignment | None = None
        self._ended: Ended = lambda error: None
        self._there: set[int] = set()
        self._vacant: set[int] = set()
        self._broken = False
        self._over = False
        self._slots_lost = False
        self._status = SlotStatus(phase=SlotPhase.OPENING, wanted=size)
        self._error: str | None = None
        secret = secrets.token_hex(16)
        self._server = ControlServer(
            token, secret, Vacant | Broken, on_hello=self._arrived, on_message=self._heard, on_lost=self.lost, host=host
        )
        self.stand = Stand(token=token, secret=secret, master=self._server.address)

    @property
    def stands(self) -> bool:
        """Whether no member was lost."""
        return not self._broken and not self._over

    @property
    def lost_its_slots(self) -> bool:
        """Whether the cluster took a member away before any slot ran, which is no failure of the job."""
        return self._slots_lost and not self.stands

    @property
    def status(self) -> SlotStatus:
        with self._changed:
            if not self.stands or len(self._there) == self._places:
                return SlotStatus(phase=SlotPhase.READY, wanted=self._places, there=self._places)
            missing = tuple(sorted(set(range(self._places)) - self._there))
            return replace(self._status, missing=missing)

    def on_shortage(self, there: int, held_by: str) -> None:
        """Called by the launcher: the cluster has fewer slots than the pool needs, or has not started the tasks yet."""
        with self._changed:
            self._status = SlotStatus(phase=SlotPhase.WAITING, wanted=self._places, there=there, held_by=held_by)

    def on_start(self) -> None:
        """Called by the launcher when the processes of all members are starting."""
        with self._changed:
            self._status = SlotStatus(phase=SlotPhase.STARTING, wanted=self._places, there=self._places)

    def assign(self, assignment: Assignment, ended: Ended) -> None:
        """Makes every present and future member run a slot of this attempt. `ended`: see `Launcher.launch`."""
        with self._changed:
            self._assignment, self._ended = assignment, ended
            self._vacant.clear()
            stands, error = self.stands, self._error or "a pool member was lost before it was needed"
            for member in self._there:
                self._server.send(member, assignment)
        if not stands:
            ended(error)

    def is_empty(self, timeout_s: float) -> bool:
        """Waits at most `timeout_s` seconds. False: a slot still runs, or a member was lost."""
        with self._changed:
            self._changed.wait_for(lambda: not self.stands or len(self._vacant) == self._places, timeout_s)
            return self.stands and len(self._vacant) == self._places

    def dismiss(self) -> None:
        """Closes the connections of all members, which makes them exit."""
        self._server.close()

    def over(self, error: str | None, *, slots_lost: bool = False) -> None:
        """Called by the launcher once every member has exited. `slots_lost`: the cluster lost their executor."""
        with self._changed:
            self._over, self._error = True, error
            self._slots_lost = self._slots_lost or (slots_lost and self._assignment is None)
            ended = self._ended
            self._changed.notify_all()
        ended(error)

    def _arrived(self, member: int, hello: Hello) -> None:
        with self._changed:
            self._there.add(member)
            if self._assignment is not None:
                self._server.send(member, self._assignment)

    def _heard(self, member: int, message: Vacant | Broken) -> None:
        if isinstance(message, Broken):
            self._lose(member, message.detail)
        else:
            self._emptied(member, message.token)

    def _emptied(self, member: int, token: int) -> None:
        with self._changed:
            if self._assignment is None or token != self._assignment.token:
                return
            self._vacant.add(member)
            ended = self._ended
            self._changed.notify_all()
        ended(f"slot {member} has exited or could not start: see its log")

    def lost(self, member: int, reason: str) -> None:
        """A member was lost unasked. Launchers call it as well, for a member that never connected."""
        with self._changed:
            self._slots_lost = self._slots_lost or (self._assignment is None and self.stands)
        self._lose(member, reason)

    def _lose(self, member: int, reason: str) -> None:
        with self._changed:
            self._broken = True
            ended = self._ended
            self._changed.notify_all()
        ended(f"the process of slot {member} is lost: {reason}")


class StandingLauncher(ABC):
    """Base class that implements `terms.Launcher` with a pool. Subclasses start and end its members."""

    def __init__(self) -> None:
        self._stage: Stage | None = None

    @property
    @abstractmethod
    def usable(self) -> bool:
        """False once this process can start no more slots and only a fresh process could."""

    @property
    def spans_hosts(self) -> bool:
        """Whether slots may run on other hosts than this process."""
        return False

    @property
    def ui_address(self) -> str:
        return ""

    @property
    @abstractmethod
    def host(self) -> str:
        """Address at which slots reach this process."""

    @abstractmethod
    def _start(self, stage: Stage, job: CompiledJob) -> None:
        """Starts a member per slot, which calls `stand_ready`, and `stage.over` after the last. Returns at once."""

    @abstractmethod
    def _end(self) -> None:
        """Returns when the dismissed members have exited, or cannot be waited for."""

    def prepare(self, job: CompiledJob, token: Token) -> None:
        if self._stage is not None and not self._stage.stands:
            self.stop()
        self._standing(job, token)

    def status(self) -> SlotStatus:
        assert self._stage is not None, "prepare comes first"
        if not self._stage.lost_its_slots:
            return self._stage.status
        token = self._stage.stand.token
        self.stop()
        threading.Event().wait(RELAUNCH_S)
        self._standing(self._job, token)
        size = self._job.graph.parallelism
        return SlotStatus(phase=SlotPhase.WAITING, wanted=size, held_by="a slot was lost before the job started")

    def launch(self, job: CompiledJob, token: Token, secret: str, master: str, ended: Ended) -> None:
        self._standing(job, token).assign(Assignment(token, secret, master), ended)

    def _standing(self, job: CompiledJob, token: Token) -> Stage:
        """The current pool; launches a pool if there is none."""
        if self._stage is None:
            self._job = job
            self._stage = Stage(token, job.graph.parallelism, self.host)
            self._start(self._stage, job)
        return self._stage

    def rest(self) -> None:
        if self._stage is not None and not self._stage.is_empty(EMPTY_S):
            log.warning("slots did not exit in time: their pool is stopped")
            self.stop()

    def stop(self) -> None:
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.dismiss()
            self._end()
