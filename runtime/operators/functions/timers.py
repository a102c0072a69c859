"""Timers per key for a single time domain (event or processing time), fired in the order of (timestamp, key).

Timers are keyed state, so they are restored with their key groups. The queue is an index of this state.
"""

import heapq
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.operators.functions.keyed_state import CurrentKey
from runtime.state.object_table import ObjectTable

_NO_VALUE: Final = b""
_decode: Final = msgspec.msgpack.Decoder().decode

Timer = tuple[int, int, bytes]  #: timestamp (ms), key group, key
_Queued = tuple[int, tuple[Any, ...], int, bytes]


class Timers:
    """The timers of an operator subtask.

    Args:
        table: the keyed state of the timers; the `Place` of an entry is the timer's timestamp.
        current: the key for which a timer is registered.
    """

    def __init__(self, table: ObjectTable, current: CurrentKey) -> None:
        self._table = table
        self._current = current
        self._queue: list[_Queued] = [
            (time, _sort_key(key), group, key) for (group, key, time), _ in table.items() if isinstance(time, int)
        ]
        heapq.heapify(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def next_ms(self) -> int | None:
        return self._queue[0][0] if self._queue else None

    def register(self, timestamp_ms: int) -> None:
        """Registers a timer of the current key. Registering the same timer again has no effect.

        Raises:
            TypeError: `timestamp_ms` is not an int.
            ValueError: `timestamp_ms` exceeds 64 bits.
        """
        check_time(timestamp_ms)
        group, key = self._current.get()
        if timestamp_ms not in self._table.entries_of(group, key):
            self._table.put((group, key, timestamp_ms), _NO_VALUE)
            heapq.heappush(self._queue, (timestamp_ms, _sort_key(key), group, key))

    def take_due(self, time: int) -> Iterator[Timer]:
        """Removes and yields timers up to and including `time`, including timers registered during the iteration."""
        while self._queue and self._queue[0][0] <= time:
            timestamp, _, group, key = heapq.heappop(self._queue)
            self._table.delete((group, key, timestamp))
            yield timestamp, group, key


def check_time(timestamp_ms: Any) -> None:
    """Raises TypeError unless the timestamp is an int, ValueError unless it fits 64 bits."""
    if type(timestamp_ms) is not int:
        raise TypeError(f"a timer needs an int (milliseconds), not {type(timestamp_ms).__name__}")
    if not MIN_WATERMARK <= timestamp_ms <= MAX_WATERMARK:
        raise ValueError(f"the timestamp of a timer must fit 64 bits (milliseconds), not {timestamp_ms}")


def _sort_key(key: bytes) -> tuple[Any, ...]:
    """A sort key for keys: by value, nulls last."""
    values = _decode(key)
    if len(values) == 1:  # saves the generator
        return (values[0] is None, values[0])
    return tuple((value is None, value) for value in values)
