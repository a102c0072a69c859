"""A slot and its control connection: reports of its subtasks to the master, and events of the master to its subtasks.

Each direction is FIFO: a late message delays all messages behind it. Losing a message means losing the connection, as
with TCP: the master receives `SlotLost`, and the slot continues for a while without receiving messages.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from runtime.core.job.ids import SubtaskId
from runtime.core.snapshot.control import (
    CheckpointAborted,
    FollowWatermark,
    LiveOpened,
    ProbeSideOpened,
    SubtaskReport,
)
from runtime.core.subtask.events import CheckpointCompleted, SubtaskEvent
from runtime.simulation.world import World

T = TypeVar("T")
HEARTBEAT_MS: Final = 200


@dataclass(frozen=True, slots=True)
class ReportStarted:
    """Report: the subtask is open."""


@dataclass(frozen=True, slots=True)
class ReportFailed:
    """Report: the subtask's operator raised an exception."""

    detail: str
    is_outage: bool = False


@dataclass(frozen=True, slots=True)
class SlotLost:
    """The slot's control connection is closed."""


Report = SubtaskReport | ReportStarted | ReportFailed
SlotMessage = tuple[SubtaskId, Report] | SlotLost

#: Messages that a sender repeats when it gets no answer; `ReportStarted` and `ReportFailed` are sent once.
_REPEATABLE_MESSAGES: Final = (
    SubtaskReport,
    CheckpointCompleted,
    CheckpointAborted,
    ProbeSideOpened,
    LiveOpened,
    FollowWatermark,
)


class ControlLink(Generic[T]):
    """The control connection in a single direction."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queue: deque[tuple[int, T]] = deque()  #: (arrival time, message)

    @property
    def is_ready(self) -> bool:
        return bool(self._queue) and self._queue[0][0] <= self._world.now

    def push(self, what: T) -> None:
        delay = self._world.rng.randint(20, 200) if self._world.faults.occurs("slow_message") else 0
        before = self._queue[-1][0] if self._queue else 0
        self._queue.append((max(before, self._world.now + delay), what))

    def pop(self) -> T:
        return self._queue.popleft()[1]

    def clear(self) -> None:
        self._queue.clear()


class Slot:
    """A slot process with its heartbeats. Slot `index` runs subtask `index` of every operator."""

    def __init__(self, world: World) -> None:
        self.alive = True
        self.up: ControlLink[SlotMessage] = ControlLink(world)
        self.down: ControlLink[tuple[SubtaskId, SubtaskEvent]] = ControlLink(world)
        self._world = world
        self._connected = True
        self._beat_at = world.now

    @property
    def has_heartbeats(self) -> bool:
        return self.alive and self._connected

    def take_heartbeat(self) -> bool:
        """Takes a heartbeat, which arrives every `HEARTBEAT_MS`. Returns False if none has arrived since the last."""
        if not self.has_heartbeats or self._world.now - self._beat_at < HEARTBEAT_MS:
            return False
        self._beat_at = self._world.now
        return True

    def send_report(self, subtask: SubtaskId, report: Report) -> None:
        for _ in range(self._copies(report)):
            self.up.push((subtask, report))

    def send_event(self, subtask: SubtaskId, event: SubtaskEvent) -> None:
        for _ in range(self._copies(event) if self.alive else 0):
            self.down.push((subtask, event))

    def crash(self) -> None:
        """Kills the process. Messages that it has sent may still arrive; `SlotLost` always does."""
        self.alive = False
        if self._world.rng.random() < 0.5 and self._connected:
            self.up.clear()
        self._disconnect()

    def _copies(self, message: Report | SubtaskEvent) -> int:
        """Draws how many copies of a message arrive: 0, 1 or 2. May close the connection."""
        if self._connected and self._world.faults.occurs("lose_message"):
            self._disconnect()
        if not self._connected:
            return 0
        return 1 + (isinstance(message, _REPEATABLE_MESSAGES) and self._world.faults.occurs("repeat_message"))

    def _disconnect(self) -> None:
        self.down.clear()
        if self._connected:
            self._connected = False
            self.up.push(SlotLost())
