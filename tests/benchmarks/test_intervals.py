"""The benchmark of checkpoint intervals runs real jobs to their end, and shorter intervals take more checkpoints."""

import json
from pathlib import Path

from benchmarks.intervals import INTERVALS_MS, main


def test_the_cost_of_snapshots_is_told_by_interval(tmp_path: Path) -> None:
    """S4-53: over the interval; over the size of the graph it is the benchmark of the coordinator."""
    result = tmp_path / "intervals.json"
    assert main(["--rows", "6000000", "--rounds", "1", "--result", str(result)]) == 0
    found = {row["interval_ms"]: row for row in json.loads(result.read_text())["intervals"]}
    assert list(found) == list(INTERVALS_MS)
    assert found[None]["checkpoints"] == 1, "the one that ends the job"
    assert found[100]["checkpoints"] > found[10_000]["checkpoints"]
    assert found[None]["processor_to_none"] == 1
    assert all(row["processor_seconds"] > 0 for row in found.values())
