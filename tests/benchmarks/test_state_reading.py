"""W16: a savepoint by the library's own writer, read back whole and by key, and compared."""

from pathlib import Path

import pytest

from benchmarks.figures import MeasurementPlan
from benchmarks.state.reading import Read, report, run


def test_figures_are_medians_of_the_rounds() -> None:
    rounds = [Read(all_s=seconds, key_s=seconds / 10) for seconds in (4.0, 2.0, 8.0)]
    found = report(rounds, 1_000, 8_000_000, 9.0, 3, [])
    assert [(figure.value, figure.unit) for figure in found.figures] == [
        (4.0, "s"), (2.0, "MB/s"), (250.0, "rows/s"), (0.4, "s"),
    ]  # fmt: skip
    assert "1,000 keys of 100 bytes in 8 MB of files; tasks: 3" in found.lines[0]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_small_savepoint_is_made_and_read(tmp_path: Path) -> None:
    told: list[str] = []
    found = run(MeasurementPlan(folder=tmp_path, rounds=1, step=told.append), megabytes=2)
    assert found.wrong == ()
    assert told == ["a savepoint of 20,000 keys", "round 1"]
    assert all(figure.value for figure in found.figures)
    assert "tasks: 1" in found.lines[0]
