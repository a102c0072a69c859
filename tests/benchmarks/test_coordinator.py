"""The benchmark of the coordinator drives whole checkpoints, and an acknowledgement costs the same in a large job."""

import json
from pathlib import Path

import pytest

from benchmarks.coordinator import main


@pytest.mark.slow
@pytest.mark.long
def test_an_acknowledgement_costs_about_the_same_whatever_the_number_of_subtasks(tmp_path: Path) -> None:
    result = tmp_path / "coordinator.json"
    assert main(["--acks", "2000", "--result", str(result)]) == 0
    found = json.loads(result.read_text())
    assert [size["subtasks"] for size in found["sizes"]] == [100, 1_000, 10_000]
    assert found["growth"] < 10, "a hundred times the subtasks; a cost that grew with them would be far above"
    assert all(100 < size["bytes_per_subtask"] < 10_000 for size in found["sizes"])
