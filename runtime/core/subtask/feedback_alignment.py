"""Alignment on the back-edges of a loop's head: which feedback records belong to a checkpoint. (ABS, algorithm 2.)

The head never waits for a barrier on a back-edge. From its own snapshot on it logs feedback records, until the barrier
arrives on the back-edge. The barrier follows all records of the loop, so the log holds exactly the records that were in
flight (Carbone et al. 2015). Where edges do not connect every pair of subtasks, a barrier may arrive on a back-edge
before the head's own snapshot. Records behind that barrier do not belong to the checkpoint, so the channel is blocked
until the snapshot. No deadlock can follow: a head's snapshot waits for its regular inputs alone.
"""

from collections.abc import Iterable

from runtime.core.job.ids import ChannelId, CheckpointId, add_aborted_id


class FeedbackAlignment:
    """Mutable, owned by a subtask.

    Args:
        channels: the feedback channels that end in the subtask.
        waits: whether a barrier before the head's own snapshot blocks its channel (exactly once).
    """

    def __init__(self, channels: Iterable[ChannelId], *, waits: bool) -> None:
        self.live = set(channels)
        self._waits = waits
        self._newest = CheckpointId(0)  #: checkpoint of the head's latest snapshot
        self._awaited_channels: dict[
            CheckpointId, set[ChannelId]
        ] = {}  #: open log -> channels whose barrier has not arrived
        self._early_barriers: set[tuple[ChannelId, CheckpointId]] = set()
        self._aborted: frozenset[CheckpointId] = frozenset()  #: aborted ids above `_newest`; bounded

    def is_readable(self, channel: ChannelId) -> bool:
        return channel in self.live and not (self._waits and any(early == channel for early, _ in self._early_barriers))

    def logs_of(self, channel: ChannelId) -> tuple[CheckpointId, ...]:
        """The checkpoints whose logs take the next records of `channel`."""
        return tuple(checkpoint for checkpoint, owing in self._awaited_channels.items() if channel in owing)

    def is_logging(self, checkpoint: CheckpointId) -> bool:
        return checkpoint in self._awaited_channels

    def begin_log(self, checkpoint: CheckpointId) -> bool:
        """The head takes its snapshot. Returns whether the log is complete at once: no barrier is outstanding."""
        self._newest = checkpoint
        owing = {channel for channel in self.live if (channel, checkpoint) not in self._early_barriers}
        self._early_barriers = {(channel, early) for channel, early in self._early_barriers if early > checkpoint}
        self._aborted = frozenset(given_up for given_up in self._aborted if given_up > checkpoint)
        if owing:
            self._awaited_channels[checkpoint] = owing
        return not owing

    def on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> bool:
        """The barrier arrived on `channel`. Returns whether the log of `checkpoint` is now complete."""
        if checkpoint > self._newest and checkpoint not in self._aborted:
            self._early_barriers.add((channel, checkpoint))
        return self._mark_delivered(channel, checkpoint)

    def on_channel_end(self, channel: ChannelId) -> list[CheckpointId]:
        """EndOfPartition arrived: no barrier will follow on `channel`. Returns the checkpoints with completed logs."""
        self.live.discard(channel)
        return [checkpoint for checkpoint in list(self._awaited_channels) if self._mark_delivered(channel, checkpoint)]

    def abort(self, checkpoint: CheckpointId) -> bool:
        """The checkpoint is aborted. Returns whether its log was open."""
        if checkpoint > self._newest:
            self._aborted = add_aborted_id(self._aborted, checkpoint)
        self._early_barriers = {(channel, early) for channel, early in self._early_barriers if early != checkpoint}
        return self._awaited_channels.pop(checkpoint, None) is not None

    def _mark_delivered(self, channel: ChannelId, checkpoint: CheckpointId) -> bool:
        owing = self._awaited_channels.get(checkpoint)
        if owing is None or channel not in owing:
            return False
        owing.discard(channel)
        if not owing:
            del self._awaited_channels[checkpoint]
        return not owing
