"""The recovery horizon of a run: if it failed now, back to which time, how much to replay, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from console.health.collection import collect
from console.health.facts import RunFacts
from console.jobs.models import Run
from runtime.core.job.graph import Role
from runtime.core.job.lifecycle import FLOWING_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryHorizon:
    """The effect of a failure now.

    Args:
        point: the trigger of the newest completed checkpoint, whose positions a restore reads from; else the start of
            the run.
        checkpoint: number of that checkpoint; None: it would begin anew, or from the snapshot that it restored.
        records: records of the sources since then, by their present rates; None without rates.
        restart_ms: median time from a failure of this job to the first checkpoint of the next attempt, which begins
            250 ms after all subtasks run; None without history. `restarts`: number of failures in the median.
    """

    point: datetime
    checkpoint: int | None
    records: int | None
    restart_ms: float | None
    restarts: int

    def records_from(self, moment: datetime | None, now: datetime) -> int | None:
        """`records`, counted from another moment than `point`: a restore may begin from a later savepoint."""
        if self.records is None or moment is None or now <= self.point:
            return self.records
        return max(0, round(self.records * ((now - moment) / (now - self.point))))


def recovery_horizon(run: Run, facts: RunFacts, restarts_ms: Sequence[float]) -> RecoveryHorizon | None:
    """The horizon of a run whose records flow; None for other runs. `restarts_ms`: of its job."""
    point = facts.replays_from
    if run.run_state not in FLOWING_STATES or facts.is_batch or point is None:
        return None
    newest = facts.checkpoints.newest
    return RecoveryHorizon(
        point=point,
        checkpoint=newest.number if newest else None,
        records=_records_since(facts, point),
        restart_ms=median(restarts_ms) if restarts_ms else None,
        restarts=len(restarts_ms),
    )


def read_horizon(run: Run, now: datetime, restarts_ms: Sequence[float] = ()) -> RecoveryHorizon | None:
    """As `recovery_horizon`, with facts that are read now: five queries at most, none if no records flow."""
    if run.run_state not in FLOWING_STATES or run.version.is_batch:
        return None
    return recovery_horizon(run, collect([run], now)[run.pk], restarts_ms)


def _records_since(facts: RunFacts, point: datetime) -> int | None:
    sources = [operator for operator in facts.operators.values() if operator.role is Role.SOURCE]
    if not facts.flow_s or facts.old_since is not None:
        return None
    return round(sum(source.records_per_s for source in sources) * facts.ms_since(point) / 1000)
