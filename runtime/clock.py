"""The only module of the runtime that reads the time."""

import time


class SystemClock:
    """The clock of this machine; implements `ports.Clock`."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1_000_000


class Deadline:
    """Deadline that is shared by several waits."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline. Never negative, so that the value is a valid timeout of a join."""
        return max(0.0, self._at - time.monotonic())

    @property
    def has_passed(self) -> bool:
        return self.remaining_s <= 0.0
