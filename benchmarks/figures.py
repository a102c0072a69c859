"""Measurements whose result is figures with targets instead of rates beside peers: their interface, and their list.

Each is a module named in `MEASUREMENT_MODULES`, with

    TITLE: str                      for the table
    TIME_BOX_S: float               time limit; a longer measurement gets the state "did not finish"
    STEP_S: float                   approximate seconds per step, for the remaining time in the progress bar
    steps(plan) -> int              number of calls of `plan.step` in `run`; `plan` is a `MeasurementPlan`
    run(plan) -> Report             measures, in its own process (`figure_run`)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec
import numpy as np

RESAMPLES: Final = 10_000
MIN_PAIRS: Final = 3  #: minimum number of pairs for a confidence interval
#: Name -> module. A new measurement needs a line here only.
MEASUREMENT_MODULES: Final = {
    "W8": "benchmarks.intervals.measure",
    "W8-behind": "benchmarks.intervals.lagging",
    "W9": "benchmarks.state.size",
    "W11": "benchmarks.recovery.measure",
    "W11-part": "benchmarks.recovery.partial",
    "W12": "benchmarks.slow_step",
    "L1": "benchmarks.latency.measure",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio measured in `runs`. `low`, `high`: 95 % confidence interval of the median; None with too few pairs."""

    median: float
    low: float | None
    high: float | None
    runs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number with its target. `value` None: it could not be measured."""

    name: str
    value: float | None
    unit: str = ""
    digits: int = 2  #: decimals to show
    at_most: float | None = None  #: target; a figure without a target is only reported
    at_least: float | None = None
    low: float | None = None  #: bound of the 95 % confidence interval
    high: float | None = None
    runs: tuple[float, ...] = ()

    @classmethod
    def of_ratio(cls, name: str, ratio: Ratio, **settings: Any) -> Figure:
        """The figure of a ratio. `settings`: further fields of the figure."""
        return cls(name=name, value=ratio.median, low=ratio.low, high=ratio.high, runs=ratio.runs, **settings)

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.at_most is None and self.at_least is None:
            return None
        if self.value is None:
            return False
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of a measurement."""

    figures: tuple[Figure, ...]
    lines: tuple[str, ...] = ()  #: explanations, shown below the figures
    wrong: tuple[str, ...] = ()  #: a text per error in the output; if there are any, no target counts as met
    details: Mapping[str, Any] = field(default_factory=dict)  #: for latest.json and the plots

    def to_json(self) -> dict[str, Any]:
        figures = [asdict(figure) | {"met": figure.is_met and not self.wrong} for figure in self.figures]
        return {"figures": figures, "lines": self.lines, "wrong": self.wrong, "details": self.details}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """The size and the folder of a measurement."""

    folder: Path  #: empty, on a real disk; removed afterwards
    rounds: int | None = None  #: None: the number that the targets need
    step: Callable[[str], None] = lambda text: None  #: called after each step, with its description
    #: called with preliminary results, which survive a failure
    report_partial: Callable[[Report], None] = lambda report: None


class Measurement(Protocol):
    TITLE: str
    TIME_BOX_S: float
    STEP_S: float

    def steps(self, plan: MeasurementPlan) -> int: ...
    def run(self, plan: MeasurementPlan) -> Report: ...


def measurement(name: str) -> Measurement:
    return cast(Measurement, importlib.import_module(MEASUREMENT_MODULES[name]))


def report_from_json(document: Mapping[str, Any]) -> Report:
    return msgspec.convert(dict(document), Report)


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Ratios first/second of all pairs; confidence interval by percentile bootstrap of the median, fixed seed."""
    runs = np.array([value / other for value, other in pairs])
    low = high = None
    if len(runs) >= MIN_PAIRS:
        drawn = np.random.default_rng(len(runs)).choice(runs, (RESAMPLES, len(runs)))
        low, high = (float(bound) for bound in np.percentile(np.median(drawn, axis=1), [2.5, 97.5]))
    return Ratio(median=float(np.median(runs)), low=low, high=high, runs=tuple(map(float, runs)))
