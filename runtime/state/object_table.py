"""Keyed state as Python dictionaries: entries of bytes per key, with marks for what changed since the last capture.

The backend of row-wise functions. An entry is found by key group, key and place within the key: a value has one place,
a list one per element, a map one per map key; so a delta holds single elements and never a whole list or map. Values
are bytes, or plain values that become bytes when a segment is written. Neither can change: a copy taken at the barrier
shares nothing that could.

It knows neither what the bytes mean nor files. In a segment, the column `key` is msgpack of (key, place), and a plain
value is msgpack of (null, value).
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.errors import JobRejected
from runtime.state.index.key_index import Slots
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
_encode: Final = msgspec.msgpack.Encoder().encode
_ROW_KEY: Final = msgspec.msgpack.Decoder(tuple[msgspec.Raw, Place])


class ObjectRows:
    """Entries on their way to a segment; those that are gone have no value. Implements `rows.SegmentRows`.

    Args:
        entries: nobody changes them any more.
    """

    def __init__(self, entries: Mapping[Entry, Stored | None]) -> None:
        self._by_entry = entries

    def __len__(self) -> int:
        return len(self._by_entry)

    @property
    def groups(self) -> npt.NDArray[np.int32]:
        return np.fromiter((entry[0] for entry in self._by_entry), np.int32, len(self))

    def to_batch(self, rows: Slots) -> pa.RecordBatch:
        """Some of the rows in the layout of a segment."""
        found = [self._items[row] for row in rows.tolist()]
        keys = [_encode((msgspec.Raw(key), place)) for (_, key, place), _ in found]
        deleted = [value is None for _, value in found]
        values = pa.array([_as_bytes(value) for _, value in found], _BINARY)
        groups = pa.array([entry[0] for entry, _ in found], pa.int32())
        return pa.RecordBatch.from_arrays([groups, pa.array(deleted), pa.array(keys, _BINARY), values], schema=_LAYOUT)

    @cached_property
    def _items(self) -> list[tuple[Entry, Stored | None]]:
        return list(self._by_entry.items())


class ObjectTable:
    """One named keyed state of one subtask."""

    settled: Final = True  #: its types are always known
    mostly_changed: Final = False  #: changes are handed over and all else is copied, so that never pays
    row_bytes: Final = 256  #: copying an entry costs about as much as copying so many bytes of columns

    def __init__(self, name: str) -> None:
        self.schema = TableSchema(name, _KEYS, _VALUES)
        #: A key that has nothing but the one value has it without a dictionary: that takes a third of the memory, and
        #: the garbage collector does not walk dictionaries in which nothing could be part of a cycle.
        self._groups: dict[int, dict[bytes, Stored | dict[Place, Stored]]] = {}
        self._changed: dict[Entry, Stored | None] = {}  #: since the last capture; None: gone
        self._fresh: set[Entry] = set()  #: of those, what that capture does not have

    def __len__(self) -> int:
        return sum(len(_places(held)) for keys in self._groups.values() for held in keys.values())

    # ------------------------------------------------------------ entries

    def under(self, group: int, key: bytes) -> dict[Place, Stored]:
        """What is there of a key, by place, what was written last comes last. To look at, and not to keep."""
        keys = self._groups.get(group)
        return _NOTHING if keys is None else _places(keys.get(key, _NOTHING))

    def put(self, entry: Entry, value: Stored) -> None:
        """Sets an entry. It is the last of its key from now on, also after a restore."""
        there = self._set(entry, value)
        if entry in self._changed:
            del self._changed[entry]  # to the end of the changes too
        elif not there:
            self._fresh.add(entry)
        self._changed[entry] = value

    def delete(self, entry: Entry) -> None:
        """Removes an entry, if it is there. The next delta says so."""
        there = self._remove(entry)
        if entry in self._fresh:
            self._fresh.discard(entry)
            del self._changed[entry]
        elif there:
            self._changed[entry] = None

    def items(self) -> Iterator[tuple[Entry, Stored]]:
        """All entries; the table must not change meanwhile."""
        for group, keys in self._groups.items():
            for key, held in keys.items():
                for place, value in _places(held).items():
                    yield (group, key, place), value

    # ------------------------------------------------------------ snapshots

    def copy_all(self) -> ObjectRows:
        """A copy of every entry; marks stay as they are."""
        return ObjectRows(dict(self.items()))

    def capture_all(self) -> list[ObjectRows]:
        """A copy of every entry, from which deltas count again."""
        self.mark_captured()
        rows = self.copy_all()
        return [rows] if len(rows) else []

    def capture_changes(self) -> list[ObjectRows]:
        """What changed since the last capture. What came and went since then leaves nothing. Nothing is copied."""
        changed = self._changed
        self.mark_captured()
        return [ObjectRows(changed)] if changed else []

    def mark_captured(self) -> None:
        """From now on, changes are those to what it holds now."""
        self._changed, self._fresh = {}, set()

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
                self._set((group, bytes(key), place), value)

    # ------------------------------------------------------------ inside

    def _set(self, entry: Entry, value: Stored) -> bool:
        """Whether it was there."""
        group, key, place = entry
        keys = self._groups.get(group)
        if keys is None:
            keys = self._groups[group] = {}
        held = keys.get(key, _NOTHING)
        if place is None and (held is _NOTHING or not isinstance(held, dict)):
            keys[key] = value
            return held is not _NOTHING
        places = keys[key] = _places(held) if held is not _NOTHING else {}
        there = places.pop(place, None) is not None
        places[place] = value
        return there

    def _remove(self, entry: Entry) -> bool:
        """Whether it was there."""
        group, key, place = entry
        keys = self._groups.get(group, {})
        places = _places(keys.get(key, _NOTHING))
        if place not in places:
            return False
        del places[place]
        if not places:
            del keys[key]
        return True


def _places(held: Stored | dict[Place, Stored]) -> dict[Place, Stored]:
    """What is held of a key, by place."""
    return held if isinstance(held, dict) else {None: held}


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
