"""Event time of a source with bounded disorder: its watermark, as in Flink's `BoundedOutOfOrdernessWatermarks`."""

from typing import Final

import pyarrow as pa

from runtime.errors import JobRejected
from runtime.operators.event_time import check_time_column, last_event_time_ms
from runtime.ports import SourceReader

FUTURE_TIME: Final = "the event time is more than max_future_ms ahead of the clock"  #: reason of a malformed row


class BoundedOutOfOrderness:
    """Watermark = maximum event time - disorder - 1 ms; None without an event-time column or before the first row."""

    def __init__(self, column: str | None, max_disorder_ms: int | None, max_event_time: int | None = None) -> None:
        """`max_disorder_ms` None: 0. `max_event_time`: the largest event time (ms) before a restore, if it is known."""
        self._column, self.max_disorder_ms = column, max_disorder_ms or 0
        self._max_event_time = max_event_time

    def on_batch(self, batch: pa.RecordBatch) -> None:
        if self._column is not None and batch.num_rows:
            largest = last_event_time_ms(batch, self._column)
            self._max_event_time = largest if self._max_event_time is None else max(largest, self._max_event_time)

    def advance(self, time_ms: int) -> None:
        """The source knows that later rows have at least this event time, minus the disorder."""
        self._max_event_time = time_ms if self._max_event_time is None else max(time_ms, self._max_event_time)

    @property
    def max_event_time(self) -> int | None:
        """The largest event time so far, in ms."""
        return self._max_event_time

    @property
    def watermark(self) -> int | None:
        """The current watermark in ms. A later row may still have the maximum event time minus the disorder."""
        return None if self._max_event_time is None else self._max_event_time - self.max_disorder_ms - 1


class EventClockReader(SourceReader):
    """Base of the readers with an event clock for all their rows. Subclasses set `_clock`."""

    _clock: BoundedOutOfOrderness

    def watermark(self) -> int | None:
        return self._clock.watermark

    @property
    def max_disorder_ms(self) -> int:
        return self._clock.max_disorder_ms


def check_event_time(
    column: str | None, max_disorder_ms: int | None, columns: pa.Schema | None, max_future_ms: int | None = None
) -> None:
    """Raises JobRejected for a bound that is negative or has no `column`, or if `columns` has no such times."""
    if max_disorder_ms is not None and max_disorder_ms < 0:
        raise JobRejected("bad-disorder", "max_disorder_ms", "must not be negative")
    if max_disorder_ms and column is None:
        raise JobRejected("bad-disorder", "max_disorder_ms", "needs event_time, the column of event times")
    if max_future_ms is not None and max_future_ms < 0:
        raise JobRejected("bad-bound", "max_future_ms", "must not be negative")
    if max_future_ms is not None and column is None:
        raise JobRejected("bad-bound", "max_future_ms", "needs event_time, the column of event times")
    if column is not None and columns is not None:
        try:
            check_time_column(columns, column)
        except JobRejected as error:
            raise JobRejected(error.code, "event_time", str(error)) from None
