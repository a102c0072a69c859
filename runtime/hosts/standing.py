"""What slots run in, kept from attempt to attempt: processes that stand ready, and what each is to run next.

A slot belongs to one attempt: its connections are fenced by the attempt's token, and end with it. What stays is a place
for it (the task of a Spark stage, or a thread), with one connection of its own to the master, fenced by the token of
the attempt that the stage was launched for. A place that does not empty in time, or is lost, ends the whole stage. It
knows no Spark and does not decide when an attempt is over.
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

from runtime.blueprint import CompiledJob
from runtime.core.ids import Token
from runtime.hosts.terms import SlotPhase, SlotStatus
from runtime.io.control import ControlClient, ControlServer, Hello

_DETAIL_CHARACTERS: Final = 1_000
RELAUNCH_S: Final = 1.0  #: between launches that lose a place before any slot runs
EMPTY_S: Final = 5.0  #: how long slots that were told to end have for it; then their stage is given up

log = structlog.get_logger()

Ended = Callable[[str | None], None]


class Assignment(msgspec.Struct, frozen=True):
    """To a place: run a slot of this attempt."""

    token: int
    secret: str
    master: str


class Vacant(msgspec.Struct, frozen=True, tag=True):
    """From a place: the slot of attempt `token` is gone, with its connections and threads."""

    token: int


class Broken(msgspec.Struct, frozen=True, tag=True):
    """From a place: it ends by an error, and runs nothing any more."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """What a place is told before anything else."""

    token: Token
    secret: str
    master: str


def stand_ready(stand: Stand, index: int, run: Callable[[Assignment], None]) -> None:
    """Blocks as long as the master wants this place: `run` returns when the slot of that attempt is gone."""
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
    """The places of one launch, seen by the master. Any thread may call."""

    def __init__(self, token: Token, places: int, host: str) -> None:
        self._places = places
        self._changed = threading.Condition()
        self._assignment: Assignment | None = None
        self._ended: Ended = lambda error: None
        self._there: set[int] = set()
        self._vacant: set[int] = set()
        self._broken = False
        self._over = False
        self._slots_lost = False
        self._status = SlotStatus(phase=SlotPhase.OPENING, wanted=places)
        self._error: str | None = None
        secret = secrets.token_hex(16)
        self._server = ControlServer(
            token, secret, Vacant | Broken, on_hello=self._arrived, on_message=self._heard, on_lost=self.lost, host=host
        )
        self.stand = Stand(token=token, secret=secret, master=self._server.address)

    @property
    def stands(self) -> bool:
        """Whether no place was lost."""
        return not self._broken and not self._over

    @property
    def lost_its_slots(self) -> bool:
        """Whether the cluster took a place away before any slot ran: not a failure of the job."""
        return self._slots_lost and not self.stands

    @property
    def status(self) -> SlotStatus:
        with self._changed:
            if not self.stands or len(self._there) == self._places:
                return SlotStatus(phase=SlotPhase.READY, wanted=self._places, there=self._places)
            missing = tuple(sorted(set(range(self._places)) - self._there))
            return replace(self._status, missing=missing)

    def on_shortage(self, there: int, held_by: str) -> None:
        """Called by the launcher: the cluster has fewer slots than places, or does not run them yet."""
        with self._changed:
            self._status = SlotStatus(phase=SlotPhase.WAITING, wanted=self._places, there=there, held_by=held_by)

    def on_start(self) -> None:
        """Called by the launcher: the processes of all places are being started."""
        with self._changed:
            self._status = SlotStatus(phase=SlotPhase.STARTING, wanted=self._places, there=self._places)

    def assign(self, assignment: Assignment, ended: Ended) -> None:
        """Every place, also one still to come, runs a slot of this attempt.

        `ended` hears of each slot that ends, and of the end of the stage.
        """
        with self._changed:
            self._assignment, self._ended = assignment, ended
            self._vacant.clear()
            stands, error = self.stands, self._error or "a place was gone before it was needed"
            for place in self._there:
                self._server.send(place, assignment)
        if not stands:
            ended(error)

    def is_empty(self, timeout_s: float) -> bool:
        """Waits until every slot of the last assignment is gone. False: some is not, or a place was lost."""
        with self._changed:
            self._changed.wait_for(lambda: not self.stands or len(self._vacant) == self._places, timeout_s)
            return self.stands and len(self._vacant) == self._places

    def dismiss(self) -> None:
        """No place is wanted any more; each sees its connection end."""
        self._server.close()

    def over(self, error: str | None, *, slots_lost: bool = False) -> None:
        """Called by the launcher: every place is gone. `slots_lost`: because the cluster lost what they ran in."""
        with self._changed:
            self._over, self._error = True, error
            self._slots_lost = self._slots_lost or (slots_lost and self._assignment is None)
            ended = self._ended
            self._changed.notify_all()
        ended(error)

    def _arrived(self, place: int, hello: Hello) -> None:
        with self._changed:
            self._there.add(place)
            if self._assignment is not None:
                self._server.send(place, self._assignment)

    def _heard(self, place: int, message: Vacant | Broken) -> None:
        if isinstance(message, Broken):
            self._lose(place, message.detail)
        else:
            self._emptied(place, message.token)

    def _emptied(self, place: int, token: int) -> None:
        with self._changed:
            if self._assignment is None or token != self._assignment.token:
                return
            self._vacant.add(place)
            ended = self._ended
            self._changed.notify_all()
        ended(f"slot {place} has ended, or could not begin: its log tells")

    def lost(self, place: int, reason: str) -> None:
        """A place is gone without being told to go; whoever launched it may know of one that never said hello."""
        with self._changed:
            self._slots_lost = self._slots_lost or (self._assignment is None and self.stands)
        self._lose(place, reason)

    def _lose(self, place: int, reason: str) -> None:
        with self._changed:
            self._broken = True
            ended = self._ended
            self._changed.notify_all()
        ended(f"the place of slot {place} is gone: {reason}")


class StandingLauncher(ABC):
    """Implements `terms.Launcher`. How places are started and ended is for those who extend it."""

    def __init__(self) -> None:
        self._stage: Stage | None = None

    @property
    @abstractmethod
    def usable(self) -> bool:
        """False when this process can start no slots any more, and only a fresh one could."""

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
        """The address at which slots reach this process."""

    @abstractmethod
    def _start(self, stage: Stage, job: CompiledJob) -> None:
        """Starts a place per slot, each of which calls `stand_ready`; at their end `stage.over`. Returns at once."""

    @abstractmethod
    def _end(self) -> None:
        """Returns when the places, which were dismissed, are gone or cannot be waited for."""

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
        places = self._job.graph.parallelism
        return SlotStatus(phase=SlotPhase.WAITING, wanted=places, held_by="a slot was lost before the job started")

    def launch(self, job: CompiledJob, token: Token, secret: str, master: str, ended: Ended) -> None:
        self._standing(job, token).assign(Assignment(token, secret, master), ended)

    def _standing(self, job: CompiledJob, token: Token) -> Stage:
        """The stage that there is, or a new one."""
        if self._stage is None:
            self._job = job
            self._stage = Stage(token, job.graph.parallelism, self.host)
            self._start(self._stage, job)
        return self._stage

    def rest(self) -> None:
        if self._stage is not None and not self._stage.is_empty(EMPTY_S):
            log.warning("slots did not empty their places, which are given up")
            self.stop()

    def stop(self) -> None:
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.dismiss()
            self._end()
