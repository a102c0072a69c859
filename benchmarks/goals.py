"""The goals of the benchmark: numbers of the results with their limits. `make bench ONLY=goals` measures all of them.

A goal takes its number from latest.json: a ratio of a workload, the geometric mean of the ratios of several, or a
figure of a measurement. The limit of a figure is that of the measurement.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.figures import Figure, Report
from benchmarks.results import FigureResult, geometric_mean
from benchmarks.workloads import WORKLOADS

NAME: Final = "Goals"
PROFILES: Final = "docs/benchmarks/README.md"  #: has a section for each goal that is missed
MIN_BATCH_RATIO: Final = 0.4
MAX_SPREAD: Final = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A goal. With several entries, its number is the geometric mean.

    Args:
        entries: names of workloads, or of a measurement.
        number: the number in the entry of a workload, or the name of a figure.
        section: the heading in `PROFILES` below which the time is explained.
    """

    name: str
    entries: tuple[str, ...]
    number: str
    section: str
    unit: str = "x"
    digits: int = 2
    at_least: float | None = None
    at_most: float | None = None

    def figure(self, stored: Mapping[str, Any]) -> Figure | None:
        """The goal as a figure; None if an entry of it has never been measured."""
        if any(name not in stored for name in self.entries):
            return None
        if self.entries[0] in WORKLOADS:
            value, without = geometric_mean({name: stored[name].get(self.number) for name in self.entries})
            return self._figure(None if without else value, self.at_least, self.at_most)
        (entry,) = (stored[name] for name in self.entries)
        row = next((each for each in entry["figures"] if each["name"] == self.number), None)
        if row is None:
            return None
        value = None if entry.get("wrong") else row["value"]
        return self._figure(value, row["at_least"], row["at_most"])

    def _figure(self, value: float | None, at_least: float | None, at_most: float | None) -> Figure:
        return Figure(
            name=self.name, value=value, unit=self.unit, digits=self.digits, at_least=at_least, at_most=at_most
        )


def _to_peer(name: str, entries: Sequence[str] = ()) -> Goal:
    entries = tuple(entries or [name])
    mean = " (geometric mean)" if len(entries) > 1 else ""
    return Goal(
        name=f"{name}: rate to that of the best peer{mean}",
        entries=entries,
        number="ratio_to_best_peer",
        section=name,
        digits=1,
        at_least=WORKLOADS[entries[0]].target,
    )


def _to_batch(name: str) -> Goal:
    return Goal(
        name=f"{name}: rate to that of a batch in DuckDB",
        entries=(name,),
        number="ratio_to_batch",
        section=name,
        at_least=MIN_BATCH_RATIO,
    )


def _measured(name: str, number: str, **settings: Any) -> Goal:
    return Goal(name=f"{name}: {number}", entries=(name,), number=number, section=name, **settings)


GOALS: Final = (
    _to_peer("R1"),
    _to_peer("R2", [name for name, workload in WORKLOADS.items() if workload.group == "R2"]),
    *map(_to_peer, ("R3", "R4", "R5", "R5-arrow", "R6")),
    *map(_to_batch, ("R1", "R6")),
    _measured("L1", "stateless, 100,000 rows/s: uncommitted, p99", unit="ms", digits=1),
    _measured("L1", "running, 100,000 rows/s: uncommitted, p99", unit="ms", digits=1),
    _measured("L1", "stateless, 100,000 rows/s: p99 to that of Flink, best of the settings tried"),
    _measured("L1", "running, 100,000 rows/s: p99 to that of Flink, best of the settings tried"),
    Goal(
        name="S1: largest ratio between two runs to that of the peer",
        entries=("S1",),
        number="spread_to_peer",
        section="S1",
        at_most=MAX_SPREAD,
    ),
    _measured("W8-behind", "time to none, 1,000 ms event time behind", digits=3),
    _measured("W8-behind", "time to none, 100 ms event time behind", digits=3),
)


def workloads_and_measurements() -> list[str]:
    """The names of all that the goals need."""
    return list(dict.fromkeys(name for goal in GOALS for name in goal.entries))


def result(stored: Mapping[str, Any], measured_now: Collection[str]) -> FigureResult:
    """All goals that have been measured, as figures. `stored`: the contents of latest.json."""
    figures = {goal: figure for goal in GOALS if (figure := goal.figure(stored)) is not None}
    marked = [
        figure if set(goal.entries) <= set(measured_now) else replace(figure, name=f"{figure.name}, earlier run")
        for goal, figure in figures.items()
    ]
    report = Report(figures=tuple(marked), lines=tuple(_lines(figures)))
    return FigureResult(title="numbers of the entries above, and of earlier runs", state="done", report=report)


def _lines(figures: Mapping[Goal, Figure]) -> Iterator[str]:
    missed = dict.fromkeys(goal.section for goal, figure in figures.items() if figure.is_met is False)
    if missed:
        yield f"where the time goes: {PROFILES}, {', '.join(missed)}"
    without = [goal.name for goal in GOALS if goal not in figures]
    if without:
        yield f"not measured: {'; '.join(without)}"
