"""Goals take their numbers from the stored results, and name those that nothing has measured."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import goals, results
from benchmarks.figures import MEASUREMENT_MODULES
from benchmarks.harness import Harness, RunPlan, lock_folder, steps
from benchmarks.intervals.lagging import GROUPS
from benchmarks.latency import report as latency
from benchmarks.progress import Progress
from benchmarks.results import FigureResult, RateMeasurement, entry
from benchmarks.workloads import WORKLOADS

PLAN = RunPlan(repeats=3, time_box_s=5.0)


def measured(*rates: float, differences: int = 0) -> RateMeasurement:
    measurement = RateMeasurement(unit="rec/s", state="done", differences=differences)
    for rate in rates:
        measurement.add(rows=int(rate) * 10, seconds=10.0, cpu_seconds=20.0)
    return measurement


def values(stored: dict[str, Any]) -> dict[str, tuple[Any, bool | None]]:
    report = goals.result(stored, list(stored)).report
    assert report is not None
    return {figure.name: (figure.value, figure.is_met) for figure in report.figures}


def test_a_goal_is_the_ratio_of_the_entry() -> None:
    systems = {"weir": measured(30e6), "spark": measured(3e6), "duckdb": measured(100e6)}
    assert values({"R1": entry("ads", systems)}) == {
        "R1: rate to that of the best peer": (pytest.approx(10), True),
        "R1: rate to that of a batch in DuckDB": (pytest.approx(0.3), False),
    }


def test_wrong_output_meets_no_goal() -> None:
    systems = {"weir": measured(30e6, differences=1), "spark": measured(3e6)}
    assert values({"R3": entry("records", systems)}) == {"R3: rate to that of the best peer": (None, False)}


def test_a_mean_needs_all_of_its_queries() -> None:
    group = [name for name, workload in WORKLOADS.items() if workload.group == "R2"]
    ratios = {name: entry("query", {"weir": measured(8e6), "spark": measured(1e6)}) for name in group}
    ratios["R2-q1"] = entry("query", {"weir": measured(8e6 / 2 ** len(group)), "spark": measured(1e6)})
    name = "R2: rate to that of the best peer (geometric mean)"
    assert values(ratios) == {name: (pytest.approx(4, rel=1e-4), False)}
    assert values(ratios | {"R2-q1": entry("query", {"weir": measured(1.0)})}) == {name: (None, False)}
    del ratios["R2-q1"]
    assert values(ratios) == {}


def test_the_spread_of_equal_runs_is_compared_with_the_peers() -> None:
    systems = {"weir": measured(1e6, 3e6, 2e6), "spark": measured(1e6, 1.5e6)}
    assert values({"S1": entry("equal runs", systems)}) == {
        "S1: largest ratio between two runs to that of the peer": (pytest.approx(2), False)
    }
    assert results.spread_to_peer({**systems, "spark": measured(1e6)}) is None


def test_equal_runs_are_ten_unless_rounds_are_given() -> None:
    assert len(list(steps([WORKLOADS["S1"], WORKLOADS["W1"]], ["weir"], PLAN))) == 10 + 3
    short = RunPlan(repeats=3, time_box_s=5.0, rounds=2)
    assert len(list(steps([WORKLOADS["S1"], WORKLOADS["W1"]], ["weir"], short))) == 2 + 3


def _latency(job: str) -> latency.Latency:
    shares = dict.fromkeys(latency.PERCENTILES, 30.0)
    return latency.Latency(
        job=job, rate=100_000, uncommitted=shares, committed=shares, checkpoint_ms=9.0, series=(1.0,), commits=(0.5,),
        rows=2_400_000, expected=2_400_000, label="100,000 rows/s",
    )  # fmt: skip


def _of_flink(p99: float) -> latency.PeerLatency:
    shares = {"p99": p99}
    return latency.PeerLatency(job="running", rate=100_000, system="Flink", uncommitted=shares, committed=shares)


def test_a_goal_is_a_figure_of_a_measurement_with_its_limit() -> None:
    reports = {
        "L1": latency.report([_latency("stateless"), _latency("running")], [_of_flink(20.0)]),
    }
    stored = {name: FigureResult(title=name, state="done", report=report).to_json() for name, report in reports.items()}
    assert values(stored) == {
        "L1: stateless, 100,000 rows/s: uncommitted, p99": (30.0, False),
        "L1: running, 100,000 rows/s: uncommitted, p99": (30.0, True),
        "L1: running, 100,000 rows/s: p99 to that of Flink, best of the settings tried": (1.5, False),
    }
    stored["L1"]["wrong"] = ["rows are lost"]
    assert values(stored)["L1: running, 100,000 rows/s: uncommitted, p99"] == (None, False)


def test_the_intervals_of_lagging_event_time_are_those_of_the_goals() -> None:
    numbers = [goal.number for goal in goals.GOALS if goal.entries == ("W8-behind",)]
    (group,) = GROUPS
    assert numbers == [f"time to none, {interval:,} ms {group.modes[0]}" for interval in group.intervals_ms]


def test_all_goals_can_be_measured_and_are_explained_if_missed() -> None:
    names = {*WORKLOADS, *MEASUREMENT_MODULES}
    assert set(goals.workloads_and_measurements()) <= names
    assert all(goal.at_least or goal.at_most for goal in goals.GOALS if goal.entries[0] in WORKLOADS)


def test_the_block_marks_earlier_results_and_names_missing_ones(tmp_path: Path) -> None:
    missed = {"weir": measured(3e6), "spark": measured(3e6)}
    results.write(tmp_path / results.LATEST, {"R6": entry("clicks", missed)})
    with lock_folder(tmp_path), Progress([]) as progress:
        harness = Harness(tmp_path, PLAN, progress)
        harness.rates["R4"] = {"weir": measured(4e6), "spark": measured(1e6)}
        results.write(tmp_path / results.LATEST, {"R4": entry("orders", harness.rates["R4"])})
        lines = [" ".join(line.split()) for line in harness.goals().splitlines()]
    assert "R4: rate to that of the best peer 4.0 x target at least 3.0: met" in lines
    assert "R6: rate to that of the best peer, earlier run 1.0 x target at least 3.0: missed" in lines
    assert "where the time goes: docs/benchmarks/README.md, R6" in lines
    (absent,) = [line for line in lines if line.startswith("not measured: ")]
    assert "R1: rate to that of a batch in DuckDB" in absent
    assert len(results.read(tmp_path / results.LATEST)[goals.NAME]["figures"]) == 3
