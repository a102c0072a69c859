"""Duration and size of a job's completed checkpoints over days, and failures by reason."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final

from django.db import connection

from console.checkpoints.models import NOT_FAILURES, Checkpoint
from console.jobs.models import Job

SPANS_DAYS: Final = (7, 30, 90)
#: Only completed checkpoints have a size. The condition needs no column outside the index `weir_checkpoint_filters`.
_QUERY: Final = """
SELECT date_bin('1 day', triggered_at, 'epoch') AS day, count(*),
       percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY duration_ms),
       percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY size_bytes)
FROM weir_checkpoint
WHERE job_id = %s AND number > %s AND triggered_at >= %s AND size_bytes IS NOT NULL
GROUP BY day
"""
_FAILURES: Final = """
SELECT date_bin('1 day', triggered_at, 'epoch') AS day, reason, count(*)
FROM weir_checkpoint
WHERE job_id = %s AND number > %s AND triggered_at >= %s AND status = 'failed' AND reason <> ALL(%s)
GROUP BY day, reason ORDER BY day, count(*) DESC, reason
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayTrend:
    """A day in UTC: the number of completed checkpoints and savepoints, and percentiles of them. None: there are none.

    Sizes are those of the whole state. `failures`: failed checkpoints by reason, the most frequent first.
    """

    day: date
    checkpoints: int = 0
    duration_p50_ms: int | None = None
    duration_p95_ms: int | None = None
    size_p50_bytes: int | None = None
    size_p95_bytes: int | None = None
    failures: Mapping[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        return sum(self.failures.values())


def daily_trend(job: Job, days: int, now: datetime) -> tuple[DayTrend, ...]:
    """The last `days` days including today, oldest first, by the day of the trigger. Three queries."""
    today = now.astimezone(UTC).date()
    first = today - timedelta(days=days - 1)
    begin = datetime(first.year, first.month, first.day, tzinfo=UTC)
    older = Checkpoint.objects.filter(job=job, triggered_at__lt=begin).order_by("-number")
    number = older.values_list("number", flat=True).first() or 0
    with connection.cursor() as cursor:
        cursor.execute(_QUERY, [job.pk, number, begin])
        rows = {row[0].date(): row for row in cursor.fetchall()}
        cursor.execute(_FAILURES, [job.pk, number, begin, [str(reason) for reason in NOT_FAILURES]])
        failures = defaultdict[date, dict[str, int]](dict)
        for day, reason, failed in cursor.fetchall():
            failures[day.date()][reason] = failed
    dates = [first + timedelta(days=at) for at in range(days)]
    return tuple(_day(day, rows, failures.get(day, {})) for day in dates)


def _day(
    day: date, rows: Mapping[date, tuple[date, int, list[int], list[int]]], failures: Mapping[str, int]
) -> DayTrend:
    if day not in rows:
        return DayTrend(day=day, failures=failures)
    _, count, durations, sizes = rows[day]
    return DayTrend(
        day=day,
        checkpoints=count,
        duration_p50_ms=durations[0],
        duration_p95_ms=durations[1],
        size_p50_bytes=sizes[0],
        size_p95_bytes=sizes[1],
        failures=failures,
    )
