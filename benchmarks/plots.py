"""Draws what was measured: `python -m benchmarks.plots` writes SVGs into docs/benchmarks, one per workload."""

import json
import sys
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks import intervals
from benchmarks.child import ROOT
from benchmarks.results import OWN
from benchmarks.systems import SYSTEMS

LATEST: Final = ROOT / "var" / "bench" / "latest.json"
FOLDER: Final = ROOT / "docs" / "benchmarks"
_OWN_COLOUR, _PEER_COLOUR = "#1f6f8b", "#b8bec4"


def draw(name: str, workload: dict[str, Any], folder: Path) -> Path | None:
    """Bars of rates, the fastest on top; None where nothing was measured."""
    found = {system: entry for system, entry in workload["systems"].items() if entry["rate"]}
    if not found:
        return None
    ordered = sorted(found, key=lambda system: float(found[system]["rate"]))
    figure = Figure(figsize=(8, 1.2 + 0.45 * len(ordered)), layout="constrained")
    axes = figure.subplots()
    rates = [found[system]["rate"] / 1e6 for system in ordered]
    colours = [_OWN_COLOUR if system == OWN else _PEER_COLOUR for system in ordered]
    titles = [SYSTEMS[system].title if system in SYSTEMS else system for system in ordered]
    bars = axes.barh(titles, rates, color=colours)
    axes.bar_label(bars, labels=[f" {rate:,.2f}" for rate in rates])
    axes.set_xlabel(f"million {found[ordered[0]]['unit']}, two cores")
    axes.set_title(f"{name}: {workload.get('title', '')}", loc="left", fontsize=10)
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.lower()}.svg"
    figure.savefig(path, metadata={"Date": None})
    return path


def draw_intervals(measured: dict[str, Any], folder: Path) -> Path:
    """Time and processor time over the checkpoint interval, as ratios to none."""
    rows = measured["intervals"]
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    axes.plot(places, [row["time_to_none"] for row in rows], marker="o", color=_PEER_COLOUR, label="time")
    axes.plot(places, [row["processor_to_none"] for row in rows], marker="o", color=_OWN_COLOUR, label="processor time")
    axes.set_xticks(places, [f"{row['interval_ms']:,} ms" if row["interval_ms"] else "none" for row in rows])
    axes.set_ylim(bottom=0)
    axes.set_title("Run time over the checkpoint interval, to none", loc="left", fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "intervals.svg"
    figure.savefig(path, metadata={"Date": None})
    return path


def main() -> int:
    own = ROOT / intervals.RESULT
    if not LATEST.exists() and not own.exists():
        sys.stderr.write("there is nothing to draw yet: run `make bench` or `make bench-intervals`\n")
        return 1
    mpl.rcParams["svg.hashsalt"] = "weir"  # the same numbers give the same file
    workloads = json.loads(LATEST.read_text(encoding="utf-8")) if LATEST.exists() else {}
    for name, workload in workloads.items():
        path = draw(name, workload, FOLDER)
        sys.stdout.write(f"{name}: {path.relative_to(ROOT) if path else 'nothing was measured'}\n")
    if own.exists():
        path = draw_intervals(json.loads(own.read_text(encoding="utf-8")), FOLDER)
        sys.stdout.write(f"intervals: {path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
