"""Credits: who may run."""

import pytest

from runtime.core.flow import Credits
from runtime.core.ids import ChannelId

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
    assert Credits([]).runnable


def test_a_window_lets_something_through() -> None:
    with pytest.raises(AssertionError, match="window"):
        Credits([ONE], window_bytes=0)
