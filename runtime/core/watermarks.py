"""Event time of one subtask: the minimum over its channels, idle ones set aside; it never goes back.

When the last active channel becomes idle or ends, the watermark rises to the maximum that any channel had reached: no
channel is left whose records a window below that maximum could wait for. A channel at its end does not count beside one
that is idle: its maximum watermark says nothing of what the idle one may still bring.
The restored watermark is a floor: a window that has fired must not open again because inputs have not spoken yet.
(Flink's `StatusWatermarkValve`; it also emits the maximum watermark of an ended channel beside an idle one.)
"""

from collections.abc import Iterable

from runtime.core.ids import ChannelId
from runtime.core.messages import MAX_WATERMARK, MIN_WATERMARK


class Watermarks:
    """Mutable, owned by one subtask machine."""

    def __init__(self, channels: Iterable[ChannelId], restored: int | None = None) -> None:
        self._times = dict.fromkeys(channels, MIN_WATERMARK)
        self._idle: set[ChannelId] = set()
        self._ended: set[ChannelId] = set()
        self._furthest = MIN_WATERMARK  #: of any channel, before its end
        self.current = MIN_WATERMARK if restored is None else restored

    def advance(self, channel: ChannelId, time: int) -> int | None:
        """Records the channel's watermark. Returns the subtask's new one if it rose."""
        self._idle.discard(channel)
        self._times[channel] = max(time, self._times[channel])
        if time < MAX_WATERMARK:
            self._furthest = max(time, self._furthest)
        return self._rise()

    def idle(self, channel: ChannelId) -> int | None:
        """Leaves the channel out until it speaks again. Returns the subtask's new watermark if it rose."""
        self._idle.add(channel)
        return self._rise()

    def ended(self, channel: ChannelId) -> int | None:
        """The channel, whose time is at its end, will bring no records. Returns the new watermark if it rose."""
        self._ended.add(channel)
        return self._rise()

    def time(self, channel: ChannelId) -> int:
        """What the channel has said last."""
        return self._times[channel]

    def others(self, *beside: ChannelId) -> list[int]:
        """Those of all other channels that may still bring something."""
        others = (time for other, time in self._times.items() if other not in beside and other not in self._idle)
        return [time for time in others if time < MAX_WATERMARK]

    @property
    def all_idle(self) -> bool:
        """Whether no channel is left that could bring anything: each is idle or has ended, and not all have ended."""
        return bool(self._idle) and all(channel in self._idle | self._ended for channel in self._times)

    def advance_own(self, time: int) -> int | None:
        """For sources: their own watermark."""
        if time <= self.current:
            return None
        self.current = time
        return time

    def _rise(self) -> int | None:
        spoken = (time for channel, time in self._times.items() if channel not in self._idle)
        speaking = [time for time in spoken if time < MAX_WATERMARK]
        if speaking or not self._idle:
            return self.advance_own(min(speaking, default=MAX_WATERMARK))
        return self.advance_own(self._furthest) if self.all_idle else None
