"""What is said of the time that is left: it follows what was measured, and not the number of steps alone."""

import pytest

from benchmarks.progress import Progress


def test_steps_that_take_long_and_steps_that_do_not_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with Progress([("short", 30.0)] * 4 + [("long", 600.0)] * 2, lambda: now[0]) as progress:
        assert progress.remaining_s == 4 * 30 + 2 * 600
        now[0] = 10.0
        progress.complete_step("short")
        assert progress.remaining_s == 3 * 10 + 2 * 600, "the others of its kind are expected to take as long"
        progress.drop_steps("short")
        now[0] = 310.0
        progress.complete_step("long")
        assert progress.remaining_s == 300
        progress.complete_step("long")
        progress.complete_step("long")
        assert progress.remaining_s == 0, "one that nobody expected does not count"
    assert "about 22 min left" in capsys.readouterr().err
