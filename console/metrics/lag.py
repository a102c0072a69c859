"""How far a run is behind: one rule for its page, for the list of jobs and for the order of that list.

Backpressure slows the sources too. What waits outside of the job then shows only in the distance to the clock, which
says nothing of historic data, and grows while a live source has no records.
"""

from dataclasses import dataclass

from django.db.models import Case, F, When
from django.db.models.functions import Greatest

from console.formats import MAX_LIVE_LAG_MS


@dataclass(frozen=True, slots=True)
class Lag:
    """`behind`: the clock, for live data; else the newest record that a source has read, minus its disorder."""

    ms: int
    behind: str


def lag_of(records_in: int, processing_lag_ms: int | None, event_lag_ms: int | None) -> Lag | None:
    """The lag by the numbers of an interval of a whole run; None: it has no watermark."""
    if processing_lag_ms is not None and processing_lag_ms < MAX_LIVE_LAG_MS and records_in:
        return Lag(max(0, processing_lag_ms), "the clock")
    return None if event_lag_ms is None else Lag(event_lag_ms, "the newest record")


def lag_ms() -> Case:
    """`lag_of` as an expression on rows of metrics."""
    is_live = When(processing_lag_ms__lt=MAX_LIVE_LAG_MS, records_in__gt=0, then=Greatest(F("processing_lag_ms"), 0))
    return Case(is_live, default=F("event_lag_ms"))
