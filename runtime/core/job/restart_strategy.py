"""Restart strategies: whether and when another attempt follows a failure.

Strategies are stateless: the caller keeps the number of consecutive failures; time and randomness are arguments.
"""

from dataclasses import dataclass
from typing import Final

from runtime.core.job.bounds import (
    BackoffMultiplier,
    DelayMs,
    FailureCount,
    InitialBackoffMs,
    Jitter,
    MaxBackoffMs,
    ResetAfterMs,
    check_bounds,
)
from runtime.errors import JobRejected

OUTAGE_CODE: Final = "outage"  #: code of an attempt that failed because storage or a service was unavailable
ROWS_NOT_REPEATED_CODE: Final = "rows-not-repeated"  #: code of an attempt in which a step did not repeat its rows
SLOT_OUT_OF_MEMORY_CODE: Final = "slot-out-of-memory"  #: code of an attempt in which a slot exceeded `slot_memory_mb`
#: An attempt that exceeds the memory bound after this time counts as a first failure. A completed checkpoint does not
#: reset the count: state that has outgrown the bound is restored, checkpointed once more, and exceeds the bound again.
MIN_RUN_WITHIN_MEMORY_MS: Final = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailure:
    """A failed attempt, as input of a strategy."""

    ran_ms: int  #: time in state RUNNING before the failure; 0 if it never ran
    progressed: bool  #: the attempt completed a checkpoint
    draw: float  #: a random number in [0, 1)


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """`failures`: consecutive failures including the latest. `delay_ms`: None means give up."""

    failures: int
    delay_ms: int | None


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The run fails at the first failure."""

    def decide(self, failure: AttemptFailure, before: int) -> RestartDecision:
        """`before`: number of consecutive failures before `failure`."""
        return RestartDecision(before + 1, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay:
    """Up to `attempts` restarts after consecutive failures; a completed checkpoint resets the count.

    Args:
        attempts: 0 to a million.
        delay_ms: the delay before each new attempt, up to an hour.

    Raises:
        JobRejected: a value is out of bounds; the error names the field.
    """

    attempts: FailureCount = 10
    delay_ms: DelayMs = 1_000

    def __post_init__(self) -> None:
        check_bounds(self)

    def decide(self, failure: AttemptFailure, before: int) -> RestartDecision:
        """`before`: number of consecutive failures before `failure`."""
        failures = 1 if failure.progressed else before + 1
        return RestartDecision(failures, self.delay_ms if failures <= self.attempts else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay:
    """The delay grows with each consecutive failure and restarts never stop. (Flink's exponential-delay strategy.)

    The delay is `initial_ms * multiplier ** (failures - 1)`, between `initial_ms` and `max_ms`. It is changed at random
    by up to the fraction `jitter`, so that jobs that failed together do not restart together. An attempt that completed
    a checkpoint, or ran for `reset_after_ms`, resets the count.

    Args:
        initial_ms: the delay after the first failure, 1 ms to an hour.
        max_ms: the longest delay, up to a day and not below `initial_ms`.
        multiplier: each consecutive failure multiplies the delay by this, 1 to 100.
        reset_after_ms: 1 ms to 30 days.
        jitter: 0 to 1.

    Raises:
        JobRejected: a value is out of bounds; the error names the field.
    """

    initial_ms: InitialBackoffMs = 1_000
    max_ms: MaxBackoffMs = 60_000
    multiplier: BackoffMultiplier = 1.5
    reset_after_ms: ResetAfterMs = 3_600_000
    jitter: Jitter = 0.1

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.max_ms < self.initial_ms:
            raise JobRejected("bad-settings", "max_ms", f"must not be below initial_ms ({self.initial_ms})")

    def decide(self, failure: AttemptFailure, before: int) -> RestartDecision:
        """`before`: number of consecutive failures before `failure`."""
        failures = 1 if failure.progressed or failure.ran_ms >= self.reset_after_ms else before + 1
        return RestartDecision(failures, self._jittered_ms(self._backoff_ms(failures), failure.draw))

    def _backoff_ms(self, failures: int) -> int:
        try:
            return min(round(self.initial_ms * self.multiplier ** (failures - 1)), self.max_ms)
        except OverflowError:
            return self.max_ms

    def _jittered_ms(self, backoff_ms: int, draw: float) -> int:
        offset_ms = round(backoff_ms * self.jitter * (2 * draw - 1))
        return max(self.initial_ms, min(backoff_ms + offset_ms, self.max_ms))


class RepeatedErrors:
    """Detects a programming error that repeats at the same record, so that a restart cannot help.

    Mutable, owned by a job master. Equal failures without a completed checkpoint in between concern the same record,
    since their attempts have read the same rows. Other failures may lie between them: two subtasks may fail in turn.
    """

    def __init__(self) -> None:
        self._fingerprints: set[str] = set()  #: of the failures since the last completed checkpoint

    def is_final(self, error: str, progressed: bool) -> bool:
        """Stores the fingerprint `error` (or ""). Returns whether the failure repeats without a new checkpoint."""
        if progressed:
            self._fingerprints.clear()
        repeated = error in self._fingerprints
        if error:
            self._fingerprints.add(error)
        return repeated


RestartStrategy = NoRestart | FixedDelay | ExponentialDelay
