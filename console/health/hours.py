"""The last hours of a run, from minutes and quarters of the history: growth, lag, and what sources have sent.

A part of the query of `collection`.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from console.health.facts import SentFacts
from console.health.fetching import decode

MIN_USUAL_MINUTES: Final = 15  #: with records; the first minutes of a run may be those of a catch-up
_DAY: Final = timedelta(days=1)
_MINUTE, _QUARTER = timedelta(minutes=1), timedelta(minutes=15)
COVERED: Final = _DAY - _QUARTER  #: the oldest quarter of a day may have begun before it
#: Minutes of the last two hours, quarters of the last day and of the same time before. The first moments are
#: constants: see `collection`. A lag is the greatest of the minutes before, and the least of the newest ones.
#: A join to a run `r`, with an object by operator.
JOIN: Final = """
LEFT JOIN LATERAL (SELECT jsonb_object_agg(operator, to_jsonb(numbers)) AS hours FROM (
SELECT minutes.*, quarters.* FROM (
    SELECT operator, max(state_bytes) FILTER (WHERE at < %(now)s - interval '110 minutes') AS oldest_state,
        max(state_bytes) FILTER (WHERE at BETWEEN %(now)s - interval '60 minutes' AND %(now)s - interval '50 minutes')
            AS state_before,
        max(state_bytes) FILTER (WHERE at >= %(now)s - interval '10 minutes') AS state_now,
        max(processing_lag_ms)
            FILTER (WHERE at BETWEEN %(now)s - interval '20 minutes' AND %(now)s - interval '15 minutes') AS lag_before,
        min(processing_lag_ms) FILTER (WHERE at >= %(now)s - interval '5 minutes') AS lag_now,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY checkpoint_ms) FILTER (WHERE at < %(now)s - interval '60 minutes')
            AS checkpoint_ms,
        CASE WHEN count(*) FILTER (WHERE at < %(now)s - interval '15 minutes' AND records_out > 0) >= %(usual)s
            THEN percentile_cont(0.5) WITHIN GROUP (ORDER BY records_out)
            FILTER (WHERE at < %(now)s - interval '15 minutes' AND records_out > 0) / 60 END AS usual_per_s,
        max(at) FILTER (WHERE records_out > 0) AS last_minute
    FROM weir_metrics WHERE step_s = 60 AND run_id = r.id AND at >= %(hours)s GROUP BY operator
) AS minutes CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE at BETWEEN %(day)s AND until) AS quarters,
        count(*) FILTER (WHERE is_of_day AND records_out > 0) AS with_records,
        avg(records_out) FILTER (WHERE is_of_day AND records_out > 0) / 900.0 AS per_s, max(until) AS last_quarter,
        bool_or(records_out = 0) FILTER (WHERE at = ANY(%(before)s)) AS was_silent_before
    FROM (
        SELECT at, records_out, at >= %(day)s AS is_of_day,
            max(at) FILTER (WHERE records_out > 0 AND at >= %(day)s) OVER () AS until
        FROM weir_metrics
        WHERE minutes.operator = ANY(%(sources)s) AND step_s = 900 AND run_id = r.id
            AND operator = minutes.operator AND (at >= %(day)s OR at = ANY(%(before)s))
    ) AS day
) AS quarters
) AS numbers) AS hours ON true
"""


class Interval(NamedTuple):
    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Hours:
    """Minutes and quarters of an operator, or of the run as a whole."""

    state_bytes: tuple[int | None, int | None, int | None] = (None, None, None)
    lag_ms: tuple[int | None, int | None] = (None, None)
    checkpoint_ms: float | None = None  #: of the run as a whole
    usual_per_s: float = 0.0  #: sent records
    sent: SentFacts = SentFacts()
    last_sent: Interval | None = None  #: the newest minute with records, or else quarter; None: none within a day


def moments(now: datetime, sources: Collection[str]) -> Mapping[str, Any]:
    """The parameters of `JOIN`. `sources`: uids of the sources of any run."""
    quarter = datetime.fromtimestamp(now.timestamp() // _QUARTER.total_seconds() * _QUARTER.total_seconds(), UTC)
    return {
        "hours": now - timedelta(hours=2),
        "day": now - _DAY,
        "before": [quarter - timedelta(days=days) for days in (1, 7)],
        "sources": list(sources),
        "usual": MIN_USUAL_MINUTES,
    }


def read_hours(encoded: Any) -> Mapping[str, Hours]:
    """Numbers of the last hours, by operator, from the column `hours`. An operator without numbers has defaults."""
    operators: Mapping[str, Mapping[str, Any]] = decode(encoded) or {}
    return defaultdict(Hours, {uid: _hours(numbers) for uid, numbers in operators.items()})


def _hours(row: Mapping[str, Any]) -> Hours:
    last = (
        (row["last_minute"], _MINUTE),
        (row["last_quarter"], _QUARTER),
    )  # a quarter is stored long after its minutes
    begins = [(datetime.fromisoformat(at), length) for at, length in last if at is not None]
    return Hours(
        state_bytes=(row["oldest_state"], row["state_before"], row["state_now"]),
        lag_ms=(row["lag_before"], row["lag_now"]),
        checkpoint_ms=row["checkpoint_ms"],
        usual_per_s=float(row["usual_per_s"] or 0),
        sent=SentFacts(
            quarters=row["quarters"] or 0,
            with_records=row["with_records"] or 0,
            per_s=float(row["per_s"] or 0),
            was_silent_before=bool(row["was_silent_before"]),
        ),
        last_sent=next((Interval(begin, begin + length) for begin, length in begins), None),
    )
