"""Watermarks of an edge into a window: only those that close a pane are forwarded. (No counterpart in Flink.)

If only sinks follow the window, no other watermark makes it fire. The receiver's watermark is then that of the last
pane end.
"""

from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK, Control, Idle, Watermark


class PaneEndWatermarks:
    """Mutable, owned by the sender's edge. `pane_ms`: length of a pane."""

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
