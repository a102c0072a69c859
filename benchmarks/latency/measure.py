"""L1: the time from the moment at which a row is due to its arrival at the sink, and to its commit, at fixed rates.

An open loop: rows are due at fixed times, so a pause delays all rows that are due in it. Three clocks:

- *uncommitted*: until the row has arrived at the writer of the sink;
- *committed*: until the checkpoint with the row is committed;
- *checkpoint*: from the trigger of a checkpoint to its record.

*stateless*: a filter and a computed column. *running*: totals of 100,003 keys, behind a shuffle; an update counts as
its newest row. Two slots on Spark, a checkpoint each second. The first seconds are not measured.

Three rates are fixed, and two are shares of the sustainable rate: that of rows which are all due at once. The peers run
the same jobs at the fixed rates: Flink, if it is installed (`flink`), and Structured Streaming, where a row is visible
when its micro-batch has ended (`spark`).
"""

import itertools
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from benchmarks import slots
from benchmarks.figures import MeasurementPlan, Report
from benchmarks.latency import flink, spark
from benchmarks.latency.job import JOBS, Pace, arrivals, job
from benchmarks.latency.report import FLINK, RATES, WARM_UP_S, Latency, PeerLatency, latency, peer_latency, report
from runtime.core.job.settings import CoordinatorSettings
from runtime.launch.spark import SparkLauncher

TITLE: Final = "latency at fixed rates, two slots, a checkpoint each second"
TIME_BOX_S: Final = 3_000.0
STEP_S: Final = 30.0
SHARES: Final = (50, 80)  #: percent of the sustainable rate
_BURST_ROWS: Final = 10_000_000  #: all due at once, to find the sustainable rate
_MOST_ROWS: Final = 40_000_000  #: of a run: the sinks keep the times of all rows
SECONDS: Final = 20.0
START_S: Final = 5.0  #: for the start of the slots; the rows that are due meanwhile are not measured
FLINK_SECONDS: Final = 10.0  #: it has several settings
FLINK_START_S: Final = 3.0
PARALLELISM: Final = 2
NO_FLINK: Final = "Flink is not installed: make bench-peers"
CHECKPOINTS: Final = CoordinatorSettings(interval_ms=1_000)


def measure(
    name: str, rate: int, folder: Path, launcher: SparkLauncher, seconds: float = SECONDS, label: str = ""
) -> Latency:
    seconds = min(seconds, max(_MOST_ROWS / rate - WARM_UP_S, 1.0))
    pace = _pace(rate, seconds)
    checkpoint_ms = _run(name, pace, folder, launcher)
    return latency(name, pace, arrivals(folder / "times"), checkpoint_ms, label)


def sustainable_rate(name: str, folder: Path, launcher: SparkLauncher) -> int:
    """Rows per second of a job whose rows are all due when it starts."""
    pace = Pace(rate=_BURST_ROWS * 1_000, seconds=0.001, began_s=time.time())
    _run(name, pace, folder, launcher)
    arrived = arrivals(folder / "times").arrived
    return int(pace.rows / (arrived.max() - arrived.min()))


def _run(name: str, pace: Pace, folder: Path, launcher: SparkLauncher) -> float:
    """Runs the job. Returns the median duration of its checkpoints."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "times").mkdir(parents=True)
    flow = job(name, pace, str(folder / "times"))
    return slots.run(flow, PARALLELISM, launcher, str(folder / "state"), CHECKPOINTS).checkpoint_ms


def steps(plan: MeasurementPlan) -> int:
    of_flink = len(flink.VARIANTS) * len(RATES) if flink.libraries() else 0
    return (plan.rounds or 1) * (len(JOBS) * (2 * len(RATES) + len(SHARES) + 1) + of_flink)


def run(plan: MeasurementPlan) -> Report:
    latencies: list[Latency] = []
    peers: list[PeerLatency] = []
    rounds = range(1, 1 + (plan.rounds or 1))
    folder = plan.folder / "job"
    with closing(SparkLauncher("weir-latency", f"local[{PARALLELISM}]")) as launcher:
        measure("running", RATES[0], folder, launcher, seconds=2.0)  # starts workers, loads kernels
        for turn in rounds:
            for name in JOBS:
                sustainable = sustainable_rate(name, folder, launcher)
                plan.step(f"round {turn}, {name}, sustainable: {sustainable:,} rows/s")
                rates = dict.fromkeys(RATES, "")
                rates |= {sustainable * share // 100: f"{share} % of the sustainable rate" for share in SHARES}
                for rate, label in rates.items():
                    latencies.append(measure(name, rate, folder, launcher, label=label))
                    plan.step(f"round {turn}, {name}, {rate:,} rows/s")
                    plan.report_partial(report(latencies))
    lines = [] if flink.libraries() else [NO_FLINK]
    for title, runs in ((FLINK, _run_flink(plan, rounds)), (spark.TITLE, _run_spark(plan, rounds))):
        try:
            for measured in runs:
                peers.append(measured)
                plan.step(measured.title)
                plan.report_partial(report(latencies, peers, lines))
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:  # the other peer is still measured
            lines.append(f"{title} failed: {error}")
    return report(latencies, peers, lines)


def _run_flink(plan: MeasurementPlan, rounds: range) -> Iterator[PeerLatency]:
    if not flink.libraries():
        return
    with flink.cluster(plan.folder) as cluster:
        for name in JOBS:  # loads classes, compiles code
            variant = next(each for each in flink.VARIANTS if each.job == name)
            cluster.run(variant, _pace(RATES[1], 2.0, FLINK_START_S), plan.folder / f"flink-warm-{name}")
        for turn, variant, rate in itertools.product(rounds, flink.VARIANTS, RATES):
            pace = _pace(rate, FLINK_SECONDS, FLINK_START_S)
            folder = plan.folder / f"{variant.title}, {variant.job}, {rate}, {turn}"
            yield peer_latency(variant.job, pace, variant.title, cluster.run(variant, pace, folder))
            shutil.rmtree(folder)


def _run_spark(plan: MeasurementPlan, rounds: range) -> Iterator[PeerLatency]:
    session = spark.start_session()
    spark.run(session, "running", _pace(RATES[0], 2.0, 0.0), plan.folder / "spark-warm")
    for turn, name, rate in itertools.product(rounds, JOBS, RATES):
        pace = _pace(rate, SECONDS)
        noted = spark.run(session, name, pace, plan.folder / f"spark-{turn}-{name}-{rate}")
        yield peer_latency(name, pace, spark.TITLE, noted)


def _pace(rate: int, seconds: float, start_s: float = START_S) -> Pace:
    """Rows of the warm-up and of `seconds`, from `start_s` on."""
    return Pace(rate=rate, seconds=WARM_UP_S + seconds, began_s=time.time() + start_s)
