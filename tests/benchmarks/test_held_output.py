"""W18: two-phase commit streams to the target between checkpoints; a write-ahead sink writes at checkpoints only."""

from pathlib import Path

import pytest

from benchmarks.held_output import TWO_PHASE, WRITE_AHEAD, Traffic, measure, report
from runtime.core.job.settings import CoordinatorSettings

SETTINGS = CoordinatorSettings(interval_ms=300, min_pause_ms=0)
ROWS = 8_000


@pytest.mark.parametrize("way", [TWO_PHASE, WRITE_AHEAD])
def test_bytes_reach_the_target_between_checkpoints_or_at_checkpoints_only(
    way: str, tmp_path: Path, database_url: str
) -> None:
    """S1-55, S1-56, S1-57: by the bytes that a server receives while no commit is under way."""
    found = measure(way, database_url, tmp_path / "job", SETTINGS, ROWS, 8_000)
    assert found.rows == ROWS
    assert len(found.commits) > 1
    if way == TWO_PHASE:
        assert found.streamed > 0.5
    else:
        assert found.streamed < 0.01


def test_lost_and_repeated_rows_are_reported() -> None:
    kept = Traffic(way=TWO_PHASE, streamed=0.9, peak=2.0, series=(1, 2), commits=(0.1,), rows=10)
    lost = Traffic(way=WRITE_AHEAD, streamed=0.0, peak=9.0, series=(1, 2), commits=(0.1,), rows=-1)
    found = report([kept, lost], rows=10)
    assert found.wrong == ("write-ahead: -1 distinct rows of 10",)
    assert [figure.value for figure in found.figures] == [0.9, 2.0, 0.0, 9.0]
