"""Runs the benchmark: `python -m benchmarks [--quick] [--only W1,W2] [--systems weir,spark] [--repeats 3]`.

Systems take turns within a workload, so that what else the machine does hits all of them alike. The first, small run of
each process is checked against the answer and warms it up; only the second counts.
"""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tqdm import tqdm

from benchmarks import child, protocol, results, table
from benchmarks.answers import differences
from benchmarks.peers import PEERS
from benchmarks.results import Measurement
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of everything."""

    repeats: int
    time_box_s: float
    share: float = 1.0  #: of each workload's rows


def measure(workload: Workload, system: System, measured: Measurement, plan: Plan) -> None:
    """One run of one system, added to `measured`."""
    python = python_of(system, PEERS, sys.executable)
    if python is None:
        measured.state = "missing"
        return
    folder = BENCH / "runs" / f"{workload.name}-{system.name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    task = workload.task(system.name, str(folder), plan.share)
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
    found = differences(workload, task, outcome.events[protocol.CHECKED])
    if measured.differences is None or found is None or found > measured.differences:
        measured.differences = found


def steps(workloads: Sequence[Workload], systems: Sequence[str], repeats: int) -> Iterator[Step]:
    """Workload by workload; within one, the systems in turn, again and again."""
    for workload in workloads:
        for _ in range(repeats):
            for name in systems:
                if name in workload.rows:
                    yield workload, SYSTEMS[name]


def run(workloads: Sequence[Workload], systems: Sequence[str], plan: Plan) -> bool:
    """Runs everything, writes latest.json after each step and prints the table. Returns whether all output is right."""
    todo = list(steps(workloads, systems, plan.repeats))
    found: dict[str, dict[str, Measurement]] = {}
    titles = {workload.name: workload.title for workload in workloads}
    with tqdm(todo, unit="run", file=sys.stderr) as progress:
        for workload, system in progress:
            progress.set_description(f"{workload.name} {system.title}, load {results.load_average()}")
            measured = found.setdefault(workload.name, {}).setdefault(system.name, Measurement(unit=workload.unit))
            if measured.state != "did not finish":  # once is enough
                measure(workload, system, measured, plan)
            results.write(LATEST, found, titles)
    sys.stdout.write(table.render(found, WORKLOADS) + "\n")
    sys.stdout.write(f"load average at the end: {results.load_average()}, {os.cpu_count()} processors\n")
    return results.all_right(found.values())


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
    parser.add_argument("--repeats", type=int, default=None)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the child is ended too
    names = _chosen(options.only, list(WORKLOADS), QUICK if options.quick else list(WORKLOADS))
    systems = _chosen(options.systems, list(SYSTEMS), list(SYSTEMS))
    plan = Plan(repeats=options.repeats or REPEATS, time_box_s=TIME_BOX_S)
    if options.quick:
        plan = Plan(repeats=options.repeats or 1, time_box_s=QUICK_TIME_BOX_S, share=QUICK_SHARE)
    return 0 if run([WORKLOADS[name] for name in names], systems, plan) else 1


if __name__ == "__main__":
    sys.exit(main())
