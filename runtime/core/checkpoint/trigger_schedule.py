"""The schedule of periodic checkpoints: the interval, the pause after a completion, and the retry after a failure.

The interval does not drift. A failed checkpoint is retried at once, but only once per interval: while storage is
unavailable every checkpoint fails, and each retry uses an id. (Flink's `CheckpointCoordinator`,
`scheduleTriggerWithDelay`.)
"""

from dataclasses import dataclass
from typing import Final

RESUMED_TRIGGER_MS: Final = 250  #: longest time until the first trigger of a resumed job


@dataclass(slots=True)
class TriggerSchedule:
    """Mutable, owned by the coordinator. Times are milliseconds."""

    interval_ms: int | None  #: None: no periodic checkpoints
    min_pause_ms: int
    next_at: int | None = None  #: next trigger; None: stopped
    _last_completed_at: int | None = None
    _has_retried: bool = False  #: a failed checkpoint was retried in this interval

    def start(self, at: int, resumed: bool = False) -> int | None:
        """Schedules the next trigger an interval from now, in place of the previous schedule. Returns its time.

        A resumed job triggers earlier: its next commit is already late, or no checkpoint has its first offsets yet.
        """
        if self.interval_ms is None:
            self.next_at = None
        elif resumed:
            self.next_at = at + min(self.interval_ms, RESUMED_TRIGGER_MS)
        else:
            self.next_at = at + self.interval_ms
        return self.next_at

    def stop(self) -> None:
        self.next_at = None

    def due(self, at: int) -> int | None:
        """The time of the next trigger if a trigger is due now, else None. Missed intervals are skipped."""
        if self.interval_ms is None or self.next_at is None or at < self.next_at:
            return None
        self._has_retried = False
        slept = (at - self.next_at) // self.interval_ms
        self.next_at += (slept + 1) * self.interval_ms
        return self.next_at

    def on_completed(self, at: int) -> None:
        self._last_completed_at = at

    def min_pause_until(self, at: int) -> int | None:
        """During the pause after a completion: the time of the next trigger, at most the pause's end; else None."""
        if self._last_completed_at is None or at >= self._last_completed_at + self.min_pause_ms:
            return None
        end = self._last_completed_at + self.min_pause_ms
        self.next_at = end if self.next_at is None else min(end, self.next_at)
        return self.next_at

    def may_retry(self) -> bool:
        """Whether a failed checkpoint may be retried now, rather than in the next interval."""
        return self.next_at is not None and not self._has_retried

    def on_retry(self) -> None:
        self._has_retried = True
