"""The only module of the runtime that tells the time. Its twin, `ManualClock`, is in `runtime.io.memory`."""

import time


class SystemClock:
    """The clock of this machine; implements `ports.Clock`."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1_000_000


class Deadline:
    """A moment in the future, for waits that are made of several."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    @property
    def remaining_s(self) -> float:
        """Never negative, so that it can be given to a join."""
        return max(0.0, self._at - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.remaining_s <= 0.0
