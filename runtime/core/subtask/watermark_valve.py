"""The watermark of a subtask: the minimum over its active channels, never decreasing. (Flink: `StatusWatermarkValve`.)

- When the last active channel becomes idle or ends, the watermark rises to the maximum that any channel had reached:
  no active channel is left that could deliver records below it.
- An ended channel beside an idle channel does not count: its maximum watermark does not bound the records that the idle
  channel may still deliver. Flink's valve emits the maximum watermark in that case.
- The restored watermark is a lower bound. A window that has fired must not reopen before the first watermark arrives.
"""

from collections.abc import Iterable

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK


class WatermarkValve:
    """Mutable, owned by a subtask. Times are event time in milliseconds."""

    def __init__(self, channels: Iterable[ChannelId], restored: int | None = None) -> None:
        self._watermarks = dict.fromkeys(channels, MIN_WATERMARK)
        self._idle: set[ChannelId] = set()
        self._ended: set[ChannelId] = set()
        #: largest watermark of any channel, without the maximum watermark at its end
        self._max_watermark = MIN_WATERMARK
        self.current = MIN_WATERMARK if restored is None else restored

    def advance(self, channel: ChannelId, time: int) -> int | None:
        """Stores the channel's watermark. Returns the watermark of the subtask if it rose."""
        self._idle.discard(channel)
        self._watermarks[channel] = max(time, self._watermarks[channel])
        if time < MAX_WATERMARK:
            self._max_watermark = max(time, self._max_watermark)
        return self._update()

    def mark_idle(self, channel: ChannelId) -> int | None:
        """Ignores the channel until its next watermark. Returns the watermark of the subtask if it rose."""
        self._idle.add(channel)
        return self._update()

    def end_channel(self, channel: ChannelId) -> int | None:
        """The data of the channel has ended. Returns the watermark of the subtask if it rose."""
        self._ended.add(channel)
        return self._update()

    def watermark_of(self, channel: ChannelId) -> int:
        """The last watermark of the channel."""
        return self._watermarks[channel]

    def active_watermarks(self, *beside: ChannelId) -> list[int]:
        """The watermarks of all active channels except `beside`."""
        others = (time for other, time in self._watermarks.items() if other not in beside and other not in self._idle)
        return [time for time in others if time < MAX_WATERMARK]

    @property
    def all_idle(self) -> bool:
        """Whether every channel is idle or ended, and at least one is idle."""
        return bool(self._idle) and all(channel in self._idle | self._ended for channel in self._watermarks)

    def advance_own(self, time: int) -> int | None:
        """Raises the watermark of the subtask to `time`. Returns the watermark if it rose."""
        if time <= self.current:
            return None
        self.current = time
        return time

    def _update(self) -> int | None:
        spoken = (time for channel, time in self._watermarks.items() if channel not in self._idle)
        speaking = [time for time in spoken if time < MAX_WATERMARK]
        if speaking or not self._idle:
            return self.advance_own(min(speaking, default=MAX_WATERMARK))
        return self.advance_own(self._max_watermark) if self.all_idle else None
