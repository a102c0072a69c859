"""The report of W8 (checkpoint intervals): run time relative to runs without checkpoints, targets, time per phase."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks import disk
from benchmarks.figures import Figure, Report
from benchmarks.ratios import Ratio, ratio
from benchmarks.slots import Run
from benchmarks.workloads.windows import totals

ALIGNED: Final = "aligned"
STOPPED: Final = "stop-the-world"
MODES: Final = (ALIGNED, STOPPED)
TARGETS: Final = {1_000: 1.02, 100: 1.10}  #: interval -> maximum relative run time, aligned
WORSE_AT_MS: Final = 100
WORSE: Final = 1.1  #: minimum run time of stop-the-world relative to aligned

Setting = tuple[int | None, str]  #: (interval in ms; None: no periodic checkpoints, mode)
NONE: Final[Setting] = (None, ALIGNED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A run with its settings."""

    round: int
    group: int
    interval_ms: int | None
    mode: str
    rows: int
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The results of an interval in a mode."""

    interval_ms: int
    mode: str
    time: Ratio  #: relative to no checkpoints
    cpu: Ratio
    checkpoints: float  #: per run; this and all below are medians
    seconds: float
    checkpoint_ms: float
    phases_ms: dict[str, float]


def paired(found: Sequence[Sample], one: Setting, other: Setting) -> list[tuple[Run, Run]]:
    """Pairs of runs with two settings, from the same round and group."""
    beside = {(s.round, s.group): s.run for s in found if (s.interval_ms, s.mode) == other}
    own = [s for s in found if (s.interval_ms, s.mode) == one]
    return [(s.run, beside[s.round, s.group]) for s in own if (s.round, s.group) in beside]


def line(found: Sequence[Sample], interval_ms: int, mode: str) -> Line:
    pairs = paired(found, (interval_ms, mode), (None, ALIGNED))
    own = [run for run, _ in pairs]
    return Line(
        interval_ms=interval_ms,
        mode=mode,
        time=ratio([(run.seconds, none.seconds) for run, none in pairs]),
        cpu=ratio([(run.cpu_seconds, none.cpu_seconds) for run, none in pairs]),
        checkpoints=statistics.median(run.checkpoints for run in own),
        seconds=statistics.median(run.seconds for run in own),
        checkpoint_ms=statistics.median(run.checkpoint_ms for run in own),
        phases_ms={phase: statistics.median(run.phases_ms[phase] for run in own) for phase in own[0].phases_ms},
    )


def report(found: Sequence[Sample], costs: Sequence[disk.Cost], keys: int) -> Report:
    intervals = sorted({sample.interval_ms for sample in found if sample.interval_ms is not None}, reverse=True)
    lines = [line(found, interval_ms, mode) for interval_ms in intervals for mode in MODES]
    return Report(
        figures=(*map(_figure, lines), _worse(found)),
        lines=(_HEAD, *map(_row, lines), *map(_disk, costs)),
        wrong=tuple(_wrong(found, keys)),
        details={
            "lines": [asdict(each) for each in lines],
            "disk": [asdict(cost) for cost in costs],
            "runs": [asdict(sample) for sample in found],
        },
    )


def _figure(line: Line) -> Figure:
    return Figure(
        name=f"time to none, {line.interval_ms:,} ms {line.mode}",
        value=line.time.median,
        digits=3,
        at_most=TARGETS.get(line.interval_ms) if line.mode == ALIGNED else None,
        low=line.time.low,
        high=line.time.high,
        runs=line.time.runs,
    )


def _worse(found: Sequence[Sample]) -> Figure:
    """The ratio of stop-the-world to aligned; both have runs beside the same runs without checkpoints."""
    pairs = paired(found, (WORSE_AT_MS, STOPPED), (WORSE_AT_MS, ALIGNED))
    times = ratio([(stopped.seconds, aligned.seconds) for stopped, aligned in pairs])
    return Figure(
        name=f"time of {STOPPED} to {ALIGNED}, {WORSE_AT_MS} ms",
        value=times.median,
        digits=3,
        at_least=WORSE,
        low=times.low,
        high=times.high,
        runs=times.runs,
    )


_HEAD: Final = (
    f"{'interval':>9}  {'mode':<14}  {'seconds':>7}  {'processor s to none':>24}  {'checkpoints':>11}"
    f"  {'ms each':>7}  {'align':>6}  {'sync':>6}  {'async':>6}"
)


def _row(line: Line) -> str:
    cpu = f"{line.cpu.median:.3f}"
    if line.cpu.low is not None and line.cpu.high is not None:
        cpu += f" ({line.cpu.low:.3f} to {line.cpu.high:.3f})"
    align, sync, later = (line.phases_ms[phase] for phase in ("alignment", "sync", "async"))
    return (
        f"{line.interval_ms:>6,} ms  {line.mode:<14}  {line.seconds:>7.2f}  {cpu:>24}  {line.checkpoints:>11.0f}"
        f"  {line.checkpoint_ms:>7.0f}  {align:>6.1f}  {sync:>6.1f}  {later:>6.1f}"
    )


def _disk(cost: disk.Cost) -> str:
    return f"disk: {cost.act}: median {cost.median_ms:.2f} ms, p99 {cost.p99_ms:.2f} ms"


def _wrong(found: Sequence[Sample], keys: int) -> list[str]:
    """A text for each run whose sink counted wrong totals."""
    right = {sample.rows: totals(sample.rows, keys) for sample in found}
    return [
        f"round {sample.round + 1}, {sample.interval_ms} ms {sample.mode}: {name} is {sample.run.counted.get(name)}"
        for sample in found
        for name, value in right[sample.rows].items()
        if sample.run.counted.get(name) != value
    ]
