"""Runs the benchmark: `python -m benchmarks [--quick] [--only W1,W8] [--repeats 3] [--rounds 10]`.

Workloads whose result is a rate run first, then the measurements of figures (`figures.py`). Within a workload the
systems take turns, so that other load on the machine affects all of them alike. The first, small run of each process
is checked against the answer and warms the process up; only the second run counts.
"""

import argparse
import fcntl
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from benchmarks import child, figures, inputs, protocol, results, table
from benchmarks.answers import differences
from benchmarks.peers import PEERS
from benchmarks.progress import Progress
from benchmarks.results import FigureResult, RateMeasurement
from benchmarks.systems import SYSTEMS, System, python_of
from benchmarks.workload import Workload
from benchmarks.workloads import QUICK, WORKLOADS
from stack.launch.java import ADVICE, find_java

BENCH: Final = child.ROOT / "var" / "bench"
LATEST: Final = BENCH / "latest.json"
REPEATS: Final = 3
TIME_BOX_S: Final = 300.0
QUICK_TIME_BOX_S: Final = 75.0
QUICK_SHARE: Final = 0.4
STEP_S: Final = 30.0  #: approximate seconds of a system's run, with its small run and the start of its processes
LOOPBACK: Final = "127.0.0.1"
MIN_FREE_BYTES: Final = 6_000_000_000  #: disk space for the files of W7, or the state of W9, which is larger

Step = tuple[Workload, System]
Rates = dict[str, dict[str, RateMeasurement]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The size of the benchmark."""

    repeats: int
    time_box_s: float
    share: float = 1.0  #: share of each workload's rows
    rounds: int | None = None  #: of each measurement of figures; None: its own default


def measure(workload: Workload, system: System, measured: RateMeasurement, plan: RunPlan, inputs: Path) -> None:
    """Run a system once, and add the result to `measured`."""
    if system.name in workload.absent:
        measured.state = f"missing: {workload.absent[system.name]}"
        return
    python = python_of(system, PEERS, sys.executable)
    if python is None:
        measured.state = "missing"
        return
    folder = _empty_folder(f"{workload.name}-{system.name}")
    task = workload.task(system.name, str(folder), plan.share, str(inputs / system.name))
    outcome = child.run(
        [python, "-m", system.module, task.to_json()],
        environment={"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "TZ": "UTC"},
        log=BENCH / "log" / f"{workload.name}-{system.name}.log",
        time_box_s=plan.time_box_s,
    )
    if outcome.state == "done":
        _add_result(workload, task, outcome, measured)
    else:
        measured.add_lost_run(outcome.state)
    shutil.rmtree(folder, ignore_errors=True)


def _add_result(workload: Workload, task: protocol.Task, outcome: child.ChildResult, measured: RateMeasurement) -> None:
    """Compare the output, then add the result: output that cannot be compared is no result."""
    said, checked = outcome.events[protocol.MEASURED], outcome.events[protocol.CHECKED]
    found = [differences(workload, task.output, checked)]
    if workload.files is not None:
        found.append(differences(workload, task.measured_output, {**checked, "rows": task.rows}))
    known = measured.differences or 0
    measured.differences = None if None in found else max(known, *(number for number in found if number is not None))
    miscounted = workload.count_errors(said["rows"], said["details"])
    if miscounted is not None:
        measured.miscounted = (measured.miscounted or []) + miscounted
    measured.add(
        rows=said["rows"],
        seconds=said["seconds"],
        cpu_seconds=outcome.cpu_seconds,
        rows_worked=said["rows_worked"],
    )


def steps(workloads: Sequence[Workload], systems: Sequence[str], repeats: int) -> Iterator[Step]:
    """The steps in order: by workload, then by round, then by system."""
    for workload in workloads:
        for _ in range(repeats):
            for name in systems:
                if name in workload.rows or name in workload.absent:
                    yield workload, SYSTEMS[name]


def run_rates(todo: Sequence[Step], plan: RunPlan, progress: Progress, found: Rates) -> None:
    """Run each step and write the results after it. A failed step does not affect the others."""
    for workload, group in groupby(todo, key=lambda step: step[0]):
        of_all = found[workload.name] = {}
        todo_here = [system for _, system in group]
        try:
            with inputs.input_files(workload, BENCH / "inputs", plan.share) as files:
                for system in todo_here:
                    progress.set_text(f"{workload.name} {system.title}, load {results.load_average()}")
                    measured = of_all.setdefault(system.name, RateMeasurement(unit=workload.unit, state="not run"))
                    _attempt(workload, system, measured, plan, files, progress)
                    results.write(LATEST, {workload.name: results.entry(workload.title, of_all)})
                    progress.complete_step(_kind(workload, system))
        except Exception:  # noqa: BLE001 - such as a full disk: later workloads may need no files
            _log_exception(progress, workload.name)
        for system in todo_here:
            of_all.setdefault(system.name, RateMeasurement(unit=workload.unit, state="failed"))
            progress.drop_steps(_kind(workload, system))


def _attempt(
    workload: Workload, system: System, measured: RateMeasurement, plan: RunPlan, files: Path, progress: Progress
) -> None:
    if measured.state == "did not finish":  # not retried
        return
    lost = len(measured.lost)
    try:
        measure(workload, system, measured, plan, files)
    except Exception:  # noqa: BLE001 - a failed system must not stop the other systems
        measured.add_lost_run("failed")
        _log_exception(progress, f"{workload.name}-{system.name}")
    if len(measured.lost) > lost:
        log = BENCH / "log" / f"{workload.name}-{system.name}.log"
        progress.write_line(f"{workload.name} {system.title}: {measured.lost[-1]}, see {log}")


def _log_exception(progress: Progress, name: str) -> None:
    """Append the current exception to the log."""
    with (BENCH / "log" / f"{name}.log").open("a", encoding="utf-8") as log:
        traceback.print_exc(file=log)
    progress.write_line(f"{name}: {sys.exc_info()[1]!r}")


def _kind(workload: Workload, system: System) -> str:
    return f"{workload.name} {system.name}"


def run_figures(names: Sequence[str], rounds: int | None, progress: Progress, found: dict[str, FigureResult]) -> None:
    """Run each measurement in its own process, and write its results."""
    for name in names:
        folder = _empty_folder(name)
        progress.set_text(f"{name}, load {results.load_average()}")
        log = BENCH / "log" / f"{name}.log"
        outcome = child.run(
            [sys.executable, "-m", "benchmarks.figure_run", json.dumps([name, str(folder), rounds])],
            environment={"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "TZ": "UTC"},
            log=log,
            time_box_s=figures.measurement(name).TIME_BOX_S,
            heard=_event_handler(name, progress, found),
        )
        if outcome.state != "done":
            progress.write_line(f"{name}: {outcome.state}, see {log}")
        found[name] = _figure_result(name, outcome)
        results.write(LATEST, {name: found[name].to_json()})
        progress.drop_steps(name)
        shutil.rmtree(folder, ignore_errors=True)


def _event_handler(name: str, progress: Progress, found: dict[str, FigureResult]) -> Callable[[dict[str, Any]], None]:
    """A handler for the events of a running measurement. It writes preliminary results, which survive an interrupt."""

    def on_event(said: dict[str, Any]) -> None:
        if said["event"] == protocol.STEPPED:
            progress.set_text(f"{name} {said['text']}, load {results.load_average()}")
            progress.complete_step(name)
        elif said["event"] == protocol.TOLD:
            found[name] = _figure_result(name, child.ChildResult(state="interrupted", events={protocol.TOLD: said}))
            results.write(LATEST, {name: found[name].to_json()})

    return on_event


def _figure_result(name: str, outcome: child.ChildResult) -> FigureResult:
    """The result with the last report of the measurement, also of an unfinished measurement."""
    said = outcome.events.get(protocol.MEASURED) or outcome.events.get(protocol.TOLD)
    report = None if said is None else figures.report_from_json(said["report"])
    return FigureResult(title=figures.measurement(name).TITLE, state=outcome.state, report=report)


def _empty_folder(name: str) -> Path:
    folder = BENCH / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def run(names: Sequence[str], systems: Sequence[str], plan: RunPlan) -> bool:
    """Run everything and print the tables, also after an interrupt. Returns whether all results are correct."""
    todo = list(steps([WORKLOADS[name] for name in names if name in WORKLOADS], systems, plan.repeats))
    figured = [name for name in names if name in figures.MEASUREMENT_MODULES]
    expected = [(_kind(workload, system), STEP_S) for workload, system in todo]
    sketch = figures.MeasurementPlan(folder=BENCH, rounds=plan.rounds)
    for name in figured:
        measurement = figures.measurement(name)
        expected += [(name, measurement.STEP_S)] * measurement.steps(sketch)
    rates: Rates = {}
    found: dict[str, FigureResult] = {}
    try:
        with Progress(expected) as progress:
            run_rates(todo, plan, progress, rates)
            run_figures(figured, plan.rounds, progress, found)
    finally:
        _show(rates, found)
    return results.all_right(rates.values()) and all(one.is_right for one in found.values())


def _show(rates: Rates, found: dict[str, FigureResult]) -> None:
    blocks = [table.render(rates, WORKLOADS) if rates else "", table.render_figures(found)]
    sys.stdout.write("\n\n".join(block for block in blocks if block) + "\n")
    sys.stdout.write(f"load average at the end: {results.load_average()}, {os.cpu_count()} processors\n")


@contextmanager
def lock_folder() -> Iterator[None]:
    """Lock the folder against a second run, which would distort both results; delete files of a killed run."""
    BENCH.mkdir(parents=True, exist_ok=True)
    with (BENCH / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another benchmark runs here: {lock.name} is locked") from None
        for name in ("runs", "inputs"):
            shutil.rmtree(BENCH / name, ignore_errors=True)
        yield


def check() -> None:
    """Check the prerequisites of all runs, and find Java for Spark and the peers."""
    java = find_java(os.environ)
    if java is None:
        raise SystemExit(ADVICE)
    os.environ["JAVA_HOME"] = java
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK  # all processes are local; the host name need not resolve
    free = shutil.disk_usage(BENCH).free
    if free < MIN_FREE_BYTES:
        raise SystemExit(f"{BENCH}: {free / 1e9:.1f} GB are free, up to {MIN_FREE_BYTES / 1e9:.0f} GB are needed")
    try:
        results.read(LATEST)
    except ValueError as error:
        raise SystemExit(f"{LATEST} cannot be read ({error}): move it away") from error
    (BENCH / "log").mkdir(exist_ok=True)


def _select_names(text: str | None, known: Sequence[str], default: Sequence[str]) -> list[str]:
    names = list(default) if text is None else text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Weir and its peers, measured side by side.")
    parser.add_argument("--quick", action="store_true", help=f"run {', '.join(QUICK)} once each, with fewer rows")
    parser.add_argument("--only", help="comma-separated workloads, for example W1,W8 (default: all)")
    parser.add_argument("--systems", help="comma-separated systems (default: all)")
    parser.add_argument("--repeats", type=int, default=None, help="runs per system of a workload")
    parser.add_argument("--rounds", type=int, default=None, help="rounds per measurement of figures (default: its own)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # unwinds, which ends the child
    every = [*WORKLOADS, *figures.MEASUREMENT_MODULES]
    names = _select_names(options.only, every, QUICK if options.quick else every)
    systems = _select_names(options.systems, list(SYSTEMS), list(SYSTEMS))
    plan = RunPlan(repeats=options.repeats or REPEATS, time_box_s=TIME_BOX_S, rounds=options.rounds)
    if options.quick:
        plan = RunPlan(
            repeats=options.repeats or 1, time_box_s=QUICK_TIME_BOX_S, share=QUICK_SHARE, rounds=options.rounds
        )
    try:
        with lock_folder():
            check()
            return 0 if run(names, systems, plan) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
