"""Ratios of runs measured side by side: the median, and its confidence interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

RESAMPLES: Final = 10_000
_LEAST: Final = 3  #: minimum number of pairs for a confidence interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """`low` and `high` bound the 95 % confidence interval of the median; None with too few pairs."""

    median: float
    low: float | None
    high: float | None
    runs: tuple[float, ...]


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Ratios of the first of each pair to the second; percentile bootstrap of the median with a fixed seed."""
    runs = np.array([one / other for one, other in pairs])
    low = high = None
    if len(runs) >= _LEAST:
        drawn = np.random.default_rng(len(runs)).choice(runs, (RESAMPLES, len(runs)))
        low, high = (float(bound) for bound in np.percentile(np.median(drawn, axis=1), [2.5, 97.5]))
    return Ratio(median=float(np.median(runs)), low=low, high=high, runs=tuple(map(float, runs)))
