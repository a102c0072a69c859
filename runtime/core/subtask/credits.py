"""Credit-based flow control: bounds the bytes in flight on each channel.

`Credits` is the sender's side: the bytes that each output channel may still take. A step may overdraw its credit (a
flat-map, a window that fires, the flush before a barrier). The subtask is then not runnable until the receivers have
consumed enough. The bytes in flight on a channel are bounded by the window plus the output of a single step. Control
messages are never charged. Feedback channels are not charged either, since a full loop would wait for itself: their
queues are bounded by the disk only.

`ReceiverWindow` is the receiver's side (FLIP-183, buffer debloating). A barrier queues behind all bytes sent before it.
The window should therefore hold a fixed time of the receiver's work rather than a fixed number of bytes. A slow
receiver withholds credit until its window fits that time. Withholding cannot cause a deadlock: once all bytes are
consumed, a sender has at least the smallest window.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from runtime.core.job.ids import ChannelId

_MIN_RELATIVE_CHANGE: Final = 0.25  #: smaller relative changes of the window are ignored as noise


@dataclass(frozen=True, slots=True)
class FlowControl:
    """The windows of flow control."""

    max_bytes: int = 4 * 1024 * 1024
    min_bytes: int = 1  #: a batch at a time; also until the receiver's throughput has been measured
    in_flight_ms: float = 200.0  #: target time for a subtask to consume all bytes in flight to it
    measured_ms: float = 50.0  #: work time that a throughput measurement covers

    def __post_init__(self) -> None:
        assert 0 < self.min_bytes <= self.max_bytes, "a window must let something through"


class Credits:
    """Mutable, owned by the loop of a slot, one per subtask."""

    def __init__(self, outputs: Iterable[ChannelId], window_bytes: int) -> None:
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


class ReceiverWindow:
    """Mutable, owned by the loop of a slot, one per subtask.

    Args:
        channels: the input channels that are charged to their senders.
        flow: the windows of each channel.
    """

    def __init__(self, channels: Iterable[ChannelId], flow: FlowControl) -> None:
        self._flow = flow
        self._withheld = dict.fromkeys(channels, flow.max_bytes - flow.min_bytes)
        self.window_bytes = flow.min_bytes  #: of each channel
        self._busy_since: float | None = None
        self._worked_ms = 0.0
        self._worked_bytes = 0
        self._speed: float | None = None  #: bytes per ms

    def on_busy(self, at_ms: float) -> None:
        """From `at_ms` on, at the latest, the subtask works or is backpressured."""
        if self._busy_since is None:
            self._busy_since = at_ms

    def on_starved(self) -> None:
        """A whole turn had no message: the time until `on_busy` does not count as work.

        The other subtasks of the slot work between two turns with messages, and this time counts.
        """
        self._busy_since = None

    def on_consumed(self, channel: ChannelId, nbytes: int, at_ms: float) -> Sequence[tuple[ChannelId, int]]:
        """`nbytes` of `channel` were consumed at `at_ms`. Returns the credits to grant now, by channel."""
        before = self.window_bytes
        self._measure(nbytes, at_ms)
        self._withheld[channel] += nbytes
        due = self._withheld if self.window_bytes > before else (channel,)
        return [(due_channel, credit) for due_channel in due if (credit := self._release(due_channel))]

    def restart(self, channels: Iterable[ChannelId]) -> None:
        """The senders of `channels` have restarted, with the smallest window."""
        for channel in channels:
            self._withheld[channel] = self._flow.max_bytes - self._flow.min_bytes

    def _release(self, channel: ChannelId) -> int:
        """Releases the withheld credit that exceeds the reduction of the window. Returns the released bytes."""
        credit = max(0, self._withheld[channel] - (self._flow.max_bytes - self.window_bytes))
        self._withheld[channel] -= credit
        return credit

    def _measure(self, nbytes: int, at_ms: float) -> None:
        if self._busy_since is not None:
            self._worked_ms += max(0.0, at_ms - self._busy_since)
        self._busy_since = at_ms
        self._worked_bytes += nbytes
        if self._worked_ms < self._flow.measured_ms:
            return
        now = self._worked_bytes / self._worked_ms
        self._speed = now if self._speed is None else (self._speed + now) / 2
        self._worked_ms, self._worked_bytes = 0.0, 0
        self._resize(int(self._speed * self._flow.in_flight_ms / len(self._withheld)))

    def _resize(self, wanted_bytes: int) -> None:
        flow = self._flow
        window = max(flow.min_bytes, min(flow.max_bytes, wanted_bytes))
        at_a_bound = window in (flow.min_bytes, flow.max_bytes)
        if at_a_bound or abs(window - self.window_bytes) > _MIN_RELATIVE_CHANGE * self.window_bytes:
            self.window_bytes = window
