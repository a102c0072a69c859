"""W8-behind: the part of W8 whose event time is behind the rows, in a few minutes."""

from typing import Final

from benchmarks.figures import MeasurementPlan, Report
from benchmarks.intervals import measure
from benchmarks.intervals.report import BEHIND

TITLE: Final = "run time against checkpoint interval, event time behind the rows"
TIME_BOX_S: Final = 900.0
STEP_S: Final = measure.STEP_S
GROUPS: Final = tuple(group for group in measure.INTERVAL_GROUPS if group.modes == (BEHIND,))


def steps(plan: MeasurementPlan) -> int:
    return measure.steps(plan, GROUPS)


def run(plan: MeasurementPlan) -> Report:
    return measure.run(plan, GROUPS)
