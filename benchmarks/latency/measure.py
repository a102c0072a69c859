"""L1: the time from the moment at which a row is due to its arrival at the sink, and to its commit, at fixed rates.

An open loop: rows are due at fixed times, so a pause delays all rows that are due in it. Three clocks:

- *uncommitted*: until the row has arrived at the writer of the sink;
- *committed*: until the checkpoint with the row is committed;
- *checkpoint*: from the trigger of a checkpoint to its record.

*stateless*: a filter and a computed column. *running*: totals of 100,003 keys, behind a shuffle; an update counts as
its newest row. Two slots on Spark, a checkpoint each second. The first seconds are not measured.

Three rates are fixed, and two are shares of the sustainable rate: that of rows which are all due at once. Structured
Streaming runs the same jobs at the fixed rates (`spark`); a row of it is visible when its micro-batch has ended.
"""

import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from pyspark.sql import SparkSession

from benchmarks import slots
from benchmarks.figures import Figure, MeasurementPlan, Report
from benchmarks.latency import spark
from benchmarks.latency.job import JOBS, Pace, job
from runtime.core.job.settings import CoordinatorSettings
from runtime.launch.spark import SparkLauncher

TITLE: Final = "latency at fixed rates, two slots, a checkpoint each second"
TIME_BOX_S: Final = 1_500.0
STEP_S: Final = 30.0
RATES: Final = (10_000, 100_000, 300_000)
SHARES: Final = (50, 80)  #: percent of the sustainable rate
_BURST_ROWS: Final = 10_000_000  #: all due at once, to find the sustainable rate
_MOST_ROWS: Final = 40_000_000  #: of a run: the sinks keep the times of all rows
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
    expected: int  #: rows that were due
    label: str  #: of the rate


def measure(
    name: str, rate: int, folder: Path, launcher: SparkLauncher, seconds: float = SECONDS, label: str = ""
) -> Latency:
    seconds = min(seconds, max(_MOST_ROWS / rate - WARM_UP_S, 1.0))
    pace = Pace(rate=rate, seconds=seconds + WARM_UP_S, began_s=time.time() + START_S)
    checkpoint_ms = _run(name, pace, folder, launcher)
    return latency(name, pace, folder / "times", checkpoint_ms, label)


def sustainable_rate(name: str, folder: Path, launcher: SparkLauncher) -> int:
    """Rows per second of a job whose rows are all due when it starts."""
    pace = Pace(rate=_BURST_ROWS * 1_000, seconds=0.001, began_s=time.time())
    _run(name, pace, folder, launcher)
    first, last = np.inf, 0.0
    for path in (folder / "times").glob("*.npz"):
        with np.load(path) as noted:
            first, last = min(first, noted["arrived"].min()), max(last, noted["arrived"].max())
    return int(pace.rows / (last - first))


def _run(name: str, pace: Pace, folder: Path, launcher: SparkLauncher) -> float:
    """Runs the job. Returns the median duration of its checkpoints."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "times").mkdir(parents=True)
    flow = job(name, pace, str(folder / "times"))
    return slots.run(flow, PARALLELISM, launcher, str(folder / "state"), CHECKPOINTS).checkpoint_ms


def measure_peer(name: str, rate: int, folder: Path, session: SparkSession) -> Figure:
    """The p99 of the rows in Structured Streaming. `folder`: new, since a state store writes to it after its query."""
    pace = Pace(rate=rate, seconds=SECONDS + WARM_UP_S, began_s=time.time() + START_S)
    waits = [each.at - pace.due_s(np.arange(each.first, each.end)) for each in spark.run(session, name, pace, folder)]
    measured = np.concatenate(waits)[int(rate * WARM_UP_S) :]
    title = f"{name}, {rate:,} rows/s: Structured Streaming, p99"
    return Figure(name=title, value=round(float(np.percentile(measured, 99)) * 1000, 1), unit="ms", digits=1)


def latency(name: str, pace: Pace, folder: Path, checkpoint_ms: float, label: str = "") -> Latency:
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
        expected=pace.rows,
        label=label or f"{pace.rate:,} rows/s",
    )


def _percentiles(values: np.ndarray) -> dict[str, float]:
    return {name: round(float(np.percentile(values, share)), 2) for name, share in PERCENTILES.items()}


def steps(plan: MeasurementPlan) -> int:
    return (plan.rounds or 1) * len(JOBS) * (2 * len(RATES) + len(SHARES) + 1)


def run(plan: MeasurementPlan) -> Report:
    found: list[Latency] = []
    peers: list[Figure] = []
    folder = plan.folder / "job"
    rounds = range(plan.rounds or 1)
    with closing(SparkLauncher("weir-latency", f"local[{PARALLELISM}]")) as launcher:
        measure("running", RATES[0], folder, launcher, seconds=2.0)  # starts workers, loads kernels
        for turn in rounds:
            for name in JOBS:
                sustainable = sustainable_rate(name, folder, launcher)
                plan.step(f"round {turn + 1}, {name}, sustainable: {sustainable:,} rows/s")
                rates = dict.fromkeys(RATES, "")
                rates |= {sustainable * share // 100: f"{share} % of the sustainable rate" for share in SHARES}
                for rate, label in rates.items():
                    found.append(measure(name, rate, folder, launcher, label=label))
                    plan.step(f"round {turn + 1}, {name}, {rate:,} rows/s")
                    plan.report_partial(report(found))
    session = spark.start_session()
    spark.run(session, "running", Pace(rate=RATES[0], seconds=2.0, began_s=time.time()), plan.folder / "peer-warm")
    for turn in rounds:
        for name in JOBS:
            for rate in RATES:
                peers.append(measure_peer(name, rate, plan.folder / f"peer-{turn}-{name}-{rate}", session))
                plan.step(f"round {turn + 1}, {name} in Structured Streaming, {rate:,} rows/s")
                plan.report_partial(report(found, peers))
    return report(found, peers)


def report(found: Sequence[Latency], peers: Sequence[Figure] = ()) -> Report:
    """Medians over rounds."""
    figures: list[Figure] = []
    by_rate: dict[tuple[str, str], list[Latency]] = {}
    for each in found:
        by_rate.setdefault((each.job, each.label), []).append(each)
    for (name, label), own in by_rate.items():
        for clock in ("uncommitted", "committed"):
            for share in PERCENTILES:
                runs = tuple(getattr(each, clock)[share] for each in own)
                target = TARGETS_MS.get((name, own[0].rate)) if (clock, share) == ("uncommitted", "p99") else None
                title = f"{name}, {label}: {clock}, {share}"
                value = float(np.median(runs))
                figures.append(Figure(name=title, value=value, unit="ms", digits=1, at_most=target, runs=runs))
        checkpoints = tuple(each.checkpoint_ms for each in own)
        title = f"{name}, {label}: duration of checkpoints"
        figures.append(Figure(name=title, value=float(np.median(checkpoints)), unit="ms", digits=0))
        if label not in {f"{rate:,} rows/s" for rate in RATES}:
            rates = tuple(float(each.rate) for each in own)
            figures.append(Figure(name=f"{name}, {label}", value=float(np.median(rates)), unit="rows/s", digits=0))
    by_title: dict[str, list[Figure]] = {}
    for peer in peers:
        by_title.setdefault(peer.name, []).append(peer)
    for measured in by_title.values():
        values = tuple(each.value for each in measured if each.value is not None)
        figures.append(replace(measured[0], value=float(np.median(values)), runs=values))
    wrong = tuple(
        f"{each.rows:,} rows of {each.expected:,}"
        for each in found
        if each.job == "stateless" and each.rows != each.expected
    )
    last = {f"{each.job}, {each.label}": asdict(each) for each in found}
    return Report(figures=tuple(figures), wrong=wrong, details={"bin_s": _BIN_S, "latency": last})
