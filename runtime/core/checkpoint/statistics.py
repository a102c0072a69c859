"""How the durations and sizes of checkpoints are spread: least, mean, most and percentiles.

Pure functions of what was recorded of each completed checkpoint; counts and the latest of each kind are the record's
own. It does not know where it is shown. (Flink's summary of `CheckpointStatsTracker`.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles
from typing import Final

REMEMBERED: Final = 1_000  #: the latest completed checkpoints are summed up, so many at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One completed checkpoint."""

    duration_ms: float  #: from its trigger to its record
    state_bytes: int  #: all that its manifest names
    written_bytes: int  #: of that, what was written for it
    alignment_ms: float  #: of the subtask that waited longest for its barriers


@dataclass(frozen=True, slots=True)
class Spread:
    """How some values are spread. Percentiles between two values are interpolated."""

    least: float
    mean: float
    most: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Of `checkpoints` completed ones."""

    checkpoints: int
    duration_ms: Spread
    state_bytes: Spread
    written_bytes: Spread
    alignment_ms: Spread


def summary(measured: Sequence[Measured]) -> Summary | None:
    """None without any."""
    if not measured:
        return None
    return Summary(
        checkpoints=len(measured),
        duration_ms=spread([one.duration_ms for one in measured]),
        state_bytes=spread([one.state_bytes for one in measured]),
        written_bytes=spread([one.written_bytes for one in measured]),
        alignment_ms=spread([one.alignment_ms for one in measured]),
    )


def spread(values: Sequence[float]) -> Spread:
    """Of one value or more."""
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
    p50, p90, p95, p99 = (cuts[percent - 1] for percent in (50, 90, 95, 99))
    return Spread(min(values), fmean(values), max(values), p50, p90, p95, p99)
