"""Runs workloads and measurements in turns, each in a process of its own, and writes the results after each step."""

import fcntl
import json
import os
import shutil
import statistics
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from benchmarks import child, database, figures, goals, inputs, protocol, results, table
from benchmarks.answers import differences, late_rows
from benchmarks.datasets.table import Late
from benchmarks.footprint import Footprint
from benchmarks.peers import PEERS
from benchmarks.progress import Progress
from benchmarks.protocol import Task
from benchmarks.results import FigureResult, RateMeasurement
from benchmarks.systems import SYSTEMS, System, python_of
from benchmarks.workload import Workload, count_errors
from benchmarks.workloads import WORKLOADS

STEP_S: Final = 30.0  #: approximate seconds of a system's run, with its small run and the start of its processes
KILL_AT: Final = 0.5  #: share of the usual run time after which a system is killed
MIN_FREE_BYTES: Final = 6_000_000_000  #: disk space for the files of W7, or the state of W9, which is larger

Step = tuple[Workload, System]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The size of the benchmark."""

    repeats: int
    time_box_s: float
    share: float = 1.0  #: share of each workload's rows
    rounds: int | None = None  #: of measurements of figures, and of workloads with a number of rounds; None: their own


def steps(workloads: Sequence[Workload], systems: Sequence[str], plan: RunPlan) -> Iterator[Step]:
    """The steps in order: by workload, then by round, then by system."""
    for workload in workloads:
        for _ in range(plan.repeats if workload.rounds is None else plan.rounds or workload.rounds):
            for name in systems:
                if name in workload.rows or name in workload.absent:
                    yield workload, SYSTEMS[name]


def run(folder: Path, names: Sequence[str], systems: Sequence[str], plan: RunPlan) -> bool:
    """Runs `names` and prints the tables, also after an interrupt. Returns whether all results are correct."""
    todo = list(steps([WORKLOADS[name] for name in names if name in WORKLOADS], systems, plan))
    figured = [name for name in names if name in figures.MEASUREMENT_MODULES]
    expected = [(_kind(workload, system), STEP_S) for workload, system in todo]
    sketch = figures.MeasurementPlan(folder=folder, rounds=plan.rounds)
    for name in figured:
        measurement = figures.measurement(name)
        expected += [(name, measurement.STEP_S)] * measurement.steps(sketch)
    harness = Harness(folder, plan, Progress(expected))
    try:
        with harness.progress:
            harness.run_rates(todo)
            harness.run_figures(figured)
    finally:
        sys.stdout.write(harness.tables() + harness.goals())
    return harness.is_right


@dataclass
class Harness:
    """A benchmark in `folder`, and its results so far."""

    folder: Path
    plan: RunPlan
    progress: Progress
    rates: dict[str, dict[str, RateMeasurement]] = field(default_factory=dict)  #: by workload and system
    figures: dict[str, FigureResult] = field(default_factory=dict)  #: by measurement

    @property
    def is_right(self) -> bool:
        return results.all_right(self.rates.values()) and all(result.is_right for result in self.figures.values())

    def tables(self) -> str:
        blocks = [table.render(self.rates, WORKLOADS) if self.rates else "", table.render_figures(self.figures)]
        load = f"load average at the end: {results.load_average()}, {os.cpu_count()} processors\n"
        return "\n\n".join(block for block in blocks if block) + f"\n{load}"

    def goals(self) -> str:
        """The goals as a block of text, also those that earlier runs measured. Writes them beside the results."""
        entries = results.read(self.folder / results.LATEST)
        result = goals.result(entries, measured_now=[*self.rates, *self.figures])
        self._write(goals.NAME, result.to_json())
        return "\n" + table.render_figures({goals.NAME: result}) + "\n"

    # ------------------------------------------------------------ rates

    def run_rates(self, todo: Sequence[Step]) -> None:
        """Runs each step and then writes its results. A failed step does not affect the other steps."""
        for workload, group in groupby(todo, key=lambda step: step[0]):
            measurements = self.rates[workload.name] = {}
            systems = [system for _, system in group]
            try:
                with inputs.input_files(workload, self.folder / "inputs", self.plan.share) as files:
                    for system in systems:
                        self.progress.set_text(f"{workload.name} {system.title}, load {results.load_average()}")
                        measured = measurements.setdefault(system.name, _not_measured(workload, "not run"))
                        self._attempt(workload, system, measured, files)
                        self._write(workload.name, results.entry(workload.title, measurements))
                        self.progress.complete_step(_kind(workload, system))
            except Exception:  # noqa: BLE001 - such as a full disk: later workloads may need no files
                self._log_exception(workload.name)
            for system in systems:
                measurements.setdefault(system.name, _not_measured(workload, "failed"))
                self.progress.drop_steps(_kind(workload, system))

    def _attempt(self, workload: Workload, system: System, measured: RateMeasurement, files: Path) -> None:
        if measured.state == "did not finish":  # not retried
            return
        lost, name = len(measured.lost), f"{workload.name}-{system.name}"
        try:
            self._measure(workload, system, measured, files)
        except Exception:  # noqa: BLE001 - a failed system must not stop the other systems
            measured.add_lost_run("failed")
            self._log_exception(name)
        if len(measured.lost) > lost:
            self.progress.write_line(f"{workload.name} {system.title}: {measured.lost[-1]}, see {self._log_of(name)}")

    def _measure(self, workload: Workload, system: System, measured: RateMeasurement, files: Path) -> None:
        """Runs a system once, and adds the result to `measured`."""
        if system.name in workload.absent:
            measured.state = f"missing: {workload.absent[system.name]}"
            return
        python = python_of(system, PEERS, sys.executable)
        if python is None:
            measured.state = "missing"
            return
        name = f"{workload.name}-{system.name}"
        with self._empty_folder(name) as folder, database.target_database(workload, folder / "postgres") as url:
            task = workload.task(system.name, str(folder), self.plan.share, str(files / system.name))
            task = replace(task, database=url)
            if self._is_killed(workload, system, measured):
                self._measure_killed(workload, system, task, python, measured)
                return
            footprint = Footprint(task.checkpoints("measure"))
            outcome = self._run_child(system, task, python, footprint=footprint)
            if outcome.state == "done":
                add_result(workload, system, task, outcome, measured)
                measured.peak_rss_bytes.append(footprint.peak_rss_bytes)
                measured.checkpoint_bytes.append(footprint.checkpoint_bytes)
            else:
                measured.add_lost_run(outcome.state)

    def _is_killed(self, workload: Workload, system: System, measured: RateMeasurement) -> bool:
        """Whether this round has a SIGKILL: the last of several rounds that make output from a data set."""
        is_last = len(measured.runs) + len(measured.lost) == self.plan.repeats - 1
        return workload.can_be_killed and not system.is_batch and is_last and bool(measured.runs)

    def _measure_killed(
        self, workload: Workload, system: System, task: Task, python: str, measured: RateMeasurement
    ) -> None:
        """Kills all processes in the middle of the run, then starts the system again on its last checkpoint."""
        seconds = statistics.median(task.rows / rate for rate in measured.runs)
        killed = self._run_child(system, task, python, kill_after_s=seconds * KILL_AT)
        if killed.state != "killed":
            measured.add_lost_run("not killed" if killed.state == "done" else killed.state)
            return
        resumed = self._run_child(system, replace(task, resumes=True), python)
        if resumed.state != "done":
            measured.add_lost_run(resumed.state)
            return
        resumed.events[protocol.CHECKED] = killed.events[protocol.CHECKED]
        compare_output(workload, system, task, resumed, measured)
        measured.killed_s.append(resumed.heard_at[protocol.MEASURED] - killed.heard_at[protocol.STARTED])

    def _run_child(self, system: System, task: Task, python: str, **settings: Any) -> child.ChildResult:
        log = f"{task.workload}-{system.name}" + ("-resumed" if task.resumes else "")
        return child.run(
            [python, "-m", system.module, task.to_json()],
            environment=_environment(python), log=self._log_of(log), time_box_s=self.plan.time_box_s, **settings,
        )  # fmt: skip

    # ------------------------------------------------------------ figures

    def run_figures(self, names: Sequence[str]) -> None:
        """Runs each measurement of figures in its own process, and writes its results."""
        for name in names:
            self.progress.set_text(f"{name}, load {results.load_average()}")
            with self._empty_folder(name) as folder:
                outcome = child.run(
                    [sys.executable, "-m", "benchmarks.figure_run", json.dumps([name, str(folder), self.plan.rounds])],
                    environment=_environment(sys.executable), log=self._log_of(name),
                    time_box_s=figures.measurement(name).TIME_BOX_S, on_event=partial(self.on_event, name),
                )  # fmt: skip
            if outcome.state != "done":
                self.progress.write_line(f"{name}: {outcome.state}, see {self._log_of(name)}")
            self._record(name, outcome)
            self.progress.drop_steps(name)

    def on_event(self, name: str, event: dict[str, Any]) -> None:
        """Handles an event of a running measurement. Preliminary results survive an interrupt."""
        if event["event"] == protocol.STEPPED:
            self.progress.set_text(f"{name} {event['text']}, load {results.load_average()}")
            self.progress.complete_step(name)
        elif event["event"] == protocol.TOLD:
            self._record(name, child.ChildResult(state="interrupted", events={protocol.TOLD: event}))

    def _record(self, name: str, outcome: child.ChildResult) -> None:
        self.figures[name] = figure_result(name, outcome)
        self._write(name, self.figures[name].to_json())

    # ------------------------------------------------------------ files

    def _write(self, name: str, entry: dict[str, Any]) -> None:
        results.write(self.folder / results.LATEST, {name: entry})

    def _log_of(self, name: str) -> Path:
        return self.folder / "log" / f"{name}.log"

    def _log_exception(self, name: str) -> None:
        """Appends the current exception to the log."""
        with self._log_of(name).open("a", encoding="utf-8") as log:
            traceback.print_exc(file=log)
        self.progress.write_line(f"{name}: {sys.exc_info()[1]!r}")

    @contextmanager
    def _empty_folder(self, name: str) -> Iterator[Path]:
        folder = self.folder / "runs" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield folder
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Prepares the folder of results, and locks it: a second run would distort the results of both runs.

    Raises:
        SystemExit: another benchmark runs, the disk is nearly full, or earlier results cannot be read.
    """
    (folder / "log").mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another benchmark runs here: {lock.name} is locked") from None
        for left in ("runs", "inputs"):  # of a killed run
            shutil.rmtree(folder / left, ignore_errors=True)
        free = shutil.disk_usage(folder).free
        if free < MIN_FREE_BYTES:
            raise SystemExit(f"{folder}: {free / 1e9:.1f} GB are free, up to {MIN_FREE_BYTES / 1e9:.0f} GB are needed")
        try:
            results.read(folder / results.LATEST)
        except ValueError as error:
            raise SystemExit(f"{folder / results.LATEST} cannot be read ({error}): move it away") from error
        yield


def figure_result(name: str, outcome: child.ChildResult) -> FigureResult:
    """The result of measurement `name`, with its last report, which may be preliminary."""
    event = outcome.events.get(protocol.MEASURED) or outcome.events.get(protocol.TOLD)
    report = None if event is None else figures.report_from_json(event["report"])
    return FigureResult(title=figures.measurement(name).TITLE, state=outcome.state, report=report)


def add_result(
    workload: Workload, system: System, task: Task, outcome: child.ChildResult, measured: RateMeasurement
) -> None:
    """Compares the output, then adds the result: output that cannot be compared is no result."""
    compare_output(workload, system, task, outcome, measured)
    event, seconds = outcome.events[protocol.MEASURED], outcome.events[protocol.MEASURED]["seconds"]
    miscounted = workload.count_errors(event["rows"], event["details"])
    if workload.late and "late_rows" in event["details"]:
        right = {"late_rows": late_rows(workload, task.rows)}
        if workload.late_is_bound:
            right["late_rows"] = min(right["late_rows"], event["details"]["late_rows"])
        miscounted = (miscounted or []) + count_errors(event["details"], right)
    if miscounted is not None:
        measured.miscounted = (measured.miscounted or []) + miscounted
    if workload.dataset is not None:
        seconds = outcome.heard_at[protocol.MEASURED] - outcome.heard_at[protocol.STARTED]
    measured.add(rows=event["rows"], seconds=seconds, cpu_seconds=outcome.cpu_seconds, rows_worked=event["rows_worked"])


def compare_output(
    workload: Workload, system: System, task: Task, outcome: child.ChildResult, measured: RateMeasurement
) -> None:
    """Compares the output of the small run, and of the measured run if it has any. Notes the number of differences."""
    if not workload.found:
        measured.differences = measured.differences or 0  # there is no output; the totals are compared
        return
    checked = outcome.events[protocol.CHECKED]
    if task.database and not system.is_batch:
        for phase in database.PHASES:
            database.export(task.database, phase, task.output_of(phase))
        checked = {**checked, **database.EXPORTED, "columns": workload.output}
    counts = [differences(workload, task.output, checked)]
    if workload.files is not None:
        measure = {**checked, "rows": task.rows}
        late: Late = "all" if system.is_batch or not workload.late else "on time"
        counts.append(differences(workload, task.measured_output, measure, late=late))
    earlier_count = measured.differences or 0
    measured.differences = (
        None if None in counts else max(earlier_count, *(number for number in counts if number is not None))
    )


def _not_measured(workload: Workload, state: str) -> RateMeasurement:
    return RateMeasurement(unit=workload.unit, state=state)


def _environment(python: str) -> dict[str, str]:
    return {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "TZ": "UTC"}


def _kind(workload: Workload, system: System) -> str:
    return f"{workload.name} {system.name}"
