"""Failover: whether and when another attempt follows a failed attempt, as when a slot dies, hangs or raises.

The restart strategy of the job decides, with three exceptions. Except under the strategy `none`, an outage of storage
or a service is waited out without limit. A programming error that repeats at the same record ends the run.
`master.restore` decides about a damaged checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runtime.core.attempt.result import AttemptFailed
from runtime.core.job.restart_strategy import (
    MIN_RUN_WITHIN_MEMORY_MS,
    OUTAGE_CODE,
    ROWS_NOT_REPEATED_CODE,
    SLOT_OUT_OF_MEMORY_CODE,
    AttemptFailure,
    ExponentialDelay,
    NoRestart,
    RepeatedErrors,
    RestartStrategy,
)


@dataclass(frozen=True, slots=True)
class Restart:
    """Another attempt follows. `reason` and `failure` are recorded with the failed attempt."""

    reason: str
    failure: Mapping[str, Any]
    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run fails."""

    failure: Mapping[str, Any]


class Failover:
    """Counts the failures of a run. Mutable, owned by a job master."""

    def __init__(self, strategy: RestartStrategy, outage_backoff: ExponentialDelay) -> None:
        self._strategy, self._outage_backoff = strategy, outage_backoff
        self._repeated_errors = RepeatedErrors()
        self._consecutive_failures = 0
        self._consecutive_outages = 0
        self._consecutive_memory_failures = 0

    def decide(self, failed: AttemptFailed, now_ms: int, draw: float) -> Restart | GiveUp:
        """`now_ms`: milliseconds since the epoch. `draw`: a random number in [0, 1)."""
        failure = _failure_of(failed, draw)
        if self._repeated_errors.is_final(failed.fingerprint, failed.has_progressed):
            failed = replace(failed, is_final=True, detail=f"{failed.detail}. It failed twice at the same record")
        if failed.is_outage and not failed.is_final and not isinstance(self._strategy, NoRestart):
            return self._wait_out(failed, failure, now_ms)
        record: dict[str, Any] = {
            "code": failed.code or ("final" if failed.is_final else "attempt-failed"),
            "message": failed.detail,
            "operator": failed.operator,
            "story": list(failed.events),
        }
        record |= _kept_slots(failed)
        if failed.traceback:
            record |= {"slot": failed.slot, "traceback": failed.traceback}
        if failed.slot_log:
            record |= {"slot": failed.slot, "slot_log": failed.slot_log}
        if failed.code != SLOT_OUT_OF_MEMORY_CODE or failure.progressed:
            self._consecutive_memory_failures = 0
        if failed.code == SLOT_OUT_OF_MEMORY_CODE:
            self._consecutive_memory_failures += 1
            record["tries"] = self._consecutive_memory_failures
        if failed.is_final:
            return GiveUp(record)
        if failed.code == ROWS_NOT_REPEATED_CODE:  # once in a run, behind a failure that counts
            return Restart(failed.detail, record, 0)
        decision = self._strategy.decide(failure, self._consecutive_failures)
        self._consecutive_failures = record["failures"] = decision.failures
        return GiveUp(record) if decision.delay_ms is None else Restart(failed.detail, record, decision.delay_ms)

    def _wait_out(self, failed: AttemptFailed, failure: AttemptFailure, now_ms: int) -> Restart:
        """Retries at growing intervals. The restart strategy is not consulted and counts no failure."""
        decision = self._outage_backoff.decide(failure, self._consecutive_outages)
        self._consecutive_outages = decision.failures
        assert decision.delay_ms is not None, "an exponential delay never gives up"
        record = {
            "code": OUTAGE_CODE,
            "message": failed.detail,
            "operator": failed.operator,
            "tries": self._consecutive_outages,
            "next_at": now_ms + decision.delay_ms,
            **_kept_slots(failed),
        }
        return Restart(failed.detail, record, decision.delay_ms)


def _kept_slots(failed: AttemptFailed) -> dict[str, Any]:
    if not failed.kept:
        return {}
    restarted = {"restarted_operators": list(failed.restarted)} if failed.restarted else {}
    return {"kept_slots": sorted(failed.kept), **restarted}


def _failure_of(failed: AttemptFailed, draw: float) -> AttemptFailure:
    progressed = failed.has_progressed
    if failed.code == SLOT_OUT_OF_MEMORY_CODE:
        progressed = failed.ran_ms >= MIN_RUN_WITHIN_MEMORY_MS
    return AttemptFailure(ran_ms=failed.ran_ms, progressed=progressed, draw=draw)
