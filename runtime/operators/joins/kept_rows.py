"""The rows of a stream that may still match rows of the other stream, in buckets of event time.

A bucket is dropped as a whole when the watermark shows that no row in it can find another match.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from runtime.operators.event_time import Times
from runtime.operators.joins.sorted_rows import Codes, Rows, Run, SortedRows, row_codes


class KeptRows:
    """Rows of a stream by bucket.

    Args:
        bucket_ms: length of a bucket; at most `MAX_TIME_SPAN_MS`.
    """

    def __init__(self, bucket_ms: int) -> None:
        self._bucket_ms = bucket_ms
        self._buckets: dict[int, SortedRows] = {}  #: by number, counted from the epoch

    def __len__(self) -> int:
        buckets = list(self._buckets.values())  # a copy: the thread of the heartbeat counts, too
        return sum(len(run.codes) for bucket in buckets for run in list(bucket.runs))

    def add(self, key_numbers: Rows, times: Times, rows: pa.RecordBatch) -> None:
        """Adds rows, which are sorted by key and then by time."""
        numbers = times // self._bucket_ms
        first, last = int(numbers.min()), int(numbers.max())
        if first == last:
            self._add_to_bucket(first, key_numbers, times, rows)
            return
        for number in np.unique(numbers).tolist():
            inside = np.flatnonzero(numbers == number)
            self._add_to_bucket(number, key_numbers[inside], times[inside], rows.take(pa.array(inside)))

    def find(self, key_numbers: Rows, low: Times, high: Times) -> Iterator[tuple[int, Run, Rows, Rows]]:
        """The rows of each key with times in [`low`, `high`]: start of bucket, run, and by key first row and count."""
        if not len(key_numbers):
            return
        for start, run in self.runs(int(low.min()), int(high.max())):
            begin, counts = run.find(key_numbers, self._within(low - start), self._within(high - start))
            if counts.any():
                yield start, run, begin, counts

    def runs(self, low: int, high: int) -> Iterator[tuple[int, Run]]:
        """The runs of the buckets with times in [`low`, `high`], each with the start of its bucket."""
        first, last = low // self._bucket_ms, high // self._bucket_ms
        for number in sorted(number for number in self._buckets if first <= number <= last):
            yield from ((number * self._bucket_ms, run) for run in self._buckets[number].runs)

    def bucket_spans(self) -> list[tuple[int, int]]:
        """The start and the end (exclusive) of each bucket."""
        return [(number * self._bucket_ms, (number + 1) * self._bucket_ms) for number in self._buckets]

    def drop_before(self, time: int) -> Rows:
        """Drops the buckets whose rows all have times below `time`. Returns the key of each dropped row."""
        numbers = [number for number in self._buckets if (number + 1) * self._bucket_ms <= time]
        runs = [run for number in numbers for run in self._buckets.pop(number).runs]
        return np.concatenate([run.key_numbers for run in runs]) if runs else np.empty(0, np.intp)

    def cast(self, schema: pa.Schema) -> None:
        """Converts all rows to wider types."""
        for bucket in self._buckets.values():
            bucket.runs = [replace(run, rows=run.rows.cast(schema)) for run in bucket.runs]

    def _within(self, times: Times) -> Codes:
        """Times since the start of a bucket; those before and after it are replaced by the nearest outside."""
        return np.clip(times, -1, self._bucket_ms)

    def _add_to_bucket(self, number: int, key_numbers: Rows, times: Times, rows: pa.RecordBatch) -> None:
        codes = row_codes(key_numbers, times - number * self._bucket_ms)
        self._buckets.setdefault(number, SortedRows()).add(Run(codes, rows))
