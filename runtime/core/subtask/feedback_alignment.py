"""Alignment on the back-edges of a loop's head: which feedback records belong to a checkpoint. (ABS, algorithm 2.)

The head never waits for a barrier on a back-edge. From its own snapshot on it logs feedback records, until the barrier
arrives on the back-edge. The barrier follows all records of the loop, so the log holds exactly the records that were in
flight (Carbone et al. 2015). Where edges do not connect every pair of subtasks, a barrier may arrive on a back-edge
before the head's own snapshot. Records behind it do not belong to the checkpoint, so that channel is blocked until the
snapshot. This cannot deadlock: a head's snapshot waits for its regular inputs alone.
"""

from collections.abc import Iterable

from runtime.core.job.ids import ChannelId, CheckpointId, with_aborted


class BackEdges:
    """Mutable, owned by a subtask.

    Args:
        channels: the feedback channels that end in the subtask.
        waits: whether a barrier before the head's own snapshot blocks its channel (exactly once).
    """

    def __init__(self, channels: Iterable[ChannelId], *, waits: bool) -> None:
        self.live = set(channels)
        self._waits = waits
        self._newest = CheckpointId(0)  #: checkpoint of the head's latest snapshot
        self._owing: dict[CheckpointId, set[ChannelId]] = {}  #: open log -> channels whose barrier has not arrived
        self._early: set[tuple[ChannelId, CheckpointId]] = set()
        self._given_up: frozenset[CheckpointId] = frozenset()  #: aborted ids above `_newest`; bounded

    def readable(self, channel: ChannelId) -> bool:
        return channel in self.live and not (self._waits and any(early == channel for early, _ in self._early))

    def logging(self, channel: ChannelId) -> tuple[CheckpointId, ...]:
        """The checkpoints whose logs take the next records of `channel`."""
        return tuple(checkpoint for checkpoint, owing in self._owing.items() if channel in owing)

    def is_open(self, checkpoint: CheckpointId) -> bool:
        return checkpoint in self._owing

    def begin(self, checkpoint: CheckpointId) -> bool:
        """The head takes its snapshot. Returns whether the log is complete at once: no barrier is outstanding."""
        self._newest = checkpoint
        owing = {channel for channel in self.live if (channel, checkpoint) not in self._early}
        self._early = {(channel, early) for channel, early in self._early if early > checkpoint}
        self._given_up = frozenset(given_up for given_up in self._given_up if given_up > checkpoint)
        if owing:
            self._owing[checkpoint] = owing
        return not owing

    def returned(self, channel: ChannelId, checkpoint: CheckpointId) -> bool:
        """The barrier arrived on `channel`. Returns whether that completes the log."""
        if checkpoint > self._newest and checkpoint not in self._given_up:
            self._early.add((channel, checkpoint))
        return self._bring(channel, checkpoint)

    def ended(self, channel: ChannelId) -> list[CheckpointId]:
        """EndOfPartition arrived on `channel`: no barrier will follow. Returns the logs that this completes."""
        self.live.discard(channel)
        return [checkpoint for checkpoint in list(self._owing) if self._bring(channel, checkpoint)]

    def give_up(self, checkpoint: CheckpointId) -> bool:
        """The checkpoint is aborted. Returns whether its log was open."""
        if checkpoint > self._newest:
            self._given_up = with_aborted(self._given_up, checkpoint)
        self._early = {(channel, early) for channel, early in self._early if early != checkpoint}
        return self._owing.pop(checkpoint, None) is not None

    def _bring(self, channel: ChannelId, checkpoint: CheckpointId) -> bool:
        owing = self._owing.get(checkpoint)
        if owing is None or channel not in owing:
            return False
        owing.discard(channel)
        if not owing:
            del self._owing[checkpoint]
        return not owing
