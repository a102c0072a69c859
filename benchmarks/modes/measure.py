"""W15: the speed of a bounded job in BATCH, relative to STREAMING and to hand-written Spark SQL.

There are two inputs. A year of flights in CSV files, with three tables from Spark (336,776 rows), shows fixed costs.
The Parquet files of W7 have a hundred million rows. BATCH, STREAMING and SQL take turns, each in its own process. Their
outputs are compared with the output of SQL, row for row.
"""

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks import inputs
from benchmarks.answers import compare
from benchmarks.figures import Figure, MeasurementPlan, Report, ratio
from benchmarks.modes.one import FULL, MODES, SMALL, Run
from benchmarks.sql import listing
from benchmarks.workloads import WORKLOADS
from examples import nycflights
from examples.feeder import FeedPlan as Feed
from examples.feeder import feed

TITLE: Final = "a bounded job in BATCH, relative to STREAMING and to hand-written Spark SQL"
TIME_BOX_S: Final = 2_400.0
STEP_S: Final = 45.0
ROUNDS: Final = 3
FULL_ROWS: Final = {"flights": 336_776, "windows": 100_000_000}
SMALL_ROWS: Final = {"flights": 20_000, "windows": 4_000_000}
COLUMNS: Final = {
    "flights": "carrier, name, origin, window_start::timestamp, window_end::timestamp, flights, mean_delay, max_delay,"
    " cancelled, wet, max_wind, mean_arrival_delay",
    "windows": "key, window_start::timestamp, count, sum",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The seconds of a job in a round, by way to run the job: batch, streaming, sql."""

    job: str
    seconds: dict[str, float]


def steps(plan: MeasurementPlan) -> int:
    return len(FULL_ROWS) * len(MODES) * (plan.rounds or ROUNDS)


def run(plan: MeasurementPlan) -> Report:
    for job in FULL_ROWS:
        _write_inputs(job, plan.folder / "inputs" / job)
    found: list[Round] = []
    wrong: list[str] = []
    for turn in range(plan.rounds or ROUNDS):
        for job in FULL_ROWS:
            found.append(one_round(plan, job, turn, process_s, wrong))
            plan.report_partial(report(found, wrong))
    return report(found, wrong)


def _write_inputs(job: str, folder: Path) -> None:
    for phase, rows in ((SMALL, SMALL_ROWS[job]), (FULL, FULL_ROWS[job])):
        if job == "windows":
            inputs.write(WORKLOADS["W7"], folder / phase, rows)
            continue
        (folder / phase).mkdir(parents=True)
        for _ in feed(nycflights.read_flights().slice(0, rows), folder / phase, Feed(files=max(12, rows // 1_000)), 0):
            pass


def one_round(plan: MeasurementPlan, job: str, turn: int, took: Callable[[Run], float], wrong: list[str]) -> Round:
    """Runs `job` once in each way. Each round begins with another way, so that no way is always first."""
    names = list(MODES)
    runs = {
        way: Run(way=way, job=job, inputs=str(plan.folder / "inputs" / job), folder=str(plan.folder / way))
        for way in names[turn % len(names) :] + names[: turn % len(names)]
    }
    seconds = {}
    for way, one in runs.items():
        shutil.rmtree(one.folder, ignore_errors=True)
        seconds[way] = took(one)
        plan.step(f"round {turn + 1}, {job}, {way}")
    for way, one in runs.items():
        wrong += differences(job, way, one.output(FULL), runs["sql"].output(FULL))
    for one in runs.values():
        shutil.rmtree(one.folder)
    return Round(job=job, seconds=seconds)


def process_s(one: Run) -> float:
    """Starts a run in its own process. Returns the run's seconds; its log goes to the log of the measurement."""
    command = [sys.executable, "-m", "benchmarks.modes.one", json.dumps(asdict(one))]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(printed.splitlines()[-1])


def differences(job: str, way: str, output: str, answer: str) -> list[str]:
    """A list with a text if rows of `output` differ from rows of `answer`; empty if the output is correct."""
    one, other = (
        f"select {COLUMNS[job]} from read_parquet({listing([f'{folder}/*.parquet'])})" for folder in (output, answer)
    )
    apart, rows = compare(one, other, {})
    return [f"{job}, {way}: {apart:,} rows differ of {rows:,}"] if apart or not rows else []


def report(found: Sequence[Round], wrong: Sequence[str]) -> Report:
    figures, lines = [], []
    for job in dict.fromkeys(one.job for one in found):
        rounds = [one.seconds for one in found if one.job == job]
        for other in ("sql", "streaming"):
            pairs = ratio([(seconds["batch"], seconds[other]) for seconds in rounds])
            figures.append(Figure.of_ratio(f"{job}: time of BATCH to that of {other}", pairs, unit="x"))
        medians = {way: statistics.median(seconds[way] for seconds in rounds) for way in MODES}
        told = "; ".join(f"{way} {seconds:.1f} s" for way, seconds in medians.items())
        lines.append(f"{job}, {FULL_ROWS[job]:,} rows: {told} (medians of {len(rounds)})")
    details = {"rounds": [asdict(one) for one in found]}
    return Report(figures=tuple(figures), lines=tuple(lines), wrong=tuple(wrong), details=details)
