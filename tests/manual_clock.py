"""A clock that a test sets."""

from runtime.errors import ProtocolViolation


class ManualClock:
    """Clock that stands still until it is advanced; counterpart of `SystemClock`."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return float(self._now_ms)

    def advance(self, by_ms: int) -> None:
        if by_ms < 0:
            raise ProtocolViolation(f"the clock cannot go back by {-by_ms} ms")
        self._now_ms += by_ms
