"""The checkpoint strip."""

import re
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from typing import Any

import pytest

from console.checkpoints.models import Checkpoint
from console.ui.strip import HEIGHT, MAX_GAP_PITCHES, MAX_WIDTH, PITCH, Strip, strip

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def row(number: int, *, at: float | None = None, **facts: Any) -> Checkpoint:
    """A checkpoint `at` seconds, or at its number; it took 300 ms."""
    triggered_at = NOW + timedelta(seconds=number if at is None else at)
    fields = {"kind": "checkpoint", "status": "completed", "token": 1, "duration_ms": 300, **facts}
    return Checkpoint(number=number, triggered_at=triggered_at, **fields)


def drawn(*rows: Checkpoint) -> Strip:
    picture = strip(rows)
    assert picture is not None
    return picture


def test_no_checkpoints_no_strip() -> None:
    assert strip([]) is None


def test_columns_stand_in_the_order_of_time() -> None:
    picture = drawn(row(3, pk=30), row(1, pk=10), row(2, pk=20))
    assert [column.pk for column in picture.columns] == [10, 20, 30]
    assert [column.x for column in picture.columns] == [0, PITCH, 2 * PITCH]
    assert (picture.first, picture.last) == (NOW + timedelta(seconds=1), NOW + timedelta(seconds=3))


def test_columns_stand_as_far_apart_as_they_were_triggered_but_no_gap_pushes_the_rest_out_of_sight() -> None:
    moments = (0, 1, 2, 4, 5, 3_605, 3_606)
    picture = drawn(*(row(n, pk=n, at=at) for n, at in enumerate(moments)))
    steps = [later.x - column.x for column, later in pairwise(picture.columns)]
    assert steps == [PITCH, PITCH, 2 * PITCH, PITCH, MAX_GAP_PITCHES * PITCH, PITCH]
    assert picture.width == picture.columns[-1].x + PITCH


def test_the_newest_columns_fill_a_wide_page_and_older_ones_are_left_out() -> None:
    """The page cut the first column and the first time at its left edge."""
    picture = drawn(*(row(n, pk=n, at=n if n < 60 else n + 3_600) for n in range(96)))
    assert picture.columns[0].x == 0
    assert picture.columns[-1].pk == 95
    assert MAX_WIDTH - PITCH < picture.width <= MAX_WIDTH
    assert picture.first == NOW + timedelta(seconds=picture.columns[0].pk)


def test_columns_of_one_instant_stand_side_by_side() -> None:
    assert [column.x for column in drawn(*(row(n, pk=n, at=0) for n in range(3))).columns] == [0, PITCH, 2 * PITCH]


def test_a_longer_checkpoint_is_higher_and_none_leaves_the_strip() -> None:
    """Three times the duration is three times the height, as in the plot of the same numbers above."""
    picture = drawn(row(1, pk=1, duration_ms=0), row(2, pk=2, duration_ms=30_000), row(3, pk=3, duration_ms=90_000))
    heights = [column.bar_height for column in picture.columns]
    assert heights[0] > 0
    assert heights[2] == pytest.approx(3 * heights[1])
    assert all(column.bar_y >= 0 and column.bar_y + column.bar_height <= HEIGHT for column in picture.columns)
    assert [str(line.label) for line in picture.grid] == ["2 min", "1 min"]


def test_the_axes_have_round_durations_and_times_that_do_not_touch() -> None:
    picture = drawn(*(row(n, pk=n, duration_ms=2_310 if n == 29 else 300) for n in range(60)))
    assert [str(line.label) for line in picture.grid] == ["3.0 s", "1.5 s"]
    assert picture.grid[0].y < min(column.bar_y for column in picture.columns)
    assert picture.grid[0].y < picture.grid[1].y < picture.base
    assert [tick.label for tick in picture.ticks] == [f"12:00:{second}" for second in range(10, 60, 10)]
    assert all(later.x - tick.x >= 90 for tick, later in pairwise(picture.ticks))
    daily = drawn(*(row(n, at=86_400 * n) for n in range(12)))
    assert [tick.label for tick in daily.ticks] == ["03-02 00:00", "03-09 00:00"]
    assert drawn(row(1, status="failed", duration_ms=None)).grid == ()


def test_a_round_time_between_two_triggers_stands_between_their_columns() -> None:
    picture = drawn(*(row(n, pk=n, at=7 * n + 3) for n in range(20)))
    assert [tick.label for tick in picture.ticks] == ["12:01:00", "12:02:00"]
    assert picture.ticks[0].x == pytest.approx(PITCH * 57 / 7 + PITCH / 2, abs=0.1)


def test_a_failure_has_no_bar_and_its_reason() -> None:
    picture = drawn(row(1, pk=1), row(2, pk=2, status="failed", duration_ms=None, reason="async_failed"))
    column = picture.columns[1]
    assert str(picture.columns_svg).count('class="bar"') == 1
    assert column.about == "checkpoint 2, failed: async failed"


def test_one_that_expired_does_not_make_the_others_look_short() -> None:
    picture = drawn(row(1, pk=1), row(2, pk=2, status="failed", duration_ms=60_000, reason="expired"))
    assert str(picture.grid[0].label) == "0.30 s"


def test_savepoints_stops_and_drains_carry_a_diamond() -> None:
    picture = drawn(*(row(n, pk=n, kind=kind) for n, kind in enumerate(("checkpoint", "savepoint", "stop", "drain"))))
    assert [column.savepoint for column in picture.columns] == [False, True, True, True]


def test_a_rule_stands_where_another_attempt_took_over() -> None:
    picture = drawn(row(1, pk=1), row(2, pk=2), row(3, pk=3, token=2), row(4, pk=4, token=2))
    assert [column.restarted for column in picture.columns] == [False, False, True, False]


def test_one_under_way_is_a_stub() -> None:
    column = drawn(row(1, pk=1), row(2, pk=2, status="in_progress", duration_ms=None)).columns[1]
    assert 0 < column.bar_height < 5


def test_the_sentence_counts() -> None:
    picture = drawn(row(1, pk=1), row(2, pk=2, kind="savepoint"), row(3, pk=3, status="failed", duration_ms=None))
    assert picture.about.startswith("Checkpoints 1 to 3: 1 savepoints, 1 failed, 0 aborted, longest 0.30 s.")


def extent(path: str) -> tuple[float, float]:
    """The highest and the lowest point of a path of one absolute move and relative lines."""
    start, *steps = re.findall(r"[Mlm]([-\d.]+) ([-\d.]+)", path)
    heights = list(accumulate(float(y) for _, y in (start, *steps)))
    return min(heights), max(heights)


def test_the_cross_of_a_failed_savepoint_stands_clear_of_its_diamond() -> None:
    column = drawn(row(1, pk=1), row(2, pk=2, kind="savepoint", status="failed", duration_ms=None)).columns[1]
    assert column.savepoint
    assert extent(column.diamond)[1] < extent(column.cross)[0]
    assert extent(column.diamond)[0] >= 0


def test_the_cross_of_a_failure_is_as_high_as_it_lasted_and_no_higher_than_the_axis() -> None:
    """An expired savepoint of a minute was a smaller mark than a checkpoint of three seconds."""
    failed: dict[str, Any] = {"status": "failed", "reason": "expired", "duration_ms": None}
    took = {1: 10_000, 2: 5_000, 3: 60_000, 4: 20}
    ends = {n: NOW + timedelta(seconds=n, milliseconds=ms) for n, ms in took.items()}
    columns = drawn(row(0, duration_ms=10_000), *(row(n, pk=n, completed_at=end, **failed) for n, end in ends.items()))
    heights = [column.bar_height for column in columns.columns]
    assert heights[1] == heights[0] == heights[3] == 2 * heights[2]
    assert 0 < heights[4] < heights[2]
    assert all(column.cross.endswith(f"V{columns.base:g}") for column in columns.columns[1:])


def test_an_aborted_or_superseded_checkpoint_is_counted_apart_and_drawn_without_a_cross() -> None:
    reasons = ("suspended", "subsumed", "expired")
    failed = [row(pk, pk=pk, status="failed", reason=reason) for pk, reason in enumerate(reasons, 2)]
    picture = drawn(row(1, pk=1), *failed)
    assert [column.status for column in picture.columns] == ["completed", "aborted", "superseded", "failed"]
    assert "0 savepoints, 1 failed, 1 aborted, 1 superseded" in picture.about
    assert str(picture.columns_svg).count('class="cross"') == 1
