"""The plots: one SVG per workload, with every system that has a rate."""

from pathlib import Path
from typing import Any

from benchmarks.plots import draw, draw_intervals


def entry(rate: float | None) -> dict[str, Any]:
    return {"rate": rate, "unit": "rec/s"}


def test_a_workload_becomes_an_svg_that_names_its_systems(tmp_path: Path) -> None:
    systems = {"weir": entry(40e6), "spark": entry(2e6), "pyflink": entry(None)}
    path = draw("W1", {"title": "windows", "systems": systems}, tmp_path / "plots")
    assert path == tmp_path / "plots" / "w1.svg"
    text = path.read_text()
    assert "<svg" in text
    for shown in ("Weir", "Structured Streaming", "40.00", "W1: windows"):
        assert shown in text
    assert "PyFlink" not in text


def test_nothing_measured_draws_nothing(tmp_path: Path) -> None:
    assert draw("W1", {"systems": {"weir": entry(None)}}, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_cost_of_checkpoints_is_drawn_over_their_interval(tmp_path: Path) -> None:
    rows = [
        {"interval_ms": None, "time_to_none": 1.0, "processor_to_none": 1.0},
        {"interval_ms": 1000, "time_to_none": 1.25, "processor_to_none": 1.5},
    ]
    drawn = draw_intervals({"intervals": rows}, tmp_path / "plots").read_text()
    assert "1,000 ms" in drawn
    assert "none" in drawn
