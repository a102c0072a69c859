"""Barrier alignment over the input channels of a subtask (exactly once).

A channel that has delivered its barrier is blocked until all live channels have delivered theirs. Invariants: each
checkpoint is snapshotted at most once, in order, and only when every live channel has delivered its barrier or ended;
no channel is blocked without a pending barrier. (ABS, Carbone et al. 2015, algorithm 1; Flink's
`SingleCheckpointBarrierHandler`.)
"""

from dataclasses import dataclass, field, replace

from runtime.core.job.ids import ChannelId, CheckpointId, with_aborted
from runtime.core.job.messages import Barrier

NOBODY: frozenset[ChannelId] = frozenset()


@dataclass(frozen=True, slots=True)
class Aligned:
    """Every live channel has delivered `barrier`: take the snapshot now, then unblock all channels."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The pending checkpoint was superseded by a newer barrier or cancelled upstream; its channels are unblocked."""

    checkpoint: CheckpointId
    overtaken: bool  #: superseded, not cancelled


Verdict = Aligned | GivenUp


@dataclass(frozen=True, slots=True)
class Alignment:
    """The alignment of a subtask, as an immutable value.

    `pending` is the barrier being aligned, if any; `blocked` are the channels that have delivered it. `aborted` holds
    the newest `MAX_ABORTED_IDS` checkpoints that the coordinator aborted before their barrier arrived.
    """

    live: frozenset[ChannelId]
    newest: CheckpointId = CheckpointId(0)
    pending: Barrier | None = None
    blocked: frozenset[ChannelId] = NOBODY
    aborted: frozenset[CheckpointId] = field(default=frozenset())


def barrier_received(now: Alignment, channel: ChannelId, barrier: Barrier) -> tuple[Alignment, list[Verdict]]:
    """A barrier arrived on a live, unblocked channel."""
    assert channel in now.live - now.blocked, "a blocked or ended channel delivers no message"
    started, verdicts = _begin(now, barrier)
    if started.pending is None or started.pending.checkpoint != barrier.checkpoint:
        return started, verdicts  # a late barrier of a checkpoint already taken or aborted
    started = replace(started, blocked=started.blocked | {channel})
    settled, more = _settle(started)
    return settled, verdicts + more


def barrier_injected(now: Alignment, barrier: Barrier) -> tuple[Alignment, list[Verdict]]:
    """The coordinator triggered this subtask: a source, or a subtask whose predecessors have all ended."""
    started, verdicts = _begin(now, barrier)
    settled, more = _settle(started)
    return settled, verdicts + more


def cancel_received(now: Alignment, checkpoint: CheckpointId) -> tuple[Alignment, list[Verdict]]:
    """A CancelBarrier arrived: an upstream subtask cannot take part in `checkpoint`."""
    if checkpoint < now.newest or (checkpoint == now.newest and now.pending is None) or checkpoint in now.aborted:
        return now, []
    verdicts: list[Verdict] = [GivenUp(checkpoint, overtaken=False)]
    if now.pending is not None and now.pending.checkpoint != checkpoint:
        verdicts.insert(0, GivenUp(now.pending.checkpoint, overtaken=True))
    return _idle(now, checkpoint), verdicts


def channel_ended(now: Alignment, channel: ChannelId) -> tuple[Alignment, list[Verdict]]:
    """EndOfPartition arrived: no barrier will follow on `channel`."""
    assert channel in now.live - now.blocked, "a blocked or ended channel delivers no message"
    return _settle(replace(now, live=now.live - {channel}))


def checkpoint_aborted(now: Alignment, checkpoint: CheckpointId) -> Alignment:
    """The coordinator aborted `checkpoint`. It notifies every subtask, so no CancelBarrier is forwarded."""
    if now.pending is not None and now.pending.checkpoint == checkpoint:
        return _idle(now, checkpoint)
    if checkpoint > now.newest:
        return replace(now, aborted=with_aborted(now.aborted, checkpoint))
    return now


def _begin(now: Alignment, barrier: Barrier) -> tuple[Alignment, list[Verdict]]:
    """Starts the alignment of `barrier` if it is newer than every barrier before."""
    if barrier.checkpoint <= now.newest:
        return now, []
    verdicts: list[Verdict] = []
    if now.pending is not None:
        verdicts.append(GivenUp(now.pending.checkpoint, overtaken=True))
    given_up = barrier.checkpoint in now.aborted
    after = _idle(now, barrier.checkpoint)
    return (after if given_up else replace(after, pending=barrier)), verdicts


def _idle(now: Alignment, newest: CheckpointId) -> Alignment:
    still_ahead = frozenset(checkpoint for checkpoint in now.aborted if checkpoint > newest)
    return replace(now, newest=newest, pending=None, blocked=NOBODY, aborted=still_ahead)


def _settle(now: Alignment) -> tuple[Alignment, list[Verdict]]:
    if now.pending is None or now.blocked != now.live:
        return now, []
    return _idle(now, now.newest), [Aligned(now.pending)]
