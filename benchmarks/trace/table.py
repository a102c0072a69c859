"""The table of paths and turns."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.trace.paths import Path, Turn

_NAME: Final = 60


def middle(paths: Sequence[Path]) -> Path:
    """The path with the median number of hops."""
    assert paths, "no path went through the channel between the slots: run it again, on a machine with less to do"
    return sorted(paths, key=lambda path: (path.hops, path.handovers))[len(paths) // 2]


def table(paths: Mapping[str, Path], turned: Mapping[str, Sequence[Turn]]) -> str:
    lines = [f"{'path':<{_NAME}}{'hops':>8}{'files':>8}{'handovers':>12}"]
    lines += [f"{name:<{_NAME}}{path.hops:>8}{path.files:>8}{path.handovers:>12}" for name, path in paths.items()]
    head = f"{'turn with a batch that is forwarded':<{_NAME}}{'turns':>8}"
    lines += ["", f"{head}{'calls min/median/max':>24}{'files':>16}"]
    for name, each in turned.items():
        calls, files = _spread([turn.calls for turn in each]), _spread([turn.files for turn in each])
        lines.append(f"{name:<{_NAME}}{len(each):>8}{calls:>24}{files:>16}")
    return "\n".join(lines)


def _spread(numbers: Sequence[int]) -> str:
    return f"{min(numbers)} / {statistics.median(numbers):.0f} / {max(numbers)}" if numbers else "-"


def list_hops(name: str, path: Path) -> str:
    lines = [f"\n{name}"]
    for thread, functions in path.segments:
        lines += [f"  [{thread}]", *(f"    {module}:{function}" for module, function in functions)]
    return "\n".join(lines)
