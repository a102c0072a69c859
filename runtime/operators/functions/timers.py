"""Timers of keys, in one sense of time: what is due comes out in the order of (timestamp, key).

They are keyed state, so they are restored with their key groups. The queue beside the state is only an order on it.
"""

import heapq
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.operators.functions.keyed_state import CurrentKey
from runtime.state.object_table import ObjectTable

_NOTHING: Final = b""

Timer = tuple[int, int, bytes]  #: timestamp (ms), key group, key
_Queued = tuple[int, tuple[Any, ...], int, bytes]


class Timers:
    """The timers of one operator subtask.

    Args:
        table: the state; the place of an entry is its timestamp.
        current: whose timer is set.
    """

    def __init__(self, table: ObjectTable, current: CurrentKey) -> None:
        self._table = table
        self._current = current
        self._queue: list[_Queued] = [
            (time, _order(key), group, key) for (group, key, time), _ in table.items() if isinstance(time, int)
        ]
        heapq.heapify(self._queue)

    @property
    def next_ms(self) -> int | None:
        return self._queue[0][0] if self._queue else None

    def register(self, timestamp_ms: int) -> None:
        """Sets a timer of the current key. The same one again changes nothing.

        Raises:
            TypeError: it is not a whole number.
            ValueError: it is too large for a snapshot.
        """
        check_time(timestamp_ms)
        group, key = self._current.get()
        if timestamp_ms not in self._table.under(group, key):
            self._table.put((group, key, timestamp_ms), _NOTHING)
            heapq.heappush(self._queue, (timestamp_ms, _order(key), group, key))

    def due(self, time: int) -> Iterator[Timer]:
        """Takes timers out, up to and including `time`, and among them those that are set meanwhile."""
        while self._queue and self._queue[0][0] <= time:
            timestamp, _, group, key = heapq.heappop(self._queue)
            self._table.delete((group, key, timestamp))
            yield timestamp, group, key


def check_time(timestamp_ms: Any) -> None:
    """For what a timer may be set.

    Raises:
        TypeError: it is not a whole number.
        ValueError: it is too large for a snapshot.
    """
    if type(timestamp_ms) is not int:
        raise TypeError(f"a timer is set for an int of milliseconds, not {type(timestamp_ms).__name__}")
    if not MIN_WATERMARK <= timestamp_ms <= MAX_WATERMARK:
        raise ValueError(f"a timer is set for 64 bits of milliseconds, and {timestamp_ms} has more")


def _order(key: bytes) -> tuple[Any, ...]:
    """What sorts keys by value, nulls last."""
    return tuple((value is None, value) for value in msgspec.msgpack.decode(key))
