"""Barriers on the many inputs of one subtask, when nobody is blocked: at least once.

It decides for jobs that would rather repeat records than wait: channels are counted, and a checkpoint is snapshotted
when every live channel has delivered its barrier or ended. What came behind a barrier that was first is in the snapshot
too, and comes again after a restore. Several checkpoints may be awaited at once. The law it keeps is that of
`alignment`: a checkpoint is snapshotted at most once, and in order. (Flink's `CheckpointBarrierTracker`.)
"""

from dataclasses import dataclass, replace
from typing import Final

from runtime.core.alignment import NOBODY, Aligned, GivenUp, Verdict
from runtime.core.ids import ChannelId, CheckpointId, with_aborted
from runtime.core.messages import Barrier

AWAITED_MAX: Final = 50  #: the oldest beyond these is given up


@dataclass(frozen=True, slots=True)
class Awaited:
    """A checkpoint whose barrier some live channels still owe."""

    barrier: Barrier
    delivered: frozenset[ChannelId] = NOBODY

    @property
    def checkpoint(self) -> CheckpointId:
        return self.barrier.checkpoint


@dataclass(frozen=True, slots=True)
class Counting:
    """Where one subtask stands. Checkpoints up to `over` are taken or given up; `awaited` are later ones, oldest first.

    `aborted` holds later ids that the coordinator gave up, the newest `MAX_ABORTED_IDS` of them.
    """

    live: frozenset[ChannelId]
    over: CheckpointId = CheckpointId(0)
    awaited: tuple[Awaited, ...] = ()
    aborted: frozenset[CheckpointId] = frozenset()


def barrier_received(now: Counting, channel: ChannelId, barrier: Barrier) -> tuple[Counting, list[Verdict]]:
    """A barrier came on a live channel, which flows on."""
    assert channel in now.live, "an ended channel cannot speak"
    begun, verdicts = _begin(now, barrier)
    awaited = tuple(
        replace(one, delivered=one.delivered | {channel}) if one.checkpoint == barrier.checkpoint else one
        for one in begun.awaited
    )
    settled, more = _settle(replace(begun, awaited=awaited))
    return settled, verdicts + more


def barrier_injected(now: Counting, barrier: Barrier) -> tuple[Counting, list[Verdict]]:
    """The coordinator triggered here: a source, or all predecessors have ended and only their last messages are due."""
    begun, verdicts = _begin(now, barrier)
    settled, more = _settle(begun)
    return settled, verdicts + more


def cancel_received(now: Counting, checkpoint: CheckpointId) -> tuple[Counting, list[Verdict]]:
    """Somebody upstream cannot take part in `checkpoint`; it and all before it are given up, once each."""
    if checkpoint <= now.over or checkpoint in now.aborted:
        return now, []
    older: list[Verdict] = [
        GivenUp(one.checkpoint, overtaken=True) for one in now.awaited if one.checkpoint < checkpoint
    ]
    return _past(now, checkpoint), [*older, GivenUp(checkpoint, overtaken=False)]


def channel_ended(now: Counting, channel: ChannelId) -> tuple[Counting, list[Verdict]]:
    """EndOfPartition: nothing is awaited from this channel any more, whatever it has delivered."""
    assert channel in now.live, "an ended channel cannot speak"
    return _settle(replace(now, live=now.live - {channel}))


def checkpoint_aborted(now: Counting, checkpoint: CheckpointId) -> Counting:
    """The coordinator gave `checkpoint` up; everybody is told, so nothing is sent on."""
    if checkpoint <= now.over:
        return now
    awaited = tuple(one for one in now.awaited if one.checkpoint != checkpoint)
    return replace(now, awaited=awaited, aborted=with_aborted(now.aborted, checkpoint))


def _begin(now: Counting, barrier: Barrier) -> tuple[Counting, list[Verdict]]:
    """Makes `barrier` an awaited one if it is new."""
    checkpoint = barrier.checkpoint
    known = any(one.checkpoint == checkpoint for one in now.awaited)
    if known or checkpoint <= now.over or checkpoint in now.aborted:
        return now, []
    awaited = tuple(sorted((*now.awaited, Awaited(barrier)), key=lambda one: one.checkpoint))
    begun = replace(now, awaited=awaited)
    if len(awaited) <= AWAITED_MAX:
        return begun, []
    return _past(begun, awaited[0].checkpoint), [GivenUp(awaited[0].checkpoint, overtaken=True)]


def _settle(now: Counting) -> tuple[Counting, list[Verdict]]:
    """Takes what every live channel has delivered. On ordered channels an older one can only have been given up."""
    taken = [one for one in now.awaited if now.live <= one.delivered]
    if not taken:
        return now, []
    newest = taken[-1].checkpoint
    verdicts: list[Verdict] = [
        Aligned(one.barrier) if one in taken else GivenUp(one.checkpoint, overtaken=True)
        for one in now.awaited
        if one.checkpoint <= newest
    ]
    return _past(now, newest), verdicts


def _past(now: Counting, over: CheckpointId) -> Counting:
    awaited = tuple(one for one in now.awaited if one.checkpoint > over)
    aborted = frozenset(checkpoint for checkpoint in now.aborted if checkpoint > over)
    return replace(now, over=over, awaited=awaited, aborted=aborted)
