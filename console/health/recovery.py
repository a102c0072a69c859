"""The recovery horizon of a run: if it failed now, back to which time, how much to replay, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final

from django.db.models import OuterRef, Subquery

from console.checkpoints.models import Checkpoint
from console.health.facts import RunFacts
from console.jobs.models import Attempt, AttemptOutcome, Run
from runtime.core.job.graph import Role
from runtime.core.job.lifecycle import FLOWING_STATES

_RESTARTS: Final = 10  #: of the job, that the expected time is computed from


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryHorizon:
    """The effect of a failure now.

    Args:
        point: the trigger of the newest completed checkpoint, whose positions a restore reads from; else the start of
            the run.
        checkpoint: number of that checkpoint; None: the run would begin anew.
        records: records of the sources since then, by their present rates; None without rates.
        restart_ms: median time from a failure of this job to the first checkpoint of the next attempt, which begins
            250 ms after all subtasks run; None without history. `restarts`: number of failures in the median.
    """

    point: datetime
    checkpoint: int | None
    records: int | None
    restart_ms: float | None
    restarts: int


def recovery_horizon(run: Run, facts: RunFacts) -> RecoveryHorizon | None:
    """The horizon of a run whose records flow; None for other runs. A query."""
    point = facts.replays_from
    if run.run_state not in FLOWING_STATES or facts.is_batch or point is None:
        return None
    newest = facts.checkpoints.newest
    restarts_ms = _restarts_ms(run)
    return RecoveryHorizon(
        point=point,
        checkpoint=newest.number if newest else None,
        records=_records_since(facts, point),
        restart_ms=median(restarts_ms) if restarts_ms else None,
        restarts=len(restarts_ms),
    )


def _records_since(facts: RunFacts, point: datetime) -> int | None:
    sources = [operator for operator in facts.operators.values() if operator.role is Role.SOURCE]
    if not facts.flow_s or facts.old_since is not None:
        return None
    return round(sum(source.records_per_s for source in sources) * facts.ms_since(point) / 1000)


def _restarts_ms(run: Run) -> Sequence[float]:
    """Times from a failure to the first checkpoint of the next attempt, of the newest failures of the job."""
    following = Attempt.objects.filter(run=OuterRef("run"), token__gt=OuterRef("token")).order_by("token")
    first = Checkpoint.objects.filter(run=OuterRef("run"), token=OuterRef("following")).order_by("number")
    failed = (
        Attempt.objects.filter(run__job=run.job_id, outcome=AttemptOutcome.FAILED)
        .annotate(following=Subquery(following.values("token")[:1]))
        .annotate(again_at=Subquery(first.values("triggered_at")[:1]))
        .order_by("-token")
        .values_list("ended_at", "again_at")[:_RESTARTS]
    )
    return [(again - ended) / timedelta(milliseconds=1) for ended, again in failed if ended and again and again > ended]
