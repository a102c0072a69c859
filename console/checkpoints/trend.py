"""Duration and size of a job's completed checkpoints over days."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from django.db import connection

from console.checkpoints.models import Checkpoint
from console.jobs.models import Job

SPANS_DAYS: Final = (7, 30, 90)
#: Only completed checkpoints have a size. The condition needs no column outside the index `weir_checkpoint_filters`.
_QUERY: Final = """
SELECT (triggered_at AT TIME ZONE 'UTC')::date AS day, count(*),
       percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY duration_ms),
       percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY size_bytes)
FROM weir_checkpoint
WHERE job_id = %s AND number > %s AND triggered_at >= %s AND size_bytes IS NOT NULL
GROUP BY day
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayTrend:
    """A day in UTC: the number of completed checkpoints and savepoints, and percentiles of them. None: there are none.

    Sizes are those of the whole state.
    """

    day: date
    checkpoints: int = 0
    duration_p50_ms: int | None = None
    duration_p95_ms: int | None = None
    size_p50_bytes: int | None = None
    size_p95_bytes: int | None = None


def daily_trend(job: Job, days: int, now: datetime) -> tuple[DayTrend, ...]:
    """The last `days` days including today, oldest first, by the day of the trigger. Two queries."""
    today = now.astimezone(UTC).date()
    first = today - timedelta(days=days - 1)
    begin = datetime(first.year, first.month, first.day, tzinfo=UTC)
    older = Checkpoint.objects.filter(job=job, triggered_at__lt=begin).order_by("-number")
    number = older.values_list("number", flat=True).first() or 0
    with connection.cursor() as cursor:
        cursor.execute(_QUERY, [job.pk, number, begin])
        found = {row[0]: row for row in cursor.fetchall()}
    return tuple(_day(first + timedelta(days=at), found) for at in range(days))


def _day(day: date, found: dict[date, tuple[date, int, list[int], list[int]]]) -> DayTrend:
    if day not in found:
        return DayTrend(day=day)
    _, count, durations, sizes = found[day]
    return DayTrend(
        day=day,
        checkpoints=count,
        duration_p50_ms=durations[0],
        duration_p95_ms=durations[1],
        size_p50_bytes=sizes[0],
        size_p95_bytes=sizes[1],
    )
