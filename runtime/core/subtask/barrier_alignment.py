"""Barrier alignment over the input channels of a subtask (exactly once).

A channel that has delivered its barrier is blocked until all live channels have delivered theirs. Invariants: each
checkpoint is snapshotted at most once, in order; it is *aligned* only when every live channel has delivered its barrier
or ended; no channel is blocked without a pending barrier. (ABS, Carbone et al. 2015, algorithm 1; Flink's
`SingleCheckpointBarrierHandler`.)

A barrier that has waited for too long *overtakes* rows: the checkpoint is snapshotted at once, and no channel stays
blocked. Rows on a channel before its barrier belong to the snapshot. Their recording is that of the subtask. (FLIP-76.)
"""

from dataclasses import dataclass, replace
from typing import Self

from runtime.core.job.ids import ChannelId, CheckpointId, add_aborted_id
from runtime.core.job.messages import Barrier
from runtime.core.subtask.barrier_handler import NO_CHANNELS, Aligned, AlignmentOutcome, GivenUp, Overtakes


@dataclass(frozen=True, slots=True)
class BarrierAlignment:
    """The alignment of a subtask, as an immutable value (a `BarrierHandler`).

    `pending` is the barrier being aligned, if any; `blocked` are the channels that have delivered it. `aborted` holds
    the newest `MAX_ABORTED_IDS` checkpoints that the coordinator aborted before their barrier arrived.
    """

    live: frozenset[ChannelId]
    newest: CheckpointId = CheckpointId(0)
    pending: Barrier | None = None
    blocked: frozenset[ChannelId] = NO_CHANNELS
    aborted: frozenset[CheckpointId] = frozenset()

    def on_barrier(self, channel: ChannelId, barrier: Barrier) -> tuple[Self, list[AlignmentOutcome]]:
        assert channel in self.live - self.blocked, "a blocked or ended channel delivers no message"
        started, given_up = self._begin(barrier)
        if started.pending is None or started.pending.checkpoint != barrier.checkpoint:
            return started, given_up  # a late barrier of a checkpoint already taken or aborted
        settled, outcomes = replace(started, blocked=started.blocked | {channel})._complete()
        return settled, given_up + outcomes

    def on_trigger(self, barrier: Barrier) -> tuple[Self, list[AlignmentOutcome]]:
        started, given_up = self._begin(barrier)
        settled, outcomes = started._complete()
        return settled, given_up + outcomes

    def may_overtake(self, barrier: Barrier) -> bool:
        is_new = barrier.checkpoint > self.newest and barrier.checkpoint not in self.aborted
        is_pending = self.pending is not None and self.pending.checkpoint == barrier.checkpoint
        return not barrier.kind.ends_job and (is_new or is_pending)

    def on_timeout(self, barrier: Barrier) -> tuple[Self, list[AlignmentOutcome]]:
        assert self.may_overtake(barrier), "the barrier is late, or aligns always"
        started, outcomes = (self, []) if barrier == self.pending else self._begin(barrier)
        overtakes = Overtakes(barrier, started.live - started.blocked)
        return started._idle(barrier.checkpoint), [*outcomes, overtakes]

    def on_cancel(self, checkpoint: CheckpointId) -> tuple[Self, list[AlignmentOutcome]]:
        is_past = checkpoint < self.newest or (checkpoint == self.newest and self.pending is None)
        if is_past or checkpoint in self.aborted:
            return self, []
        outcomes: list[AlignmentOutcome] = [GivenUp(checkpoint, overtaken=False)]
        if self.pending is not None and self.pending.checkpoint != checkpoint:
            outcomes.insert(0, GivenUp(self.pending.checkpoint, overtaken=True))
        return self._idle(checkpoint), outcomes

    def on_channel_end(self, channel: ChannelId) -> tuple[Self, list[AlignmentOutcome]]:
        assert channel in self.live - self.blocked, "a blocked or ended channel delivers no message"
        return replace(self, live=self.live - {channel})._complete()

    def on_abort(self, checkpoint: CheckpointId) -> Self:
        if self.pending is not None and self.pending.checkpoint == checkpoint:
            return self._idle(checkpoint)
        if checkpoint > self.newest:
            return replace(self, aborted=add_aborted_id(self.aborted, checkpoint))
        return self

    def _begin(self, barrier: Barrier) -> tuple[Self, list[AlignmentOutcome]]:
        """Starts the alignment of `barrier` if it is newer than every barrier before."""
        if barrier.checkpoint <= self.newest:
            return self, []
        outcomes: list[AlignmentOutcome] = []
        if self.pending is not None:
            outcomes.append(GivenUp(self.pending.checkpoint, overtaken=True))
        after = self._idle(barrier.checkpoint)
        return (after if barrier.checkpoint in self.aborted else replace(after, pending=barrier)), outcomes

    def _idle(self, newest: CheckpointId) -> Self:
        still_ahead = frozenset(checkpoint for checkpoint in self.aborted if checkpoint > newest)
        return replace(self, newest=newest, pending=None, blocked=NO_CHANNELS, aborted=still_ahead)

    def _complete(self) -> tuple[Self, list[AlignmentOutcome]]:
        if self.pending is None or self.blocked != self.live:
            return self, []
        return self._idle(self.newest), [Aligned(self.pending)]
