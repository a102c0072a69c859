"""The report of W8 (checkpoint intervals): run time relative to runs without checkpoints, targets, time per phase."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks import disk
from benchmarks.figures import Figure, Ratio, Report, ratio
from benchmarks.slots import JobRun
from benchmarks.workload import count_errors
from benchmarks.workloads.windows import totals

ALIGNED: Final = "aligned"
STOP_THE_WORLD: Final = "stop-the-world"
BEHIND: Final = "event time behind"  #: aligned, with watermarks that lag
MODES: Final = (ALIGNED, STOP_THE_WORLD)
MAX_TIME_RATIOS: Final = {1_000: 1.02, 100: 1.10}  #: interval (ms) -> maximum relative run time; not stop-the-world
STOPPED_RATIO_INTERVAL_MS: Final = 100
MIN_STOPPED_RATIO: Final = 1.1  #: minimum run time of stop-the-world relative to aligned

Setting = tuple[int | None, str]  #: (interval in ms; None: no periodic checkpoints, mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A run with its settings."""

    round: int
    group: int
    interval_ms: int | None
    mode: str
    rows: int
    run: JobRun


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSummary:
    """The results of an interval in a mode."""

    interval_ms: int
    mode: str
    time: Ratio  #: relative to no checkpoints
    cpu: Ratio
    checkpoints: float  #: per run; this and all below are medians
    seconds: float
    checkpoint_ms: float
    phases_ms: dict[str, float]


def without_checkpoints(mode: str) -> Setting:
    """The setting with which runs in `mode` are compared."""
    return None, BEHIND if mode == BEHIND else ALIGNED


def pair_runs(samples: Sequence[Sample], setting: Setting, other: Setting) -> list[tuple[JobRun, JobRun]]:
    """Pairs of a run with setting `setting` and a run with setting `other`, from the same round and group."""
    beside = {(s.round, s.group): s.run for s in samples if (s.interval_ms, s.mode) == other}
    matches = [s for s in samples if (s.interval_ms, s.mode) == setting]
    return [(s.run, beside[s.round, s.group]) for s in matches if (s.round, s.group) in beside]


def summarize_interval(samples: Sequence[Sample], interval_ms: int, mode: str) -> IntervalSummary:
    pairs = pair_runs(samples, (interval_ms, mode), without_checkpoints(mode))
    runs = [run for run, _ in pairs]
    return IntervalSummary(
        interval_ms=interval_ms,
        mode=mode,
        time=ratio([(run.seconds, none.seconds) for run, none in pairs]),
        cpu=ratio([(run.cpu_seconds, none.cpu_seconds) for run, none in pairs]),
        checkpoints=statistics.median(run.checkpoints for run in runs),
        seconds=statistics.median(run.seconds for run in runs),
        checkpoint_ms=statistics.median(run.checkpoint_ms for run in runs),
        phases_ms={phase: statistics.median(run.phases_ms[phase] for run in runs) for phase in runs[0].phases_ms},
    )


def report(samples: Sequence[Sample], costs: Sequence[disk.DiskCost], keys: int) -> Report:
    intervals = sorted({sample.interval_ms for sample in samples if sample.interval_ms is not None}, reverse=True)
    present = {(sample.interval_ms, sample.mode) for sample in samples}
    lines = [
        summarize_interval(samples, interval_ms, mode)
        for interval_ms in intervals
        for mode in (*MODES, BEHIND)
        if (interval_ms, mode) in present
    ]
    return Report(
        figures=(*map(_figure, lines), *_stopped_ratio(samples)),
        lines=(_HEADER, *map(_row, lines), *map(_disk, costs)),
        wrong=tuple(_output_errors(samples, keys)),
        details={
            "lines": [asdict(each) for each in lines],
            "disk": [asdict(cost) for cost in costs],
            "runs": [asdict(sample) for sample in samples],
        },
    )


def _figure(line: IntervalSummary) -> Figure:
    at_most = None if line.mode == STOP_THE_WORLD else MAX_TIME_RATIOS.get(line.interval_ms)
    return Figure.of_ratio(f"time to none, {line.interval_ms:,} ms {line.mode}", line.time, digits=3, at_most=at_most)


def _stopped_ratio(samples: Sequence[Sample]) -> list[Figure]:
    """The run time of stop-the-world relative to aligned, from pairs of runs of the same round and group, if any."""
    pairs = pair_runs(samples, (STOPPED_RATIO_INTERVAL_MS, STOP_THE_WORLD), (STOPPED_RATIO_INTERVAL_MS, ALIGNED))
    if not pairs:
        return []
    times = ratio([(stopped.seconds, aligned.seconds) for stopped, aligned in pairs])
    name = f"time of {STOP_THE_WORLD} to {ALIGNED}, {STOPPED_RATIO_INTERVAL_MS} ms"
    return [Figure.of_ratio(name, times, digits=3, at_least=MIN_STOPPED_RATIO)]


_HEADER: Final = (
    f"{'interval':>9}  {'mode':<17}  {'seconds':>7}  {'processor s to none':>24}  {'checkpoints':>11}"
    f"  {'ms each':>7}  {'align':>6}  {'sync':>6}  {'async':>6}"
)


def _row(line: IntervalSummary) -> str:
    cpu = f"{line.cpu.median:.3f}"
    if line.cpu.low is not None and line.cpu.high is not None:
        cpu += f" ({line.cpu.low:.3f} to {line.cpu.high:.3f})"
    align, sync, later = (line.phases_ms[phase] for phase in ("alignment", "sync", "async"))
    return (
        f"{line.interval_ms:>6,} ms  {line.mode:<17}  {line.seconds:>7.2f}  {cpu:>24}  {line.checkpoints:>11.0f}"
        f"  {line.checkpoint_ms:>7.0f}  {align:>6.1f}  {sync:>6.1f}  {later:>6.1f}"
    )


def _disk(cost: disk.DiskCost) -> str:
    return f"disk: {cost.act}: median {cost.median_ms:.2f} ms, p99 {cost.p99_ms:.2f} ms"


def _output_errors(samples: Sequence[Sample], keys: int) -> list[str]:
    """A text for each wrong total that the sink of a run counted."""
    right = {rows: totals(rows, keys) for rows in {sample.rows for sample in samples}}
    return [
        f"round {sample.round + 1}, {sample.interval_ms} ms {sample.mode}: {error}"
        for sample in samples
        for error in count_errors(sample.run.counted, right[sample.rows])
    ]
