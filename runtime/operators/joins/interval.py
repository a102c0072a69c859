"""Interval join (Flink: `IntervalJoin`): pairs of rows with equal keys, whose times differ by an amount within bounds.

A pair is emitted when its later row arrives. A row of the first stream with time `t` matches rows of the second stream
with times in [t + lower, t + upper]. It is kept until the watermark exceeds t + upper; a row of the second stream with
time `t`, until the watermark exceeds t - lower. A row whose time is below the watermark is late, as in Flink: the rows
that it would match may be gone.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.errors import JobRejected
from runtime.operators.event_time import Times
from runtime.operators.joins.columns import JoinColumns
from runtime.operators.joins.sorted_rows import MAX_TIME_SPAN_MS
from runtime.operators.joins.two_streams import FIRST, JoinSide, KeyedRows, Mask, Match, TwoStreamJoin
from runtime.ports import Collector

_MIN_BUCKET_MS: Final = 10_000
_BUCKETS_PER_INTERVAL: Final = 4  #: a bucket is freed as a whole, so up to a fourth more rows than needed are kept


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of the time of a row of the second stream, relative to a row of the first stream; both inclusive."""

    lower_ms: int
    upper_ms: int

    def __post_init__(self) -> None:
        if self.lower_ms > self.upper_ms:
            detail = f"no time lies between {self.lower_ms} ms and {self.upper_ms} ms (both included)"
            raise JobRejected("bad-interval", "between", detail)

    @property
    def bucket_ms(self) -> int:
        """Length of the buckets in which rows are freed."""
        length = (self.upper_ms - self.lower_ms) // _BUCKETS_PER_INTERVAL
        return min(max(length, _MIN_BUCKET_MS), MAX_TIME_SPAN_MS)


class IntervalJoin(TwoStreamJoin):
    """Joins two streams.

    Args:
        interval: bounds of the difference of times.
        bucket_ms: length of the buckets in which rows are freed; None: derived from the interval.
    """

    def __init__(
        self,
        sides: tuple[JoinSide, JoinSide],
        interval: Interval,
        columns: JoinColumns,
        bucket_ms: int | None = None,
    ) -> None:
        super().__init__(sides, columns, interval.bucket_ms if bucket_ms is None else bucket_ms)
        self._interval = interval

    def _late(self, times: Times, watermarks: Times) -> Mask:
        return np.asarray(times < watermarks)

    def _oldest_kept(self, input: int, watermark: int) -> int:
        return watermark - self._interval.upper_ms if input == FIRST else watermark + self._interval.lower_ms

    def _on_rows(self, input: int, rows: KeyedRows, out: Collector) -> None:
        other = self._sides[1 - input]
        rows = rows.filter(self._index.column(other.name)[rows.key_numbers] > 0)
        if not len(rows):
            return
        interval = self._interval
        below, above = (
            (interval.lower_ms, interval.upper_ms) if input == FIRST else (-interval.upper_ms, -interval.lower_ms)
        )
        matches = other.kept.find(rows.key_numbers, rows.times + below, rows.times + above)
        self._emit_pairs(input, rows, (Match(*each) for each in matches), out)

    def _added_columns(self, times: tuple[Times, Times]) -> list[pa.Array]:
        """The event time of the pair: the later of both, as in Flink."""
        return [pa.array(np.maximum(*times)).view(pa.timestamp("ms"))] if self._columns.added else []
