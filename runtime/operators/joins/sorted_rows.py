"""Rows sorted by key and time, in runs that are merged as in a log-structured merge tree.

A row is looked up by its *code*: the number of its key in the upper 32 bits, and its time since the start of the bucket
in the lower. So all rows of a key within an interval are adjacent, and two binary searches find them for a whole batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Codes = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

TIME_BITS: Final = 32
MAX_TIME_SPAN_MS: Final = 1 << (TIME_BITS - 1)
_TIME_MASK: Final = (1 << TIME_BITS) - 1
_MERGE_FACTOR: Final = 4  #: a run is merged with a run that has up to this many times its rows
_MAX_MERGED_ROWS: Final = 1 << 20
_MAX_MERGED_BYTES: Final = 1 << 29  #: well below the 2 GiB that a text column holds


def row_codes(key_numbers: Rows, times: Codes) -> Codes:
    """The codes of rows; `times`: since the start of the bucket."""
    return (key_numbers.astype(np.int64) << TIME_BITS) | times


@dataclass(frozen=True, slots=True)
class Run:
    """Rows in the order of their codes."""

    codes: Codes
    rows: pa.RecordBatch

    def find(self, key_numbers: Rows, low: Codes, high: Codes) -> tuple[Rows, Rows]:
        """The first row and the number of rows of each key whose time is within [`low`, `high`]."""
        base = key_numbers.astype(np.int64) << TIME_BITS
        first = np.searchsorted(self.codes, base + low, "left")
        last = np.searchsorted(self.codes, base + high, "right")
        return first, np.maximum(last - first, 0)

    def times(self, rows: Rows) -> Codes:
        """The times of rows since the start of the bucket."""
        return self.codes[rows] & _TIME_MASK

    @property
    def key_numbers(self) -> Rows:
        return (self.codes >> TIME_BITS).astype(np.intp)


class SortedRows:
    """Runs of rows of a bucket, largest first."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def add(self, run: Run) -> None:
        """Adds a run, and merges it with runs of similar size."""
        self.runs.append(run)
        while len(self.runs) > 1 and _is_merge_due(*self.runs[-2:]):
            newer, older = self.runs.pop(), self.runs.pop()
            self.runs.append(_merge(older, newer))


def _is_merge_due(older: Run, newer: Run) -> bool:
    rows, nbytes = len(older.codes) + len(newer.codes), older.rows.nbytes + newer.rows.nbytes
    is_large = rows > _MAX_MERGED_ROWS or nbytes > _MAX_MERGED_BYTES
    return not is_large and len(older.codes) <= _MERGE_FACTOR * len(newer.codes)


def _merge(first: Run, second: Run) -> Run:
    codes = np.concatenate([first.codes, second.codes])
    order = np.argsort(codes, kind="stable")
    return Run(codes[order], pa.concat_batches([first.rows, second.rows]).take(pa.array(order)))


def pairs(first: Rows, counts: Rows, limit: int) -> Iterator[tuple[Rows, Rows]]:
    """The pairs of each number `i` with `counts[i]` numbers from `first[i]` on, at most `limit` pairs at a time."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, limit):
        numbers = np.arange(start, min(start + limit, total))
        owners = np.searchsorted(ends, numbers, "right") if total > limit else np.repeat(np.arange(len(counts)), counts)
        yield owners, numbers - (ends - counts)[owners] + first[owners]
