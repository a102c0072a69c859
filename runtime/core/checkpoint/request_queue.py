"""The queue of checkpoint requests (Flink's `CheckpointRequestDecider`).

Order: savepoints before checkpoints, requests of users before periodic ones, older before newer. At most a single
periodic request waits. Only periodic requests respect the pause after the last completion.
"""

from dataclasses import dataclass, field
from typing import Final

from runtime.core.checkpoint.events import CheckpointRequested

QUEUE_CAPACITY: Final = 100


@dataclass(slots=True)
class RequestQueue:
    """Mutable, owned by the coordinator."""

    waiting: list[CheckpointRequested] = field(default_factory=list)

    def add(self, request: CheckpointRequested) -> CheckpointRequested | None:
        """Queues `request`. Returns the request that was displaced, possibly `request` itself."""
        if request.is_periodic and any(other.is_periodic for other in self.waiting):
            return request
        self.waiting.append(request)
        self.waiting.sort(key=_rank)
        return self.waiting.pop() if len(self.waiting) > QUEUE_CAPACITY else None

    def take(self, pending: int, max_concurrent: int) -> CheckpointRequested | None:
        """Removes and returns the request to start now, if any."""
        if not self.waiting or pending >= max_concurrent:
            return None
        return self.waiting.pop(0)

    def clear(self) -> list[CheckpointRequested]:
        """Empties the queue. Returns the removed requests."""
        given_up, self.waiting = self.waiting, []
        return given_up


def _rank(request: CheckpointRequested) -> tuple[bool, bool, int]:
    return (not request.kind.is_savepoint, request.is_periodic, request.at)
