"""The barrier handler of a subtask: `BarrierAlignment` (exactly once) or `BarrierTracker` (at least once).

A handler is an immutable value. Each event returns the next value, and the outcomes for the subtask in order.
"""

from dataclasses import dataclass
from typing import Protocol

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Barrier

NO_CHANNELS: frozenset[ChannelId] = frozenset()


@dataclass(frozen=True, slots=True)
class Aligned:
    """Every live channel has delivered `barrier`: take the snapshot now, then unblock all channels."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The pending checkpoint was superseded by a newer barrier or cancelled upstream; all channels are unblocked."""

    checkpoint: CheckpointId
    overtaken: bool  #: superseded, not cancelled


@dataclass(frozen=True, slots=True)
class Overtakes:
    """`barrier` overtakes rows: take the snapshot now, with the rows before the barrier on `channels`."""

    barrier: Barrier
    channels: frozenset[ChannelId]  #: live channels that have not delivered the barrier


AlignmentOutcome = Aligned | GivenUp | Overtakes


class BarrierHandler(Protocol):
    @property
    def live(self) -> frozenset[ChannelId]:
        """The channels that have not ended."""

    @property
    def pending(self) -> Barrier | None:
        """The barrier in alignment."""

    @property
    def blocked(self) -> frozenset[ChannelId]:
        """The channels that must not be read during the alignment."""

    def on_barrier(self, channel: ChannelId, barrier: Barrier) -> "tuple[BarrierHandler, list[AlignmentOutcome]]":
        """A barrier arrived on a live, unblocked channel."""

    def on_trigger(self, barrier: Barrier) -> "tuple[BarrierHandler, list[AlignmentOutcome]]":
        """The coordinator triggered this subtask: a source, or a subtask whose predecessors have all ended."""

    def may_overtake(self, barrier: Barrier) -> bool:
        """Whether `barrier` belongs to a checkpoint that is still to be taken, and may overtake rows."""

    def on_timeout(self, barrier: Barrier) -> "tuple[BarrierHandler, list[AlignmentOutcome]]":
        """The barrier, which is in alignment or lies in a queue, has waited for too long."""

    def on_cancel(self, checkpoint: CheckpointId) -> "tuple[BarrierHandler, list[AlignmentOutcome]]":
        """A CancelBarrier arrived: an upstream subtask cannot take part in `checkpoint`."""

    def on_channel_end(self, channel: ChannelId) -> "tuple[BarrierHandler, list[AlignmentOutcome]]":
        """EndOfPartition arrived: no barrier will follow on `channel`."""

    def on_abort(self, checkpoint: CheckpointId) -> "BarrierHandler":
        """The coordinator aborted `checkpoint`. It notifies every subtask, so no CancelBarrier is forwarded."""
