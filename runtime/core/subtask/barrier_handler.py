"""Dispatch to the barrier handler of the checkpoint mode: `Alignment` (exactly once) or `Counting` (at least once)."""

from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Barrier
from runtime.core.subtask import alignment, barrier_tracker
from runtime.core.subtask.alignment import NOBODY, Alignment, Verdict
from runtime.core.subtask.barrier_tracker import Counting

Barriers = Alignment | Counting


def fresh(mode: CheckpointMode, live: frozenset[ChannelId]) -> Barriers:
    return Alignment(live=live) if mode is CheckpointMode.EXACTLY_ONCE else Counting(live=live)


def received(now: Barriers, channel: ChannelId, barrier: Barrier) -> tuple[Barriers, list[Verdict]]:
    if isinstance(now, Counting):
        return barrier_tracker.barrier_received(now, channel, barrier)
    return alignment.barrier_received(now, channel, barrier)


def injected(now: Barriers, barrier: Barrier) -> tuple[Barriers, list[Verdict]]:
    if isinstance(now, Counting):
        return barrier_tracker.barrier_injected(now, barrier)
    return alignment.barrier_injected(now, barrier)


def cancelled(now: Barriers, checkpoint: CheckpointId) -> tuple[Barriers, list[Verdict]]:
    if isinstance(now, Counting):
        return barrier_tracker.cancel_received(now, checkpoint)
    return alignment.cancel_received(now, checkpoint)


def ended(now: Barriers, channel: ChannelId) -> tuple[Barriers, list[Verdict]]:
    if isinstance(now, Counting):
        return barrier_tracker.channel_ended(now, channel)
    return alignment.channel_ended(now, channel)


def aborted(now: Barriers, checkpoint: CheckpointId) -> Barriers:
    if isinstance(now, Counting):
        return barrier_tracker.checkpoint_aborted(now, checkpoint)
    return alignment.checkpoint_aborted(now, checkpoint)


def pending(now: Barriers) -> Barrier | None:
    """The barrier in alignment."""
    return now.pending if isinstance(now, Alignment) else None


def aligning(now: Barriers) -> CheckpointId | None:
    """The checkpoint in alignment."""
    barrier = pending(now)
    return None if barrier is None else barrier.checkpoint


def blocked(now: Barriers) -> frozenset[ChannelId]:
    return now.blocked if isinstance(now, Alignment) else NOBODY
