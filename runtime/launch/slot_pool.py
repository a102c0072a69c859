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

from runtime.access.redaction import redact
from runtime.core.job.ids import Token
from runtime.dataflow.plan import CompiledJob
from runtime.io.control.endpoints import ControlClient, ControlServer, Hello
from runtime.master.launcher import SlotPhase, SlotStatus, describe_loss

_MAX_DETAIL_CHARACTERS: Final = 1_000
RELAUNCH_PAUSE_S: Final = 1.0  #: between launches of a pool that loses a member before any slot runs
SLOT_EXIT_TIMEOUT_S: Final = 5.0  #: how long slots have to exit after `Shutdown`; then their pool is stopped

log = structlog.get_logger()

OnExit = Callable[[str | None], None]


class StartSlot(msgspec.Struct, frozen=True):
    """To a pool member: run a slot of attempt `token`."""

    token: int
    secret: str
    master: str


class SlotExited(msgspec.Struct, frozen=True, tag=True):
    """From a pool member: the slot of attempt `token` has exited, with its connections and threads."""

    token: int


class PoolMemberFailed(msgspec.Struct, frozen=True, tag=True):
    """From a pool member: it has failed and runs no further slots."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPoolAddress:
    """Address and credentials of the pool, passed to each member at its start."""

    token: Token
    secret: str
    master: str


def serve_slots(address: SlotPoolAddress, index: int, run: Callable[[StartSlot], None]) -> None:
    """Runs slots until the master closes the connection. `run` runs a slot and returns when the slot has exited."""
    inbox: queue.SimpleQueue[StartSlot | None] = queue.SimpleQueue()
    hello = Hello(
        token=address.token,
        secret=address.secret,
        slot=index,
        pid=os.getpid(),
        host=socket.gethostname(),
        address="",
    )
    master = ControlClient(
        address.master, hello, StartSlot, on_message=inbox.put, on_lost=lambda reason: inbox.put(None)
    )
    try:
        while (assignment := inbox.get()) is not None:
            run(assignment)
            master.send(SlotExited(assignment.token))
    except Exception as error:
        master.send(PoolMemberFailed(redact(repr(error))[:_MAX_DETAIL_CHARACTERS]))
        raise
    finally:
        master.close()


class SlotPool:
    """Master's view of the pool members of a single launch. Thread-safe."""

    def __init__(self, token: Token, size: int, host: str) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._assignment: StartSlot | None = None
        self._on_exit: OnExit = lambda error: None
        self._members: set[int] = set()
        self._exited_members: set[int] = set()
        self._has_lost_member = False
        self._has_ended = False
        self._slots_lost = False
        self._status = SlotStatus(phase=SlotPhase.OPENING, wanted=size)
        self._error: str | None = None
        secret = secrets.token_hex(16)
        self._server = ControlServer(
            token,
            secret,
            SlotExited | PoolMemberFailed,
            on_hello=self._on_hello,
            on_message=self._on_message,
            on_lost=self.on_lost,
            host=host,
        )
        self.address = SlotPoolAddress(token=token, secret=secret, master=self._server.address)

    @property
    def is_intact(self) -> bool:
        """Whether no member was lost and the pool has not ended."""
        return not self._has_lost_member and not self._has_ended

    @property
    def has_lost_slots(self) -> bool:
        """Whether the cluster took a member away before any slot ran, which is no failure of the job."""
        return self._slots_lost and not self.is_intact

    @property
    def status(self) -> SlotStatus:
        with self._changed:
            if not self.is_intact or len(self._members) == self._size:
                return SlotStatus(phase=SlotPhase.READY, wanted=self._size, available=self._size)
            missing = tuple(sorted(set(range(self._size)) - self._members))
            return replace(self._status, missing=missing)

    def on_shortage(self, available: int, cause: str) -> None:
        """Called by the launcher: the cluster has fewer slots than the pool needs, or has not started the tasks yet."""
        with self._changed:
            self._status = SlotStatus(
                phase=SlotPhase.WAITING, wanted=self._size, available=available, shortage_cause=cause
            )

    def on_start(self) -> None:
        """Called by the launcher when the processes of all members are starting."""
        with self._changed:
            self._status = SlotStatus(phase=SlotPhase.STARTING, wanted=self._size, available=self._size)

    def start_slots(self, assignment: StartSlot, ended: OnExit) -> None:
        """Makes every present and future member run a slot of the attempt. `ended`: see `Launcher.launch`."""
        with self._changed:
            self._assignment, self._on_exit = assignment, ended
            self._exited_members.clear()
            stands, error = self.is_intact, self._error or "a pool member was lost before it was needed"
            for member in self._members:
                self._server.send(member, assignment)
        if not stands:
            ended(error)

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Waits at most `timeout_s` seconds for all slots to exit. False: a slot still runs, or a member was lost."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_intact or len(self._exited_members) == self._size, timeout_s)
            return self.is_intact and len(self._exited_members) == self._size

    def dismiss_members(self) -> None:
        """Closes the connections of all members, which makes them exit."""
        self._server.close()

    def on_end(self, error: str | None, *, slots_lost: bool = False) -> None:
        """Called by the launcher once every member has exited. `slots_lost`: the cluster lost an executor."""
        with self._changed:
            self._has_ended, self._error = True, error
            self._slots_lost = self._slots_lost or (slots_lost and self._assignment is None)
            ended = self._on_exit
            self._changed.notify_all()
        ended(error)

    def _on_hello(self, member: int, hello: Hello) -> None:
        with self._changed:
            self._members.add(member)
            if self._assignment is not None:
                self._server.send(member, self._assignment)

    def _on_message(self, member: int, message: SlotExited | PoolMemberFailed) -> None:
        if isinstance(message, PoolMemberFailed):
            self._break_up(member, message.detail)
        else:
            self._on_slot_exited(member, message.token)

    def _on_slot_exited(self, member: int, token: int) -> None:
        with self._changed:
            if self._assignment is None or token != self._assignment.token:
                return
            self._exited_members.add(member)
            ended = self._on_exit
            self._changed.notify_all()
        ended(f"slot {member} has exited or could not start: see its log")

    def on_lost(self, member: int, reason: str) -> None:
        """A member was lost without being dismissed. Launchers call it as well, for a member that never connected."""
        with self._changed:
            self._slots_lost = self._slots_lost or (self._assignment is None and self.is_intact)
        self._break_up(member, describe_loss(reason))

    def _break_up(self, member: int, reason: str) -> None:
        with self._changed:
            self._has_lost_member = True
            ended = self._on_exit
            self._changed.notify_all()
        ended(f"the process of slot {member} is lost: {reason}")


class SlotPoolLauncher(ABC):
    """Base class that implements `launcher.Launcher` with a pool. Subclasses start and end its members."""

    def __init__(self, exit_timeout_s: float = SLOT_EXIT_TIMEOUT_S) -> None:
        self._exit_timeout_s = exit_timeout_s
        self._pool: SlotPool | None = None

    @property
    @abstractmethod
    def loss(self) -> str:
        """Why this process can start no more slots and only a fresh process could; "" while it can."""

    @property
    def spans_hosts(self) -> bool:
        """Whether slots may run on other hosts than this process."""
        return False

    @property
    def ui_address(self) -> str:
        return ""

    @property
    def application(self) -> str:
        return ""

    @property
    @abstractmethod
    def host(self) -> str:
        """Address at which slots reach this process."""

    @abstractmethod
    def start_members(self, pool: SlotPool, job: CompiledJob) -> None:
        """Starts a member per slot, which calls `serve_slots`. Calls `pool.on_end` after the last. Returns at once."""

    @abstractmethod
    def end_members(self) -> None:
        """Waits until the dismissed members have exited, or gives up."""

    def prepare(self, job: CompiledJob, token: Token) -> None:
        if self._pool is not None and not self._pool.is_intact:
            self.stop()
        self._ensure_pool(job, token)

    def status(self) -> SlotStatus:
        assert self._pool is not None, "prepare comes first"
        if not self._pool.has_lost_slots:
            return self._pool.status
        token = self._pool.address.token
        self.stop()
        threading.Event().wait(RELAUNCH_PAUSE_S)
        self._ensure_pool(self._job, token)
        size = self._job.graph.parallelism
        return SlotStatus(phase=SlotPhase.WAITING, wanted=size, shortage_cause="a slot was lost before the job started")

    def launch(self, job: CompiledJob, token: Token, secret: str, master: str, ended: OnExit) -> None:
        self._ensure_pool(job, token).start_slots(StartSlot(token, secret, master), ended)

    def _ensure_pool(self, job: CompiledJob, token: Token) -> SlotPool:
        """The current pool; launches a pool if there is none."""
        if self._pool is None:
            self._job = job
            self._pool = SlotPool(token, job.graph.parallelism, self.host)
            self.start_members(self._pool, job)
        return self._pool

    def rest(self) -> None:
        if self._pool is not None and not self._pool.wait_until_empty(self._exit_timeout_s):
            log.warning("slots did not exit in time: their pool is stopped")
            self.stop()

    def stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.dismiss_members()
            self.end_members()
