"""Barrier tracking over the input channels of a subtask without blocking (at least once).

A checkpoint is snapshotted when every live channel has delivered its barrier or ended. Records that arrive behind an
early barrier are in the snapshot and arrive again after a restore. Several checkpoints may be awaited at once. The
invariant of `BarrierAlignment` holds: each checkpoint is snapshotted at most once, and in order. (Flink's
`CheckpointBarrierTracker`.)
"""

from dataclasses import dataclass, replace
from typing import Final, Self

from runtime.core.job.ids import ChannelId, CheckpointId, add_aborted_id
from runtime.core.job.messages import Barrier
from runtime.core.subtask.barrier_handler import NO_CHANNELS, Aligned, AlignmentOutcome, GivenUp

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
    """The tracked barriers of a subtask, as an immutable value (a `BarrierHandler`).

    Checkpoints up to `closed_up_to` are taken or given up; `awaited` are later checkpoints, oldest first. `aborted`
    holds the newest `MAX_ABORTED_IDS` later checkpoints that the coordinator aborted.
    """

    live: frozenset[ChannelId]
    closed_up_to: CheckpointId = CheckpointId(0)
    awaited: tuple[AwaitedCheckpoint, ...] = ()
    aborted: frozenset[CheckpointId] = frozenset()

    @property
    def pending(self) -> None:
        """Always None: no alignment takes place."""
        return

    @property
    def blocked(self) -> frozenset[ChannelId]:
        return NO_CHANNELS

    def on_barrier(self, channel: ChannelId, barrier: Barrier) -> tuple[Self, list[AlignmentOutcome]]:
        assert channel in self.live, "an ended channel delivers no message"
        begun, given_up = self._begin(barrier)
        awaited = tuple(
            replace(entry, delivered=entry.delivered | {channel}) if entry.checkpoint == barrier.checkpoint else entry
            for entry in begun.awaited
        )
        settled, outcomes = replace(begun, awaited=awaited)._complete()
        return settled, given_up + outcomes

    def on_trigger(self, barrier: Barrier) -> tuple[Self, list[AlignmentOutcome]]:
        begun, given_up = self._begin(barrier)
        settled, outcomes = begun._complete()
        return settled, given_up + outcomes

    def may_overtake(self, barrier: Barrier) -> bool:
        """False: a barrier waits for barriers only, and rows behind an early barrier are processed."""
        return False

    def on_timeout(self, barrier: Barrier) -> tuple[Self, list[AlignmentOutcome]]:
        raise AssertionError("no alignment takes place")

    def on_cancel(self, checkpoint: CheckpointId) -> tuple[Self, list[AlignmentOutcome]]:
        """Gives up `checkpoint` and every awaited checkpoint before it, once each."""
        if checkpoint <= self.closed_up_to or checkpoint in self.aborted:
            return self, []
        older: list[AlignmentOutcome] = [
            GivenUp(entry.checkpoint, overtaken=True) for entry in self.awaited if entry.checkpoint < checkpoint
        ]
        return self._close(checkpoint), [*older, GivenUp(checkpoint, overtaken=False)]

    def on_channel_end(self, channel: ChannelId) -> tuple[Self, list[AlignmentOutcome]]:
        assert channel in self.live, "an ended channel delivers no message"
        return replace(self, live=self.live - {channel})._complete()

    def on_abort(self, checkpoint: CheckpointId) -> Self:
        if checkpoint <= self.closed_up_to:
            return self
        awaited = tuple(entry for entry in self.awaited if entry.checkpoint != checkpoint)
        return replace(self, awaited=awaited, aborted=add_aborted_id(self.aborted, checkpoint))

    def _begin(self, barrier: Barrier) -> tuple[Self, list[AlignmentOutcome]]:
        """Adds the checkpoint of `barrier` to the awaited checkpoints if it is new."""
        checkpoint = barrier.checkpoint
        is_awaited = any(entry.checkpoint == checkpoint for entry in self.awaited)
        if is_awaited or checkpoint <= self.closed_up_to or checkpoint in self.aborted:
            return self, []
        awaited = tuple(sorted((*self.awaited, AwaitedCheckpoint(barrier)), key=lambda entry: entry.checkpoint))
        begun = replace(self, awaited=awaited)
        if len(awaited) <= MAX_AWAITED_CHECKPOINTS:
            return begun, []
        return begun._close(awaited[0].checkpoint), [GivenUp(awaited[0].checkpoint, overtaken=True)]

    def _complete(self) -> tuple[Self, list[AlignmentOutcome]]:
        """Completes the checkpoints whose barrier every live channel has delivered; gives up older checkpoints.

        Channels are ordered, so an older checkpoint that is still incomplete was given up upstream.
        """
        entries = [entry for entry in self.awaited if self.live <= entry.delivered]
        if not entries:
            return self, []
        newest = entries[-1].checkpoint
        outcomes: list[AlignmentOutcome] = [
            Aligned(entry.barrier) if entry in entries else GivenUp(entry.checkpoint, overtaken=True)
            for entry in self.awaited
            if entry.checkpoint <= newest
        ]
        return self._close(newest), outcomes

    def _close(self, over: CheckpointId) -> Self:
        awaited = tuple(entry for entry in self.awaited if entry.checkpoint > over)
        aborted = frozenset(checkpoint for checkpoint in self.aborted if checkpoint > over)
        return replace(self, closed_up_to=over, awaited=awaited, aborted=aborted)
