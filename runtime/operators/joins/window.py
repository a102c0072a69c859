"""Window join (Flink: `join(…).where(…).equalTo(…).window(…)`): pairs of rows with equal keys in the same window.

Rows are kept in a few buckets of event time per window; a window takes the rows of its buckets that lie in it. When the
watermark has reached the end of a window, all pairs of its rows are emitted. A bucket is freed with the last window
that overlaps it. A row is late if all windows that contain it have fired; a row with some windows still open is joined
in the open windows.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.operators.event_time import Times
from runtime.operators.joins.columns import JoinColumns
from runtime.operators.joins.sorted_rows import MAX_TIME_SPAN_MS, Run
from runtime.operators.joins.two_streams import FIRST, SECOND, JoinSide, KeyedRows, Mask, Match, TwoStreamJoin
from runtime.ports import Collector

WINDOW_COLUMNS: Final = ("window_start", "window_end")
_BUCKETS_PER_WINDOW: Final = 4  #: at most, where windows overlap: a window compares each two of its buckets


class WindowJoin(TwoStreamJoin):
    """Joins two streams.

    Args:
        size_ms: length of a window; windows are aligned to the epoch.
        slide_ms: distance between the starts of two consecutive windows, at most `size_ms`.
        columns: its added columns are `WINDOW_COLUMNS`.
    """

    def __init__(self, sides: tuple[JoinSide, JoinSide], size_ms: int, slide_ms: int, columns: JoinColumns) -> None:
        super().__init__(sides, columns, min(max(slide_ms, size_ms // _BUCKETS_PER_WINDOW), MAX_TIME_SPAN_MS))
        self.size_ms, self.slide_ms = size_ms, slide_ms
        self._start = 0  #: start of the window whose pairs are emitted

    def open_results(self) -> Mapping[str, int]:
        return {"joined": sum(len(side.kept) for side in self._sides)}

    def on_watermark(self, watermark: int, out: Collector) -> None:
        if watermark > self._watermark:
            for start in self._due_windows(watermark):
                self._fire(start, out)
        super().on_watermark(watermark, out)

    def _late(self, times: Times, watermarks: Times) -> Mask:
        first_open = ((watermarks + 1 - self.size_ms) // self.slide_ms + 1) * self.slide_ms
        return np.asarray(times < first_open)

    def _oldest_kept(self, input: int, watermark: int) -> int:
        """The start of the first window that has not fired."""
        return ((watermark + 1 - self.size_ms) // self.slide_ms + 1) * self.slide_ms

    def _due_windows(self, watermark: int) -> list[int]:
        """The starts of the windows to fire that contain buckets of both streams."""
        first, end = self._oldest_kept(FIRST, self._watermark), self._oldest_kept(FIRST, watermark)
        windows = [
            {
                start
                for low, high in side.kept.bucket_spans()
                for start in range(
                    max(first, ((low - self.size_ms) // self.slide_ms + 1) * self.slide_ms),
                    min(end, high),
                    self.slide_ms,
                )
            }
            for side in self._sides
        ]
        return sorted(windows[FIRST] & windows[SECOND])

    def _fire(self, start: int, out: Collector) -> None:
        self._start = start
        last = start + self.size_ms - 1
        first, second = self._sides
        for run_start, run in first.kept.runs(start, last):
            rows = self._rows_of_window(run_start, run, last)
            low, high = np.full(len(rows), start), np.full(len(rows), last)
            matches = second.kept.find(rows.key_numbers, low, high)
            self._emit_pairs(FIRST, rows, (Match(*each) for each in matches), out)

    def _rows_of_window(self, run_start: int, run: Run, last: int) -> KeyedRows:
        """The rows of a run in the window that ends with time `last`, and for which it has not fired yet."""
        times = run_start + run.times(np.arange(len(run.codes)))
        mask = (times >= self._start) & (times <= last)
        if last <= self._groups.max_watermark:
            mask &= self._groups.of_groups(self._index.key_groups(run.key_numbers)) < last
        return KeyedRows(run.key_numbers, times, run.rows).filter(mask)

    def _added_columns(self, times: tuple[Times, Times]) -> list[pa.Array]:
        count = len(times[FIRST])
        return [
            pa.array(np.full(count, time)).view(pa.timestamp("ms"))
            for time in (self._start, self._start + self.size_ms)
        ]
