"""W14: the gain of a second slot on W2 (tumbling windows), relative to the gain of the bare operators.

Six settings take turns: one slot, two slots, one process of bare operators (`kernels`), two such processes, and the
control, a loop in the cache of a core (`resident`) in one process and in two. The gain of the control is that of the
machine: bare operators gain less because they share its memory, and slots because they also exchange rows. W1 and R1
(into files that are discarded) run with one slot and with two in the same rounds.
"""

import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks import inputs, kernels, slots
from benchmarks.answers import late_rows
from benchmarks.child import BENCH
from benchmarks.figures import Figure, MeasurementPlan, Report, ratio
from benchmarks.systems import weir_jobs
from benchmarks.workload import count_errors
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.windows import totals
from runtime.core.job.settings import CoordinatorSettings
from runtime.launch.slot_pool import SlotPoolLauncher
from runtime.launch.spark import SparkLauncher

TITLE: Final = "one slot against two on tumbling windows (W2), beside the bare operators"
TIME_BOX_S: Final = 1_200.0
STEP_S: Final = 11.0
ROUNDS: Final = 5
CORES: Final = 2
CHECKPOINTS: Final = CoordinatorSettings(interval_ms=1_000)
WARM_UP_ROWS: Final = 20_000_000
TARGET_SECONDS: Final = 10.0  #: approximate run time with one slot
FEW_KEYS: Final = WORKLOADS["W1"].keys
MIN_GAIN: Final = 1.6
MIN_GAIN_SHARE: Final = 0.9
RESIDENT_LOOPS: Final = 20_000  #: of the control; some 4 s in a process


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """The times of a run."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Times for the same rows, by number of slots or processes."""

    weir: dict[int, RunTime]
    bare: dict[int, RunTime]
    control: dict[int, RunTime]
    few_keys: dict[int, RunTime]  #: W1
    ads: dict[int, RunTime]  #: R1


def bare(parallelism: int, rows: int) -> RunTime:
    """Runs the bare operators in `parallelism` processes."""
    return _run_together(
        ["benchmarks.kernels", str(index), str(parallelism), str(rows)] for index in range(parallelism)
    )


def control(parallelism: int, loops: int) -> RunTime:
    """Runs the cache-resident loop, divided among `parallelism` processes."""
    return _run_together(["benchmarks.resident", str(loops // parallelism)] for _ in range(parallelism))


def _run_together(programs: Iterable[list[str]]) -> RunTime:
    """Runs modules with arguments, a process each, which begin together. Waits until the last has finished."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for program in programs
    ]
    for process in processes:
        assert _line(process) == kernels.READY_LINE, "the first line is the ready line"
    for process in processes:
        assert process.stdin is not None, "stdin is a pipe"
        process.stdin.write("\n")
        process.stdin.flush()
    told = [tuple(map(float, _line(process).split())) for process in processes]
    for process in processes:
        process.wait()
    return RunTime(seconds=max(seconds for seconds, _ in told), cpu_seconds=sum(used for _, used in told))


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None, "stdout is a pipe"
    return process.stdout.readline().strip()


class SlotRuns:
    """Runs tumbling windows over `keys` keys on Spark slots, and compares their totals with the expected totals."""

    def __init__(self, folder: Path, launcher: SlotPoolLauncher, keys: int = kernels.KEYS) -> None:
        self._folder, self._launcher, self._keys = folder, launcher, keys
        self.wrong: list[str] = []

    def run(self, parallelism: int, rows: int) -> RunTime:
        shutil.rmtree(self._folder, ignore_errors=True)
        flow = kernels.job(rows, self._keys)
        run = slots.run(flow, parallelism, self._launcher, str(self._folder), CHECKPOINTS)
        errors = count_errors(run.counted, totals(rows, self._keys))
        self.wrong += [f"{self._keys} keys, {parallelism} slots: {error}" for error in errors]
        return RunTime(seconds=run.seconds, cpu_seconds=run.cpu_seconds)


class AdsRuns:
    """Runs R1 on Spark slots, into a sink that discards its rows, and compares the number of late rows."""

    def __init__(self, folder: Path, launcher: SparkLauncher) -> None:
        self._folder, self._launcher = folder, launcher
        self._workload = replace(WORKLOADS["R1"], sink="discard")
        self._late_rows = late_rows(self._workload, self._workload.rows["weir"])
        self.wrong: list[str] = []

    def run(self, parallelism: int, rows: int) -> RunTime:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        with inputs.input_files(self._workload, BENCH / "inputs", rows / self._workload.rows["weir"]) as files:
            task = self._workload.task("weir", str(self._folder), inputs=str(files / "weir"))
            run = weir_jobs.run(replace(task, parallelism=parallelism), self._launcher, "measure")
        if run.late_rows != self._late_rows:
            self.wrong.append(f"R1, {parallelism} slots: {run.late_rows} late rows, not {self._late_rows}")
        return RunTime(seconds=run.seconds, cpu_seconds=run.cpu_seconds)


def steps(plan: MeasurementPlan) -> int:
    return 2 + 10 * (plan.rounds or ROUNDS)


def run(plan: MeasurementPlan) -> Report:
    with closing(SparkLauncher("weir-scaling", f"local[{CORES}]")) as launcher:
        weir = SlotRuns(plan.folder / "storage", launcher)
        few_keys = SlotRuns(plan.folder / "storage", launcher, FEW_KEYS)
        ads = AdsRuns(plan.folder / "storage", launcher)
        for parallelism in (CORES, 1):
            warm = weir.run(parallelism, WARM_UP_ROWS)
            plan.step("warming up")
        rows = max(3, round(TARGET_SECONDS * WARM_UP_ROWS / warm.seconds / 1e6)) * 1_000_000
        found: list[Round] = []
        for turn in range(plan.rounds or ROUNDS):
            found.append(measure_round(turn, rows, Runs(weir.run, bare, control, few_keys.run, ads.run), plan.step))
            plan.report_partial(report(found, rows, [*weir.wrong, *few_keys.wrong, *ads.wrong]))
    return report(found, rows, [*weir.wrong, *few_keys.wrong, *ads.wrong])


Run = Callable[[int, int], RunTime]


@dataclass(frozen=True, slots=True)
class Runs:
    """The settings, as functions of parallelism and rows (the control: loops)."""

    weir: Run
    bare: Run
    control: Run
    few_keys: Run
    ads: Run


def measure_round(turn: int, rows: int, runs: Runs, step: Callable[[str], None]) -> Round:
    """Runs each setting once; every second round reverses the order, so that none is always first."""
    found = Round(weir={}, bare={}, control={}, few_keys={}, ads={})
    settings = [
        ("slots", found.weir, runs.weir, rows),
        ("bare operators", found.bare, runs.bare, rows),
        ("control", found.control, runs.control, RESIDENT_LOOPS),
        ("W1", found.few_keys, runs.few_keys, rows),
        ("R1", found.ads, runs.ads, WORKLOADS["R1"].rows["weir"]),
    ]
    order = [(*setting, parallelism) for setting in settings for parallelism in (1, CORES)]
    for name, took, run, amount, parallelism in order if turn % 2 == 0 else reversed(order):
        took[parallelism] = run(parallelism, amount)
        step(f"round {turn + 1}, {name}, {parallelism}")
    return found


def report(found: Sequence[Round], rows: int, wrong: Sequence[str]) -> Report:
    weir, bare = [one.weir for one in found], [one.bare for one in found]
    control = [one.control for one in found]
    gains, bare_gains, control_gains = (
        [(took[1].seconds, took[CORES].seconds) for took in each] for each in (weir, bare, control)
    )
    of_control = ratio(
        [(one / two, alone / both) for (one, two), (alone, both) in zip(gains, control_gains, strict=True)]
    )
    others = [
        Figure.of_ratio(
            f"{name}: gain of the slots to that of the cache-resident loop",
            ratio([(took[1].seconds / took[CORES].seconds, alone / both) for took, (alone, both) in pairs]),
            unit="x",
            at_least=MIN_GAIN_SHARE,
        )
        for name, pairs in (
            ("W1", list(zip([one.few_keys for one in found], control_gains, strict=True))),
            ("R1", list(zip([one.ads for one in found], control_gains, strict=True))),
        )
    ]
    share = ratio([(one / two, alone / both) for (one, two), (alone, both) in zip(gains, bare_gains, strict=True)])
    return Report(
        figures=(
            Figure.of_ratio("two slots to one", ratio(gains), unit="x", at_least=MIN_GAIN),
            Figure.of_ratio("two processes of bare operators to one", ratio(bare_gains), unit="x"),
            Figure.of_ratio(
                "gain of the slots to that of the bare operators", share, unit="x", at_least=MIN_GAIN_SHARE
            ),
            Figure.of_ratio("two processes of a cache-resident loop to one", ratio(control_gains), unit="x"),
            Figure.of_ratio(
                "gain of the slots to that of the cache-resident loop", of_control, unit="x", at_least=MIN_GAIN_SHARE
            ),
            *others,
        ),
        lines=(_rates("slots", weir, rows), _rates("bare operators", bare, rows)),
        wrong=tuple(wrong),
        details={"rows": rows, "rounds": [asdict(one) for one in found]},
    )


def _rates(name: str, every: Sequence[dict[int, RunTime]], rows: int) -> str:
    told = []
    for count in (1, CORES):
        rate = rows / statistics.median(took[count].seconds for took in every) / 1e6
        used = 1e9 * statistics.median(took[count].cpu_seconds for took in every) / rows
        told.append(f"{count}: {rate:.1f} M rec/s, {used:.0f} ns of a processor per record")
    return f"{name}, {'; '.join(told)} (medians)"
