"""The back-edges of a head: what belongs to which checkpoint."""

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.subtask.feedback_alignment import BackEdges

ONE, TWO = ChannelId(2, 0, 0), ChannelId(2, 1, 0)
FIRST, SECOND, THIRD = CheckpointId(1), CheckpointId(2), CheckpointId(3)


def edges(*, waits: bool = True) -> BackEdges:
    return BackEdges((ONE, TWO), waits=waits)


def test_each_back_edge_is_logged_from_the_snapshot_until_the_barrier_is_back() -> None:
    """S4-35, S4-37."""
    back = edges()
    assert back.logging(ONE) == ()
    assert not back.begin(FIRST)
    assert back.is_open(FIRST)
    assert (back.logging(ONE), back.logging(TWO)) == ((FIRST,), (FIRST,))
    assert not back.returned(ONE, FIRST)
    assert (back.logging(ONE), back.logging(TWO)) == ((), (FIRST,))
    assert back.returned(TWO, FIRST)
    assert not back.is_open(FIRST)
    assert not back.returned(TWO, FIRST), "it closes once"


def test_several_checkpoints_may_be_logged_at_once() -> None:
    back = edges()
    back.begin(FIRST)
    back.returned(ONE, FIRST)
    back.begin(SECOND)
    assert (back.logging(ONE), back.logging(TWO)) == ((SECOND,), (FIRST, SECOND))
    assert back.ended(TWO) == [FIRST]
    assert back.returned(ONE, SECOND)


def test_a_back_edge_that_has_ended_owes_nothing() -> None:
    back = edges()
    back.ended(ONE)
    assert not back.readable(ONE)
    assert not back.begin(FIRST)
    assert back.ended(TWO) == [FIRST]
    assert back.begin(SECOND), "nobody is left to bring it back"


def test_a_barrier_that_is_early_makes_its_channel_wait_for_the_snapshot() -> None:
    """What is behind it is not of the checkpoint, and would be handled before it."""
    back = edges()
    assert not back.returned(ONE, FIRST)
    assert (back.readable(ONE), back.readable(TWO)) == (False, True)
    assert not back.begin(FIRST)
    assert back.readable(ONE)
    assert (back.logging(ONE), back.logging(TWO)) == ((), (FIRST,))


def test_at_least_once_it_is_only_noted() -> None:
    back = edges(waits=False)
    back.returned(ONE, FIRST)
    back.returned(ONE, SECOND)
    assert back.readable(ONE)
    back.returned(TWO, FIRST)
    assert back.begin(FIRST)
    assert not back.begin(SECOND)
    assert back.logging(TWO) == (SECOND,)


def test_what_is_given_up_neither_logs_nor_waits() -> None:
    back = edges()
    back.begin(FIRST)
    assert back.give_up(FIRST)
    assert not back.give_up(FIRST)
    assert back.logging(ONE) == ()
    back.returned(ONE, SECOND)
    assert not back.give_up(SECOND)
    assert back.readable(ONE)
    back.returned(TWO, SECOND)
    assert back.readable(TWO), "a straggler"
    back.begin(THIRD)
    assert not back.returned(TWO, SECOND)
    assert back.logging(TWO) == (THIRD,)
