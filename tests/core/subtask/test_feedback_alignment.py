"""The back-edges of a head: what belongs to which checkpoint."""

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.subtask.feedback_alignment import FeedbackAlignment

ONE, TWO = ChannelId(2, 0, 0), ChannelId(2, 1, 0)
FIRST, SECOND, THIRD = CheckpointId(1), CheckpointId(2), CheckpointId(3)


def edges(*, waits: bool = True) -> FeedbackAlignment:
    return FeedbackAlignment((ONE, TWO), waits=waits)


def test_each_back_edge_is_logged_from_the_snapshot_until_the_barrier_is_back() -> None:
    """S4-35, S4-37."""
    back = edges()
    assert back.logs_of(ONE) == ()
    assert not back.begin_log(FIRST)
    assert back.is_logging(FIRST)
    assert (back.logs_of(ONE), back.logs_of(TWO)) == ((FIRST,), (FIRST,))
    assert not back.on_barrier(ONE, FIRST)
    assert (back.logs_of(ONE), back.logs_of(TWO)) == ((), (FIRST,))
    assert back.on_barrier(TWO, FIRST)
    assert not back.is_logging(FIRST)
    assert not back.on_barrier(TWO, FIRST), "it closes once"


def test_several_checkpoints_may_be_logged_at_once() -> None:
    back = edges()
    back.begin_log(FIRST)
    back.on_barrier(ONE, FIRST)
    back.begin_log(SECOND)
    assert (back.logs_of(ONE), back.logs_of(TWO)) == ((SECOND,), (FIRST, SECOND))
    assert back.on_channel_end(TWO) == [FIRST]
    assert back.on_barrier(ONE, SECOND)


def test_a_back_edge_that_has_ended_owes_nothing() -> None:
    back = edges()
    back.on_channel_end(ONE)
    assert not back.is_readable(ONE)
    assert not back.begin_log(FIRST)
    assert back.on_channel_end(TWO) == [FIRST]
    assert back.begin_log(SECOND), "nobody is left to bring it back"


def test_a_barrier_that_is_early_makes_its_channel_wait_for_the_snapshot() -> None:
    """What is behind it is not of the checkpoint, and would be handled before it."""
    back = edges()
    assert not back.on_barrier(ONE, FIRST)
    assert (back.is_readable(ONE), back.is_readable(TWO)) == (False, True)
    assert not back.begin_log(FIRST)
    assert back.is_readable(ONE)
    assert (back.logs_of(ONE), back.logs_of(TWO)) == ((), (FIRST,))


def test_at_least_once_it_is_only_noted() -> None:
    back = edges(waits=False)
    back.on_barrier(ONE, FIRST)
    back.on_barrier(ONE, SECOND)
    assert back.is_readable(ONE)
    back.on_barrier(TWO, FIRST)
    assert back.begin_log(FIRST)
    assert not back.begin_log(SECOND)
    assert back.logs_of(TWO) == (SECOND,)


def test_what_is_given_up_neither_logs_nor_waits() -> None:
    back = edges()
    back.begin_log(FIRST)
    assert back.abort(FIRST)
    assert not back.abort(FIRST)
    assert back.logs_of(ONE) == ()
    back.on_barrier(ONE, SECOND)
    assert not back.abort(SECOND)
    assert back.is_readable(ONE)
    back.on_barrier(TWO, SECOND)
    assert back.is_readable(TWO), "a straggler"
    back.begin_log(THIRD)
    assert not back.on_barrier(TWO, SECOND)
    assert back.logs_of(TWO) == (THIRD,)
