"""W8: run time against the checkpoint interval for two protocols, as in the ABS paper (Carbone et al., 2015).

A job runs to its end without periodic checkpoints, then with checkpoints at an interval, aligned and stop-the-world;
the settings take turns (arXiv 1506.08603).

With event time behind the rows, windows are open at every barrier, as in jobs whose rows may be out of order: each
checkpoint has to store them. Such runs are compared with a run without checkpoints whose event time is behind, too.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import disk, slots
from benchmarks.figures import MeasurementPlan, Report
from benchmarks.intervals.behind import Behind
from benchmarks.intervals.report import ALIGNED, BEHIND, MODES, STOP_THE_WORLD, Sample, Setting, report
from benchmarks.intervals.stop_the_world import StopTheWorld
from benchmarks.slots import JobRun
from benchmarks.systems.weir import window
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from runtime.launch.slot_pool import SlotPoolLauncher
from runtime.launch.spark import SparkLauncher
from runtime.ports import Source

TITLE: Final = "run time against checkpoint interval, aligned and stop-the-world"
TIME_BOX_S: Final = 3_600.0
STEP_S: Final = 10.0
ROUNDS: Final = 10
KEYS: Final = 100_003
PARALLELISM: Final = 2
WARM_UP_ROWS: Final = 50_000_000
CALIBRATION_ROWS: Final = 100_000_000
LAG_MS: Final = 1_500  #: of event time behind the rows


@dataclass(frozen=True, slots=True)
class IntervalGroup:
    """Checkpoint intervals that share a run without checkpoints, and the approximate run time in seconds."""

    seconds: float
    intervals_ms: tuple[int, ...]
    modes: tuple[str, ...] = MODES

    @property
    def base(self) -> str:
        """The mode of the run without checkpoints."""
        return BEHIND if BEHIND in self.modes else ALIGNED


#: Long intervals need long runs, so that a run has several checkpoints; other intervals use short runs.
INTERVAL_GROUPS: Final = (
    IntervalGroup(12.5, (10_000, 3_000)),
    IntervalGroup(6.0, (1_000,)),
    IntervalGroup(6.0, (300,)),
    IntervalGroup(6.0, (100,)),
    IntervalGroup(6.0, (1_000, 100), (BEHIND,)),
)


def settings_of(group: IntervalGroup, turn: int) -> list[Setting]:
    """The settings of round `turn`; each round begins with another setting, so that no setting is always first."""
    modes = group.modes
    every: list[Setting] = [
        (None, group.base),
        *((interval, mode) for interval in group.intervals_ms for mode in modes),
    ]
    at = turn % len(every)
    return every[at:] + every[:at]


def job(rows: int, mode: str) -> Dataflow:
    sequence: Source = SequenceSource(rows=rows, keys=KEYS)
    modes: dict[str, Source] = {STOP_THE_WORLD: StopTheWorld(sequence), BEHIND: Behind(sequence, LAG_MS)}
    source = modes.get(mode, sequence)
    flow = Dataflow("intervals")
    window(flow.source("numbers", source)).sink("out", DiscardSink())
    return flow


def run_once(rows: int, setting: Setting, folder: Path, launcher: SlotPoolLauncher) -> JobRun:
    interval_ms, mode = setting
    shutil.rmtree(folder, ignore_errors=True)
    settings = CoordinatorSettings(interval_ms=interval_ms, min_pause_ms=0)
    return slots.run(job(rows, mode), PARALLELISM, launcher, str(folder), settings)


def rows_for(seconds: float, rate: float) -> int:
    """The rows of a run of about `seconds` at `rate` rows per second: whole event seconds, at least three."""
    return max(3, round(seconds * rate / 1e6)) * 1_000_000


def samples(
    turn: int,
    plan: MeasurementPlan,
    rate: float,
    folder: Path,
    launcher: SlotPoolLauncher,
    groups: Sequence[IntervalGroup] = INTERVAL_GROUPS,
) -> Iterator[Sample]:
    """Runs each setting of round `turn`. Yields a sample per run."""
    for number, group in enumerate(groups):
        rows = rows_for(group.seconds, rate)
        for interval_ms, mode in settings_of(group, turn):
            run = run_once(rows, (interval_ms, mode), folder, launcher)
            name = f"none {mode}" if interval_ms is None else f"{interval_ms:,} ms {mode}"
            plan.step(f"round {turn + 1}, {name}")
            yield Sample(round=turn, group=number, interval_ms=interval_ms, mode=mode, rows=rows, run=run)


def steps(plan: MeasurementPlan, groups: Sequence[IntervalGroup] = INTERVAL_GROUPS) -> int:
    return 2 + (plan.rounds or ROUNDS) * sum(len(settings_of(group, 0)) for group in groups)


def run(plan: MeasurementPlan, groups: Sequence[IntervalGroup] = INTERVAL_GROUPS) -> Report:
    costs = disk.costs(plan.folder)
    folder = plan.folder / "storage"
    with closing(SparkLauncher("weir-intervals", f"local[{PARALLELISM}]")) as launcher:
        run_once(WARM_UP_ROWS, (None, ALIGNED), folder, launcher)
        plan.step("warming up")
        first = run_once(CALIBRATION_ROWS, (None, ALIGNED), folder, launcher)
        plan.step("warming up")
        measurements: list[Sample] = []
        for turn in range(plan.rounds or ROUNDS):
            measurements += samples(turn, plan, CALIBRATION_ROWS / first.seconds, folder, launcher, groups)
            plan.report_partial(report(measurements, costs, KEYS))
    return report(measurements, costs, KEYS)
