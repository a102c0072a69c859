"""L1: the time from the moment at which a row is due to its arrival at the sink, and to its commit, at fixed rates.

An open loop: rows are due at fixed times, so a pause delays all rows that are due in it. Three clocks:

- *uncommitted*: until the row has arrived at the writer of the sink;
- *committed*: until the checkpoint with the row is committed;
- *checkpoint*: from the trigger of a checkpoint to its record.

*stateless*: a filter and a computed column. *running*: totals of 100,003 keys, behind a shuffle; an update counts as
its newest row. Two slots on Spark, a checkpoint each second. The first seconds are not measured.
"""

import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import slots
from benchmarks.figures import Figure, MeasurementPlan, Report
from benchmarks.latency.job import JOBS, Pace, job
from runtime.core.job.settings import CoordinatorSettings
from runtime.launch.spark import SparkLauncher

TITLE: Final = "latency at fixed rates, two slots, a checkpoint each second"
TIME_BOX_S: Final = 900.0
STEP_S: Final = 30.0
RATES: Final = (10_000, 100_000, 300_000)
SECONDS: Final = 20.0
START_S: Final = 5.0  #: for the start of the slots; the rows that are due meanwhile are not measured
WARM_UP_S: Final = 4.0
PARALLELISM: Final = 2
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9}
TARGETS_MS: Final = {("stateless", 100_000): 20.0, ("running", 100_000): 50.0}  #: p99, uncommitted
CHECKPOINTS: Final = CoordinatorSettings(interval_ms=1_000)
_BIN_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds. `series`: the p99 of the uncommitted rows that were due in each tenth of a second."""

    job: str
    rate: int
    uncommitted: dict[str, float]
    committed: dict[str, float]
    checkpoint_ms: float
    series: tuple[float, ...]
    commits: tuple[float, ...]  #: seconds since the first measured row
    rows: int


def measure(name: str, rate: int, folder: Path, launcher: SparkLauncher, seconds: float = SECONDS) -> Latency:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "times").mkdir(parents=True)
    pace = Pace(rate=rate, seconds=seconds + WARM_UP_S, began_s=time.time() + START_S)
    flow = job(name, pace, str(folder / "times"))
    ran = slots.run(flow, PARALLELISM, launcher, str(folder / "state"), CHECKPOINTS)
    return latency(name, pace, folder / "times", ran.checkpoint_ms)


def latency(name: str, pace: Pace, folder: Path, checkpoint_ms: float) -> Latency:
    """Reads the times that the sinks have noted."""
    found = []
    for path in sorted(folder.glob("*.npz")):
        committed = float(path.with_suffix(".committed").read_text())
        with np.load(path) as noted:
            found.append((noted["ids"], noted["arrived"], np.full(len(noted["ids"]), committed)))
    ids, arrived, committed_at = (np.concatenate(each) for each in zip(*found, strict=True))
    due = pace.due_s(ids)
    measured = due >= pace.began_s + WARM_UP_S
    uncommitted_ms = (arrived - due)[measured] * 1000
    bins = ((due[measured] - pace.began_s - WARM_UP_S) / _BIN_S).astype(np.int64)
    return Latency(
        job=name,
        rate=pace.rate,
        uncommitted=_percentiles(uncommitted_ms),
        committed=_percentiles((committed_at - due)[measured] * 1000),
        checkpoint_ms=checkpoint_ms,
        series=tuple(
            round(float(np.percentile(uncommitted_ms[bins == each], 99)), 2) if (bins == each).any() else 0.0
            for each in range(int(bins.max()) + 1)
        ),
        commits=tuple(sorted({round(float(at - pace.began_s - WARM_UP_S), 3) for at in committed_at[measured]})),
        rows=len(ids),
    )


def _percentiles(values: np.ndarray) -> dict[str, float]:
    return {name: round(float(np.percentile(values, share)), 2) for name, share in PERCENTILES.items()}


def steps(plan: MeasurementPlan) -> int:
    return (plan.rounds or 1) * len(JOBS) * len(RATES)


def run(plan: MeasurementPlan) -> Report:
    found: list[Latency] = []
    with closing(SparkLauncher("weir-latency", f"local[{PARALLELISM}]")) as launcher:
        measure("running", RATES[0], plan.folder / "job", launcher, seconds=2.0)  # starts workers, loads kernels
        for turn in range(plan.rounds or 1):
            for name in JOBS:
                for rate in RATES:
                    found.append(measure(name, rate, plan.folder / "job", launcher))
                    plan.step(f"round {turn + 1}, {name}, {rate:,} rows/s")
                    plan.report_partial(report(found))
    return report(found)


def report(found: Sequence[Latency]) -> Report:
    """Medians over rounds."""
    figures: list[Figure] = []
    wrong = []
    for name in JOBS:
        for rate in RATES:
            own = [each for each in found if (each.job, each.rate) == (name, rate)]
            if not own:
                continue
            for clock in ("uncommitted", "committed"):
                for share in PERCENTILES:
                    runs = tuple(getattr(each, clock)[share] for each in own)
                    target = TARGETS_MS.get((name, rate)) if (clock, share) == ("uncommitted", "p99") else None
                    title = f"{name}, {rate:,} rows/s: {clock}, {share}"
                    value = float(np.median(runs))
                    figures.append(Figure(name=title, value=value, unit="ms", digits=1, at_most=target, runs=runs))
            checkpoints = tuple(each.checkpoint_ms for each in own)
            title = f"{name}, {rate:,} rows/s: duration of checkpoints"
            figures.append(Figure(name=title, value=float(np.median(checkpoints)), unit="ms", digits=0))
            expected = Pace(rate=rate, seconds=SECONDS + WARM_UP_S, began_s=0.0).rows
            if name == "stateless":
                wrong += [f"{each.rows:,} rows of {expected:,}" for each in own if each.rows != expected]
    last = {f"{each.job} {each.rate}": asdict(each) for each in found}
    return Report(figures=tuple(figures), wrong=tuple(wrong), details={"bin_s": _BIN_S, "latency": last})
