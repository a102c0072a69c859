"""The two ways with barriers, through one entrance: the same story told to both."""

from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Barrier, CheckpointKind
from runtime.core.subtask import barrier_handler
from runtime.core.subtask.alignment import Aligned, GivenUp

ONE, TWO = (ChannelId(0, n, 0) for n in range(2))
EXACTLY, AT_LEAST = CheckpointMode.EXACTLY_ONCE, CheckpointMode.AT_LEAST_ONCE


def barrier(checkpoint: int) -> Barrier:
    return Barrier(CheckpointId(checkpoint), CheckpointKind.CHECKPOINT, 0)


def test_exactly_once_blocks_and_at_least_once_does_not() -> None:
    """S4-24, S4-25."""
    stories = {}
    for mode in (EXACTLY, AT_LEAST):
        now = barrier_handler.new_handler(mode, frozenset((ONE, TWO)))
        now, verdicts = barrier_handler.on_barrier(now, ONE, barrier(1))
        stories[mode] = (barrier_handler.blocked_channels(now), barrier_handler.aligning_checkpoint(now), verdicts)
        now, verdicts = barrier_handler.on_barrier(now, TWO, barrier(1))
        assert verdicts == [Aligned(barrier(1))]
        assert barrier_handler.aligning_checkpoint(now) is None
    assert stories == {EXACTLY: ({ONE}, 1, []), AT_LEAST: (frozenset(), None, [])}


def test_both_agree_on_cancels_ends_aborts_and_triggers() -> None:
    for mode in (EXACTLY, AT_LEAST):
        now = barrier_handler.new_handler(mode, frozenset((ONE, TWO)))
        now, verdicts = barrier_handler.on_cancel(now, CheckpointId(1))
        assert verdicts == [GivenUp(CheckpointId(1), overtaken=False)]
        now = barrier_handler.on_abort(now, CheckpointId(2))
        now, verdicts = barrier_handler.on_barrier(now, ONE, barrier(2))
        assert verdicts == []
        now, verdicts = barrier_handler.on_trigger(now, barrier(3))
        assert verdicts == []
        now, verdicts = barrier_handler.on_channel_end(now, ONE)
        assert verdicts == []
        now, verdicts = barrier_handler.on_channel_end(now, TWO)
        assert verdicts == [Aligned(barrier(3))]
