"""The table that people read."""

from collections.abc import Mapping

from benchmarks.results import OWN, Measurement, ratio_to_best_peer
from benchmarks.systems import SYSTEMS
from benchmarks.workload import Workload

_HEAD = ("", "system", "rec/s", "runs", "rec/cpu-s", "Weir is", "output")


def render(results: Mapping[str, Mapping[str, Measurement]], workloads: Mapping[str, Workload]) -> str:
    """One block per workload, the fastest peer's ratio last, against the target."""
    lines: list[tuple[str, ...]] = [_HEAD]
    for name, systems in results.items():
        lines.append((name, workloads[name].title))
        lines += [_row(system, measured, systems) for system, measured in systems.items()]
        lines.append(("", _verdict(systems, workloads[name].target)))
    widths = [max(len(line[i]) for line in lines if len(line) == len(_HEAD)) for i in range(len(_HEAD))]
    return "\n".join(_padded(line, [max(widths[0], 11), *widths[1:]]) for line in lines)


def _row(system: str, measured: Measurement, systems: Mapping[str, Measurement]) -> tuple[str, ...]:
    title = SYSTEMS[system].title
    if measured.rate is None:
        return ("", title, measured.state, "", "", "", "")
    own = systems[OWN].rate if OWN in systems else None
    ratio = f"{own / measured.rate:.1f}x" if own is not None and system != OWN else ""
    spread = f"{min(measured.runs) / 1e6:.2f}-{max(measured.runs) / 1e6:.2f} M" if len(measured.runs) > 1 else ""
    per_cpu = measured.rows_per_cpu_second
    return (
        "",
        title,
        f"{measured.rate:,.0f}",
        spread,
        f"{per_cpu:,.0f}" if per_cpu is not None else "",
        ratio,
        _output(measured),
    )


def _output(measured: Measurement) -> str:
    if measured.differences is None:
        return "not compared"
    return "right" if measured.verified else f"{measured.differences:,} rows differ"


def _verdict(systems: Mapping[str, Measurement], target: float) -> str:
    ratio = ratio_to_best_peer(systems)
    if ratio is None:
        return f"no ratio (target {target:g}x the best peer)"
    return f"{ratio:.1f}x the best peer (target {target:g}x: {'met' if ratio >= target else 'missed'})"


def _padded(line: tuple[str, ...], widths: list[int]) -> str:
    if len(line) < len(_HEAD):
        return f"{line[0]:<{widths[0]}}  {line[1]}".rstrip()
    left = f"{line[0]:<{widths[0]}}  {line[1]:<{widths[1]}}"
    return "  ".join([left, *(f"{cell:>{width}}" for cell, width in zip(line[2:], widths[2:], strict=True))]).rstrip()
