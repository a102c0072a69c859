"""Credits: who may run. Grants: how much may be on its way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.ids import ChannelId
from runtime.core.subtask.credits import Credits, FlowControl, ReceiverWindow

ONE, OTHER = ChannelId(0, 0, 0), ChannelId(0, 0, 1)


def test_a_subtask_may_run_until_one_output_is_used_up() -> None:
    """S4-11: a slow sink stops its source."""
    window = Credits([ONE, OTHER], window_bytes=10)
    window.spend(ONE, 9)
    assert window.runnable
    window.spend(ONE, 1)
    assert not window.runnable


def test_one_step_may_overdraw_and_everything_must_be_repaid() -> None:
    window = Credits([ONE], window_bytes=10)
    window.spend(ONE, 25)
    window.repay(ONE, 15)
    assert not window.runnable, "nothing is left of the window yet"
    window.repay(ONE, 1)
    assert window.runnable


def test_every_output_must_have_credit() -> None:
    """Credits are per channel."""
    window = Credits([ONE, OTHER], window_bytes=10)
    window.spend(ONE, 10)
    window.spend(OTHER, 10)
    window.repay(ONE, 10)
    assert not window.runnable
    window.repay(OTHER, 1)
    assert window.runnable


def test_a_subtask_without_outputs_may_always_run() -> None:
    assert Credits([], 10).runnable


def test_a_window_lets_something_through() -> None:
    with pytest.raises(AssertionError, match="window"):
        Credits([ONE], window_bytes=0)


class Reader:
    """A subtask that reads ONE and OTHER at a speed, and the credit that their senders have."""

    def __init__(self, *channels: ChannelId) -> None:
        self.grants = ReceiverWindow(channels, FlowControl(1_000, 50, in_flight_ms=100, measured_ms=10))
        self.credit = dict.fromkeys(channels, 50)
        self.now = 0.0

    def reads(self, channel: ChannelId, nbytes: int, takes_ms: float) -> None:
        self.credit[channel] -= nbytes
        self.grants.on_busy(self.now)
        self.now += takes_ms
        for other, credit in self.grants.on_consumed(channel, nbytes, self.now):
            assert credit > 0
            self.credit[other] += credit

    def starves(self, for_ms: float) -> None:
        self.grants.on_starved()
        self.now += for_ms


def test_a_fast_receiver_opens_the_window_and_gives_back_what_it_consumes() -> None:
    """At 100 bytes per ms, 100 ms are worth more than the largest window."""
    reader = Reader(ONE)
    reader.reads(ONE, 500, takes_ms=5)
    assert reader.credit == {ONE: 50}, "its speed is not known yet"
    for _ in range(20):
        reader.reads(ONE, 500, takes_ms=5)
        assert reader.credit == {ONE: 1_000}


def test_a_slow_receiver_keeps_back_all_but_what_it_can_do_in_time() -> None:
    """At 3 bytes per ms, 100 ms are worth 300 bytes, for both channels together."""
    reader = Reader(ONE, OTHER)
    for _ in range(40):
        reader.reads(ONE, 30, takes_ms=10)
        reader.reads(OTHER, 30, takes_ms=10)
    assert reader.credit == {ONE: 150, OTHER: 150}


def test_a_receiver_that_becomes_faster_gives_back_what_it_kept_of_every_channel() -> None:
    reader = Reader(ONE, OTHER)
    for _ in range(100):
        reader.reads(ONE, 10, takes_ms=10)
        reader.reads(OTHER, 10, takes_ms=10)
    assert reader.credit == {ONE: 50, OTHER: 50}
    for _ in range(20):
        reader.reads(ONE, 500, takes_ms=10)
    assert reader.credit == {ONE: 1_000, OTHER: 1_000}


def test_the_time_without_anything_to_read_does_not_make_a_receiver_slow() -> None:
    reader = Reader(ONE)
    for _ in range(20):
        reader.starves(for_ms=500)
        reader.reads(ONE, 100, takes_ms=5)
    assert reader.credit == {ONE: 1_000}, "20 bytes per ms"


def test_the_time_in_which_successors_give_no_credit_does() -> None:
    """It reads all the while: what is on its way would wait as well."""
    reader = Reader(ONE)
    for _ in range(20):
        reader.grants.on_busy(reader.now)
        reader.now += 95
        reader.reads(ONE, 100, takes_ms=5)
    assert reader.credit == {ONE: 100}


def test_small_changes_of_speed_leave_the_window() -> None:
    reader = Reader(ONE)
    for nbytes in (60, 60, 60, 66, 57, 62, 72) * 3:
        reader.reads(ONE, nbytes, takes_ms=10)
    assert reader.credit == {ONE: 600}


def test_credit_for_a_batch_that_overdrew_is_kept_back_too() -> None:
    reader = Reader(ONE)
    reader.reads(ONE, 5_000, takes_ms=5_000)
    assert reader.credit == {ONE: 100}


def test_what_came_without_being_read_is_consumed_at_once() -> None:
    """Nothing says how long it took."""
    assert ReceiverWindow([ONE], FlowControl(100, 10)).on_consumed(ONE, 70, 5.0) == [(ONE, 70)]


@given(st.lists(st.tuples(st.sampled_from([ONE, OTHER]), st.integers(0, 3_000), st.floats(0, 500), st.booleans())))
def test_no_sender_waits_for_ever(steps: list[tuple[ChannelId, int, float, bool]]) -> None:
    """Once everything is consumed, each has between the smallest and the largest window."""
    reader = Reader(ONE, OTHER)
    for channel, nbytes, takes_ms, starves in steps:
        if starves:
            reader.starves(takes_ms)
        reader.reads(channel, nbytes, takes_ms)
        assert all(50 <= credit <= 1_000 for credit in reader.credit.values())


def test_a_receiver_lets_something_through() -> None:
    with pytest.raises(AssertionError, match="window"):
        FlowControl(10, min_bytes=0)


def test_a_sender_that_restarts_begins_with_the_smallest_window() -> None:
    reader = Reader(ONE, OTHER)
    for _ in range(40):
        reader.reads(ONE, 50, takes_ms=1)
    grants, flow = reader.grants, reader.grants._flow
    grants.restart([ONE])
    granted = sum(nbytes for channel, nbytes in grants.on_consumed(ONE, 50, reader.now) if channel == ONE)
    assert granted == 50 + grants.window_bytes - flow.min_bytes, "as for a sender that has not sent before"
