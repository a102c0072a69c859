"""The plots: one SVG per workload, with every system that has a rate, or with its figures and their targets."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.plots import draw


def entry(rate: float | None) -> dict[str, Any]:
    return {"rate": rate, "unit": "rec/s"}


def test_a_workload_becomes_an_svg_that_names_its_systems(tmp_path: Path) -> None:
    systems = {"weir": entry(40e6), "spark": entry(2e6) | {"verified": False}, "pyflink": entry(None)}
    path = draw("W1", {"title": "windows", "systems": systems, "ratio_to_best_peer": 20.0}, tmp_path / "plots")
    assert path == tmp_path / "plots" / "w1.svg"
    text = path.read_text()
    assert "<svg" in text
    for label in ("Weir", "Structured Streaming", "40.00", "wrong output", "W1: windows", "20.0 times the best peer"):
        assert label in text
    assert "PyFlink" not in text


def test_nothing_measured_draws_nothing(tmp_path: Path) -> None:
    assert draw("W1", {"systems": {"weir": entry(None)}}, tmp_path) is None
    assert draw("W9", {"title": "state", "state": "did not finish", "figures": []}, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_figures_that_count_for_nothing_say_so(tmp_path: Path) -> None:
    figures = [asdict(Figure(name="slots", value=1.7, unit="x", at_least=1.6))]
    result = {"title": "scaling", "state": "failed", "figures": figures, "wrong": ["3 rows"], "details": {}}
    path = draw("W9", result, tmp_path)
    assert path is not None
    assert "W9: scaling (failed, wrong output)" in path.read_text()


def test_a_plot_names_the_date_of_its_run(tmp_path: Path) -> None:
    result = {"title": "windows", "systems": {"weir": entry(40e6)}, "date": "2026-11-26"}
    path = draw("W1", result, tmp_path)
    assert path is not None
    assert "W1: windows (2026-11-26)" in path.read_text()


def test_the_cost_of_checkpoints_is_drawn_over_their_interval_by_mode(tmp_path: Path) -> None:
    lines = [
        {"interval_ms": interval_ms, "mode": mode, "time": {"median": time, "low": None, "high": None}}
        for interval_ms, mode, time in [
            (10_000, "aligned", 1.0),
            (10_000, "stop-the-world", 1.01),
            (100, "aligned", 1.05),
            (100, "stop-the-world", 2.5),
            (100, "event time behind", 1.5),
        ]
    ]
    lines[0]["time"] = {"median": 1.0, "low": 0.99, "high": 1.02}
    path = draw("W8", {"title": "intervals", "details": {"lines": lines}}, tmp_path)
    assert path is not None
    drawn = path.read_text()
    for label in ("none", "10 s", "100 ms", "aligned 1.05", "stop-the-world 2.50", "event time behind 1.50"):
        assert label in drawn


def test_figures_are_drawn_with_their_targets(tmp_path: Path) -> None:
    figures = [
        asdict(Figure(name="slots", value=1.7, unit="x", at_least=1.6)),
        asdict(Figure(name="noticed", value=0.3, unit="s", digits=1)),
        asdict(Figure(name="never came", value=None)),
    ]
    path = draw("W9", {"title": "scaling", "figures": figures, "details": {}}, tmp_path)
    assert path is not None
    drawn = path.read_text()
    for label in ("slots", "1.70", "x; target in red", "noticed", "0.3", "W9: scaling"):
        assert label in drawn
    assert "never came" not in drawn


def test_latency_is_drawn_over_time_with_its_commits(tmp_path: Path) -> None:
    latency = {"series": [1.0, 2.0, 30.0], "commits": [0.2], "uncommitted": {"p99": 29.4}}
    entry = {"title": "latency", "figures": [], "details": {"bin_s": 0.1, "latency": {"stateless, 80 %": latency}}}
    path = draw("L1", entry, tmp_path)
    assert path is not None
    text = path.read_text()
    assert "stateless, 80 %: p99 29.4 ms" in text
    assert "commits dotted" in text
