"""How far a run is behind: one rule for its page, for the list of jobs and for the order of that list.

Two numbers with two names. The *lag* is behind the clock: it grows while nothing advances, whether records wait or none
come. *Behind the newest record* is the distance from the watermark to the newest record that a source has read, minus
its disorder; it says nothing of what waits outside of the job. Historic data has only the second.
"""

from django.db.models import Case, F, When
from django.db.models.functions import Greatest

from console.formats import MAX_LIVE_LAG_MS


def clock_lag_ms(processing_lag_ms: int | None) -> int | None:
    """The lag behind the clock, by the number of an interval of a whole run; None: no watermark, or historic data."""
    is_live = processing_lag_ms is not None and processing_lag_ms < MAX_LIVE_LAG_MS
    return max(0, processing_lag_ms) if is_live and processing_lag_ms is not None else None


def clock_lag() -> Case:
    """`clock_lag_ms` as an expression on rows of metrics."""
    return Case(When(processing_lag_ms__lt=MAX_LIVE_LAG_MS, then=Greatest(F("processing_lag_ms"), 0)), default=None)
