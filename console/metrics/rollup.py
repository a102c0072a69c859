"""Roll-up of metrics: 5 s to 1 min, and 1 min to 15 min.

A pass aggregates the intervals that are complete. It begins `REACH_BACK` before the end of the pass before, since rows
may come late: a job master keeps its rows during an outage of the database. A row of a longer span replaces a rolled-up
row, so passes may be repeated. Finer rows stay until they are rolled up (`partitions.drop_partitions`).
"""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from django.db import connection, transaction
from django.db.models import Max, Min

from console.metrics.models import FINEST_STEP_S, Metrics, RollUp

STEPS_S: Final = (FINEST_STEP_S, 60, 900)
GRACE: Final = timedelta(seconds=15)  #: for the rows of an interval to arrive
REACH_BACK: Final = timedelta(minutes=15)  #: longer than masters keep rows during an outage
CHUNKS: Final = {60: timedelta(hours=1), 900: timedelta(days=1)}  #: aggregated in a transaction, by step

_SUMS = (
    "span_ms", "records_in", "records_out", "bytes_in", "bytes_out", "checkpoints", "checkpoints_failed",
    "checkpoint_bytes", "cpu_ms",
)  # fmt: skip
_MAXIMA = (
    "watermark", "processing_lag_ms", "event_lag_ms", "in_flight_bytes", "state_bytes", "checkpoint_ms", "memory_bytes",
)  # fmt: skip
_PHASES = ("start_delay_ms", "pre_barrier_ms", "alignment_ms", "sync_ms", "async_ms")


def _mean(column: str, weight: str) -> str:
    """Mean by weight of the rows that have a value."""
    return f"sum({column} * ({weight})) / nullif(sum({weight}) FILTER (WHERE {column} IS NOT NULL), 0)"


def _of_longest(column: str) -> str:
    """The value of the row with the longest checkpoint. Only rows of the run as a whole have checkpoints."""
    is_known = f"{column} IS NOT NULL AND checkpoint_ms IS NOT NULL"
    return f"(array_agg({column} ORDER BY checkpoint_ms DESC) FILTER (WHERE {is_known}))[1]"


#: Column -> aggregate over finer rows of an operator. `skew` weighs by records: few records are skewed by chance. The
#: phases and the commit of the run as a whole belong to the longest checkpoint, so that they add up.
AGGREGATES: Final[dict[str, str]] = {
    **{name: f"sum({name})" for name in _SUMS},
    **{name: f"max({name})" for name in _MAXIMA},
    "busy": _mean("busy", "span_ms"),
    "backpressured": _mean("backpressured", "span_ms"),
    "skew": _mean("skew", "records_in + records_out"),
    **{name: f"coalesce({_of_longest(name)}, max({name}))" for name in _PHASES},
    "commit_ms": _of_longest("commit_ms"),
}
_ROLL_UP: Final = f"""
INSERT INTO weir_metrics (step_s, run_id, at, operator, token, {", ".join(AGGREGATES)})
SELECT %(step)s, run_id, date_bin(%(step)s * interval '1 second', at, 'epoch') AS start, operator, 0,
       {", ".join(AGGREGATES.values())}
FROM weir_metrics
WHERE step_s = %(finer)s AND at >= %(begin)s AND at < %(end)s
GROUP BY run_id, start, operator
ON CONFLICT (step_s, run_id, at, operator, token) DO UPDATE
SET {", ".join(f"{name} = excluded.{name}" for name in AGGREGATES)}
WHERE weir_metrics.span_ms < excluded.span_ms
"""  # noqa: S608  # names of this module


def roll_up(now: datetime) -> None:
    """Rolls up every interval that is complete at `now`."""
    limit = now - GRACE
    for finer, step_s in pairwise(STEPS_S):
        limit = floor(limit, step_s)
        _roll_up_step(finer, step_s, limit)
        until = rolled_until(step_s)
        if until is None:
            return
        limit = until


def rolled_until(step_s: int) -> datetime | None:
    """The time until which intervals of `step_s` exist; None before the first pass with rows."""
    return RollUp.objects.filter(pk=step_s).values_list("until", flat=True).first()


def floor(at: datetime, step_s: int) -> datetime:
    """The start of the interval that contains `at`."""
    return datetime.fromtimestamp(int(at.timestamp()) // step_s * step_s, UTC)


def _roll_up_step(finer: int, step_s: int, limit: datetime) -> None:
    until = rolled_until(step_s)
    if until == limit:
        return
    if until is not None and until > limit:  # of a pass by a clock that was ahead
        until = Metrics.objects.filter(step_s=step_s, at__lt=limit).aggregate(at=Max("at"))["at"]
    begin = Metrics.objects.filter(step_s=finer).aggregate(at=Min("at"))["at"] if until is None else until - REACH_BACK
    while begin is not None and begin < limit:
        begin = floor(begin, step_s)
        end = min(begin + CHUNKS[step_s], limit)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_ROLL_UP, {"finer": finer, "step": step_s, "begin": begin, "end": end})
            RollUp.objects.update_or_create(
                step_s=step_s, defaults={"until": end if until is None else max(end, until)}
            )
        begin = end
