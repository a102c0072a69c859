"""Barrier tracking over the input channels of a subtask without blocking (at least once).

A checkpoint is snapshotted when every live channel has delivered its barrier or ended. Records that arrive behind an
early barrier are in the snapshot and arrive again after a restore. Several checkpoints may be awaited at once. The
invariant of `Alignment` holds: each checkpoint is snapshotted at most once, and in order. (Flink's
`CheckpointBarrierTracker`.)
"""

from dataclasses import dataclass, replace
from typing import Final

from runtime.core.job.ids import ChannelId, CheckpointId, with_aborted
from runtime.core.job.messages import Barrier
from runtime.core.subtask.alignment import NOBODY, Aligned, GivenUp, Verdict

AWAITED_MAX: Final = 50  #: beyond this number the oldest awaited checkpoint is given up


@dataclass(frozen=True, slots=True)
class Awaited:
    """A checkpoint whose barrier has not arrived on every live channel."""

    barrier: Barrier
    delivered: frozenset[ChannelId] = NOBODY

    @property
    def checkpoint(self) -> CheckpointId:
        return self.barrier.checkpoint


@dataclass(frozen=True, slots=True)
class Counting:
    """The tracked barriers of a subtask, as an immutable value.

    Checkpoints up to `over` are taken or given up; `awaited` are later checkpoints, oldest first. `aborted` holds the
    newest `MAX_ABORTED_IDS` later checkpoints that the coordinator aborted.
    """

    live: frozenset[ChannelId]
    over: CheckpointId = CheckpointId(0)
    awaited: tuple[Awaited, ...] = ()
    aborted: frozenset[CheckpointId] = frozenset()


def barrier_received(now: Counting, channel: ChannelId, barrier: Barrier) -> tuple[Counting, list[Verdict]]:
    """A barrier arrived on a live channel, which stays readable."""
    assert channel in now.live, "an ended channel delivers no message"
    begun, verdicts = _begin(now, barrier)
    awaited = tuple(
        replace(entry, delivered=entry.delivered | {channel}) if entry.checkpoint == barrier.checkpoint else entry
        for entry in begun.awaited
    )
    settled, more = _settle(replace(begun, awaited=awaited))
    return settled, verdicts + more


def barrier_injected(now: Counting, barrier: Barrier) -> tuple[Counting, list[Verdict]]:
    """The coordinator triggered this subtask: a source, or a subtask whose predecessors have all ended."""
    begun, verdicts = _begin(now, barrier)
    settled, more = _settle(begun)
    return settled, verdicts + more


def cancel_received(now: Counting, checkpoint: CheckpointId) -> tuple[Counting, list[Verdict]]:
    """A CancelBarrier arrived: gives up `checkpoint` and every awaited checkpoint before it, once each."""
    if checkpoint <= now.over or checkpoint in now.aborted:
        return now, []
    older: list[Verdict] = [
        GivenUp(entry.checkpoint, overtaken=True) for entry in now.awaited if entry.checkpoint < checkpoint
    ]
    return _past(now, checkpoint), [*older, GivenUp(checkpoint, overtaken=False)]


def channel_ended(now: Counting, channel: ChannelId) -> tuple[Counting, list[Verdict]]:
    """EndOfPartition arrived: no barrier will follow on `channel`."""
    assert channel in now.live, "an ended channel delivers no message"
    return _settle(replace(now, live=now.live - {channel}))


def checkpoint_aborted(now: Counting, checkpoint: CheckpointId) -> Counting:
    """The coordinator aborted `checkpoint`. It notifies every subtask, so no CancelBarrier is forwarded."""
    if checkpoint <= now.over:
        return now
    awaited = tuple(entry for entry in now.awaited if entry.checkpoint != checkpoint)
    return replace(now, awaited=awaited, aborted=with_aborted(now.aborted, checkpoint))


def _begin(now: Counting, barrier: Barrier) -> tuple[Counting, list[Verdict]]:
    """Adds the checkpoint of `barrier` to the awaited ones if it is new."""
    checkpoint = barrier.checkpoint
    known = any(entry.checkpoint == checkpoint for entry in now.awaited)
    if known or checkpoint <= now.over or checkpoint in now.aborted:
        return now, []
    awaited = tuple(sorted((*now.awaited, Awaited(barrier)), key=lambda entry: entry.checkpoint))
    begun = replace(now, awaited=awaited)
    if len(awaited) <= AWAITED_MAX:
        return begun, []
    return _past(begun, awaited[0].checkpoint), [GivenUp(awaited[0].checkpoint, overtaken=True)]


def _settle(now: Counting) -> tuple[Counting, list[Verdict]]:
    """Completes the checkpoints that every live channel has delivered; gives up older ones.

    Channels are ordered, so an older checkpoint that is still incomplete was given up upstream.
    """
    taken = [entry for entry in now.awaited if now.live <= entry.delivered]
    if not taken:
        return now, []
    newest = taken[-1].checkpoint
    verdicts: list[Verdict] = [
        Aligned(entry.barrier) if entry in taken else GivenUp(entry.checkpoint, overtaken=True)
        for entry in now.awaited
        if entry.checkpoint <= newest
    ]
    return _past(now, newest), verdicts


def _past(now: Counting, over: CheckpointId) -> Counting:
    awaited = tuple(entry for entry in now.awaited if entry.checkpoint > over)
    aborted = frozenset(checkpoint for checkpoint in now.aborted if checkpoint > over)
    return replace(now, over=over, awaited=awaited, aborted=aborted)
