"""The two ways with barriers, through one entrance: the same story told to both."""

from collections.abc import Callable
from typing import Any

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Barrier, CheckpointKind
from runtime.core.subtask.barrier_alignment import BarrierAlignment
from runtime.core.subtask.barrier_handler import Aligned, BarrierHandler, GivenUp
from runtime.core.subtask.barrier_tracker import BarrierTracker

ONE, TWO = (ChannelId(0, n, 0) for n in range(2))
MODES: tuple[Callable[[frozenset[ChannelId]], BarrierHandler], ...] = (BarrierAlignment, BarrierTracker)


def barrier(checkpoint: int) -> Barrier:
    return Barrier(CheckpointId(checkpoint), CheckpointKind.CHECKPOINT, 0)


def test_exactly_once_blocks_and_at_least_once_does_not() -> None:
    """S4-24, S4-25."""
    stories: dict[Callable[[frozenset[ChannelId]], BarrierHandler], Any] = {}
    for mode in MODES:
        now = mode(frozenset((ONE, TWO)))
        now, verdicts = now.on_barrier(ONE, barrier(1))
        stories[mode] = (now.blocked, now.pending, verdicts)
        now, verdicts = now.on_barrier(TWO, barrier(1))
        assert verdicts == [Aligned(barrier(1))]
        assert now.pending is None
    assert stories == {BarrierAlignment: ({ONE}, barrier(1), []), BarrierTracker: (frozenset(), None, [])}


def test_both_agree_on_cancels_ends_aborts_and_triggers() -> None:
    for mode in MODES:
        now = mode(frozenset((ONE, TWO)))
        now, verdicts = now.on_cancel(CheckpointId(1))
        assert verdicts == [GivenUp(CheckpointId(1), overtaken=False)]
        now = now.on_abort(CheckpointId(2))
        now, verdicts = now.on_barrier(ONE, barrier(2))
        assert verdicts == []
        now, verdicts = now.on_trigger(barrier(3))
        assert verdicts == []
        now, verdicts = now.on_channel_end(ONE)
        assert verdicts == []
        now, verdicts = now.on_channel_end(TWO)
        assert verdicts == [Aligned(barrier(3))]
