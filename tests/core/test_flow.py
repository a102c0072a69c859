"""Credits: who may run."""

import pytest

from runtime.core.flow import Credits
from runtime.core.ids import ChannelId

ONE, OTHER = ChannelId(0, 0, 0), ChannelId(0, 0, 1)


def test_a_subtask_may_run_until_one_output_is_used_up() -> None:
    """S4-11: a slow sink stops its source."""
    credits = Credits([ONE, OTHER], window_bytes=10)
    credits.spend(ONE, 9)
    assert credits.runnable
    credits.spend(ONE, 1)
    assert not credits.runnable


def test_one_step_may_overdraw_and_everything_must_be_repaid() -> None:
    credits = Credits([ONE], window_bytes=10)
    credits.spend(ONE, 25)
    credits.repay(ONE, 15)
    assert not credits.runnable, "nothing is left of the window yet"
    credits.repay(ONE, 1)
    assert credits.runnable


def test_every_output_must_have_credit() -> None:
    """S4-19: credits are per channel."""
    credits = Credits([ONE, OTHER], window_bytes=10)
    credits.spend(ONE, 10)
    credits.spend(OTHER, 10)
    credits.repay(ONE, 10)
    assert not credits.runnable
    credits.repay(OTHER, 1)
    assert credits.runnable


def test_a_subtask_without_outputs_may_always_run() -> None:
    assert Credits([]).runnable


def test_a_window_lets_something_through() -> None:
    with pytest.raises(AssertionError, match="window"):
        Credits([ONE], window_bytes=0)
