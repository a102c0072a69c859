"""The poll policy of a source subtask: batch size, watermark alignment and barrier delay combined."""

import math
from collections.abc import Sequence
from typing import Final

from runtime.core.subtask.barrier_delay import BarrierDelay
from runtime.core.subtask.batch_size import BatchSize
from runtime.core.subtask.watermark_alignment import ChannelDrift, WatermarkAlignment

#: a pause ends after this time without progress of any sibling, which may be stalled, or have no input
MAX_STALLED_SIBLING_MS: Final = 1_000
POLL_INTERVAL_MS: Final = 2.0  #: between polls of a source that has few rows
FEW_ROWS: Final = 1_024
MIN_SHARE: Final = 0.5  #: of the rows of the poll before; a poll with fewer shows that few rows are left at hand
MAX_IDLE_POLL_MS: Final = 10.0  #: between polls of a source that has had no rows for longer


class PollPolicy:
    """Mutable, owned by a source subtask. `now` is monotonic milliseconds.

    Args:
        drifts: the drifts that watermark alignment bounds.
        pane_drifts: the drifts at windows with panes, whose ends the barrier delay waits for.
    """

    def __init__(self, drifts: Sequence[ChannelDrift] = (), pane_drifts: Sequence[ChannelDrift] = ()) -> None:
        self.batch_size = BatchSize()
        self._alignment = WatermarkAlignment(drifts)
        self.barrier_delay = BarrierDelay(pane_drifts)
        self._stalled_watermarks: tuple[int, ...] = ()  #: smallest sibling watermarks, as last seen while paused
        self._stalled_since = 0.0
        self._last_rows_at = -math.inf  #: when the last poll with rows began
        self._last_rows = 0
        self.has_few_rows = False  #: the source has run out of rows, and rests

    @property
    def max_rows(self) -> int:
        """The number of rows to poll."""
        return self.barrier_delay.limit_rows(self.batch_size.rows)

    def coalesces(self, now: float) -> bool:
        """Whether small batches are to be joined: the job takes them fast, so that their fixed cost matters."""
        return self.batch_size.coalesces(now)

    def is_throttled(self, now: float) -> bool:
        """Whether watermark alignment pauses the source.

        A sibling without input that is not idle holds event time back for ever. The pause for such a sibling therefore
        ends after `MAX_STALLED_SIBLING_MS`, so that the source can read the rest of its own input.
        """
        if not self._alignment.exceeds_drift:
            self._stalled_watermarks = ()
            return False
        slowest = self._alignment.min_watermarks
        if slowest != self._stalled_watermarks:
            self._stalled_watermarks, self._stalled_since = slowest, now
        return now - self._stalled_since < MAX_STALLED_SIBLING_MS

    def rests(self, now: float) -> bool:
        """Whether a source that has run out of rows is not to be polled yet.

        A loop that handled a few rows per turn would be busy all the time. It would keep the processor and the
        interpreter's lock from the threads that move its batches.
        """
        return self.has_few_rows and now - self._last_rows_at < POLL_INTERVAL_MS

    def next_poll_ms(self, now: float) -> float:
        """Milliseconds until the next poll of a source without rows at hand.

        After the rest it equals the time without rows, within bounds: the next rows of a steady stream are due soon,
        and an idle source costs few polls.
        """
        since = now - self._last_rows_at
        return POLL_INTERVAL_MS - since if self.rests(now) else min(MAX_IDLE_POLL_MS, max(POLL_INTERVAL_MS, since))

    def on_batch(self, polled: Sequence[int], limit: int, began: float, now: float) -> None:
        """Polls from `began` to `now` for at most `limit` rows returned `polled` rows each; the last one may be empty.

        A poll shortened by a held barrier does not tune the batch size.
        """
        rows, before = sum(polled), polled[0] if len(polled) > 1 else self._last_rows
        self.has_few_rows = rows < min(FEW_ROWS, limit) and polled[-1] < MIN_SHARE * before
        self._last_rows_at, self._last_rows = began, rows
        if limit < self.batch_size.rows:
            self.batch_size.on_gap()
        else:
            self.batch_size.on_batch(rows, now)
        self._alignment.on_batch()

    def on_empty(self) -> None:
        self.batch_size.on_gap()
        self.barrier_delay.on_empty()

    def on_throttled(self) -> None:
        """Watermark alignment paused the source."""
        self.batch_size.on_gap()
