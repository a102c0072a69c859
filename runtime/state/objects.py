"""Keyed state as Python dictionaries: entries of bytes per key, with marks for what changed since the last capture.

The backend of row-wise functions. An entry is found by key group, key and place within the key: a value has one place,
a list one per element, a map one per map key; so a delta holds single elements and never a whole list or map. Values
are bytes, or plain values that become bytes when a segment is written. Neither can change: a copy taken at the barrier
shares nothing that could.

It knows neither what the bytes mean nor files. In a segment, the column `key` is msgpack of (key, place), and a plain
value is msgpack of (null, value).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.errors import JobRejected
from runtime.state.schema import TableSchema

Place = int | bytes | None  #: within a key: of an element, of a map key, of the one value
Entry = tuple[int, bytes, Place]  #: key group, key, place
Plain = int | float | str
Stored = bytes | Plain

_BINARY: Final = pa.large_binary()  # one subtask may hold more than the 2 GiB of the small kind
_KEYS: Final = pa.schema([("key", _BINARY)])
_VALUES: Final = pa.schema([("value", _BINARY)])
_LAYOUT: Final = pa.schema([("key group", pa.int32()), ("deleted", pa.bool_()), *_KEYS, *_VALUES])
_NOTHING: Final[dict[Place, Stored]] = {}  #: what is there of a key that is not; never written to
LEAST, GREATEST = -(2**63), 2**63 - 1  #: of plain integers
_LONGEST_NUMBER: Final = 11  #: bytes of a number that lives for ever
_encode: Final = msgspec.msgpack.Encoder().encode
_ROW_KEY: Final = msgspec.msgpack.Decoder(tuple[msgspec.Raw, Place])


@dataclass(frozen=True, slots=True)
class ObjectRows:
    """Entries copied out of a table; those that are gone have no value. Implements `rows.SegmentRows`."""

    groups: npt.NDArray[np.int32]
    entries: tuple[Entry, ...]
    values: tuple[Stored | None, ...]

    @property
    def nbytes(self) -> int:
        return sum(len(key) for _, key, _ in self.entries) + sum(map(_size, self.values))

    def to_batch(self) -> pa.RecordBatch:
        """The rows in the layout of a segment, not sorted yet."""
        keys = [msgspec.msgpack.encode((msgspec.Raw(key), place)) for _, key, place in self.entries]
        deleted = [value is None for value in self.values]
        values = pa.array([_as_bytes(value) for value in self.values], _BINARY)
        arrays = [pa.array(self.groups), pa.array(deleted), pa.array(keys, _BINARY), values]
        return pa.RecordBatch.from_arrays(arrays, schema=_LAYOUT)


class ObjectTable:
    """One named keyed state of one subtask."""

    settled: Final = True  #: its types are always known

    def __init__(self, name: str) -> None:
        self.schema = TableSchema(name, _KEYS, _VALUES)
        self._groups: dict[int, dict[bytes, dict[Place, Stored]]] = {}
        #: Since the last capture; whether that capture has it. What is not marked is as that capture has it.
        self._changed: dict[Entry, bool] = {}

    def __len__(self) -> int:
        return sum(len(places) for keys in self._groups.values() for places in keys.values())

    # ------------------------------------------------------------ entries

    def under(self, group: int, key: bytes) -> dict[Place, Stored]:
        """What is there of a key, by place, what was written last comes last. To look at, and not to keep."""
        keys = self._groups.get(group)
        return _NOTHING if keys is None else keys.get(key, _NOTHING)

    def put(self, entry: Entry, value: Stored) -> None:
        """Sets an entry. It is the last of its key from now on, also after a restore."""
        group, key, place = entry
        places = self._places(group, key)
        captured = self._changed.pop(entry, None)  # to the end of the marks too
        self._changed[entry] = place in places if captured is None else captured
        places.pop(place, None)
        places[place] = value

    def delete(self, entry: Entry) -> None:
        """Removes an entry, if it is there. The next delta says so."""
        captured = self._changed.pop(entry, None)
        there = self._remove(entry)
        if there if captured is None else captured:
            self._changed[entry] = True

    def items(self) -> Iterator[tuple[Entry, Stored]]:
        """All entries; the table must not change meanwhile."""
        for group, keys in self._groups.items():
            for key, places in keys.items():
                for place, value in places.items():
                    yield (group, key, place), value

    # ------------------------------------------------------------ snapshots

    def copy_all(self) -> ObjectRows:
        """A copy of every entry; marks stay as they are."""
        return _rows(self.items())

    def capture_all(self) -> list[ObjectRows]:
        """A copy of every entry, from which deltas count again."""
        self._changed = {}
        rows = self.copy_all()
        return [rows] if rows.entries else []

    def capture_changes(self) -> list[ObjectRows]:
        """What changed since the last capture. What came and went since then leaves nothing."""
        changed, self._changed = self._changed, {}
        found = ((entry, self.under(*entry[:2]).get(entry[2]), captured) for entry, captured in changed.items())
        rows = _rows((entry, value) for entry, value, captured in found if captured or value is not None)
        return [rows] if rows.entries else []

    def take_over(self, batch: pa.RecordBatch, groups: range) -> None:
        """Applies those rows of a segment that lie in `groups`. What follows first is a base: nothing is marked.

        Raises:
            JobRejected: the segment is that of a table with typed columns.
        """
        kinds = batch.schema.types[2:]
        if kinds != [_BINARY, _BINARY]:
            detail = f"the checkpoint has columns {', '.join(map(str, kinds))} here, and no objects"
            raise JobRejected("state-type-changed", self.schema.name, detail)
        start, stop = np.searchsorted(batch.column(0).to_numpy(), [groups.start, groups.stop])
        columns = (column.to_pylist() for column in batch.slice(int(start), int(stop - start)).columns)
        for group, deleted, row_key, value in zip(*columns, strict=True):
            key, place = _ROW_KEY.decode(row_key)
            if deleted:
                self._remove((group, bytes(key), place))
            else:
                places = self._places(group, bytes(key))
                places.pop(place, None)
                places[place] = value

    # ------------------------------------------------------------ inside

    def _places(self, group: int, key: bytes) -> dict[Place, Stored]:
        keys = self._groups.get(group)
        if keys is None:
            keys = self._groups[group] = {}
        places = keys.get(key)
        if places is None:
            places = keys[key] = {}
        return places

    def _remove(self, entry: Entry) -> bool:
        """Whether it was there."""
        group, key, place = entry
        keys = self._groups.get(group, {})
        places = keys.get(key, {})
        there = places.pop(place, None) is not None
        if not places:
            keys.pop(key, None)
        return there


def is_plain(value: Any) -> bool:
    """Whether a value may be put as it is: it cannot change, is certain to have a stored form, and comes back equal."""
    kind = type(value)
    if kind is int:
        return bool(LEAST <= value <= GREATEST)
    return kind is float or kind is bool or (kind is str and value.isascii())


def place_of(key: Any) -> bytes:
    """The place of a key of a map. Exact types: `True` is `1` to a dictionary, and would be another key when restored.

    Raises:
        TypeError: it is neither text, an integer nor bytes.
    """
    if type(key) not in (str, int, bytes):
        raise TypeError(f"a key of a map state is str, int or bytes, not {type(key).__name__}")
    return msgspec.msgpack.encode(key)


def _as_bytes(value: Stored | None) -> bytes | None:
    return value if value is None or type(value) is bytes else _encode((None, value))


def _size(value: Stored | None) -> int:
    """Bytes, about: a number is counted with its longest form."""
    if value is None:
        return 0
    return len(value) if isinstance(value, bytes | str) else _LONGEST_NUMBER


def _rows(found: Iterable[tuple[Entry, Stored | None]]) -> ObjectRows:
    pairs = list(found)
    groups = np.array([entry[0] for entry, _ in pairs], dtype=np.int32)
    return ObjectRows(groups, tuple(entry for entry, _ in pairs), tuple(value for _, value in pairs))
