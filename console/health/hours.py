"""The last hours of runs, from minutes and quarters of the history: growth, lag, and what sources have sent."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import connection

from console.health.facts import SentFacts

_MINUTE, _QUARTER = timedelta(minutes=1), timedelta(minutes=15)
#: Minutes of the last two hours, quarters of the last day and of the same time before. The first moments are
#: constants: see `collection`. A lag is the greatest of the minutes before, and the least of the newest ones.
_HOURS: Final = """
SELECT minutes.*, quarters.* FROM (
    SELECT run_id, operator, max(state_bytes) FILTER (WHERE at < %(now)s - interval '110 minutes'),
        max(state_bytes) FILTER (WHERE at BETWEEN %(now)s - interval '60 minutes' AND %(now)s - interval '50 minutes'),
        max(state_bytes) FILTER (WHERE at >= %(now)s - interval '10 minutes'),
        max(processing_lag_ms)
            FILTER (WHERE at BETWEEN %(now)s - interval '20 minutes' AND %(now)s - interval '15 minutes'),
        min(processing_lag_ms) FILTER (WHERE at >= %(now)s - interval '5 minutes'),
        percentile_cont(0.5) WITHIN GROUP (ORDER BY checkpoint_ms) FILTER (WHERE at < %(now)s - interval '60 minutes'),
        max(at) FILTER (WHERE records_out > 0)
    FROM weir_metrics WHERE step_s = 60 AND run_id = ANY(%(runs)s) AND at >= %(hours)s GROUP BY run_id, operator
) AS minutes CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE at BETWEEN %(day)s AND until), count(*) FILTER (WHERE is_of_day AND records_out > 0),
        avg(records_out) FILTER (WHERE is_of_day AND records_out > 0) / 900.0, max(until),
        bool_or(records_out = 0) FILTER (WHERE at = ANY(%(before)s))
    FROM (
        SELECT at, records_out, at >= %(day)s AS is_of_day,
            max(at) FILTER (WHERE records_out > 0 AND at >= %(day)s) OVER () AS until
        FROM weir_metrics
        WHERE minutes.operator = ANY(%(sources)s) AND step_s = 900 AND run_id = minutes.run_id
            AND operator = minutes.operator AND (at >= %(day)s OR at = ANY(%(before)s))
    ) AS day
) AS quarters
"""


@dataclass(frozen=True, slots=True)
class Hours:
    """Minutes and quarters of an operator, or of the run as a whole."""

    state_bytes: tuple[int | None, int | None, int | None] = (None, None, None)
    lag_ms: tuple[int | None, int | None] = (None, None)
    checkpoint_ms: float | None = None  #: of the run as a whole
    sent: SentFacts = SentFacts()


def read_hours(runs: Sequence[int], sources: Collection[str], now: datetime) -> Mapping[int, Mapping[str, Hours]]:
    """Numbers of the last hours, by run and operator. `sources`: uids of the sources of any run."""
    found: dict[int, dict[str, Hours]] = defaultdict(lambda: defaultdict(Hours))
    quarter = datetime.fromtimestamp(now.timestamp() // _QUARTER.total_seconds() * _QUARTER.total_seconds(), UTC)
    times = {
        "hours": now - timedelta(hours=2),
        "day": now - timedelta(days=1),
        "before": [quarter - timedelta(days=days) for days in (1, 7)],
    }
    for run, uid, *numbers in fetch(_HOURS, runs, now=now, sources=list(sources), **times):
        oldest, before, newest, lag_before, lag_now, checkpoint_ms, last_minute, *day = numbers
        quarters, with_records, per_s, last_quarter, was_silent = day
        ends = [at + length for at, length in ((last_minute, _MINUTE), (last_quarter, _QUARTER)) if at is not None]
        found[run][uid] = Hours(
            state_bytes=(oldest, before, newest),
            lag_ms=(lag_before, lag_now),
            checkpoint_ms=checkpoint_ms,
            sent=SentFacts(
                quarters=quarters or 0,
                with_records=with_records or 0,
                per_s=float(per_s or 0),
                until=min(ends, default=None),
                was_silent_before=bool(was_silent),
            ),
        )
    return found


def fetch(query: str, runs: Sequence[int], **values: Any) -> list[tuple[Any, ...]]:
    if not runs:
        return []
    with connection.cursor() as cursor:
        cursor.execute(query, {"runs": list(runs), **values})
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows
