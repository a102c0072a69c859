"""latest.json and the table: their shape, what counts for the ratio, and what is said of a system without a result."""

import json
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks.figures import Figure, Report
from benchmarks.results import (
    FigureResult,
    RateMeasurement,
    all_right,
    entry,
    ratio_to_batch,
    ratio_to_best_peer,
    write,
)
from benchmarks.table import render, render_figures
from benchmarks.workloads import WORKLOADS


def measured(*rates: float, differences: int | None = 0) -> RateMeasurement:
    measurement = RateMeasurement(unit="rec/s", state="done", differences=differences)
    for rate in rates:
        measurement.add(rows=int(rate) * 10, seconds=10.0, cpu_seconds=20.0)
    return measurement


def test_latest_json_has_its_shape(tmp_path: Path) -> None:
    systems = {"weir": measured(50e6, 10e6, 30e6), "spark": measured(3e6), "pyflink": RateMeasurement(unit="rec/s")}
    write(tmp_path / "bench" / "latest.json", {"W1": entry("windows", systems)})
    (result,) = json.loads((tmp_path / "bench" / "latest.json").read_text()).values()
    assert result["ratio_to_best_peer"] == pytest.approx(10)
    weir = result["systems"]["weir"]
    assert weir["rate"] == 30e6
    assert weir["unit"] == "rec/s"
    assert weir["runs"] == [50e6, 10e6, 30e6]
    assert weir["verified"] is True
    assert result["systems"]["pyflink"] == {
        "rate": None, "unit": "rec/s", "runs": [], "verified": False, "totals_verified": False, "state": "missing",
        "lost": [], "rows": 0, "rows_worked": 0, "cpu_seconds": [], "peak_rss_bytes": [], "checkpoint_bytes": [],
        "killed_s": [],
    }  # fmt: skip


def test_what_was_not_measured_again_stays_in_latest_json(tmp_path: Path) -> None:
    latest = tmp_path / "latest.json"
    write(latest, {"W1": entry("windows", {"weir": measured(1.0)}), "W2": entry("windows", {"weir": measured(2.0)})})
    write(latest, {"W2": entry("windows", {"weir": measured(3.0)})})
    rates = {name: result["systems"]["weir"]["rate"] for name, result in json.loads(latest.read_text()).items()}
    assert rates == {"W1": 1.0, "W2": 3.0}


def test_an_entry_has_the_date_of_its_own_run(tmp_path: Path) -> None:
    latest = tmp_path / "latest.json"
    latest.write_text(json.dumps({"W1": {"title": "windows", "date": "2026-11-21"}}))
    before = datetime.now(UTC).date()
    write(latest, {"W2": entry("windows", {"weir": measured(2.0)})})
    dates = {name: date.fromisoformat(result["date"]) for name, result in json.loads(latest.read_text()).items()}
    assert dates["W1"] == date(2026, 11, 21)
    assert before <= dates["W2"] <= datetime.now(UTC).date()


def test_only_right_output_counts_for_the_ratio() -> None:
    fast_and_wrong = measured(90e6, differences=3)
    systems = {"weir": measured(30e6), "spark": measured(3e6), "flink_sql": fast_and_wrong}
    assert ratio_to_best_peer(systems) == pytest.approx(10)
    assert ratio_to_best_peer({**systems, "weir": fast_and_wrong}) is None
    assert ratio_to_best_peer({"weir": measured(1.0)}) is None
    assert not all_right([systems])
    assert not all_right([{"weir": RateMeasurement(unit="rec/s", state="failed")}])
    assert all_right([{"weir": measured(30e6), "spark": RateMeasurement(unit="rec/s", state="did not finish")}])


def test_a_batch_is_an_upper_bound_and_no_peer() -> None:
    systems = {"weir": measured(30e6), "spark": measured(3e6), "duckdb": measured(60e6)}
    assert ratio_to_best_peer(systems) == pytest.approx(10)
    assert ratio_to_batch(systems) == pytest.approx(0.5)
    assert "10.0x the best peer (target 5x: met), 0.50 of a batch in DuckDB" in render({"R1": systems}, WORKLOADS)


def test_the_queries_of_a_group_have_a_geometric_mean() -> None:
    """A query without a ratio is named: it may be the worst."""
    results = {
        "R2-q0": {"weir": measured(2e6), "spark": measured(1e6)},
        "R2-q1": {"weir": measured(8e6), "spark": measured(1e6)},
        "R2-W0": {"weir": measured(50e6), "spark": measured(1e6)},
    }
    assert render(results, WORKLOADS).endswith("R2           geometric mean of 2 queries: 4.0x (target 5x: missed)")
    results["R2-q2"] = {"weir": measured(9e6), "spark": measured(1e6, differences=1)}
    assert "R2           geometric mean of 2 queries, without R2-q2: 4.0x" in render(results, WORKLOADS)


def test_a_run_with_a_sigkill_counts_for_no_rate() -> None:
    weir = measured(30e6)
    weir.killed_s.append(17.5)
    assert weir.runs == [30e6]
    assert "right; 17.5 s with a SIGKILL" in render({"R1": {"weir": weir}}, WORKLOADS)


def test_the_table_says_what_is_missing_wrong_or_too_slow() -> None:
    systems = {
        "weir": measured(40e6),
        "spark": measured(2e6),
        "flink_sql": measured(4e6, differences=1_234),
        "pyflink": RateMeasurement(unit="rec/s", state="did not finish"),
        "bytewax": RateMeasurement(unit="rec/s"),
    }
    lines = render({"W1": systems}, WORKLOADS).splitlines()
    remarks = {line.split("  ")[-1].strip() for line in lines}
    assert {"right", "1,234 rows differ", "did not finish", "missing"} <= remarks
    assert any(line.split() == ["Weir", "40,000,000", "20,000,000", "0.05", "right"] for line in lines)
    assert any("20.0x the best peer, without Flink SQL (target 10x: met)" in line for line in lines)


def test_the_table_names_no_peer_that_is_in_the_ratio() -> None:
    systems = {"weir": measured(40e6), "spark": measured(2e6), "flink_sql": measured(4e6)}
    assert "10.0x the best peer (target 10x: met)" in render({"W1": systems}, WORKLOADS)


def test_a_run_that_was_lost_is_told_beside_those_that_were_not() -> None:
    systems = {"weir": measured(40e6, 41e6), "spark": measured(2e6)}
    assert all_right([systems])
    systems["weir"].add_lost_run("failed")
    assert systems["weir"].state == "done"
    assert not all_right([systems])
    assert "right; 1 of 3 runs lost" in render({"W1": systems}, WORKLOADS)
    assert entry("windows", systems)["systems"]["weir"]["lost"] == ["failed"]


def test_rows_that_were_not_timed_count_for_the_processor_time_that_they_took() -> None:
    """Structured Streaming is timed from its second batch on, but works from its first on."""
    spark = RateMeasurement(unit="rec/s")
    spark.add(rows=8_000_000, seconds=10, cpu_seconds=20, rows_worked=10_000_000)
    assert spark.rate == 800_000
    assert spark.rows_per_cpu_second == 500_000


def test_a_measured_run_that_counted_something_else_is_wrong_output() -> None:
    """The sink of the run that is timed counts rows and adds columns up; both are known beforehand."""
    right = {"rows_out": 2_000, "sum_of_key": 999_000, "sum_of_count": 2_000_000, "sum_of_sum": 1_999_999_000_000}
    assert WORKLOADS["W1"].count_errors(2_000_000, right) == []
    assert WORKLOADS["W1"].count_errors(2_000_000, right | {"rows_out": 1_999}) == ["rows_out is 1999, not 2000"]
    assert WORKLOADS["W1"].count_errors(2_000_000, {"batches": 3}) is None, "who counts nothing is not compared"
    wrong = measured(30e6)
    wrong.miscounted = ["rows_out is 1999, not 2000"]
    assert ratio_to_best_peer({"weir": wrong, "spark": measured(3e6)}) is None
    assert not all_right([{"weir": wrong}])
    assert "wrong: rows_out is 1999, not 2000" in render({"W1": {"weir": wrong}}, WORKLOADS)


def test_a_last_window_that_is_not_full_counts_too() -> None:
    right = {"rows_out": 1_003, "sum_of_key": 499_500 + 0 + 761 + 522, "sum_of_count": 1_000_003}
    assert WORKLOADS["W1"].count_errors(1_000_003, right | {"sum_of_sum": 1_000_003 * 1_000_002 // 2}) == []


def test_of_functions_rows_and_keys_are_known() -> None:
    keys = sum(number * 2_654_435_761 % 1_000 for number in range(2_345))
    assert WORKLOADS["W6"].count_errors(2_345, {"rows_out": 2_345, "sum_of_key": keys, "sum_of_total": 7}) == []
    assert WORKLOADS["W6"].count_errors(2_345, {"rows_out": 2_345, "sum_of_key": keys + 1}) != []


FIGURES = (
    Figure(name="time to none at 1 s", value=1.0123, digits=3, at_most=1.02, low=1.008, high=1.0161, runs=(1.01, 1.02)),
    Figure(name="gain", value=1.4, unit="x", at_least=1.6),
    Figure(name="stop-the-world", value=1.5, unit="x"),
    Figure(name="never came", value=None, at_most=3),
)


def test_a_figure_is_met_missed_or_only_told() -> None:
    assert [figure.is_met for figure in FIGURES] == [True, False, None, False]


def test_figures_go_to_latest_json_and_back(tmp_path: Path) -> None:
    report = Report(figures=FIGURES, lines=("a line",), details={"rows": 3})
    write(tmp_path / "latest.json", {"W8": FigureResult(title="intervals", state="done", report=report).to_json()})
    result = json.loads((tmp_path / "latest.json").read_text())["W8"]
    assert result["title"] == "intervals"
    assert result["state"] == "done"
    assert result["figures"][0]["met"] is True
    assert result["figures"][0]["value"] == 1.0123
    assert figures.report_from_json(result) == report


def test_the_table_shows_figures_with_their_targets() -> None:
    wrong = Report(figures=(), wrong=("a row is lost",))
    results = {
        "W8": FigureResult(title="intervals", state="done", report=Report(figures=FIGURES, lines=("a line",))),
        "W9": FigureResult(title="state", state="did not finish"),
        "W11": FigureResult(title="recovery", state="done", report=wrong),
        "L1": FigureResult(title="slots", state="failed", report=Report(figures=FIGURES[:1], wrong=("not compared",))),
    }
    text = render_figures(results)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "time to none at 1 s 1.012 1.008 to 1.016 target at most 1.020: met" in rows
    assert "gain 1.40 x target at least 1.60: missed" in rows
    assert "stop-the-world 1.50 x" in rows
    assert "never came missing target at most 3.00: missed" in rows
    assert rows[rows.index("W9 state") + 1] == "did not finish"
    assert "wrong: a row is lost" in rows
    assert rows[rows.index("L1 slots") + 1] == "failed; results until then:"
    assert "time to none at 1 s 1.012 1.008 to 1.016 target at most 1.020: missed" in rows, "its output is wrong"
    assert not results["L1"].to_json()["figures"][0]["met"]
    assert [result.is_right for result in results.values()] == [True, False, False, False]
