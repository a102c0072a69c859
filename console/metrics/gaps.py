"""Gaps in the history: times in which a run was up and no numbers arrived."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple

from console.metrics.rollup import GRACE
from console.metrics.selectors import Grid


class RunTime(NamedTuple):
    """A run, and the time in which its master reports numbers. `end`: None while the run is under way."""

    pk: int
    begin: datetime | None
    end: datetime | None


@dataclass(frozen=True, slots=True)
class Gap:
    begin: datetime
    end: datetime


def find_gaps(values: Sequence[object], runs: Iterable[RunTime], grid: Grid, now: datetime) -> tuple[Gap, ...]:
    """Consecutive intervals of `grid` without a value, within a run. The newest numbers may be on their way."""
    reported, times = now - GRACE, tuple(runs)
    step = timedelta(seconds=grid.step_s)

    def is_missing(at: int) -> bool:
        begin = grid.begin + at * step
        is_up = any(run.begin and run.begin <= begin and begin + step <= (run.end or reported) for run in times)
        return values[at] is None and is_up

    return tuple(
        Gap(grid.begin + places[0] * step, grid.begin + (places[-1] + 1) * step)
        for missing, group in groupby(range(grid.size), is_missing)
        if missing and (places := list(group))
    )
