"""latest.json and the table: their shape, what counts for the ratio, and what is said of a system without a result."""

import json
from pathlib import Path

import pytest

from benchmarks.results import Measurement, all_right, ratio_to_best_peer, write
from benchmarks.table import render
from benchmarks.workloads import WORKLOADS


def measured(*rates: float, differences: int | None = 0) -> Measurement:
    found = Measurement(unit="rec/s", state="done", differences=differences)
    for rate in rates:
        found.add(rows=int(rate) * 10, seconds=10.0, cpu_seconds=20.0)
    return found


def test_latest_json_has_its_shape(tmp_path: Path) -> None:
    systems = {"weir": measured(50e6, 10e6, 30e6), "spark": measured(3e6), "pyflink": Measurement(unit="rec/s")}
    write(tmp_path / "bench" / "latest.json", {"W1": systems}, {"W1": "windows"})
    (entry,) = json.loads((tmp_path / "bench" / "latest.json").read_text()).values()
    assert entry["ratio_to_best_peer"] == pytest.approx(10)
    weir = entry["systems"]["weir"]
    assert weir["rate"] == 30e6
    assert weir["unit"] == "rec/s"
    assert weir["runs"] == [50e6, 10e6, 30e6]
    assert weir["verified"] is True
    assert entry["systems"]["pyflink"] == {
        "rate": None, "unit": "rec/s", "runs": [], "verified": False, "state": "missing", "rows": 0, "cpu_seconds": [],
    }  # fmt: skip


def test_only_right_output_counts_for_the_ratio() -> None:
    fast_and_wrong = measured(90e6, differences=3)
    systems = {"weir": measured(30e6), "spark": measured(3e6), "flink_sql": fast_and_wrong}
    assert ratio_to_best_peer(systems) == pytest.approx(10)
    assert ratio_to_best_peer({**systems, "weir": fast_and_wrong}) is None
    assert ratio_to_best_peer({"weir": measured(1.0)}) is None
    assert not all_right([systems])
    assert not all_right([{"weir": Measurement(unit="rec/s", state="failed")}])
    assert all_right([{"weir": measured(30e6), "spark": Measurement(unit="rec/s", state="did not finish")}])


def test_the_table_says_what_is_missing_wrong_or_too_slow() -> None:
    systems = {
        "weir": measured(40e6),
        "spark": measured(2e6),
        "flink_sql": measured(4e6, differences=1_234),
        "pyflink": Measurement(unit="rec/s", state="did not finish"),
        "bytewax": Measurement(unit="rec/s"),
    }
    lines = render({"W1": systems}, WORKLOADS).splitlines()
    shown = {line.split("  ")[-1].strip() for line in lines}
    assert {"right", "1,234 rows differ", "did not finish", "missing"} <= shown
    assert any(line.split() == ["Weir", "40,000,000", "20,000,000", "right"] for line in lines)
    assert any("20.0x the best peer (target 10x: met)" in line for line in lines)
