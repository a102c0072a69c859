"""Dispatch to the barrier handler of the checkpoint mode: `Alignment` (exactly once) or `BarrierTracker` (at least
once).
"""

from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Barrier
from runtime.core.subtask import alignment, barrier_tracker
from runtime.core.subtask.alignment import NO_CHANNELS, Alignment, AlignmentOutcome
from runtime.core.subtask.barrier_tracker import BarrierTracker

BarrierHandler = Alignment | BarrierTracker


def new_handler(mode: CheckpointMode, live: frozenset[ChannelId]) -> BarrierHandler:
    return Alignment(live=live) if mode is CheckpointMode.EXACTLY_ONCE else BarrierTracker(live=live)


def on_barrier(
    now: BarrierHandler, channel: ChannelId, barrier: Barrier
) -> tuple[BarrierHandler, list[AlignmentOutcome]]:
    if isinstance(now, BarrierTracker):
        return barrier_tracker.on_barrier(now, channel, barrier)
    return alignment.on_barrier(now, channel, barrier)


def on_trigger(now: BarrierHandler, barrier: Barrier) -> tuple[BarrierHandler, list[AlignmentOutcome]]:
    if isinstance(now, BarrierTracker):
        return barrier_tracker.on_trigger(now, barrier)
    return alignment.on_trigger(now, barrier)


def on_cancel(now: BarrierHandler, checkpoint: CheckpointId) -> tuple[BarrierHandler, list[AlignmentOutcome]]:
    if isinstance(now, BarrierTracker):
        return barrier_tracker.on_cancel(now, checkpoint)
    return alignment.on_cancel(now, checkpoint)


def on_channel_end(now: BarrierHandler, channel: ChannelId) -> tuple[BarrierHandler, list[AlignmentOutcome]]:
    if isinstance(now, BarrierTracker):
        return barrier_tracker.on_channel_end(now, channel)
    return alignment.on_channel_end(now, channel)


def on_abort(now: BarrierHandler, checkpoint: CheckpointId) -> BarrierHandler:
    if isinstance(now, BarrierTracker):
        return barrier_tracker.on_abort(now, checkpoint)
    return alignment.on_abort(now, checkpoint)


def pending_barrier(now: BarrierHandler) -> Barrier | None:
    """The barrier in alignment."""
    return now.pending if isinstance(now, Alignment) else None


def aligning_checkpoint(now: BarrierHandler) -> CheckpointId | None:
    """The checkpoint in alignment."""
    barrier = pending_barrier(now)
    return None if barrier is None else barrier.checkpoint


def blocked_channels(now: BarrierHandler) -> frozenset[ChannelId]:
    return now.blocked if isinstance(now, Alignment) else NO_CHANNELS
