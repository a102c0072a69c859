"""Measurements whose result is not a rate beside peers but figures with targets: their common form, and their list.

Each is a module that `measurements` names and that has

    TITLE: str                      for the table
    TIME_BOX_S: float               after which it is ended: "did not finish"
    STEP_S: float                   what a part takes about, for the time that is left
    steps(plan: Plan) -> int        how often `run` will call `plan.step`: for the progress bar
    run(plan: Plan) -> Report       measures; in a process of its own (`figure_run`)

It does not know what is measured, nor how it is shown.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

#: By name, the module. Add a line here, and nothing else has to know.
MODULES: Final = {
    "W8": "benchmarks.intervals",
    "W9": "benchmarks.state_size",
    "W11": "benchmarks.recovery.measure",
    "W14": "benchmarks.scaling",
    "W15": "benchmarks.modes.measure",
    "W16": "benchmarks.state_reading",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number, with what it has to be. `value` None: it could not be had."""

    name: str
    value: float | None
    unit: str = ""
    digits: int = 2  #: decimals to show
    at_most: float | None = None  #: the target; without one the figure is only told
    at_least: float | None = None
    low: float | None = None  #: of the 95 % confidence interval
    high: float | None = None
    runs: tuple[float, ...] = ()

    @property
    def met(self) -> bool | None:
        """Whether it is what it has to be; None without a target."""
        if self.at_most is None and self.at_least is None:
            return None
        if self.value is None:
            return False
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a measurement found."""

    figures: tuple[Figure, ...]
    lines: tuple[str, ...] = ()  #: shown below the figures: how it came about
    wrong: tuple[str, ...] = ()  #: output that was not right; then the figures count for nothing
    details: Mapping[str, Any] = field(default_factory=dict)  #: for latest.json and the plots

    def to_json(self) -> dict[str, Any]:
        figures = [asdict(figure) | {"met": figure.met and not self.wrong} for figure in self.figures]
        return {"figures": figures, "lines": self.lines, "wrong": self.wrong, "details": self.details}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of it, and where."""

    folder: Path  #: empty, on a real disk; removed afterwards
    rounds: int | None = None  #: None: as many as the targets need
    step: Callable[[str], None] = lambda text: None  #: call it after each part, with what that was
    tell: Callable[[Report], None] = lambda report: None  #: with what a later failure is not to lose


class Measurement(Protocol):
    TITLE: str
    TIME_BOX_S: float
    STEP_S: float

    def steps(self, plan: Plan) -> int: ...
    def run(self, plan: Plan) -> Report: ...


def measurement(name: str) -> Measurement:
    return cast(Measurement, importlib.import_module(MODULES[name]))


def from_json(told: Mapping[str, Any]) -> Report:
    return msgspec.convert(dict(told), Report)
