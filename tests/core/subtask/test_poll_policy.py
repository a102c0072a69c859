"""How long a source waits for a slower one, and until its next poll."""

from runtime.core.subtask.poll_policy import (
    FEW_ROWS,
    MAX_IDLE_POLL_MS,
    MAX_STALLED_SIBLING_MS,
    POLL_INTERVAL_MS,
    PollPolicy,
)
from tests.core.subtask.test_watermark_alignment import OTHER, THIRD, heard
from tests.task.tasks import grow_batches


def test_a_source_waits_for_a_slower_one_as_long_as_its_event_time_moves() -> None:
    """FLIP-182 asks for idleness there; a sibling that has run dry without it would stop the source for ever."""
    hearing = heard(1_000, other=50, third=1_000)
    reading = grow_batches(PollPolicy([hearing]))
    assert reading.is_throttled(0)
    assert reading.is_throttled(MAX_STALLED_SIBLING_MS - 1)
    hearing.meeting.watermarks.advance(OTHER, 60)
    assert reading.is_throttled(MAX_STALLED_SIBLING_MS)
    assert reading.is_throttled(2 * MAX_STALLED_SIBLING_MS - 1)
    assert not reading.is_throttled(2 * MAX_STALLED_SIBLING_MS), "the other one stands still"
    assert not reading.is_throttled(9 * MAX_STALLED_SIBLING_MS), "and so it is read on"
    hearing.meeting.watermarks.advance(OTHER, 70)
    assert reading.is_throttled(9 * MAX_STALLED_SIBLING_MS + 1), "it moves again"


def test_a_source_that_is_not_ahead_does_not_wait() -> None:
    hearing = heard(60, other=55, third=60)
    reading = grow_batches(PollPolicy([hearing]))
    assert not reading.is_throttled(0)
    hearing.meeting.watermarks.advance(THIRD, 70)
    assert not reading.is_throttled(9 * MAX_STALLED_SIBLING_MS)


def test_a_source_with_few_rows_rests_and_is_then_polled_after_as_long_as_it_has_been_without_rows() -> None:
    policy = grow_batches(PollPolicy())
    assert not policy.rests(0)
    assert policy.next_poll_ms(0) == MAX_IDLE_POLL_MS, "no rows yet"
    policy.on_batch([50], policy.max_rows, began=999, now=999.5)
    assert not policy.rests(999.5), "more rows may be at hand"
    policy.on_batch([24], policy.max_rows, began=1_000, now=1_000.5)
    assert policy.rests(1_000.5)
    assert policy.next_poll_ms(1_000.5) == POLL_INTERVAL_MS - 0.5
    assert not policy.rests(1_000 + POLL_INTERVAL_MS)
    policy.on_empty()
    assert policy.next_poll_ms(1_000 + POLL_INTERVAL_MS) == POLL_INTERVAL_MS
    policy.on_empty()
    assert policy.next_poll_ms(1_005) == 5, "an empty poll is no batch"
    policy.on_empty()
    assert policy.next_poll_ms(1_060) == MAX_IDLE_POLL_MS


def test_a_source_with_more_rows_at_hand_does_not_rest() -> None:
    policy = grow_batches(PollPolicy())
    for polled, limit in (([8_192], 8_192), ([FEW_ROWS], 8_192), ([64], 64), ([10, 5], 8_192), ([10], 8_192)):
        policy.on_batch(polled, limit, began=0, now=0.5)
        assert not policy.rests(0.5)


def test_a_poll_with_far_fewer_rows_than_the_one_before_shows_that_few_are_left() -> None:
    for steps in ([[10], [4]], [[100, 2]], [[10, 0]]):
        policy = grow_batches(PollPolicy())
        for polled in steps:
            policy.on_batch(polled, policy.max_rows, began=0, now=0.5)
        assert policy.rests(0.5)
