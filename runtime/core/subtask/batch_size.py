"""The batch size of a source: as many rows as the job processes in a short, roughly constant time.

Large batches reduce the cost per row, but a barrier waits until the slot has finished the current batch. The size
therefore follows the time between two batches, which includes the rest of the slot's work and, under backpressure, the
work of other slots.

*Slow start*: the first batch is a row, since nothing is known of the job: a step downstream may take seconds for each.
Three fast batches double the size. A slow step is noticed once the subtasks before it hold a batch each, so a size
that doubled with every batch would send many rows ahead.

A single slow batch after a faster one leaves the size unchanged: it is mostly a hiccup of the machine or a capture of
state. If it shrank the batches, their higher cost per row would slow the job down, and frequent hiccups would keep the
size far below the size that a batch of `SLOW_BATCH_MS` allows.

*Coalescing*: a source whose batches are small is polled again before its rows are sent. Every batch has a fixed cost in
each subtask that it passes (measured in decision 0037). The source is polled again only while it has rows at hand; one
that has run out rests until more rows are due (`PollPolicy.rests`). Slow batches are not coalesced, since a barrier
would wait behind them (`PollPolicy.coalesces`). No row is kept between two steps of the subtask. Barriers, watermarks
and the end of input therefore follow all polled rows.
"""

from typing import Final

MIN_BATCH_ROWS: Final = 1  #: also the first
MAX_BATCH_ROWS: Final = 65_536
COALESCED_BATCH_MS: Final = 10.0  #: after a slower batch small batches are not coalesced
SLOW_BATCH_MS: Final = 50.0  #: after a second slower batch the size shrinks by a quarter
FAST_BATCH_MS: Final = SLOW_BATCH_MS / 2  #: after `DOUBLED_AFTER` faster batches in succession the size doubles
DOUBLED_AFTER: Final = 3
VERY_SLOW_BATCH_MS: Final = 100.0  #: after a second batch slower than this, it is halved
GROWTH_DIVISOR: Final = 16  #: between those times, the size grows by 1/GROWTH_DIVISOR, at least by a row
MIN_LAST_ROWS: Final = 64  #: a smaller batch shows that few rows are at hand: they are sent at once
MAX_COALESCED_ROWS: Final = 8_192
MAX_COALESCED_BYTES: Final = 1 << 20
MAX_COALESCING_MS: Final = 5.0


class BatchSize:
    """Mutable, owned by a source subtask."""

    def __init__(self) -> None:
        self.rows = MIN_BATCH_ROWS  #: the number of rows to poll
        self._since_ms: float | None = None  #: time of the previous batch
        self._batch_rows = 0  #: rows of the previous batch
        self._requested_rows = 0
        self._was_slow = False  #: whether the previous batch was slow
        self._fast_batches = 0  #: in succession, since the size has doubled

    def on_batch(self, rows: int, at_ms: float) -> None:
        """A full-size poll returned `rows` at `at_ms`."""
        requested_rows = self.rows
        if self._since_ms is not None:
            self._adapt(at_ms - self._since_ms)
        self._since_ms, self._batch_rows, self._requested_rows = at_ms, rows, requested_rows

    def coalesces(self, at_ms: float) -> bool:
        """Whether the previous batch has taken less than `COALESCED_BATCH_MS` so far. Unknown after a gap: False."""
        return self._since_ms is not None and at_ms - self._since_ms < COALESCED_BATCH_MS

    def on_gap(self) -> None:
        """No batch, or a pause: the time until the next batch does not measure the job."""
        self._since_ms = None

    def _adapt(self, took_ms: float) -> None:
        """Adapts the size to `took_ms`, the processing time of the previous batch."""
        was_slow, self._was_slow = self._was_slow, took_ms > SLOW_BATCH_MS
        self._fast_batches = self._fast_batches + 1 if took_ms < FAST_BATCH_MS else 0
        if self._was_slow:
            if was_slow:
                quarters = 2 if took_ms > VERY_SLOW_BATCH_MS else 3
                self.rows = max(MIN_BATCH_ROWS, min(self.rows, self._batch_rows) * quarters // 4)
        elif self._batch_rows >= self._requested_rows:
            if self._fast_batches >= DOUBLED_AFTER:
                self.rows, self._fast_batches = min(MAX_BATCH_ROWS, 2 * self.rows), 0
            elif not self._fast_batches:
                self.rows = min(MAX_BATCH_ROWS, self.rows + max(1, self.rows // GROWTH_DIVISOR))


def is_more_wanted(last_rows: int, rows: int, nbytes: int, took_ms: float) -> bool:
    """Whether to poll again, if the last poll returned `last_rows` of the `rows` and `nbytes` of all polls."""
    return (
        last_rows >= MIN_LAST_ROWS
        and rows < MAX_COALESCED_ROWS
        and nbytes < MAX_COALESCED_BYTES
        and took_ms < MAX_COALESCING_MS
    )
