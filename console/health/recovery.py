"""The recovery horizon of a run: if it failed now, back to which time, how much to replay, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from console.health.collection import collect
from console.health.facts import RunFacts
from console.jobs.models import Run
from console.metrics.reads import Read, records_since, with_earlier
from runtime.core.job.graph import Role
from runtime.core.job.lifecycle import FLOWING_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryHorizon:
    """The effect of a failure now.

    Args:
        point: the trigger of the newest completed checkpoint, whose positions a restore reads from; else the start of
            the run.
        checkpoint: number of that checkpoint; None: it would begin anew, or from the snapshot that it restored.
        reads: the intervals since `point`, or the newest of them; empty without recent numbers.
        total: records that the sources have read in the present attempt; None if it began after `point`.
        now: time of the numbers.
        restart_ms: median time from a failure of this job to the first checkpoint of the next attempt, which begins
            250 ms after all subtasks run; None without history. `restarts`: number of failures in the median.
    """

    point: datetime
    checkpoint: int | None
    restart_ms: float | None
    restarts: int
    reads: tuple[Read, ...]
    total: int | None
    now: datetime

    @property
    def records(self) -> int | None:
        """Records of the sources since `point`; None without recent numbers."""
        return self.records_from(self.point)

    def records_from(self, moment: datetime | None) -> int | None:
        """`records`, counted from another moment than `point`: a restore may begin from a later savepoint.

        Rates are means, so that a burst of records would count for the seconds after it too. `total` limits the count.
        """
        begin = moment or self.point
        counted = records_since(begin, self.reads, self.now)
        if counted is None or self.total is None:
            return counted
        earlier = sum(read.records - read.records_after(begin) for read in self.reads)
        return min(counted, max(0, round(self.total - earlier)))


def recovery_horizon(run: Run, facts: RunFacts, restarts_ms: Sequence[float]) -> RecoveryHorizon | None:
    """The horizon of a run whose records flow; None for other runs. `restarts_ms`: of its job."""
    point = facts.replays_from
    if run.run_state not in FLOWING_STATES or facts.is_batch or point is None:
        return None
    newest = facts.checkpoints.newest
    return RecoveryHorizon(
        point=point,
        checkpoint=newest.number if newest else None,
        restart_ms=median(restarts_ms) if restarts_ms else None,
        restarts=len(restarts_ms),
        reads=_reads_since(facts, point),
        total=_total(facts, point),
        now=facts.now,
    )


def read_horizon(run: Run, now: datetime, restarts_ms: Sequence[float] = ()) -> RecoveryHorizon | None:
    """As `recovery_horizon`, with facts that are read now. Without a flow of records there is no query."""
    if run.run_state not in FLOWING_STATES or run.version.is_batch:
        return None
    return recovery_horizon(run, collect([run], now)[run.pk], restarts_ms)


def _total(facts: RunFacts, point: datetime) -> int | None:
    """Records that the sources have read in the present attempt; None if an attempt has ended after `point`."""
    if not facts.live.operators or any(attempt.ended_at > point for attempt in facts.attempts):
        return None
    sources = [uid for uid, operator in facts.operators.items() if operator.role is Role.SOURCE]
    return sum(facts.live.operators[uid].records_out for uid in sources if uid in facts.live.operators)


def _reads_since(facts: RunFacts, point: datetime) -> tuple[Read, ...]:
    if not facts.reads or facts.old_since is not None:
        return ()
    first = facts.reads[0].begin
    ended_at = next((attempt.ended_at for attempt in facts.attempts if attempt.ended_at <= first), None)
    return with_earlier(facts.reads, point, ended_at if ended_at and ended_at > point else None)
