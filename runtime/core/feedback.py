"""The back-edges of a loop's head: what of them belongs to a checkpoint, and until when.

The head never waits for a barrier on a back-edge. From its own snapshot on it logs what comes round, until the barrier
has come round too: that pushes all records of the loop ahead of itself, so that the log is what was on its way. (ABS,
Carbone et al. 2015, algorithm 2.) Where edges do not join every pair of subtasks, a barrier may come round to a head
that has not taken its own snapshot yet; what follows on that channel is not of the checkpoint, so the channel waits
for the snapshot. That is no circle: a head's snapshot waits for its regular inputs alone.

It decides who logs what. It does not know records, nor where a log is kept.
"""

from collections.abc import Iterable

from runtime.core.ids import ChannelId, CheckpointId, with_aborted


class BackEdges:
    """Mutable, owned by one subtask machine.

    Args:
        channels: the feedback channels that end in it.
        waits: whether a barrier that is early blocks its channel (exactly once), or is only noted.
    """

    def __init__(self, channels: Iterable[ChannelId], *, waits: bool) -> None:
        self.live = set(channels)
        self._waits = waits
        self._newest = CheckpointId(0)  #: of the head's own snapshots
        self._owing: dict[CheckpointId, set[ChannelId]] = {}  #: by open log: who has not brought the barrier back
        self._early: set[tuple[ChannelId, CheckpointId]] = set()
        self._given_up: frozenset[CheckpointId] = frozenset()  #: newer than the newest; bounded

    def readable(self, channel: ChannelId) -> bool:
        return channel in self.live and not (self._waits and any(early == channel for early, _ in self._early))

    def logging(self, channel: ChannelId) -> tuple[CheckpointId, ...]:
        """The checkpoints to which records that come on `channel` now belong."""
        return tuple(checkpoint for checkpoint, owing in self._owing.items() if channel in owing)

    def is_open(self, checkpoint: CheckpointId) -> bool:
        return checkpoint in self._owing

    def begin(self, checkpoint: CheckpointId) -> bool:
        """The head takes its snapshot. Returns whether the log is complete at once: nobody owes anything."""
        self._newest = checkpoint
        owing = {channel for channel in self.live if (channel, checkpoint) not in self._early}
        self._early = {(channel, early) for channel, early in self._early if early > checkpoint}
        self._given_up = frozenset(given_up for given_up in self._given_up if given_up > checkpoint)
        if owing:
            self._owing[checkpoint] = owing
        return not owing

    def returned(self, channel: ChannelId, checkpoint: CheckpointId) -> bool:
        """The barrier has come round on `channel`. Returns whether that completes the log."""
        if checkpoint > self._newest and checkpoint not in self._given_up:
            self._early.add((channel, checkpoint))
        return self._bring(channel, checkpoint)

    def ended(self, channel: ChannelId) -> list[CheckpointId]:
        """EndOfPartition: nothing is owed on `channel` any more. Returns the logs that this completes."""
        self.live.discard(channel)
        return [checkpoint for checkpoint in list(self._owing) if self._bring(channel, checkpoint)]

    def give_up(self, checkpoint: CheckpointId) -> bool:
        """The checkpoint is not to be. Returns whether it was being logged."""
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
