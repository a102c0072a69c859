"""The queue of checkpoint requests (Flink's `CheckpointRequestDecider`).

Order: savepoints before checkpoints, requests of users before periodic ones, older before newer. At most a single
periodic request waits. Only periodic requests respect the pause after the last completion.
"""

from dataclasses import dataclass, field
from typing import Final

from runtime.core.job.messages import CheckpointKind

QUEUE_CAPACITY: Final = 100


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A request for a checkpoint. `operation`: the user's request; None: periodic."""

    at: int
    kind: CheckpointKind
    operation: str | None = None
    #: a replanned stop or drain, for which some subtasks may have finished their logic already
    is_replanned: bool = False

    @property
    def is_periodic(self) -> bool:
        return self.operation is None

    @property
    def rank(self) -> tuple[bool, bool, int]:
        return (not self.kind.is_savepoint, self.is_periodic, self.at)


@dataclass(slots=True)
class RequestQueue:
    """Mutable, owned by the coordinator."""

    waiting: list[CheckpointRequest] = field(default_factory=list)

    def add(self, request: CheckpointRequest) -> CheckpointRequest | None:
        """Queues `request`. Returns the request that was displaced, possibly itself."""
        if request.is_periodic and any(other.is_periodic for other in self.waiting):
            return request
        self.waiting.append(request)
        self.waiting.sort(key=lambda waiting: waiting.rank)
        return self.waiting.pop() if len(self.waiting) > QUEUE_CAPACITY else None

    def take(self, pending: int, max_concurrent: int) -> CheckpointRequest | None:
        """Removes and returns the request to start now, if any."""
        if not self.waiting or pending >= max_concurrent:
            return None
        return self.waiting.pop(0)

    def clear(self) -> list[CheckpointRequest]:
        """Empties the queue. Returns the removed requests."""
        given_up, self.waiting = self.waiting, []
        return given_up
