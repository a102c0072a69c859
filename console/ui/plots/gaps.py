"""Gaps in the plots: times in which a run of the job was up and no numbers arrived."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final, NamedTuple

from console.metrics.rollup import GRACE
from console.metrics.selectors import Grid
from console.ui.plots.window import Window

NO_NUMBERS: Final = "no numbers"
_MIN_LABELLED: Final = 15.0  #: width of a gap with a label, in percent of the axis


class RunTime(NamedTuple):
    """A run, and the time in which its master reports numbers. `end`: None while the run is under way."""

    pk: int
    begin: datetime | None
    end: datetime | None


@dataclass(frozen=True, slots=True)
class Gap:
    """Left edge and width are percentages of the axis."""

    begin: datetime
    end: datetime
    left: float
    width: float

    @property
    def middle(self) -> float:
        return round(self.left + self.width / 2, 3)

    @property
    def has_label(self) -> bool:
        return self.width >= _MIN_LABELLED


def find_gaps(values: Sequence[object], runs: Iterable[RunTime], window: Window, now: datetime) -> tuple[Gap, ...]:
    """Consecutive intervals without a value, within a run and the window. The newest numbers may be on their way."""
    grid, reported, times = window.lines, now - GRACE, tuple(runs)
    step = timedelta(seconds=grid.step_s)

    def is_missing(at: int) -> bool:
        begin = grid.begin + at * step
        is_up = any(run.begin and run.begin <= begin and begin + step <= (run.end or reported) for run in times)
        return values[at] is None and is_up and window.begin <= begin < window.end

    return tuple(
        _gap(places[0], places[-1], grid, window)
        for missing, group in groupby(range(grid.size), is_missing)
        if missing and (places := list(group))
    )


def _gap(first: int, last: int, grid: Grid, window: Window) -> Gap:
    begin = grid.begin + timedelta(seconds=first * grid.step_s)
    end = grid.begin + timedelta(seconds=(last + 1) * grid.step_s)
    left, right = window.percent(begin), min(window.percent(end), 100.0)
    return Gap(begin, end, left, round(right - left, 3))
