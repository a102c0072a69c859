"""A whole run: what goes wrong in one part of it leaves the others as they are."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import child, protocol, table
from benchmarks.harness import Harness, RunPlan, figure_result, lock_folder
from benchmarks.progress import Progress
from benchmarks.systems import System
from benchmarks.workloads import WORKLOADS

NOT_INSTALLED = System("spark", "Not installed", peer="nowhere")
STRANGER = System("stranger", "Not of this workload")
PLAN = RunPlan(repeats=1, time_box_s=5.0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Path]:
    with lock_folder(tmp_path):
        yield tmp_path


def test_a_step_that_raises_loses_itself_only(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    no_such_files = replace(WORKLOADS["W7"], files="nonsense")
    todo = [(no_such_files, NOT_INSTALLED), (WORKLOADS["W1"], STRANGER), (WORKLOADS["W1"], NOT_INSTALLED)]
    with Progress([(f"{workload.name} {system.name}", 1.0) for workload, system in todo]) as progress:
        harness = Harness(bench, PLAN, progress)
        harness.run_rates(todo)
        assert progress.remaining_s == 0
    states = {
        name: {system: result.state for system, result in systems.items()} for name, systems in harness.rates.items()
    }
    assert states == {"W7": {"spark": "failed"}, "W1": {"stranger": "failed", "spark": "missing"}}
    assert "KeyError" in (bench / "log" / "W1-stranger.log").read_text()
    assert list(json.loads((bench / "latest.json").read_text())["W1"]["systems"]) == ["stranger", "spark"]
    assert "W7: " in capsys.readouterr().err


def test_only_one_runs_at_a_time(bench: Path) -> None:
    with pytest.raises(SystemExit, match="another benchmark runs here"), lock_folder(bench):
        pass


def test_what_is_left_of_a_run_that_was_killed_goes(tmp_path: Path) -> None:
    left = tmp_path / "inputs" / "measure"
    left.mkdir(parents=True)
    with lock_folder(tmp_path):
        assert not left.exists()


def test_results_that_cannot_be_read_are_told_of_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "latest.json").write_text('{"W1": {"sys')
    with pytest.raises(SystemExit, match="cannot be read"), lock_folder(tmp_path):
        pass


def test_a_measurement_that_ends_early_keeps_what_it_told(tmp_path: Path) -> None:
    program = """
from benchmarks import figures, protocol
for value in (1.0, 2.0):
    report = figures.Report(figures=(figures.Figure(name="gain", value=value),))
    protocol.send_partial_report(report.to_json())
raise SystemExit("in its third round")
"""
    outcome = child.run([sys.executable, "-c", program], environment={}, log=tmp_path / "log", time_box_s=60)
    result = figure_result("W9", outcome).to_json()
    assert result["state"] == "failed"
    assert [figure["value"] for figure in result["figures"]] == [2.0]


def test_a_measurement_that_is_interrupted_keeps_what_it_told(bench: Path) -> None:
    """Somebody ends ten rounds in the fourth: three of them are in the table, and in the file."""
    program = """
import time
from benchmarks import figures, protocol
protocol.send_partial_report(figures.Report(figures=(figures.Figure(name="gain", value=3.0),)).to_json())
protocol.send_step("round 4")
time.sleep(60)
"""
    with Progress([("W9", 1.0)]) as progress:
        harness = Harness(bench, PLAN, progress)

        def heard(said: dict[str, Any]) -> None:
            harness.on_event("W9", said)
            if said["event"] == protocol.STEPPED:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            child.run(
                [sys.executable, "-c", program], environment={}, log=bench / "log" / "W9", time_box_s=60, on_event=heard
            )
    assert "interrupted; results until then:" in table.render_figures(harness.figures)
    assert json.loads((bench / "latest.json").read_text())["W9"]["figures"][0]["value"] == 3.0
