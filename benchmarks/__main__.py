"""Runs the benchmark: `python -m benchmarks [--quick] [--only W1,W8] [--repeats 3] [--rounds 10]`.

Workloads whose result is a rate come first, then the measurements of figures (`figures.py`). Of rates:
systems take turns within a workload, so that what else the machine does hits all of them alike. The first, small run of
each process is checked against the answer and warms it up; only the second counts.
"""

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, NoReturn

from tqdm import tqdm

from benchmarks import child, figures, inputs, protocol, results, table
from benchmarks.answers import differences
from benchmarks.peers import PEERS
from benchmarks.results import Figured, Measurement
from benchmarks.systems import SYSTEMS, System, python_of
from benchmarks.workload import Workload
from benchmarks.workloads import QUICK, WORKLOADS

BENCH: Final = child.ROOT / "var" / "bench"
LATEST: Final = BENCH / "latest.json"
REPEATS: Final = 3
TIME_BOX_S: Final = 300.0
QUICK_TIME_BOX_S: Final = 75.0
QUICK_SHARE: Final = 0.4

Step = tuple[Workload, System]
Rates = dict[str, dict[str, Measurement]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of everything."""

    repeats: int
    time_box_s: float
    share: float = 1.0  #: of each workload's rows
    rounds: int | None = None  #: of each measurement of figures; None: as many as it needs


def measure(workload: Workload, system: System, measured: Measurement, plan: Plan, inputs: Path) -> None:
    """One run of one system, added to `measured`."""
    if system.name in workload.absent:
        measured.state = f"missing: {workload.absent[system.name]}"
        return
    python = python_of(system, PEERS, sys.executable)
    if python is None:
        measured.state = "missing"
        return
    folder = _empty_folder(f"{workload.name}-{system.name}")
    task = workload.task(system.name, str(folder), plan.share, str(inputs))
    outcome = child.run(
        [python, "-m", system.module, task.to_json()],
        environment={"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "TZ": "UTC"},
        log=BENCH / "log" / f"{workload.name}-{system.name}.log",
        time_box_s=plan.time_box_s,
    )
    measured.state = "done" if measured.runs else outcome.state
    if outcome.state == "done":
        _take(workload, task, outcome, measured)
    shutil.rmtree(folder, ignore_errors=True)


def _take(workload: Workload, task: protocol.Task, outcome: child.Outcome, measured: Measurement) -> None:
    said = outcome.events[protocol.MEASURED]
    measured.add(rows=said["rows"], seconds=said["seconds"], cpu_seconds=outcome.cpu_seconds)
    checked = outcome.events[protocol.CHECKED]
    found = [differences(workload, task.output, checked)]
    if workload.files is not None:
        found.append(differences(workload, task.measured_output, {**checked, "rows": task.rows}))
    known = measured.differences or 0
    measured.differences = None if None in found else max(known, *(number for number in found if number is not None))
    miscounted = workload.miscounted(said["rows"], said["details"])
    if miscounted is not None:
        measured.miscounted = (measured.miscounted or []) + miscounted


def steps(workloads: Sequence[Workload], systems: Sequence[str], repeats: int) -> Iterator[Step]:
    """Workload by workload; within one, the systems in turn, again and again."""
    for workload in workloads:
        for _ in range(repeats):
            for name in systems:
                if name in workload.rows or name in workload.absent:
                    yield workload, SYSTEMS[name]


def run_rates(todo: Sequence[Step], plan: Plan, bar: "tqdm[NoReturn]") -> Rates:
    """Runs each step, and writes what is known after it."""
    found: Rates = {}
    for workload, group in groupby(todo, key=lambda step: step[0]):
        of_all = found[workload.name] = {}
        with inputs.made(workload, BENCH / "inputs", plan.share) as files:
            for _, system in group:
                bar.set_description(f"{workload.name} {system.title}, load {results.load_average()}")
                measured = of_all.setdefault(system.name, Measurement(unit=workload.unit))
                if measured.state != "did not finish":  # once is enough
                    measure(workload, system, measured, plan, files)
                results.write(LATEST, {workload.name: results.entry(workload.title, of_all)})
                bar.update()
    return found


def run_figures(names: Sequence[str], rounds: int | None, bar: "tqdm[NoReturn]") -> dict[str, Figured]:
    """Runs each measurement in a process of its own, and writes what it found."""
    found: dict[str, Figured] = {}
    for name in names:
        folder = _empty_folder(name)

        def stepped(text: str, name: str = name) -> None:
            bar.set_description(f"{name} {text}, load {results.load_average()}")
            bar.update()

        outcome = child.run(
            [sys.executable, "-m", "benchmarks.figure_run", json.dumps([name, str(folder), rounds])],
            environment={"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "TZ": "UTC"},
            log=BENCH / "log" / f"{name}.log",
            time_box_s=figures.measurement(name).TIME_BOX_S,
            stepped=stepped,
        )
        report = outcome.events[protocol.MEASURED]["report"] if outcome.state == "done" else None
        found[name] = Figured(
            title=figures.measurement(name).TITLE,
            state=outcome.state,
            report=None if report is None else figures.from_json(report),
        )
        results.write(LATEST, {name: found[name].to_json()})
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _empty_folder(name: str) -> Path:
    folder = BENCH / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def run(names: Sequence[str], systems: Sequence[str], plan: Plan) -> bool:
    """Runs everything and prints the table. Returns whether all output is right."""
    todo = list(steps([WORKLOADS[name] for name in names if name in WORKLOADS], systems, plan.repeats))
    figured = [name for name in names if name in figures.MODULES]
    sketch = figures.Plan(folder=BENCH, rounds=plan.rounds)
    total = len(todo) + sum(figures.measurement(name).steps(sketch) for name in figured)
    with tqdm(total=total, unit="run", file=sys.stderr) as bar:
        rates = run_rates(todo, plan, bar)
        found = run_figures(figured, plan.rounds, bar)
    blocks = [table.render(rates, WORKLOADS) if rates else "", table.render_figures(found)]
    sys.stdout.write("\n\n".join(block for block in blocks if block) + "\n")
    sys.stdout.write(f"load average at the end: {results.load_average()}, {os.cpu_count()} processors\n")
    return results.all_right(rates.values()) and all(one.right for one in found.values())


def _chosen(text: str | None, known: Sequence[str], default: Sequence[str]) -> list[str]:
    names = list(default) if text is None else text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Weir and its peers, measured side by side.")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)} once each")
    parser.add_argument("--only", help="workloads, with commas between")
    parser.add_argument("--systems", help="systems, with commas between")
    parser.add_argument("--repeats", type=int, default=None, help="runs per system of a workload")
    parser.add_argument("--rounds", type=int, default=None, help="of a measurement of figures, not its own number")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the child is ended too
    every = [*WORKLOADS, *figures.MODULES]
    names = _chosen(options.only, every, QUICK if options.quick else every)
    systems = _chosen(options.systems, list(SYSTEMS), list(SYSTEMS))
    plan = Plan(repeats=options.repeats or REPEATS, time_box_s=TIME_BOX_S, rounds=options.rounds)
    if options.quick:
        plan = Plan(repeats=options.repeats or 1, time_box_s=QUICK_TIME_BOX_S, share=QUICK_SHARE, rounds=options.rounds)
    return 0 if run(names, systems, plan) else 1


if __name__ == "__main__":
    sys.exit(main())
