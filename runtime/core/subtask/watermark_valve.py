"""The watermark of a subtask: the minimum over its channels, never decreasing. (Flink: `StatusWatermarkValve`.)

- An edge is idle when all its channels are idle or have ended, and at least one is idle. An idle edge is left out of
  the minimum. An idle channel beside active channels of its edge counts: its sender follows their event time
  (`idle_sources`). In Flink it does not count, so that rows of a sender that resumes later may be late.
- When no active edge is left, the watermark rises to that of the idle edge that is furthest ahead. The watermark of an
  idle edge is the minimum over its idle channels.
- An ended channel beside an idle channel does not count: its maximum watermark does not bound the records that the idle
  channel may still deliver. Flink's valve emits the maximum watermark in that case.
- While the job drains, no channel is idle: each ends soon, and its watermark counts until then. A subtask whose active
  channels have ended would otherwise be idle with open windows. Their results would be late at the next window.
- The restored watermark is a lower bound. A window that has fired must not reopen before the first watermark arrives.
"""

from collections.abc import Iterable

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK, Control, Idle, Watermark


class WatermarkValve:
    """Mutable, owned by a subtask. Times are event time in milliseconds."""

    def __init__(self, channels: Iterable[ChannelId], restored: int | None = None) -> None:
        self._watermarks = dict.fromkeys(channels, MIN_WATERMARK)
        self._idle: set[ChannelId] = set()
        self._ended: set[ChannelId] = set()
        self._last_times = dict(self._watermarks)  #: the last watermarks before the maximum watermark
        self.job_drains = False  #: set by the owner before it ends a channel
        self.current = MIN_WATERMARK if restored is None else restored

    def advance(self, channel: ChannelId, time: int) -> int | None:
        """Stores the channel's watermark. Returns the watermark of the subtask if it rose."""
        self._idle.discard(channel)
        self._store(channel, time)
        return self._update()

    def mark_idle(self, channel: ChannelId, time: int = MIN_WATERMARK) -> int | None:
        """The channel is idle at watermark `time`. Returns the watermark of the subtask if it rose."""
        self._idle.add(channel)
        self._store(channel, time)
        return self._update()

    def mark_active(self, channels: Iterable[ChannelId]) -> int | None:
        """The channels are active at their last watermark. Returns the watermark of the subtask if it rose."""
        self._idle.difference_update(channels)
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
        watermarks = (
            time for other, time in self._watermarks.items() if other not in beside and other not in self._idle
        )
        return [time for time in watermarks if time < MAX_WATERMARK]

    @property
    def all_idle(self) -> bool:
        """Whether every channel is idle or ended, and at least one is idle. False while the job drains."""
        if not self._idle or self.job_drains:
            return False
        return all(channel in self._idle | self._ended for channel in self._watermarks)

    def advance_own(self, time: int) -> int | None:
        """Raises the watermark of the subtask to `time`. Returns the watermark if it rose."""
        if time <= self.current:
            return None
        self.current = time
        return time

    def _store(self, channel: ChannelId, time: int) -> None:
        self._watermarks[channel] = max(time, self._watermarks[channel])
        if time < MAX_WATERMARK:
            self._last_times[channel] = max(time, self._last_times[channel])

    def _update(self) -> int | None:
        idle_edges = self._idle_edges() if self._idle and not self.job_drains else set[int]()
        counted = (time for channel, time in self._watermarks.items() if channel.edge not in idle_edges)
        active = [time for time in counted if time < MAX_WATERMARK]
        if active or not idle_edges:
            return self.advance_own(min(active, default=MAX_WATERMARK))
        return self.advance_own(self._furthest(idle_edges)) if self.all_idle else None

    def _idle_edges(self) -> set[int]:
        active = {channel.edge for channel in self._watermarks if channel not in self._idle | self._ended}
        return {channel.edge for channel in self._idle} - active

    def _furthest(self, idle_edges: set[int]) -> int:
        """The largest watermark of an edge, where all edges are idle or have ended."""
        ended = [time for channel, time in self._last_times.items() if channel.edge not in idle_edges]
        idle = [min(self._last_times[c] for c in self._idle if c.edge == edge) for edge in idle_edges]
        return max(ended + idle)


class PaneEndWatermarks:
    """Watermarks of an edge into a window: only those that close a pane are forwarded. (No counterpart in Flink.)

    If only sinks follow the window, no other watermark makes it fire. The receiver's watermark is then that of the last
    pane end. Mutable, owned by the sender's edge. `pane_ms`: length of a pane.
    """

    def __init__(self, pane_ms: int) -> None:
        self._pane_ms = pane_ms
        self._last: Watermark | Idle | None = None  #: last forwarded message

    def forwarded(self, message: Control) -> Control | None:
        """The control message for the receiver; None for a watermark that closes no pane."""
        if not isinstance(message, Watermark | Idle):
            return message
        time = self._last_pane_end(message.time)
        if self._last is not None and type(message) is type(self._last) and time <= self._last.time:
            return None
        self._last = type(message)(time)
        return self._last

    def _last_pane_end(self, time: int) -> int:
        """Watermark up to which panes are complete at `time`. The minimum and maximum watermarks stay unchanged."""
        pane_ms = self._pane_ms
        return (time + 1) // pane_ms * pane_ms - 1 if MIN_WATERMARK < time < MAX_WATERMARK else time
