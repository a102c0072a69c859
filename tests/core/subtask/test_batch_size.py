"""How many rows a source is asked for: steps of a clock that the test moves."""

from random import Random
from typing import Final

import pytest

from runtime.core.subtask.batch_size import (
    GROWTH_DIVISOR,
    MAX_BATCH_ROWS,
    MAX_COALESCED_BYTES,
    MAX_COALESCED_ROWS,
    MAX_COALESCING_MS,
    MIN_BATCH_ROWS,
    MIN_LAST_ROWS,
    SLOW_BATCH_MS,
    BatchSize,
    is_more_wanted,
)

GROWN: Final = 8_192  #: rows that a source is asked for when a test begins


def grown() -> BatchSize:
    size = BatchSize()
    size.rows = GROWN
    return size


def after(*took_ms: float, rows: int | None = None) -> int:
    """The size after batches that each took so long; each was as large as it was asked for, or `rows`."""
    size, now = grown(), 0.0
    for ms in (*took_ms, 0.0):
        size.on_batch(size.rows if rows is None else rows, now)
        now += ms
    return size.rows


@pytest.mark.parametrize("hops", [1, 3, 6])
@pytest.mark.parametrize("ms_per_row", [12.5, 125.0, 1_250.0])
def test_a_slow_step_is_noticed_before_many_rows_are_sent(hops: int, ms_per_row: float) -> None:
    """Each subtask before the slow step takes a batch at once; then a batch is taken when the slow one is done."""
    size, now, free_at = BatchSize(), 0.0, [0.0]
    for number in range(60):
        size.on_batch(size.rows, now)
        free_at.append(max(now, free_at[-1]) + size.rows * ms_per_row)
        now = max(now + 1.0, free_at[max(0, number + 1 - hops)])
        assert free_at[-1] - now <= 700 + 3 * hops * ms_per_row


def test_batches_that_take_long_shrink_down_to_a_least_size() -> None:
    assert after(51.0, 51.0) == GROWN * 3 // 4
    assert after(101.0, 101.0) == GROWN // 2
    assert after(101.0, 101.0, 101.0) == GROWN // 4
    assert after(*[1_000.0] * 30) == MIN_BATCH_ROWS


def test_batches_that_take_little_time_double_the_size_up_to_a_most_size() -> None:
    assert after(24.0, 24.0) == GROWN
    assert after(*[24.0] * 3) == after(*[24.0] * 5) == GROWN * 2
    assert after(*[24.0] * 6) == GROWN * 4
    assert after(*[1.0] * 30) == MAX_BATCH_ROWS


def test_a_batch_with_fewer_rows_than_requested_only_delays_the_doubling() -> None:
    """Parts of a file end with such a batch: the size would stay at a quarter of its limit for ever."""
    size = grown()
    for number, rows in enumerate((GROWN, GROWN, GROWN // 2, GROWN, GROWN)):
        size.on_batch(rows, float(number))
    assert size.rows == GROWN * 2


def test_in_between_they_grow_little_by_little() -> None:
    assert after(25.0) == after(50.0) == GROWN + GROWN // GROWTH_DIVISOR
    assert after(30.0, rows=GROWN - 1) == GROWN


@pytest.mark.parametrize("beside_ms", [0, 5, 15, 30, 45])
def test_batches_that_take_long_once_a_second_do_not_stay_small(beside_ms: float) -> None:
    """Where a slot's other work alone takes a while, no batch comes so soon that the size doubled again."""
    size, now, rows, captured = grown(), 0.0, 0, 0.0
    while now < 60_000:
        size.on_batch(size.rows, now)
        rows += size.rows
        now += beside_ms + size.rows * 0.001
        if now // 1_000 > captured:
            captured, now = now // 1_000, now + 100
    assert rows / now > 0.5 * (SLOW_BATCH_MS - beside_ms) / SLOW_BATCH_MS / 0.001 / 2


def test_a_source_that_gives_less_than_it_may_is_not_asked_for_more() -> None:
    assert after(1.0, 1.0, 1.0, rows=GROWN - 1) == GROWN


@pytest.mark.parametrize("hiccups_per_s", [2, 8])
def test_hiccups_of_the_machine_do_not_make_batches_small(hiccups_per_s: int) -> None:
    """Small batches cost more per row, so equal runs with more or fewer hiccups would differ by more than these."""
    random, size, now, sizes = Random(1), BatchSize(), 0.0, list[int]()
    while now < 60_000:
        size.on_batch(size.rows, now)
        sizes.append(size.rows)
        took = size.rows * 0.001
        now += took + (60 if random.random() < hiccups_per_s * took / 1_000 else 0)
    assert sum(sizes) / len(sizes) > 0.6 * SLOW_BATCH_MS / 0.001


def test_a_second_slow_batch_shrinks_the_size() -> None:
    rows = after(30.0)
    assert after(30.0, 60.0) == rows
    assert after(30.0, 60.0, 60.0) == rows * 3 // 4
    assert after(30.0, 60.0, 30.0, 60.0) == rows + rows // GROWTH_DIVISOR


def test_small_batches_that_take_long_shrink_as_they_are() -> None:
    """A file that comes in pieces of a thousand rows is not asked for fewer by being asked for half of 8,192."""
    assert after(120.0, 120.0, rows=1_000) == 500


def test_the_time_in_which_there_was_nothing_to_read_does_not_count() -> None:
    size = grown()
    size.on_batch(size.rows, 0.0)
    size.on_gap()
    size.on_batch(size.rows, 500.0)
    assert size.rows == GROWN


@pytest.mark.parametrize("ms_per_row", [0.0001, 0.001, 0.003, 0.1])
def test_it_settles_where_a_batch_takes_a_short_time(ms_per_row: float) -> None:
    size, now = BatchSize(), 0.0
    for _ in range(80):
        size.on_batch(size.rows, now)
        now += size.rows * ms_per_row
    took_ms = size.rows * ms_per_row
    assert took_ms <= SLOW_BATCH_MS * (1 + 1 / GROWTH_DIVISOR)
    assert took_ms >= 10 or size.rows == MAX_BATCH_ROWS


SMALL = {"last_rows": MIN_LAST_ROWS, "rows": MIN_LAST_ROWS, "nbytes": 1, "took_ms": 0.0}


@pytest.mark.parametrize(
    "bound",
    [
        {"last_rows": MIN_LAST_ROWS - 1},
        {"rows": MAX_COALESCED_ROWS},
        {"nbytes": MAX_COALESCED_BYTES},
        {"took_ms": MAX_COALESCING_MS},
    ],
    ids=lambda bound: next(iter(bound)),
)
def test_few_rows_at_hand_and_each_bound_end_the_polls(bound: dict[str, float]) -> None:
    assert is_more_wanted(**SMALL)  # type: ignore[arg-type]
    assert not is_more_wanted(**SMALL | bound)  # type: ignore[arg-type]
