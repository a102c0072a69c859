"""Flow control: how many bytes may be on their way on a channel.

Credits: how many bytes each output channel of a subtask may still take, and hence whether the subtask may run.

A step may overdraw (a flat-map, a window that fires, the flush before a barrier); the subtask is then not runnable
until the receivers have consumed enough. Control messages are never charged. The sum in flight on a channel is
bounded by the window plus the output of one step. What a loop brings back is not charged either, or the loop would wait
for itself when it is full: its queue is bounded by nothing but the disk.

Grants: how much of what it has consumed a receiver gives back. A barrier waits behind all that was sent before it, so
what is on its way should be worth a fixed time of the receiver's work, not a fixed number of bytes: a slow receiver
keeps credit back, until no more is on its way than it consumes in that time. (FLIP-183.) Nobody waits for ever: once
everything is consumed, a sender has at least the smallest window.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from runtime.core.ids import ChannelId

CHANNEL_WINDOW_BYTES: Final = 4 * 1024 * 1024  #: the largest
FIRST_WINDOW_BYTES: Final = 256 * 1024  #: while nobody knows how fast the receiver is
LEAST_WINDOW_BYTES: Final = 16 * 1024
IN_FLIGHT_MS: Final = 200.0  #: what is on its way to a subtask should take it so long
MEASURED_MS: Final = 50.0  #: work after which a receiver's speed is measured anew
_UNCHANGED: Final = 0.25  #: a window that would change by less stays: measurements differ


class Credits:
    """Mutable, owned by the loop of one slot, one per subtask."""

    def __init__(self, outputs: Iterable[ChannelId], window_bytes: int = FIRST_WINDOW_BYTES) -> None:
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


class Grants:
    """Mutable, owned by the loop of one slot, one per subtask: what it gives back of what came on its channels.

    Args:
        channels: those that cost their senders credit.
        first_bytes: the window of a channel with which senders begin.
        most_bytes: the largest.
        least_bytes: the smallest.
        in_flight_ms: how long the subtask should need for all that is on its way to it.
        measured_ms: after how much work its speed is measured anew.
    """

    def __init__(
        self,
        channels: Iterable[ChannelId],
        first_bytes: int = FIRST_WINDOW_BYTES,
        most_bytes: int = CHANNEL_WINDOW_BYTES,
        least_bytes: int = LEAST_WINDOW_BYTES,
        in_flight_ms: float = IN_FLIGHT_MS,
        measured_ms: float = MEASURED_MS,
    ) -> None:
        assert 0 < least_bytes <= first_bytes <= most_bytes, "a window must let something through"
        self._withheld = dict.fromkeys(channels, most_bytes - first_bytes)
        self._most_bytes, self._least_bytes = most_bytes, least_bytes
        self._in_flight_ms, self._measured_ms = in_flight_ms, measured_ms
        self.window_bytes = first_bytes  #: of each channel
        self._busy_since: float | None = None
        self._worked_ms = 0.0
        self._worked_bytes = 0
        self._speed: float | None = None  #: bytes per ms

    def reading(self, at_ms: float) -> None:
        """From `at_ms` on, at the latest, the subtask works or waits for its successors."""
        if self._busy_since is None:
            self._busy_since = at_ms

    def starved(self) -> None:
        """There is nothing that it may read: this time says nothing about its speed."""
        self._busy_since = None

    def consumed(self, channel: ChannelId, nbytes: int, at_ms: float) -> Sequence[tuple[ChannelId, int]]:
        """`nbytes` of `channel` have been consumed at `at_ms`: the credits that go back now."""
        before = self.window_bytes
        self._measure(nbytes, at_ms)
        self._withheld[channel] += nbytes
        due = self._withheld if self.window_bytes > before else (channel,)
        return [(one, credit) for one in due if (credit := self._release(one))]

    def _release(self, channel: ChannelId) -> int:
        """What may be given back of what is withheld."""
        credit = max(0, self._withheld[channel] - (self._most_bytes - self.window_bytes))
        self._withheld[channel] -= credit
        return credit

    def _measure(self, nbytes: int, at_ms: float) -> None:
        if self._busy_since is not None:
            self._worked_ms += max(0.0, at_ms - self._busy_since)
        self._busy_since = at_ms
        self._worked_bytes += nbytes
        if self._worked_ms < self._measured_ms:
            return
        now = self._worked_bytes / self._worked_ms
        self._speed = now if self._speed is None else (self._speed + now) / 2
        self._worked_ms, self._worked_bytes = 0.0, 0
        self._fit(int(self._speed * self._in_flight_ms / len(self._withheld)))

    def _fit(self, wanted_bytes: int) -> None:
        window = max(self._least_bytes, min(self._most_bytes, wanted_bytes))
        at_a_bound = window in (self._least_bytes, self._most_bytes)
        if at_a_bound or abs(window - self.window_bytes) > _UNCHANGED * self.window_bytes:
            self.window_bytes = window
