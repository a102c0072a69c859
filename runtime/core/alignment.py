"""Barriers on the many inputs of one subtask: whom to block, when to snapshot, what to give up.

It decides for aligned exactly-once: a channel that delivered its barrier is blocked until all live channels have. It
does not know what a snapshot is, nor records. The law it keeps: a checkpoint is snapshotted at most once, in order,
only when every live channel has delivered its barrier or ended; and nobody stays blocked without a pending barrier.
(ABS, Carbone et al. 2015, algorithm 1; Flink's `SingleCheckpointBarrierHandler`.)
"""

from dataclasses import dataclass, field, replace

from runtime.core.ids import ChannelId, CheckpointId, with_aborted
from runtime.core.messages import Barrier

NOBODY: frozenset[ChannelId] = frozenset()


@dataclass(frozen=True, slots=True)
class Aligned:
    """Every live channel has delivered `barrier`: snapshot now, then go on with all channels."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The pending checkpoint is overtaken or cancelled upstream; its channels flow again."""

    checkpoint: CheckpointId
    overtaken: bool  #: by a newer barrier, rather than cancelled


Verdict = Aligned | GivenUp


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where one subtask stands.

    `pending` is the barrier being aligned, if any; `blocked` those that have delivered it. `aborted` holds ids that the
    coordinator gave up before their barrier came here, the newest `MAX_ABORTED_IDS` of them.
    """

    live: frozenset[ChannelId]
    newest: CheckpointId = CheckpointId(0)
    pending: Barrier | None = None
    blocked: frozenset[ChannelId] = NOBODY
    aborted: frozenset[CheckpointId] = field(default=frozenset())


def barrier_received(now: Alignment, channel: ChannelId, barrier: Barrier) -> tuple[Alignment, list[Verdict]]:
    """A barrier came on a live, unblocked channel."""
    assert channel in now.live - now.blocked, "a blocked or ended channel cannot speak"
    started, verdicts = _begin(now, barrier)
    if started.pending is None or started.pending.checkpoint != barrier.checkpoint:
        return started, verdicts  # a straggler of a checkpoint already taken or given up
    started = replace(started, blocked=started.blocked | {channel})
    settled, more = _settle(started)
    return settled, verdicts + more


def barrier_injected(now: Alignment, barrier: Barrier) -> tuple[Alignment, list[Verdict]]:
    """The coordinator triggered here: a source, or all predecessors have ended and only their last messages are due."""
    started, verdicts = _begin(now, barrier)
    settled, more = _settle(started)
    return settled, verdicts + more


def cancel_received(now: Alignment, checkpoint: CheckpointId) -> tuple[Alignment, list[Verdict]]:
    """Somebody upstream cannot take part in `checkpoint`."""
    if checkpoint < now.newest or (checkpoint == now.newest and now.pending is None) or checkpoint in now.aborted:
        return now, []
    verdicts: list[Verdict] = [GivenUp(checkpoint, overtaken=False)]
    if now.pending is not None and now.pending.checkpoint != checkpoint:
        verdicts.insert(0, GivenUp(now.pending.checkpoint, overtaken=True))
    return _idle(now, checkpoint), verdicts


def channel_ended(now: Alignment, channel: ChannelId) -> tuple[Alignment, list[Verdict]]:
    """EndOfPartition: nothing is awaited from this channel any more."""
    assert channel in now.live - now.blocked, "a blocked or ended channel cannot speak"
    return _settle(replace(now, live=now.live - {channel}))


def checkpoint_aborted(now: Alignment, checkpoint: CheckpointId) -> Alignment:
    """The coordinator gave `checkpoint` up; everybody is told, so nothing is sent on."""
    if now.pending is not None and now.pending.checkpoint == checkpoint:
        return _idle(now, checkpoint)
    if checkpoint > now.newest:
        return replace(now, aborted=with_aborted(now.aborted, checkpoint))
    return now


def _begin(now: Alignment, barrier: Barrier) -> tuple[Alignment, list[Verdict]]:
    """Makes `barrier` the pending one if it is newer than all before."""
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
