"""The recovery horizon of a run: if it failed now, back to which time, how much to replay, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final

from django.db import connection

from console.health.facts import RunFacts
from console.jobs.models import Run
from runtime.core.job.graph import Role
from runtime.core.job.lifecycle import FLOWING_STATES

_MAX_RESTARTS: Final = 10  #: of the job, that the expected time is computed from
#: The end of each failed attempt, and the first checkpoint of the attempt after it.
_RESTARTS: Final = """
SELECT a.ended_at, (
    SELECT triggered_at FROM weir_checkpoint WHERE run_id = a.run_id AND token = (
        SELECT min(token) FROM weir_attempt WHERE run_id = a.run_id AND token > a.token
    ) ORDER BY number LIMIT 1)
FROM weir_attempt a JOIN weir_run r ON r.id = a.run_id
WHERE r.job_id = %(job)s AND a.outcome = 'failed' ORDER BY a.token DESC LIMIT %(failures)s
"""


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
    with connection.cursor() as cursor:
        cursor.execute(_RESTARTS, {"job": run.job_id, "failures": _MAX_RESTARTS})
        found = [(again - ended) / timedelta(milliseconds=1) for ended, again in cursor.fetchall() if ended and again]
    return [ms for ms in found if ms > 0]
