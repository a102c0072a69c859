"""Plots of the latest results: `python -m benchmarks.plots` writes an SVG per workload into docs/benchmarks."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import goals
from benchmarks.child import BENCH, ROOT
from benchmarks.intervals.report import BEHIND, MODES, STOP_THE_WORLD
from benchmarks.results import LATEST, OWN
from benchmarks.systems import SYSTEMS

FOLDER: Final = ROOT / "docs" / "benchmarks"
_OWN_COLOUR, _PEER_COLOUR, _TARGET_COLOUR = "#1f6f8b", "#b8bec4", "#c8553d"
_WIDTH: Final = 8.0  #: inches at 100 dots per inch; fits a page without scaling
_BAR: Final = 0.42  #: height per bar, in inches


def draw(name: str, entry: dict[str, Any], folder: Path) -> Path | None:
    """Draws the entry of a workload in latest.json. Returns None if it has no results."""
    if "systems" in entry:
        figure = rates(entry)
    elif "lines" in entry.get("details", {}):
        figure = curves(entry["details"]["lines"])
    elif "latency" in entry.get("details", {}):
        figure = latency(entry["details"]["latency"], entry["details"]["bin_s"])
    else:
        figure = bars([figure for figure in entry["figures"] if figure["value"] is not None])
    if figure is None:
        return None
    figure.suptitle(f"{name}: {entry.get('title', '')}{_remarks(entry)}", x=0.01, ha="left", fontsize=10)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.lower()}.svg"
    figure.savefig(path, metadata={"Date": None})
    return path


def _remarks(entry: dict[str, Any]) -> str:
    """The date of the run, and remarks that invalidate its figures. Rates have such remarks beside each bar."""
    state, date = entry.get("state", "done"), entry.get("date")  # results of older versions have no date
    remarks = [*([date] if date else []), *([state] if state != "done" else [])]
    remarks += ["wrong output"] if entry.get("wrong") else []
    return f" ({', '.join(remarks)})" if remarks else ""


def rates(entry: dict[str, Any]) -> Figure | None:
    """A bar per system, the fastest on top, with remarks on wrong output."""
    measurements = {system: measurement for system, measurement in entry["systems"].items() if measurement["rate"]}
    if not measurements:
        return None
    ordered = sorted(measurements, key=lambda system: float(measurements[system]["rate"]))
    figure, (axes,) = _rows([len(ordered)])
    values = [measurements[system]["rate"] / 1e6 for system in ordered]
    colours = [_OWN_COLOUR if system == OWN else _PEER_COLOUR for system in ordered]
    titles = [SYSTEMS[system].title if system in SYSTEMS else system for system in ordered]
    drawn = axes.barh(titles, values, color=colours, height=0.7)
    marks = ["" if measurements[system].get("verified", True) else ", wrong output" for system in ordered]
    labels = [f" {value:,.2f}{mark}" for value, mark in zip(values, marks, strict=True)]
    axes.bar_label(drawn, labels=labels, fontsize=9)
    ratio = entry.get("ratio_to_best_peer")
    beside = "" if ratio is None else f"; Weir is {ratio:.1f} times the best peer"
    axes.set_xlabel(f"million {measurements[ordered[0]]['unit']} on two cores{beside}", fontsize=9)
    return figure


def curves(lines: Sequence[dict[str, Any]]) -> Figure:
    """Run time over the checkpoint interval by mode, with 95 % confidence intervals; no checkpoints = 1."""
    figure = Figure(figsize=(_WIDTH, 3.6), layout="constrained")
    axes = figure.subplots()
    intervals = sorted({line["interval_ms"] for line in lines}, reverse=True)
    for mode in (*MODES, BEHIND):
        mode_lines = {line["interval_ms"]: line for line in lines if line["mode"] == mode}
        there = [interval for interval in intervals if interval in mode_lines]
        if not there:  # W8-behind measures a single mode
            continue
        times = [mode_lines[interval]["time"]["median"] for interval in there]
        ends = [(mode_lines[interval]["time"]["low"], mode_lines[interval]["time"]["high"]) for interval in there]
        below = [0 if low is None else time - low for time, (low, _) in zip(times, ends, strict=True)]
        above = [0 if high is None else high - time for time, (_, high) in zip(times, ends, strict=True)]
        colour = _PEER_COLOUR if mode == STOP_THE_WORLD else _OWN_COLOUR
        places = [1 + intervals.index(interval) for interval in there]
        errors, dashes = [[0, *below], [0, *above]], "--" if mode == BEHIND else "-"
        axes.errorbar([0, *places], [1.0, *times], yerr=errors, marker="o", capsize=3, color=colour, linestyle=dashes)
        text, beside = f"{mode} {times[-1]:.2f}", (places[-1], times[-1])
        axes.annotate(text, beside, (8, 0), textcoords="offset points", fontsize=9, va="center")
    axes.axhline(1.0, color="black", linewidth=0.6, linestyle=":")
    axes.set_xticks(range(len(intervals) + 1), ["none", *map(_interval, intervals)])
    axes.set_xlim(-0.3, len(intervals) + 1.3)
    axes.set_xlabel("checkpoint interval", fontsize=9)
    axes.set_ylabel("run time, as a multiple of none", fontsize=9)
    _plain(axes)
    return figure


def latency(runs: dict[str, dict[str, Any]], bin_s: float) -> Figure:
    """The p99 of uncommitted rows over time, a row per job and rate, with a mark at each commit."""
    figure = Figure(figsize=(_WIDTH, 0.8 + 1.3 * len(runs)), layout="constrained")
    every = figure.subplots(len(runs), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (name, run) in zip(every, runs.items(), strict=True):
        axes.plot([number * bin_s for number in range(len(run["series"]))], run["series"], color=_OWN_COLOUR)
        for at in run["commits"]:
            axes.axvline(at, color=_TARGET_COLOUR, linewidth=0.8, linestyle=":")
        axes.set_title(f"{name}: p99 {run['uncommitted']['p99']:.1f} ms", fontsize=9, loc="left")
        axes.set_ylabel("ms", fontsize=9)
        axes.set_ylim(bottom=0)
        _plain(axes)
    every[-1].set_xlabel("seconds since the first measured row; commits dotted", fontsize=9)
    return figure


def bars(figures: Sequence[dict[str, Any]]) -> Figure | None:
    """A bar per figure, with a mark at its target. Figures of the same unit share an axis."""
    if not figures:
        return None
    units = list(dict.fromkeys(figure["unit"] for figure in figures))
    grouped = [[figure for figure in reversed(figures) if figure["unit"] == unit] for unit in units]
    drawing, every = _rows([len(group) for group in grouped])
    for unit, group, axes in zip(units, grouped, every, strict=True):
        names, values = [figure["name"] for figure in group], [figure["value"] for figure in group]
        drawn = axes.barh(names, values, color=_OWN_COLOUR, height=0.7)
        axes.bar_label(drawn, labels=[f" {figure['value']:,.{figure['digits']}f}" for figure in group], fontsize=9)
        for at, figure in enumerate(group):
            for word in ("at_most", "at_least"):
                if figure[word] is not None:
                    axes.plot([figure[word]] * 2, [at - 0.42, at + 0.42], color=_TARGET_COLOUR, linewidth=2)
        axes.set_xlabel(f"{unit or 'ratio'}; target in red" if any(map(_has_target, group)) else unit, fontsize=9)
    return drawing


def _has_target(figure: dict[str, Any]) -> bool:
    return figure["at_most"] is not None or figure["at_least"] is not None


def _rows(counts: Sequence[int]) -> tuple[Figure, list[Axes]]:
    """Axes below each other, with a height by the number of their bars."""
    figure = Figure(figsize=(_WIDTH, 0.4 + sum(0.7 + _BAR * count for count in counts)), layout="constrained")
    every = figure.subplots(len(counts), 1, squeeze=False, gridspec_kw={"height_ratios": counts})[:, 0]
    for axes in every:
        axes.margins(x=0.16)
        _plain(axes)
    return figure, list(every)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def _interval(interval_ms: int) -> str:
    return f"{interval_ms // 1000} s" if interval_ms % 1000 == 0 else f"{interval_ms} ms"


def main() -> int:
    latest = BENCH / LATEST
    if not latest.exists():
        sys.stderr.write("no results to draw yet: run `make bench`\n")
        return 1
    mpl.rcParams["svg.hashsalt"] = "weir"  # reproducible ids: the same results give the same file
    mpl.rcParams["svg.fonttype"] = "none"  # texts stay texts: a tenth of the lines, and they can be read and found
    for name, entry in json.loads(latest.read_text(encoding="utf-8")).items():
        if name == goals.NAME:  # numbers of the other entries
            continue
        path = draw(name, entry, FOLDER)
        sys.stdout.write(f"{name}: {path.relative_to(ROOT) if path else 'no results'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
