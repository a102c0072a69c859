"""How long a source waits for a slower one: as long as that one moves."""

from runtime.core.subtask.poll_policy import MAX_STALLED_SIBLING_MS, PollPolicy
from tests.core.subtask.test_watermark_alignment import OTHER, THIRD, heard


def test_a_source_waits_for_a_slower_one_as_long_as_its_event_time_moves() -> None:
    """FLIP-182 asks for idleness there; a sibling that has run dry without it would stop the source for ever."""
    hearing = heard(1_000, other=50, third=1_000)
    reading = PollPolicy([hearing])
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
    reading = PollPolicy([hearing])
    assert not reading.is_throttled(0)
    hearing.meeting.watermarks.advance(THIRD, 70)
    assert not reading.is_throttled(9 * MAX_STALLED_SIBLING_MS)
