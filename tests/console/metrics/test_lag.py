"""The lag of a run behind the clock: the same rule in Python and in SQL."""

from datetime import timedelta

import pytest
from django.utils import timezone

from console.formats import MAX_LIVE_LAG_MS
from console.metrics.lag import clock_lag_ms
from console.metrics.models import FINEST_STEP_S, WHOLE_RUN, Metrics
from console.metrics.recent import newest_lag


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("records", "wall_ms", "lag_ms"),
    [
        (420_000, 107_000, 107_000),  # backpressure slows the source: its own watermark is late
        (420_000, MAX_LIVE_LAG_MS - 1, MAX_LIVE_LAG_MS - 1),
        (420_000, MAX_LIVE_LAG_MS, None),  # historic data
        (0, 292_000, 292_000),  # stuck, or without input: 4 min 52 s became 2 min 3 s
        (9, -300, 0),  # clocks of hosts differ
        (9, None, None),  # no event time
    ],
)
def test_a_run_is_behind_the_clock_whether_records_come_or_not(
    records: int, wall_ms: int | None, lag_ms: int | None
) -> None:
    assert clock_lag_ms(wall_ms) == lag_ms
    now = timezone.now()
    Metrics.objects.create(
        run_id=7, step_s=FINEST_STEP_S, at=now - timedelta(seconds=FINEST_STEP_S), operator=WHOLE_RUN, token=1,
        span_ms=5_000, records_in=records, records_out=0, bytes_in=0, bytes_out=0, processing_lag_ms=wall_ms,
        event_lag_ms=123_000,
    )  # fmt: skip
    assert list(newest_lag(7, now)) == [lag_ms]
