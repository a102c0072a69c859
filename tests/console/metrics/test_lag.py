"""The lag of a run: the same rule in Python and in SQL."""

from datetime import timedelta

import pytest
from django.utils import timezone

from console.formats import MAX_LIVE_LAG_MS
from console.metrics.lag import Lag, lag_of
from console.metrics.models import FINEST_STEP_S, WHOLE_RUN, Metrics
from console.metrics.recent import newest_lag

CLOCK, RECORD = "the clock", "the newest record"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("records", "wall_ms", "event_ms", "lag"),
    [
        (420_000, 107_000, 5_000, Lag(107_000, CLOCK)),  # backpressure slows the source: its own watermark is late
        (420_000, MAX_LIVE_LAG_MS - 1, 5_000, Lag(MAX_LIVE_LAG_MS - 1, CLOCK)),
        (420_000, MAX_LIVE_LAG_MS, 5_000, Lag(5_000, RECORD)),  # historic data
        (0, 18_000_000, 40, Lag(40, RECORD)),  # no record has come for 5 h: nothing waits
        (9, -300, 0, Lag(0, CLOCK)),  # clocks of hosts differ
        (9, None, None, None),  # no event time
    ],
)
def test_a_run_is_behind_the_clock_while_it_reads_live_records(
    records: int, wall_ms: int | None, event_ms: int | None, lag: Lag | None
) -> None:
    assert lag_of(records, wall_ms, event_ms) == lag
    now = timezone.now()
    Metrics.objects.create(
        run_id=7, step_s=FINEST_STEP_S, at=now - timedelta(seconds=FINEST_STEP_S), operator=WHOLE_RUN, token=1,
        span_ms=5_000, records_in=records, records_out=0, bytes_in=0, bytes_out=0, processing_lag_ms=wall_ms,
        event_lag_ms=event_ms,
    )  # fmt: skip
    assert list(newest_lag(7, now)) == [lag.ms if lag else None]
