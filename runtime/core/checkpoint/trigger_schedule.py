"""When the clock asks for a checkpoint: the period, the pause after a completion, and one more try after a failure.

It does not know what is pending or waits; the coordinator does. The law it keeps: the period does not drift, and a
failure is answered at once, yet only once in a period: while storage is away, every checkpoint fails, and ids must
not be burnt in a loop. (Flink's `CheckpointCoordinator.scheduleTriggerWithDelay`.)
"""

from dataclasses import dataclass
from typing import Final

SOON_MS: Final = 250  #: time for something to be committed


@dataclass(slots=True)
class Pacing:
    """Mutable, owned by the coordinator. Times are milliseconds."""

    interval_ms: int | None  #: None: the clock never asks
    min_pause_ms: int
    next_at: int | None = None  #: when it asks next; None: it does not
    _last_completed_at: int | None = None
    _retried: bool = False  #: in this period

    def start(self, at: int, resumed: bool = False) -> int | None:
        """Begins to ask, one interval from now. Whatever was planned before is dropped.

        For a job that was resumed sooner: what it commits is late already.
        """
        if self.interval_ms is None:
            self.next_at = None
        elif resumed:
            self.next_at = at + min(self.interval_ms, SOON_MS)
        else:
            self.next_at = at + self.interval_ms
        return self.next_at

    def stop(self) -> None:
        self.next_at = None

    def ask(self, at: int) -> int | None:
        """If the clock asks now: when it asks again. Periods that were slept through are lost."""
        if self.interval_ms is None or self.next_at is None or at < self.next_at:
            return None
        self._retried = False
        slept = (at - self.next_at) // self.interval_ms
        self.next_at += (slept + 1) * self.interval_ms
        return self.next_at

    def completed(self, at: int) -> None:
        self._last_completed_at = at

    def held_back(self, at: int) -> int | None:
        """While the pause after the last completion lasts: when the clock asks next, at its end at the latest."""
        if self._last_completed_at is None or at >= self._last_completed_at + self.min_pause_ms:
            return None
        end = self._last_completed_at + self.min_pause_ms
        self.next_at = end if self.next_at is None else min(end, self.next_at)
        return self.next_at

    def may_retry(self) -> bool:
        """Whether one that failed is tried again now, rather than in the next period."""
        return self.next_at is not None and not self._retried

    def retried(self) -> None:
        self._retried = True
