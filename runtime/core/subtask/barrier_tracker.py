"""Barrier tracking over the input channels of a subtask without blocking (at least once).

A checkpoint is snapshotted when every live channel has delivered its barrier or ended. Records that arrive behind an
early barrier are in the snapshot and arrive again after a restore. Several checkpoints may be awaited at once. The
invariant of `Alignment` holds: each checkpoint is snapshotted at most once, and in order. (Flink's
`CheckpointBarrierTracker`.)
"""

from dataclasses import dataclass, replace
from typing import Final

from runtime.core.job.ids import ChannelId, CheckpointId, add_aborted_id
from runtime.core.job.messages import Barrier
from runtime.core.subtask.alignment import NO_CHANNELS, Aligned, AlignmentOutcome, GivenUp

MAX_AWAITED_CHECKPOINTS: Final = 50  #: beyond this number the oldest awaited checkpoint is given up


@dataclass(frozen=True, slots=True)
class AwaitedCheckpoint:
    """A checkpoint whose barrier has not arrived on every live channel."""

    barrier: Barrier
    delivered: frozenset[ChannelId] = NO_CHANNELS

    @property
    def checkpoint(self) -> CheckpointId:
        return self.barrier.checkpoint


@dataclass(frozen=True, slots=True)
class BarrierTracker:
    """The tracked barriers of a subtask, as an immutable value.

    Checkpoints up to `closed_up_to` are taken or given up; `awaited` are later checkpoints, oldest first. `aborted`
    holds the newest `MAX_ABORTED_IDS` later checkpoints that the coordinator aborted.
    """

    live: frozenset[ChannelId]
    closed_up_to: CheckpointId = CheckpointId(0)
    awaited: tuple[AwaitedCheckpoint, ...] = ()
    aborted: frozenset[CheckpointId] = frozenset()


def on_barrier(
    now: BarrierTracker, channel: ChannelId, barrier: Barrier
) -> tuple[BarrierTracker, list[AlignmentOutcome]]:
    """A barrier arrived on a live channel, which stays readable."""
    assert channel in now.live, "an ended channel delivers no message"
    begun, verdicts = _begin_checkpoint(now, barrier)
    awaited = tuple(
        replace(entry, delivered=entry.delivered | {channel}) if entry.checkpoint == barrier.checkpoint else entry
        for entry in begun.awaited
    )
    settled, more = _complete_checkpoints(replace(begun, awaited=awaited))
    return settled, verdicts + more


def on_trigger(now: BarrierTracker, barrier: Barrier) -> tuple[BarrierTracker, list[AlignmentOutcome]]:
    """The coordinator triggered this subtask: a source, or a subtask whose predecessors have all ended."""
    begun, verdicts = _begin_checkpoint(now, barrier)
    settled, more = _complete_checkpoints(begun)
    return settled, verdicts + more


def on_cancel(now: BarrierTracker, checkpoint: CheckpointId) -> tuple[BarrierTracker, list[AlignmentOutcome]]:
    """A CancelBarrier arrived: gives up `checkpoint` and every awaited checkpoint before it, once each."""
    if checkpoint <= now.closed_up_to or checkpoint in now.aborted:
        return now, []
    older: list[AlignmentOutcome] = [
        GivenUp(entry.checkpoint, overtaken=True) for entry in now.awaited if entry.checkpoint < checkpoint
    ]
    return _close_checkpoints(now, checkpoint), [*older, GivenUp(checkpoint, overtaken=False)]


def on_channel_end(now: BarrierTracker, channel: ChannelId) -> tuple[BarrierTracker, list[AlignmentOutcome]]:
    """EndOfPartition arrived: no barrier will follow on `channel`."""
    assert channel in now.live, "an ended channel delivers no message"
    return _complete_checkpoints(replace(now, live=now.live - {channel}))


def on_abort(now: BarrierTracker, checkpoint: CheckpointId) -> BarrierTracker:
    """The coordinator aborted `checkpoint`. It notifies every subtask, so no CancelBarrier is forwarded."""
    if checkpoint <= now.closed_up_to:
        return now
    awaited = tuple(entry for entry in now.awaited if entry.checkpoint != checkpoint)
    return replace(now, awaited=awaited, aborted=add_aborted_id(now.aborted, checkpoint))


def _begin_checkpoint(now: BarrierTracker, barrier: Barrier) -> tuple[BarrierTracker, list[AlignmentOutcome]]:
    """Adds the checkpoint of `barrier` to the awaited ones if it is new."""
    checkpoint = barrier.checkpoint
    known = any(entry.checkpoint == checkpoint for entry in now.awaited)
    if known or checkpoint <= now.closed_up_to or checkpoint in now.aborted:
        return now, []
    awaited = tuple(sorted((*now.awaited, AwaitedCheckpoint(barrier)), key=lambda entry: entry.checkpoint))
    begun = replace(now, awaited=awaited)
    if len(awaited) <= MAX_AWAITED_CHECKPOINTS:
        return begun, []
    return _close_checkpoints(begun, awaited[0].checkpoint), [GivenUp(awaited[0].checkpoint, overtaken=True)]


def _complete_checkpoints(now: BarrierTracker) -> tuple[BarrierTracker, list[AlignmentOutcome]]:
    """Completes the checkpoints that every live channel has delivered; gives up older ones.

    Channels are ordered, so an older checkpoint that is still incomplete was given up upstream.
    """
    taken = [entry for entry in now.awaited if now.live <= entry.delivered]
    if not taken:
        return now, []
    newest = taken[-1].checkpoint
    verdicts: list[AlignmentOutcome] = [
        Aligned(entry.barrier) if entry in taken else GivenUp(entry.checkpoint, overtaken=True)
        for entry in now.awaited
        if entry.checkpoint <= newest
    ]
    return _close_checkpoints(now, newest), verdicts


def _close_checkpoints(now: BarrierTracker, over: CheckpointId) -> BarrierTracker:
    awaited = tuple(entry for entry in now.awaited if entry.checkpoint > over)
    aborted = frozenset(checkpoint for checkpoint in now.aborted if checkpoint > over)
    return replace(now, closed_up_to=over, awaited=awaited, aborted=aborted)
