"""A slot and its control connection: what its subtasks say to the master, and what the master says to them.

Each direction is FIFO: a message that is late holds up all behind it. A message that is lost is a connection lost, as
with TCP: the master hears that the slot is gone, and the slot, which hears nothing more, goes on for a while.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from runtime.core.effects import Acknowledge, Decline, ReportBuildSide, ReportEnded, ReportFinished
from runtime.core.events import CheckpointAborted, CheckpointCompleted, ProbeSideOpened, SubtaskEvent
from runtime.core.job.ids import SubtaskId
from runtime.simulation.world import World

T = TypeVar("T")
HEARTBEAT_MS: Final = 200


@dataclass(frozen=True, slots=True)
class Started:
    """The subtask is open."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The subtask's operator raised."""

    detail: str


@dataclass(frozen=True, slots=True)
class SlotLost:
    """The slot's control connection closed."""


Report = Acknowledge | Decline | ReportBuildSide | ReportFinished | ReportEnded | Started | Broken
Said = tuple[SubtaskId, Report] | SlotLost

#: Whoever is not sure that an answer arrived says it again; a slot says once that it has started, or is broken.
_REPEATED: Final = (
    Acknowledge,
    Decline,
    ReportBuildSide,
    ReportFinished,
    ReportEnded,
    CheckpointCompleted,
    CheckpointAborted,
    ProbeSideOpened,
)


class Link(Generic[T]):
    """One direction."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queue: deque[tuple[int, T]] = deque()  #: with the time at which it arrives

    @property
    def ready(self) -> bool:
        return bool(self._queue) and self._queue[0][0] <= self._world.now

    def push(self, what: T) -> None:
        delay = self._world.rng.randint(20, 200) if self._world.faults.strikes("slow_message") else 0
        before = self._queue[-1][0] if self._queue else 0
        self._queue.append((max(before, self._world.now + delay), what))

    def pop(self) -> T:
        return self._queue.popleft()[1]

    def clear(self) -> None:
        self._queue.clear()


class Slot:
    """One process: it holds subtask `index` of every operator."""

    def __init__(self, world: World) -> None:
        self.alive = True
        self.up: Link[Said] = Link(world)
        self.down: Link[tuple[SubtaskId, SubtaskEvent]] = Link(world)
        self._world = world
        self._connected = True
        self._beat_at = world.now

    @property
    def beats(self) -> bool:
        """Whether it sends heartbeats that arrive."""
        return self.alive and self._connected

    def take_beat(self) -> bool:
        """Whether a heartbeat has arrived since the last question."""
        if not self.beats or self._world.now - self._beat_at < HEARTBEAT_MS:
            return False
        self._beat_at = self._world.now
        return True

    def say(self, subtask: SubtaskId, report: Report) -> None:
        for _ in range(self._copies(report)):
            self.up.push((subtask, report))

    def tell(self, subtask: SubtaskId, event: SubtaskEvent) -> None:
        for _ in range(self._copies(event) if self.alive else 0):
            self.down.push((subtask, event))

    def crash(self) -> None:
        """The process is gone; what it had sent may still arrive. That its connection is lost always does."""
        self.alive = False
        if self._world.rng.random() < 0.5 and self._connected:
            self.up.clear()
        self._disconnect()

    def _copies(self, message: Report | SubtaskEvent) -> int:
        """How many of a message arrive."""
        if self._connected and self._world.faults.strikes("lose_message"):
            self._disconnect()
        if not self._connected:
            return 0
        return 1 + (isinstance(message, _REPEATED) and self._world.faults.strikes("repeat_message"))

    def _disconnect(self) -> None:
        self.down.clear()
        if self._connected:
            self._connected = False
            self.up.push(SlotLost())
