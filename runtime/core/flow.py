"""Credits: how many bytes each output channel of a subtask may still take, and hence whether the subtask may run.

A step may overdraw (a flat-map, a window that fires, the flush before a barrier); the subtask is then not runnable
until the receivers have consumed enough. Control messages are never charged. The sum in flight on a channel is
bounded by the window plus the output of one step. What a loop brings back is not charged either, or the loop would wait
for itself when it is full: its queue is bounded by nothing but the disk.
"""

from collections.abc import Iterable
from typing import Final

from runtime.core.ids import ChannelId

CHANNEL_WINDOW_BYTES: Final = 4 * 1024 * 1024


class Credits:
    """Mutable, owned by the loop of one slot, one per subtask."""

    def __init__(self, outputs: Iterable[ChannelId], window_bytes: int = CHANNEL_WINDOW_BYTES) -> None:
        assert window_bytes > 0, "a window must let something through"
        self._left = dict.fromkeys(outputs, window_bytes)
        self._overdrawn: set[ChannelId] = set()

    @property
    def runnable(self) -> bool:
        """Whether every output has credit left."""
        return not self._overdrawn

    def spend(self, channel: ChannelId, nbytes: int) -> None:
        """`nbytes` were sent on `channel`."""
        self._left[channel] -= nbytes
        if self._left[channel] <= 0:
            self._overdrawn.add(channel)

    def repay(self, channel: ChannelId, nbytes: int) -> None:
        """The receiver has consumed `nbytes` of `channel`."""
        self._left[channel] += nbytes
        if self._left[channel] > 0:
            self._overdrawn.discard(channel)
