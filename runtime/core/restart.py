"""Whether there is another attempt after a failure, and when. It does not know why an attempt failed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartStrategy:
    """Fixed delay. `attempts` counts failures since the last completed checkpoint; 0 means none."""

    attempts: int = 10
    delay_ms: int = 1_000

    def delay_after(self, failures: int) -> int | None:
        """Milliseconds to wait before the next attempt, or None to give up, after `failures` failures in a row."""
        assert failures > 0, "asked without a failure"
        return self.delay_ms if failures <= self.attempts else None
