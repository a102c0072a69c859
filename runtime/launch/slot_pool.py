"""Slot pool: processes or threads that outlive an attempt and run a slot of each attempt.

A slot belongs to an attempt, whose token fences its connections. A kept slot runs on between two attempts. A pool
member (a task of Spark, or a thread) stays, and keeps the number of its slot. A lost member is replaced; its siblings
stay. Spare members stand by, and the first of them takes over a lost slot. The pool is independent of Spark; the master
decides when an attempt is over.
"""

import itertools
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import structlog

from runtime.core.job.ids import Token
from runtime.dataflow.plan import CompiledJob
from runtime.io.control.endpoints import ControlServer, Hello
from runtime.launch.member import EndSlot, PoolMemberFailed, SlotExited, SlotPoolAddress, StartSlot
from runtime.master.launcher import SlotPhase, SlotStatus, describe_loss

POLL_INTERVAL_S: Final = 0.5  #: between looks at members that start
REPLACEMENT_PAUSE_S: Final = 0.25  #: after a replacement: members may be lost as fast as they start
SLOT_EXIT_TIMEOUT_S: Final = 5.0  #: how long slots have to exit after `Shutdown`; then their processes are replaced

log = structlog.get_logger()

OnExit = Callable[[int | None, str], None]  #: with the slot, if it is known, and the reason
StartMember = Callable[[int], None]


@dataclass(slots=True)
class _Member:
    """A member of the pool. `slot`: None until the member gets a slot, which it keeps."""

    slot: int | None = None  #: also of a spare
    token: int = 0  #: of the last attempt that it was told to run a slot of
    is_connected: bool = False
    is_running: bool = False  #: its slot has not exited
    is_kept: bool = False  #: its slot runs on between two attempts


class SlotPool:
    """Master's view of the pool members of a run. Thread-safe.

    Args:
        size: slots.
        numbers: numbers of its members; the launcher uses none twice.
        spares: members beside those of the slots.
    """

    def __init__(self, token: Token, size: int, host: str, numbers: Iterator[int], spares: int = 0) -> None:
        self._size, self._numbers, self._spares = size, numbers, spares
        self._changed = threading.Condition()
        self._members: dict[int, _Member] = {}
        self._lost: list[int] = []  #: members that were removed and whose process may still run
        self._attempt: StartSlot | None = None  #: assigned to members that connect; None: no slot is needed
        self._on_exit: OnExit = lambda slot, error: None
        self._is_dismissed = False
        self._error = ""  #: why a member did not start; the next attempt fails by it
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
    def is_dismissed(self) -> bool:
        return self._is_dismissed

    @property
    def status(self) -> SlotStatus:
        with self._changed:
            connected = sum(member.is_connected for member in self._members.values())
            phase = SlotPhase.READY if self._error or connected >= self._size else self._status.phase
            return replace(self._status, phase=phase, connected=connected)

    # ------------------------------------------------------------ from the launcher

    def replace_members(self, timeout_s: float) -> tuple[list[int], list[int]]:
        """The members to kill now, and the new members to start now. Waits at most `timeout_s` seconds for any.

        After the failure of a start, no member starts until an attempt has reported it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_dismissed or self._lost or self._missing_members, timeout_s)
            lost, self._lost = self._lost, []
            started = list(itertools.islice(self._numbers, self._missing_members))
            self._members.update((number, _Member()) for number in started)
            return lost, started

    def on_status(self, phase: SlotPhase, available: int = 0, cause: str = "") -> None:
        """Called by the launcher: its progress, the slots that the cluster has, and the cause of a shortage."""
        with self._changed:
            self._status = SlotStatus(phase=phase, wanted=self._size, available=available, shortage_cause=cause)

    def on_end(self, number: int, error: str, *, is_retried: bool = False) -> None:
        """Called by the launcher: the process or thread of a member has ended, or could not start.

        Args:
            error: the cause.
            is_retried: whether a member that never connected is replaced without an error, as when an executor was
                lost.
        """
        with self._changed:
            member = self._members.get(number)
            if member is None or member.is_connected or self._is_dismissed:
                return
            del self._members[number]
            self._changed.notify_all()
            if is_retried:
                log.warning("a process for slots was lost before it connected", member=number, error=error)
                return
            if len(self._members) >= self._size:
                self._give_up_spare(number, error)
                return
            if self._attempt is None:
                self._error = error
            on_exit = self._end_attempt()
        on_exit(None, error)

    # ------------------------------------------------------------ from the master

    def start_slots(self, attempt: StartSlot, on_exit: OnExit) -> None:
        """Makes present and future members run the slots of an attempt, one each. `on_exit`: see `Launcher.launch`.

        Kept slots continue in the attempt. `attempt.slot` is ignored.
        """
        with self._changed:
            error, self._error, self._on_exit = self._error, "", on_exit
            if not error:
                self._attempt = attempt
                for number in sorted(self._members):
                    self._start_slot(number)
            self._changed.notify_all()
        if error:
            on_exit(None, error)

    def release_slots(self, lost_slot: int | None, timeout_s: float, kept: Collection[int] = ()) -> None:
        """Waits until the slots of the last attempt have exited, except the slots `kept`, which run on.

        Removed are the member with the slot `lost_slot`, members whose slots did not exit within `timeout_s` seconds,
        and members that have not connected since the attempt began.
        """
        with self._changed:
            members, is_connecting = self._members.items(), self._attempt is not None
            self._end_attempt()
            lost = {number for number, member in members if is_connecting and not member.is_connected}
            if lost_slot is not None:
                lost |= {number for number, member in members if member.slot == lost_slot}
            for number, member in members:
                member.is_kept = member.is_running and member.slot in kept
                if not member.is_kept:  # a slot that was kept has no connection to an attempt
                    self._server.send(number, EndSlot())
            self._changed.wait_for(lambda: self._running_members <= lost, timeout_s)
            lost = (lost & self._members.keys()) | self._running_members
            for number in lost:
                log.warning("a process for slots is replaced", member=number, lost_slot=lost_slot)
                self._remove(number)
        for number in lost:
            self._server.drop(number)

    def dismiss_members(self) -> None:
        """Closes the connections of all members, which makes them exit."""
        with self._changed:
            self._is_dismissed = True
            self._changed.notify_all()
        self._server.close()

    # ------------------------------------------------------------ from the members

    def _on_hello(self, number: int, hello: Hello) -> None:
        with self._changed:
            member = self._members.get(number)
            if member is not None:
                member.is_connected = True
                self._start_slot(number)
        if member is None:  # it was given up before it connected
            self._server.drop(number)

    def _on_message(self, number: int, message: SlotExited | PoolMemberFailed) -> None:
        if isinstance(message, PoolMemberFailed):
            with self._changed:
                if (member := self._members.get(number)) is not None and member.slot is None:
                    self._give_up_spare(number, message.detail)
            self._lose(number, message.detail)
            return
        with self._changed:
            member = self._members.get(number)
            if member is None or not member.is_running or message.token != member.token:
                return  # a kept slot has exited, and the member begins the slot of the next attempt
            member.is_running = member.is_kept = False
            on_exit = self._end_attempt()
            self._changed.notify_all()
        on_exit(member.slot, f"slot {member.slot} has exited or could not start: see its log")

    def _on_lost(self, number: int, reason: str) -> None:
        self._lose(number, describe_loss(reason))

    def _lose(self, number: int, reason: str) -> None:
        with self._changed:
            if (member := self._members.get(number)) is None:
                return
            self._remove(number)
            on_exit = self._end_attempt() if member.is_running else None
        if on_exit is None:
            log.warning("a process for slots was lost while it ran none", member=number, reason=reason)
        else:
            on_exit(member.slot, f"the process of slot {member.slot} is lost: {reason}")

    # ------------------------------------------------------------ internals, with the lock held

    def _remove(self, number: int) -> None:
        del self._members[number]
        self._lost.append(number)
        self._changed.notify_all()

    def _start_slot(self, number: int) -> None:
        """Assigns to a connected member its slot, or the first slot that no member has. Without one, it stands by."""
        member = self._members[number]
        if self._attempt is None or not member.is_connected or (member.is_running and not member.is_kept):
            return
        if member.slot is None:
            assigned = {other.slot for other in self._members.values()}
            member.slot = next((slot for slot in range(self._size) if slot not in assigned), None)
            if member.slot is None:
                return
        member.is_running, member.is_kept, member.token = True, False, self._attempt.token
        self._server.send(number, msgspec.structs.replace(self._attempt, slot=member.slot))

    def _give_up_spare(self, number: int, error: str) -> None:
        """The pool has a spare less: its replacement would probably fail in the same way."""
        log.error("a spare process failed and is not replaced", member=number, error=error)
        self._spares = max(0, self._spares - 1)

    def _end_attempt(self) -> OnExit:
        """Assigns no further slots. Returns the callback of the attempt."""
        self._attempt = None
        return self._on_exit

    @property
    def _missing_members(self) -> int:
        return 0 if self._is_dismissed or self._error else max(0, self._size + self._spares - len(self._members))

    @property
    def _running_members(self) -> set[int]:
        """The members whose slots have to exit."""
        return {number for number, member in self._members.items() if member.is_running and not member.is_kept}


class SlotPoolLauncher(ABC):
    """Base class that implements `launcher.Launcher` with a pool. Subclasses start and end its members."""

    def __init__(self, exit_timeout_s: float = SLOT_EXIT_TIMEOUT_S, spares: int = 0) -> None:
        self._exit_timeout_s, self._spares = exit_timeout_s, spares
        self._pool: SlotPool | None = None
        self._job: CompiledJob | None = None  #: of the pool
        self._filler: threading.Thread | None = None  #: of the pool
        self._numbers = itertools.count()

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
    def open(self, pool: SlotPool, job: CompiledJob) -> StartMember:
        """Prepares the start of members, and returns a function that starts one. May block until the pool is dismissed.

        A member calls `serve_slots`. `pool.on_end` is called after its end.

        Raises:
            Exception: no member can start.
        """

    @abstractmethod
    def kill_member(self, number: int) -> None:
        """Begins to end a member that may hang, as far as that is possible."""

    @abstractmethod
    def end_members(self) -> None:
        """Waits until the dismissed members have exited, or gives up."""

    def report(self, pool: SlotPool) -> None:
        """Reports the progress of members that start, by `pool.on_status`; called every `POLL_INTERVAL_S`."""
        pool.on_status(SlotPhase.STARTING, pool.status.wanted)

    # ------------------------------------------------------------ launcher.Launcher

    def prepare(self, job: CompiledJob, token: Token) -> None:
        self._ensure_pool(job, token)

    def status(self) -> SlotStatus:
        assert self._pool is not None, "prepare comes first"
        return self._pool.status

    def launch(self, job: CompiledJob, token: Token, secret: str, master: str, ended: OnExit) -> None:
        self._ensure_pool(job, token).start_slots(StartSlot(0, token, secret, master), ended)

    def rest(self, lost_slot: int | None, kept: Collection[int] = ()) -> None:
        if self._pool is not None:
            self._pool.release_slots(lost_slot, self._exit_timeout_s, kept)

    def stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None or self._filler is None:
            return
        pool.dismiss_members()
        self._filler.join(self._exit_timeout_s)  # it may start members
        self.end_members()

    def _ensure_pool(self, job: CompiledJob, token: Token) -> SlotPool:
        """The pool, which stays for the next attempts."""
        if self._pool is None:
            self._pool = SlotPool(token, job.graph.parallelism, self.host, self._numbers, self._spares)
            arguments = (self._pool, job)
            self._filler = threading.Thread(target=self._fill, args=arguments, name="slot pool", daemon=True)
            self._filler.start()
            self._job = job
        assert self._job is job, "a launcher runs the slots of one job at a time"
        return self._pool

    def _fill(self, pool: SlotPool, job: CompiledJob) -> None:
        """Starts members, and replaces lost ones, until the pool is dismissed."""
        start: StartMember | None = None
        while not pool.is_dismissed:
            lost, numbers = pool.replace_members(POLL_INTERVAL_S)
            try:
                for number in numbers:
                    start = start or self.open(pool, job)
                    start(number)
            except Exception as error:
                for number in numbers:
                    pool.on_end(number, str(error) or type(error).__name__)
            for number in lost:
                self.kill_member(number)
            if numbers or pool.status.phase is not SlotPhase.READY:
                self.report(pool)
            if numbers:
                threading.Event().wait(REPLACEMENT_PAUSE_S)
