"""Whether there is another attempt after a failure, and when. It does not know why an attempt failed.

A strategy is a value with one method. What it has to remember between failures, their number in a row, its caller
keeps; chance and time arrive from outside.
"""

from dataclasses import dataclass
from typing import Final

OUTAGE: Final = "outage"  #: code of an attempt that failed because storage or a service was away
SLOT_OUT_OF_MEMORY: Final = "slot-out-of-memory"  #: code of an attempt in which a slot exceeded `slot_memory_mb`
#: An attempt that exceeds the bound later than this counts as a first failure. An earlier checkpoint does not end the
#: row: state that has outgrown the bound is restored, checkpointed once more, and exceeds the bound again.
MIN_RUN_WITHIN_MEMORY_MS: Final = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt that failed, as a strategy sees it."""

    ran_ms: int  #: how long it had been running without a failure; 0 if it never came so far
    progressed: bool  #: a checkpoint was completed in it
    draw: float  #: a random number in [0, 1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`failures`: how many in a row, this one included. `delay_ms`: None means give up."""

    failures: int
    delay_ms: int | None


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The first failure is the last."""

    def after(self, failure: Failure, before: int) -> Verdict:
        """`before`: failures in a row until now."""
        return Verdict(before + 1, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay:
    """Up to `attempts` restarts after failures in a row; a completed checkpoint ends the row."""

    attempts: int = 10
    delay_ms: int = 1_000

    def after(self, failure: Failure, before: int) -> Verdict:
        """`before`: failures in a row until now."""
        failures = 1 if failure.progressed else before + 1
        return Verdict(failures, self.delay_ms if failures <= self.attempts else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay:
    """The delay grows with every failure in a row and never gives up; running for long enough ends the row.

    As Flink's: the delay is `initial_ms * multiplier ** (failures - 1)`, plus or minus up to `jitter` of it, so that
    jobs that failed together do not return together; never below `initial_ms` nor above `max_ms`. An attempt that
    ran for `reset_after_ms` ends the row, a completed checkpoint does not.
    """

    initial_ms: int = 1_000
    max_ms: int = 60_000
    multiplier: float = 1.5
    reset_after_ms: int = 3_600_000
    jitter: float = 0.1

    def after(self, failure: Failure, before: int) -> Verdict:
        """`before`: failures in a row until now."""
        failures = 1 if failure.ran_ms >= self.reset_after_ms else before + 1
        return Verdict(failures, self._jittered_ms(self._backoff_ms(failures), failure.draw))

    def _backoff_ms(self, failures: int) -> int:
        try:
            return min(round(self.initial_ms * self.multiplier ** (failures - 1)), self.max_ms)
        except OverflowError:
            return self.max_ms

    def _jittered_ms(self, backoff_ms: int, draw: float) -> int:
        offset_ms = round(backoff_ms * self.jitter * (2 * draw - 1))
        return max(self.initial_ms, min(backoff_ms + offset_ms, self.max_ms))


class RepeatedErrors:
    """Recognises a programming error that came again at the same record; no strategy helps against it.

    Mutable, owned by one master. Two failures are of the same record when they are equal and no checkpoint was
    completed in between, since both attempts then read the same rows.
    """

    def __init__(self) -> None:
        self._last = ""

    def is_final(self, error: str, progressed: bool) -> bool:
        """`error`: equal for failures of the same code at the same record; empty for all others."""
        repeated = bool(error) and error == self._last and not progressed
        self._last = error
        return repeated


RestartStrategy = NoRestart | FixedDelay | ExponentialDelay
