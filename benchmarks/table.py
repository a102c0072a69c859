"""The tables of results, as text."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.figures import Figure
from benchmarks.results import (
    OWN,
    FigureResult,
    RateMeasurement,
    geometric_mean,
    is_peer,
    ratio_to_batch,
    ratio_to_best_peer,
)
from benchmarks.systems import SYSTEMS
from benchmarks.workload import Workload

_HEAD = ("", "system", "rec/s", "runs", "rec/s/core", "cpu-s/M rec", "peak MB", "ckpt MB", "Weir is", "output")
CORES = 2  #: of each run


def render(results: Mapping[str, Mapping[str, RateMeasurement]], workloads: Mapping[str, Workload]) -> str:
    """A block per workload; its last line has the ratio to the fastest peer and the target."""
    lines: list[tuple[str, ...]] = [_HEAD]
    for name, systems in results.items():
        lines.append((name, workloads[name].title))
        lines += [_row(system, measured, systems) for system, measured in systems.items()]
        lines.append(("", _verdict(systems, workloads[name])))
    lines += _geometric_means(results, workloads)
    widths = [max(len(line[i]) for line in lines if len(line) == len(_HEAD)) for i in range(len(_HEAD))]
    return "\n".join(_pad(line, [max(widths[0], 11), *widths[1:]]) for line in lines)


def _row(system: str, measured: RateMeasurement, systems: Mapping[str, RateMeasurement]) -> tuple[str, ...]:
    title = SYSTEMS[system].title
    if measured.rate is None:
        return ("", title, measured.state, *[""] * (len(_HEAD) - 3))
    rate = systems[OWN].rate if OWN in systems else None
    ratio = f"{rate / measured.rate:.1f}x" if rate is not None and system != OWN else ""
    spread = f"{min(measured.runs) / 1e6:.2f}-{max(measured.runs) / 1e6:.2f} M" if len(measured.runs) > 1 else ""
    per_cpu = measured.rows_per_cpu_second
    return (
        "",
        title,
        f"{measured.rate:,.0f}",
        spread,
        f"{measured.rate / CORES:,.0f}",
        f"{1e6 / per_cpu:.2f}" if per_cpu is not None else "",
        _megabytes(measured.peak_rss_bytes),
        _megabytes(measured.checkpoint_bytes),
        ratio,
        _output(measured),
    )


def _megabytes(runs: Sequence[int]) -> str:
    return f"{statistics.median(runs) / 1e6:,.0f}" if runs else ""


def _output(measured: RateMeasurement) -> str:
    lost = f"; {len(measured.lost)} of {len(measured.lost) + len(measured.runs)} runs lost" if measured.lost else ""
    killed = "".join(f"; {seconds:.1f} s with a SIGKILL" for seconds in measured.killed_s)
    return _comparison(measured) + killed + lost


def _comparison(measured: RateMeasurement) -> str:
    if measured.differences is None:
        return "not compared"
    if measured.differences:
        return f"{measured.differences:,} rows differ"
    if measured.miscounted:
        return "wrong: " + "; ".join(measured.miscounted)
    return "right" if measured.miscounted is None else "right, totals too"


def _verdict(systems: Mapping[str, RateMeasurement], workload: Workload) -> str:
    """The ratio to the best peer, with its target. Names the peers without a correct result: one could be the best."""
    ratio, target = ratio_to_best_peer(systems), workload.target
    goal = "no target" if target is None else f"target {target:g}x"
    if ratio is None:
        return f"no ratio to a peer ({goal})"
    met = "" if target is None else f": {_met_text(ratio >= target)}"
    peers = [name for name in workload.rows if is_peer(name)]
    without = [name for name in peers if name not in systems or not systems[name].runs or not systems[name].is_verified]
    beside = f", without {', '.join(SYSTEMS[name].title for name in without)}" if without else ""
    batch = ratio_to_batch(systems)
    of_batch = f", {batch:.2f} of a batch in DuckDB" if batch is not None else ""
    return f"{ratio:.1f}x the best peer{beside} ({goal}{met}){of_batch}"


def _geometric_means(
    results: Mapping[str, Mapping[str, RateMeasurement]], workloads: Mapping[str, Workload]
) -> list[tuple[str, str]]:
    """A line per group of workloads. Names the workloads of the group that were run and have no ratio."""
    lines = []
    for group in dict.fromkeys(workloads[name].group for name in results if workloads[name].group):
        members = {
            name: ratio_to_best_peer(systems) for name, systems in results.items() if workloads[name].group == group
        }
        mean, without = geometric_mean(members)
        target = max(workloads[name].target or 0.0 for name in members)
        if mean is None:
            lines.append((group, f"no ratio to a peer (target {target:g}x)"))
            continue
        beside = f", without {', '.join(without)}" if without else ""
        met, count = _met_text(mean >= target), len(members) - len(without)
        lines.append((group, f"geometric mean of {count} queries{beside}: {mean:.1f}x (target {target:g}x: {met})"))
    return lines


def render_figures(results: Mapping[str, FigureResult]) -> str:
    """A block per measurement: its figures with their targets, then explanations."""
    names = [
        figure.name for result in results.values() if result.report is not None for figure in result.report.figures
    ]
    width = max(map(len, names), default=0)
    lines: list[str] = []
    for name, result in results.items():
        lines.append(f"{name:<11}  {result.title}")
        if result.state != "done":
            lines.append(f"{'':<11}  {result.state}" + ("; results until then:" if result.report is not None else ""))
        if result.report is None:
            continue
        is_right = not result.report.wrong
        lines += [f"{'':<11}  {_figure(figure, width, is_right)}".rstrip() for figure in result.report.figures]
        lines += [f"{'':<11}  wrong: {text}" for text in result.report.wrong]
        lines += [f"{'':<11}  {text}" for text in result.report.lines]
    return "\n".join(lines)


def _figure(figure: Figure, width: int, is_right: bool) -> str:
    value = "missing" if figure.value is None else f"{_number(figure, figure.value)} {figure.unit}".strip()
    between = ""
    if figure.low is not None and figure.high is not None:
        between = f"{_number(figure, figure.low)} to {_number(figure, figure.high)}"
    return f"{figure.name:<{width}}  {value:>12}  {between:<18}  {_target(figure, is_right)}"


def _target(figure: Figure, is_right: bool) -> str:
    """The target and whether it is met; wrong output meets no target."""
    bounds = [
        f"{word} {_number(figure, limit)}"
        for word, limit in (("at least", figure.at_least), ("at most", figure.at_most))
        if limit is not None
    ]
    return f"target {' and '.join(bounds)}: {_met_text(is_right and bool(figure.is_met))}" if bounds else ""


def _number(figure: Figure, value: float) -> str:
    return f"{value:,.{figure.digits}f}"


def _met_text(met: bool) -> str:
    return "met" if met else "missed"


def _pad(line: tuple[str, ...], widths: list[int]) -> str:
    if len(line) < len(_HEAD):
        return f"{line[0]:<{widths[0]}}  {line[1]}".rstrip()
    left = f"{line[0]:<{widths[0]}}  {line[1]:<{widths[1]}}"
    return "  ".join([left, *(f"{cell:>{width}}" for cell, width in zip(line[2:], widths[2:], strict=True))]).rstrip()
