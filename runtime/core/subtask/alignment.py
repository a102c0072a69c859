"""Barrier alignment over the input channels of a subtask (exactly once).

A channel that has delivered its barrier is blocked until all live channels have delivered theirs. Invariants: each
checkpoint is snapshotted at most once, in order, and only when every live channel has delivered its barrier or ended;
no channel is blocked without a pending barrier. (ABS, Carbone et al. 2015, algorithm 1; Flink's
`SingleCheckpointBarrierHandler`.)
"""

from dataclasses import dataclass, field, replace

from runtime.core.job.ids import ChannelId, CheckpointId, add_aborted_id
from runtime.core.job.messages import Barrier

NO_CHANNELS: frozenset[ChannelId] = frozenset()


@dataclass(frozen=True, slots=True)
class Aligned:
    """Every live channel has delivered `barrier`: take the snapshot now, then unblock all channels."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The pending checkpoint was superseded by a newer barrier or cancelled upstream; its channels are unblocked."""

    checkpoint: CheckpointId
    overtaken: bool  #: superseded, not cancelled


AlignmentOutcome = Aligned | GivenUp


@dataclass(frozen=True, slots=True)
class Alignment:
    """The alignment of a subtask, as an immutable value.

    `pending` is the barrier being aligned, if any; `blocked` are the channels that have delivered it. `aborted` holds
    the newest `MAX_ABORTED_IDS` checkpoints that the coordinator aborted before their barrier arrived.
    """

    live: frozenset[ChannelId]
    newest: CheckpointId = CheckpointId(0)
    pending: Barrier | None = None
    blocked: frozenset[ChannelId] = NO_CHANNELS
    aborted: frozenset[CheckpointId] = field(default=frozenset())


def on_barrier(now: Alignment, channel: ChannelId, barrier: Barrier) -> tuple[Alignment, list[AlignmentOutcome]]:
    """A barrier arrived on a live, unblocked channel."""
    assert channel in now.live - now.blocked, "a blocked or ended channel delivers no message"
    started, verdicts = _begin_alignment(now, barrier)
    if started.pending is None or started.pending.checkpoint != barrier.checkpoint:
        return started, verdicts  # a late barrier of a checkpoint already taken or aborted
    started = replace(started, blocked=started.blocked | {channel})
    settled, more = _complete_alignment(started)
    return settled, verdicts + more


def on_trigger(now: Alignment, barrier: Barrier) -> tuple[Alignment, list[AlignmentOutcome]]:
    """The coordinator triggered this subtask: a source, or a subtask whose predecessors have all ended."""
    started, verdicts = _begin_alignment(now, barrier)
    settled, more = _complete_alignment(started)
    return settled, verdicts + more


def on_cancel(now: Alignment, checkpoint: CheckpointId) -> tuple[Alignment, list[AlignmentOutcome]]:
    """A CancelBarrier arrived: an upstream subtask cannot take part in `checkpoint`."""
    if checkpoint < now.newest or (checkpoint == now.newest and now.pending is None) or checkpoint in now.aborted:
        return now, []
    verdicts: list[AlignmentOutcome] = [GivenUp(checkpoint, overtaken=False)]
    if now.pending is not None and now.pending.checkpoint != checkpoint:
        verdicts.insert(0, GivenUp(now.pending.checkpoint, overtaken=True))
    return _idle(now, checkpoint), verdicts


def on_channel_end(now: Alignment, channel: ChannelId) -> tuple[Alignment, list[AlignmentOutcome]]:
    """EndOfPartition arrived: no barrier will follow on `channel`."""
    assert channel in now.live - now.blocked, "a blocked or ended channel delivers no message"
    return _complete_alignment(replace(now, live=now.live - {channel}))


def on_abort(now: Alignment, checkpoint: CheckpointId) -> Alignment:
    """The coordinator aborted `checkpoint`. It notifies every subtask, so no CancelBarrier is forwarded."""
    if now.pending is not None and now.pending.checkpoint == checkpoint:
        return _idle(now, checkpoint)
    if checkpoint > now.newest:
        return replace(now, aborted=add_aborted_id(now.aborted, checkpoint))
    return now


def _begin_alignment(now: Alignment, barrier: Barrier) -> tuple[Alignment, list[AlignmentOutcome]]:
    """Starts the alignment of `barrier` if it is newer than every barrier before."""
    if barrier.checkpoint <= now.newest:
        return now, []
    verdicts: list[AlignmentOutcome] = []
    if now.pending is not None:
        verdicts.append(GivenUp(now.pending.checkpoint, overtaken=True))
    given_up = barrier.checkpoint in now.aborted
    after = _idle(now, barrier.checkpoint)
    return (after if given_up else replace(after, pending=barrier)), verdicts


def _idle(now: Alignment, newest: CheckpointId) -> Alignment:
    still_ahead = frozenset(checkpoint for checkpoint in now.aborted if checkpoint > newest)
    return replace(now, newest=newest, pending=None, blocked=NO_CHANNELS, aborted=still_ahead)


def _complete_alignment(now: Alignment) -> tuple[Alignment, list[AlignmentOutcome]]:
    if now.pending is None or now.blocked != now.live:
        return now, []
    return _idle(now, now.newest), [Aligned(now.pending)]
