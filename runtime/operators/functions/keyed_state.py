"""State of the current key, for row-wise functions: value, list, map, reducing, aggregating; each with a time to live.

    self.seen = context.value_state("seen", ttl_ms=3_600_000)    get, update, clear
    self.last = context.list_state("last")                       get, add, replace, clear
    self.by_page = context.map_state("by-page")                  like a dictionary
    self.best = context.reducing_state("best", max)              get, add, clear
    self.mean = context.aggregating_state("mean", lambda: [0, 0], lambda a, v: [a[0] + v, a[1] + 1],
                                          lambda a: a[0] / a[1])  get, add, clear

Values are JSON values or bytes. Mutable values are encoded when they are written, so `get` returns a copy that is the
same before and after a restore. To change a value, read it and write it back. A value that would be restored as
another type, such as a tuple, a set or a datetime, is refused.

A time to live is processing time since the last write of an element. An expired element is invisible to reads and is
removed at the next snapshot at the latest.

This module has the parts that all kinds share, lists and maps; `value_state` has the kinds with a single value per key.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from itertools import takewhile
from typing import Any, Final

import msgspec

from runtime.errors import JobRejected, WeirError
from runtime.state import values
from runtime.state.object_table import Entry, ObjectTable, Place, Stored, is_plain, map_place

_decode: Final = msgspec.msgpack.Decoder().decode

KeyAddress = tuple[int, bytes]  #: key group, key
_ABSENT: Final = object()  #: no element, or an expired one


class CurrentKey:
    """The key whose row or timer is being handled; all states of an operator share it.

    The current key is given by its number: rows and timers are handled in batches, and each batch numbers its keys.
    """

    __slots__ = ("keys", "number")

    def __init__(self) -> None:
        self.keys: list[KeyAddress] = []
        self.number = 0

    def get(self) -> KeyAddress:
        """Key group and key. Raises WeirError if no row and no timer is being handled."""
        if not self.keys:
            raise no_key_error()
        return self.keys[self.number]


def no_key_error() -> WeirError:
    return WeirError("there is no current key here: keyed state and timers belong to a row or a timer")


class StateElements:
    """The elements of a named state under the current key.

    An element is stored as bytes, with the time at which it expires. A plain value that never expires is stored without
    encoding: it is then encoded once when a snapshot is written, not for every row.
    """

    def __init__(self, table: ObjectTable, current: CurrentKey, now_ms: Callable[[], int], ttl_ms: int | None) -> None:
        if ttl_ms is not None and ttl_ms <= 0:
            raise JobRejected("bad-ttl", table.schema.name, f"a time to live must be at least 1 ms, not {ttl_ms}")
        self._table = table
        self.current = current
        self._now_ms = now_ms
        self._ttl_ms = ttl_ms
        #: Expiries of restored elements, which may have had a longer time to live, and of elements written since then.
        #: Both soonest first: a write moves its element to the end of `_written`.
        self._restored, self._written = self._restored_expiries(), dict[Entry, int]()

    def read(self, place: Place) -> tuple[bool, Any]:
        """Whether an unexpired element is present at `place`, and its value."""
        stored = self._table.entries_of(*self.current.get()).get(place)
        value = _ABSENT if stored is None else self.decode_value(stored, _ABSENT)
        return (False, None) if value is _ABSENT else (True, value)

    def write(self, place: Place, value: Any) -> None:
        """Sets an element.

        Raises:
            JobRejected: the value cannot be stored; the error names the state.
        """
        entry: Entry = (*self.current.get(), place)
        if self._ttl_ms is None:
            self.put_without_expiry(entry, value if is_plain(value) else self.encode(value))
            return
        expires = self._now_ms() + self._ttl_ms
        self._table.put(entry, self.encode(value, expires))
        self._forget_expiry(entry)
        self._written[entry] = expires

    def put_without_expiry(self, entry: Entry, stored: Stored) -> None:
        """Sets an element of any key, without expiry."""
        self._table.put(entry, stored)
        if self._restored:  # from a job version whose state had a time to live
            self._restored.pop(entry, None)

    def encode(self, value: Any, expires: int | None = None) -> bytes:
        """The stored form of a value that is not plain. Raises JobRejected as `write`."""
        return values.encode(self._table.schema.name, [expires, value])

    def decode_value(self, stored: Stored, default: Any) -> Any:
        """The value of a stored element; `default` if it is expired."""
        if type(stored) is not bytes:
            return stored
        expires, value = _decode(stored)
        return default if expires is not None and expires <= self._now_ms() else value

    def remove(self, place: Place) -> None:
        self.delete((*self.current.get(), place))

    def delete(self, entry: Entry) -> None:
        """Removes an element of any key."""
        self._forget_expiry(entry)
        self._table.delete(entry)

    def stored_single(self, at: KeyAddress) -> Stored | None:
        """The stored form of the single value of a key, expired or not; None if it is absent."""
        return self._table.value_of(*at)

    def live_elements(self) -> list[tuple[Any, Any]]:
        """Places and values of the unexpired elements of the current key, in the order of writing."""
        elements = (
            (place, *_decode_element(stored)) for place, stored in self._table.entries_of(*self.current.get()).items()
        )
        return [(place, value) for place, expires, value in elements if not self._is_expired(expires)]

    def next_place(self) -> int:
        """The place after the last element of a list."""
        last = next(reversed(self._table.entries_of(*self.current.get())), None)
        return last + 1 if isinstance(last, int) else 0

    def clear(self) -> None:
        for place in list(self._table.entries_of(*self.current.get())):
            self.remove(place)

    def remove_expired_elements(self) -> None:
        """Removes expired elements of all keys."""
        now = self._now_ms()
        for expiries in (self._restored, self._written):
            for entry, _ in list(takewhile(lambda item: item[1] <= now, expiries.items())):
                self.delete(entry)

    def _is_expired(self, expires: int | None) -> bool:
        return expires is not None and expires <= self._now_ms()

    def _forget_expiry(self, entry: Entry) -> None:
        self._written.pop(entry, None)
        if self._restored:
            self._restored.pop(entry, None)

    def _restored_expiries(self) -> dict[Entry, int]:
        pairs = [(expires, entry) for entry, stored in self._table.items() if (expires := _decode_element(stored)[0])]
        return {entry: expires for expires, entry in sorted(pairs, key=lambda pair: pair[0])}


def _decode_element(stored: Stored) -> tuple[int | None, Any]:
    """Expiry (None: never) and value of a stored element."""
    if type(stored) is not bytes:
        return None, stored
    expires, value = _decode(stored)
    return expires, value


class KeyedListState:
    """A list per key. `ProcessContext.list_state` creates it. The cost of `add` does not depend on the list's length.

    Values are as for `ValueState.update`. Every method raises WeirError outside hooks that have a current key.
    """

    def __init__(self, cells: StateElements) -> None:
        self._cells = cells

    def get(self) -> list[Any]:
        """A copy of the current key's unexpired elements, in order; empty if there are none."""
        return [value for _, value in self._cells.live_elements()]

    def add(self, value: Any) -> None:
        """Appends an element. Raises JobRejected as `ValueState.update`."""
        self._cells.write(self._cells.next_place(), value)

    def replace(self, values: Iterable[Any]) -> None:
        """Replaces all elements of the current key. Raises JobRejected as `ValueState.update`."""
        values = list(values)
        self._cells.clear()
        for place, value in enumerate(values):
            self._cells.write(place, value)

    def clear(self) -> None:
        """Removes all elements of the current key."""
        self._cells.clear()


class MapState(MutableMapping[Any, Any]):
    """A dictionary per key, in the order of writing. `ProcessContext.map_state` creates it.

    Map keys are str, int or bytes; another key raises TypeError. Values are as for `ValueState.update`, and values that
    are read are copies. Every method raises WeirError outside hooks that have a current key.
    """

    def __init__(self, cells: StateElements) -> None:
        self._cells = cells

    def __getitem__(self, key: Any) -> Any:
        there, value = self._cells.read(map_place(key))
        if not there:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._cells.write(map_place(key), value)

    def __delitem__(self, key: Any) -> None:
        place = map_place(key)
        if not self._cells.read(place)[0]:
            raise KeyError(key)
        self._cells.remove(place)

    def __iter__(self) -> Iterator[Any]:
        return iter([_decode(place) for place, _ in self._cells.live_elements()])

    def __len__(self) -> int:
        return len(self._cells.live_elements())

    def clear(self) -> None:
        """Removes all entries of the current key."""
        self._cells.clear()
