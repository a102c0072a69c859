"""Numbers of many runs over the last hour, for the list of jobs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import ExpressionWrapper, F, FloatField, IntegerField, Max, QuerySet, Sum, Value
from django.db.models.functions import Cast, Extract, Floor, NullIf

from console.metrics.lag import clock_lag
from console.metrics.models import FINEST_STEP_S, WHOLE_RUN, Metrics
from console.metrics.reads import MAX_AGE

SPAN: Final = timedelta(hours=1)
_STEP_S: Final = 180
_SOURCE_STEP_S: Final = 60
_MAX_RATE_AGE: Final = timedelta(minutes=3)
_POINTS: Final = SPAN // timedelta(seconds=_STEP_S)


@dataclass(frozen=True, slots=True)
class RecentNumbers:
    """Records read per second, and the longest checkpoint, by intervals of 3 min. None: unknown."""

    rates: list[float | None] = field(default_factory=lambda: [None] * _POINTS)
    checkpoint_ms: list[float | None] = field(default_factory=lambda: [None] * _POINTS)


def newest_rate(run: Any, now: datetime, records: str = "records_in") -> QuerySet[Metrics, float]:
    """A query for the records read per second by `run` in its newest whole minute, if that is recent.

    `records`: `records_in`, or `records_out` for those written.
    """
    rows = Metrics.objects.filter(step_s=_SOURCE_STEP_S, run_id=run, operator=WHOLE_RUN, at__gte=now - _MAX_RATE_AGE)
    per_s = F(records) * 1000.0 / NullIf("span_ms", Value(0))
    rate = ExpressionWrapper(per_s, output_field=FloatField())
    return rows.order_by("-at").annotate(rate=rate).values_list("rate", flat=True)[:1]


def newest_lag(run: Any, now: datetime) -> QuerySet[Metrics, int | None]:
    """A query for the lag of `run` in ms, if its newest row is recent."""
    oldest = now - MAX_AGE - timedelta(seconds=FINEST_STEP_S)  # rows have the begin of their interval
    recent = Metrics.objects.filter(step_s=FINEST_STEP_S, run_id=run, operator=WHOLE_RUN, at__gt=oldest)
    return recent.order_by("-at").annotate(lag=clock_lag()).values_list("lag", flat=True)[:1]


def recent_numbers(runs: Collection[int], now: datetime) -> Mapping[int, RecentNumbers]:
    """The numbers of each of `runs` that has any. One query."""
    begin = now - SPAN
    metrics = Metrics.objects.filter(step_s=_SOURCE_STEP_S, run_id__in=runs, operator=WHOLE_RUN)
    rows = metrics.filter(at__gte=begin, at__lt=now)
    steps = ExpressionWrapper((Extract("at", "epoch", tzinfo=UTC) - begin.timestamp()) / _STEP_S, FloatField())
    places = rows.annotate(place=Cast(Floor(steps), IntegerField())).values("run_id", "place")
    sums = places.annotate(records=Sum("records_in"), span=Sum("span_ms"), longest_ms=Max("checkpoint_ms"))
    by_run: dict[int, RecentNumbers] = {}
    columns = ("run_id", "place", "records", "span", "longest_ms")
    for run, place, records, span_ms, checkpoint_ms in sums.values_list(*columns):
        numbers = by_run.setdefault(run, RecentNumbers())
        numbers.rates[place] = records * 1000 / span_ms if span_ms else None
        numbers.checkpoint_ms[place] = checkpoint_ms
    return by_run
