"""Event time of one subtask: the minimum over its channels, idle ones set aside; it never goes back.

The restored watermark is a floor: a window that has fired must not open again because inputs have not spoken yet.
(Flink's `StatusWatermarkValve`.)
"""

from collections.abc import Iterable

from runtime.core.ids import ChannelId
from runtime.core.messages import MIN_WATERMARK


class Watermarks:
    """Mutable, owned by one subtask machine."""

    def __init__(self, channels: Iterable[ChannelId], restored: int | None = None) -> None:
        self._times = dict.fromkeys(channels, MIN_WATERMARK)
        self._idle: set[ChannelId] = set()
        self.current = MIN_WATERMARK if restored is None else restored

    def advance(self, channel: ChannelId, time: int) -> int | None:
        """Records the channel's watermark. Returns the subtask's new one if it rose."""
        self._idle.discard(channel)
        self._times[channel] = max(time, self._times[channel])
        return self._rise()

    def idle(self, channel: ChannelId) -> int | None:
        """Leaves the channel out until it speaks again. Returns the subtask's new watermark if it rose."""
        self._idle.add(channel)
        return self._rise()

    @property
    def all_idle(self) -> bool:
        return len(self._idle) == len(self._times)

    def advance_own(self, time: int) -> int | None:
        """For sources: their own watermark."""
        if time <= self.current:
            return None
        self.current = time
        return time

    def _rise(self) -> int | None:
        speaking = [time for channel, time in self._times.items() if channel not in self._idle]
        return self.advance_own(min(speaking)) if speaking else None
