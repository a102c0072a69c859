"""How many rows a source is asked for: steps of a clock that the test moves."""

import pytest

from runtime.core.batching import FIRST_ROWS, LEAST_ROWS, MOST_ROWS, BatchSize


def after(*took_ms: float, rows: int | None = None) -> int:
    """The size after batches that each took so long; each was as large as it was asked for, or `rows`."""
    size, now = BatchSize(), 0.0
    for ms in (*took_ms, 0.0):
        size.came(size.rows if rows is None else rows, now)
        now += ms
    return size.rows


def test_it_begins_in_the_middle() -> None:
    assert LEAST_ROWS < after() == FIRST_ROWS < MOST_ROWS


def test_batches_that_take_long_are_halved_down_to_a_least_size() -> None:
    assert after(51.0) == FIRST_ROWS // 2
    assert after(51.0, 51.0) == FIRST_ROWS // 4
    assert after(*[1_000.0] * 30) == LEAST_ROWS


def test_batches_that_take_no_time_are_doubled_up_to_a_most_size() -> None:
    assert after(9.0) == FIRST_ROWS * 2
    assert after(*[1.0] * 30) == MOST_ROWS


def test_in_between_the_size_stays() -> None:
    assert after(10.0, 50.0, 30.0) == FIRST_ROWS


def test_a_source_that_gives_less_than_it_may_is_not_asked_for_more() -> None:
    assert after(1.0, 1.0, 1.0, rows=FIRST_ROWS - 1) == FIRST_ROWS


def test_small_batches_that_take_long_are_halved_as_they_are() -> None:
    """A file that comes in pieces of a thousand rows is not asked for fewer by being asked for half of 8,192."""
    assert after(80.0, rows=1_000) == 500


def test_the_time_in_which_there_was_nothing_to_read_does_not_count() -> None:
    size = BatchSize()
    size.came(size.rows, 0.0)
    size.none_came()
    size.came(size.rows, 500.0)
    assert size.rows == FIRST_ROWS


@pytest.mark.parametrize("ms_per_row", [0.0001, 0.001, 0.003, 0.1])
def test_it_settles_where_a_batch_takes_a_short_time(ms_per_row: float) -> None:
    size, now = BatchSize(), 0.0
    for _ in range(40):
        size.came(size.rows, now)
        now += size.rows * ms_per_row
    took_ms = size.rows * ms_per_row
    assert took_ms <= 50
    assert took_ms >= 10 or size.rows == MOST_ROWS
