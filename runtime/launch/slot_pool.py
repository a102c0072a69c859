"""Slot pool: processes or threads that outlive an attempt and run a slot of each attempt.

A slot belongs to a single attempt: its connections are fenced by the attempt's token and close with it. A pool member
(a task of Spark, or a thread) stays, and keeps the number of its slot. A member that is lost is replaced; the others
stay. The pool is independent of Spark; the master decides when an attempt is over.
"""

import itertools
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import structlog

from runtime.core.job.ids import Token
from runtime.dataflow.plan import CompiledJob
from runtime.io.control.endpoints import ControlServer, Hello
from runtime.launch.member import PoolMemberFailed, SlotExited, SlotPoolAddress, StartSlot
from runtime.master.launcher import SlotPhase, SlotStatus, describe_loss

POLL_INTERVAL_S: Final = 0.5  #: between looks at members that start
REPLACEMENT_PAUSE_S: Final = 0.25  #: after a replacement: members may be lost as fast as they start
SLOT_EXIT_TIMEOUT_S: Final = 5.0  #: how long slots have to exit after `Shutdown`; then their processes are replaced

log = structlog.get_logger()

OnExit = Callable[[str | None], None]


@dataclass(slots=True)
class _Member:
    """A member of the pool. `slot`: None until the member gets a slot, which it keeps."""

    slot: int | None = None
    is_connected: bool = False
    is_running: bool = False  #: its slot has not exited


class SlotPool:
    """Master's view of the pool members of a run. Thread-safe. Members are numbered; no number is used twice."""

    def __init__(self, token: Token, size: int, host: str) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._members: dict[int, _Member] = {}
        self._attempt: StartSlot | None = None  #: slots are given to members that come; None: no slot is needed
        self._on_exit: OnExit = lambda error: None
        self._is_dismissed = False
        self._error = ""  #: why no member can start
        self._status = SlotStatus(phase=SlotPhase.OPENING, wanted=size)
        secret = secrets.token_hex(16)
        self._server = ControlServer(
            token,
            secret,
            SlotExited | PoolMemberFailed,
            on_hello=self._on_hello,
            on_message=self._on_message,
            on_lost=self._on_lost,
            host=host,
        )
        self.address = SlotPoolAddress(token=token, secret=secret, master=self._server.address)

    @property
    def error(self) -> str:
        """Why the pool can start no members; "" if it can."""
        return self._error

    @property
    def is_dismissed(self) -> bool:
        return self._is_dismissed

    @property
    def status(self) -> SlotStatus:
        with self._changed:
            connected = self._connected_members
            phase = SlotPhase.READY if self._error or connected >= self._size else self._status.phase
            return replace(self._status, phase=phase, connected=connected)

    # ------------------------------------------------------------ from the launcher

    def new_members(self, timeout_s: float) -> list[int]:
        """The numbers of members to start now. Waits at most `timeout_s` seconds for a member to be missing."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_dismissed or len(self._members) < self._size, timeout_s)
            count = 0 if self._is_dismissed else self._size - len(self._members)
            numbers = list(itertools.islice(self._numbers, count))
            self._members.update((number, _Member()) for number in numbers)
            return numbers

    def on_status(self, phase: SlotPhase, available: int = 0, cause: str = "") -> None:
        """Called by the launcher: its progress, the slots that the cluster has, and the cause of a shortage."""
        with self._changed:
            self._status = SlotStatus(phase=phase, wanted=self._size, available=available, shortage_cause=cause)

    def on_error(self, error: str) -> None:
        """Called by the launcher: members cannot be started."""
        with self._changed:
            self._error = self._error or error
            on_exit = self._end_attempt()
        on_exit(error)

    def on_end(self, number: int, error: str, *, is_retried: bool = False) -> None:
        """Called by the launcher: the process or thread of a member has ended.

        Args:
            error: why, if it is known to the launcher.
            is_retried: whether another may start even if this one never connected, as when an executor was lost.
        """
        with self._changed:
            member = self._members.get(number)
            has_failed_to_start = member is not None and not member.is_connected
            if has_failed_to_start and is_retried:
                del self._members[number]
                self._changed.notify_all()
        if has_failed_to_start and not is_retried and not self._is_dismissed:
            self.on_error(error or "a pool member has ended before it connected")

    # ------------------------------------------------------------ from the master

    def start_slots(self, attempt: StartSlot, on_exit: OnExit) -> None:
        """Makes present and future members run the slots of an attempt, one each. `on_exit`: see `Launcher.launch`.

        `attempt.slot` is ignored.
        """
        with self._changed:
            self._attempt, self._on_exit = attempt, on_exit
            for number in sorted(self._members):
                self._start_slot(number)
            error = self._error
            on_exit = self._end_attempt() if error else on_exit
        if error:
            on_exit(error)

    def release_slots(self, lost_slot: int | None, timeout_s: float) -> list[int]:
        """Waits until the slots of the last attempt have exited. Returns the members that must be killed.

        These are the members with the slot `lost_slot`, and those whose slots did not exit within `timeout_s` seconds.
        They no longer belong to the pool.
        """
        with self._changed:
            self._end_attempt()
            lost = {number for number, member in self._members.items() if member.slot == lost_slot is not None}
            self._changed.wait_for(lambda: self._running_members <= lost, timeout_s)
            killed = sorted((lost & self._members.keys()) | self._running_members)
            for number in killed:
                del self._members[number]
            self._changed.notify_all()
        for number in killed:
            self._server.drop(number)
        return killed

    def dismiss_members(self) -> None:
        """Closes the connections of all members, which makes them exit."""
        with self._changed:
            self._is_dismissed = True
            self._changed.notify_all()
        self._server.close()

    # ------------------------------------------------------------ from the members

    def _on_hello(self, number: int, hello: Hello) -> None:
        with self._changed:
            if (member := self._members.get(number)) is not None:
                member.is_connected = True
                self._start_slot(number)

    def _on_message(self, number: int, message: SlotExited | PoolMemberFailed) -> None:
        if isinstance(message, PoolMemberFailed):
            self._lose(number, message.detail)
            return
        with self._changed:
            if (member := self._members.get(number)) is None or not member.is_running:
                return
            member.is_running = False
            on_exit = self._end_attempt()
            self._changed.notify_all()
        on_exit(f"slot {member.slot} has exited or could not start: see its log")

    def _on_lost(self, number: int, reason: str) -> None:
        self._lose(number, describe_loss(reason))

    # ------------------------------------------------------------ internals, with the lock held

    def _lose(self, number: int, reason: str) -> None:
        with self._changed:
            if (member := self._members.pop(number, None)) is None:
                return
            on_exit = self._end_attempt() if member.is_running else None
            self._changed.notify_all()
        if on_exit is not None:
            on_exit(f"the process of slot {member.slot} is lost: {reason}")

    def _start_slot(self, number: int) -> None:
        """Gives a connected member its slot, or the first slot that no member has."""
        member = self._members[number]
        if self._attempt is None or not member.is_connected or member.is_running:
            return
        if member.slot is None:
            taken = {other.slot for other in self._members.values()}
            member.slot = next(slot for slot in range(self._size) if slot not in taken)
        member.is_running = True
        self._server.send(number, msgspec.structs.replace(self._attempt, slot=member.slot))

    def _end_attempt(self) -> OnExit:
        """Gives out no more slots. Returns the callback of the attempt."""
        self._attempt = None
        return self._on_exit

    @property
    def _connected_members(self) -> int:
        return sum(member.is_connected for member in self._members.values())

    @property
    def _running_members(self) -> set[int]:
        return {number for number, member in self._members.items() if member.is_running}


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
    def open(self, pool: SlotPool, job: CompiledJob) -> None:
        """Prepares the start of members. May block; returns early once the pool is dismissed.

        Raises:
            Exception: no member can start.
        """

    @abstractmethod
    def start_member(self, pool: SlotPool, number: int, job: CompiledJob) -> None:
        """Starts a member, which calls `serve_slots`. `pool.on_end` is called after its end. Returns at once."""

    @abstractmethod
    def kill_member(self, number: int) -> None:
        """Begins to end a member that hangs, if that is possible."""

    @abstractmethod
    def end_members(self) -> None:
        """Waits until the dismissed members have exited, or gives up."""

    def report(self, pool: SlotPool) -> None:
        """Reports the progress of members that start, by `pool.on_status`; called every `POLL_INTERVAL_S`."""
        pool.on_status(SlotPhase.STARTING, pool.status.wanted)

    @staticmethod
    def describe(error: Exception) -> str:
        """An error of `open` or `start_member` as text."""
        return str(error)

    # ------------------------------------------------------------ launcher.Launcher

    def prepare(self, job: CompiledJob, token: Token) -> None:
        if self._pool is not None and self._pool.error:
            self.stop()
        self._ensure_pool(job, token)

    def status(self) -> SlotStatus:
        assert self._pool is not None, "prepare comes first"
        return self._pool.status

    def launch(self, job: CompiledJob, token: Token, secret: str, master: str, ended: OnExit) -> None:
        self._ensure_pool(job, token).start_slots(StartSlot(0, token, secret, master), ended)

    def rest(self, lost_slot: int | None) -> None:
        if self._pool is not None:
            for number in self._pool.release_slots(lost_slot, self._exit_timeout_s):
                log.warning("a slot did not exit, or must not run again: its process is replaced", member=number)
                self.kill_member(number)

    def stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.dismiss_members()
            self.end_members()

    def _ensure_pool(self, job: CompiledJob, token: Token) -> SlotPool:
        """The pool, which stays for the next attempts."""
        if self._pool is None:
            self._pool = SlotPool(token, job.graph.parallelism, self.host)
            threading.Thread(target=self._fill, args=(self._pool, job), name="slot pool", daemon=True).start()
        return self._pool

    def _fill(self, pool: SlotPool, job: CompiledJob) -> None:
        """Starts members, and replaces those that are lost, until the pool is dismissed."""
        try:
            self.open(pool, job)
            while not pool.is_dismissed:
                for number in (numbers := pool.new_members(POLL_INTERVAL_S)):
                    self.start_member(pool, number, job)
                if numbers or pool.status.phase is not SlotPhase.READY:
                    self.report(pool)
                threading.Event().wait(REPLACEMENT_PAUSE_S if numbers else 0)
        except Exception as error:
            pool.on_error(self.describe(error))
