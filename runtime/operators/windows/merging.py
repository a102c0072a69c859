"""Merges rows and open sessions of the same keys into sessions: intervals of event time.

Two intervals of a key belong to the same session if the pause between them is at most the gap (Flink: windows [t, t +
gap) that intersect or touch; `TimeWindow.mergeWindows`).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.operators.event_time import Times

Numbers = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of event time by position: the number of the key, the first and the last time (ms)."""

    keys: Numbers
    first: Times
    last: Times

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class Merged:
    """`sessions`: sorted by key and time. `numbers`: by position of an input interval, the number of its session."""

    sessions: Intervals
    numbers: Numbers


def sessions_of_rows(keys: Numbers, times: Times, gap_ms: int) -> Merged:
    """The sessions that rows form among themselves."""
    order = np.lexsort((times, keys))
    keys, times = keys[order], times[order]
    starts = np.ones(len(keys), dtype=bool)
    starts[1:] = (keys[1:] != keys[:-1]) | (times[1:] - times[:-1] > gap_ms)
    return _merge(order, starts, keys, times, times)


def merge_sessions(open_sessions: Intervals, new_sessions: Intervals, gap_ms: int) -> Merged:
    """The sessions of both; positions of `numbers` count the open sessions first.

    Within each argument, intervals of a key are further apart than the gap.
    """
    keys = np.concatenate([open_sessions.keys, new_sessions.keys])
    first = np.concatenate([open_sessions.first, new_sessions.first])
    last = np.concatenate([open_sessions.last, new_sessions.last])
    order = np.lexsort((first, keys))
    is_open = order < len(open_sessions)
    keys, first, last = keys[order], first[order], last[order]
    reaches = np.maximum(_last_before(is_open, keys, last), _last_before(~is_open, keys, last))
    starts = np.ones(len(keys), dtype=bool)
    starts[1:] = (keys[1:] != keys[:-1]) | (first[1:] - reaches[1:] > gap_ms)
    return _merge(order, starts, keys, first, last)


def _last_before(mask: npt.NDArray[np.bool_], keys: Numbers, last: Times) -> Times:
    """By position, the end of the nearest chosen interval before it with the same key; else the end of the previous.

    The nearest has the greatest end of all chosen intervals before, since those of a key do not overlap.
    """
    nearest = np.maximum.accumulate(np.where(mask, np.arange(len(keys)), -1))
    nearest[1:] = nearest[:-1]
    previous = np.arange(len(keys)) - 1
    usable = (nearest >= 0) & (keys[nearest] == keys)
    return last[np.where(usable, nearest, previous)]


def _merge(order: Numbers, starts: npt.NDArray[np.bool_], keys: Numbers, first: Times, last: Times) -> Merged:
    """Sessions from sorted intervals; `starts`: whether a session starts at the position."""
    begins = np.flatnonzero(starts)
    numbers = np.empty(len(order), dtype=np.intp)
    numbers[order] = np.cumsum(starts) - 1
    ends = np.maximum.reduceat(last, begins) if len(begins) else last
    return Merged(Intervals(keys[begins], first[begins], ends), numbers)
