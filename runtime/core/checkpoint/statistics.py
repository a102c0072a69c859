"""Summary statistics of completed checkpoints: minimum, mean, maximum and percentiles of durations and sizes.

(Flink's `CheckpointStatsSummary`.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles
from typing import Final

MAX_SUMMARIZED_CHECKPOINTS: Final = 1_000  #: the summary covers at most this many of the latest checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMeasurement:
    """The measurements of a completed checkpoint."""

    duration_ms: float  #: from its trigger to its record
    state_bytes: int  #: size of all files in its manifest
    written_bytes: int  #: size of the files that were written for it
    alignment_ms: float  #: maximum over its subtasks


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of some values. Percentiles are interpolated."""

    least: float
    mean: float
    most: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The distributions over `checkpoints` completed checkpoints."""

    checkpoints: int
    duration_ms: Distribution
    state_bytes: Distribution
    written_bytes: Distribution
    alignment_ms: Distribution


def summarize(measured: Sequence[CheckpointMeasurement]) -> Summary | None:
    """The summary, or None without checkpoints."""
    if not measured:
        return None
    return Summary(
        checkpoints=len(measured),
        duration_ms=distribution([m.duration_ms for m in measured]),
        state_bytes=distribution([m.state_bytes for m in measured]),
        written_bytes=distribution([m.written_bytes for m in measured]),
        alignment_ms=distribution([m.alignment_ms for m in measured]),
    )


def distribution(values: Sequence[float]) -> Distribution:
    """The distribution of `values`, which must not be empty."""
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
    p50, p90, p95, p99 = (cuts[percent - 1] for percent in (50, 90, 95, 99))
    return Distribution(min(values), fmean(values), max(values), p50, p90, p95, p99)
