"""Keyed state as Python dictionaries: entries of bytes per key, with a record of changes since the last capture.

The backend of row-wise functions. An entry is addressed by key group, key and place within the key: a value state has a
single place, a list a place per element, a map a place per map key. So a delta holds single elements, never a whole
list or map. Values are bytes, or plain Python values that are encoded when a segment is written. Both are immutable, so
a copy taken at the barrier shares no mutable object with the table.

In a segment, column `key` is msgpack of (key, place). A plain value is msgpack of (null, value).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from runtime.errors import JobRejected
from runtime.state.columns import Mask
from runtime.state.index.hashing import Hashes, hash_column, value_input
from runtime.state.index.key_index import RowIds
from runtime.state.primary_key import OWN_FIELDS, Groups, PrimaryKey, row_hashes
from runtime.state.proofs import HASHED_ROWS, LazyProof, ProofHistory, ProofSums
from runtime.state.schema import TableSchema

Place = int | bytes | None  #: within a key: index of an element, encoded map key, None for a single value
Entry = tuple[int, bytes, Place]  #: key group, key, place
Plain = int | float | str
Stored = bytes | Plain

_BINARY_TYPE: Final = pa.large_binary()  # a subtask may hold more than the 2 GiB of `pa.binary`
_KEY_SCHEMA: Final = pa.schema([("key", _BINARY_TYPE)])
_VALUE_SCHEMA: Final = pa.schema([("value", _BINARY_TYPE)])
_SEGMENT_SCHEMA: Final = pa.schema([*OWN_FIELDS, *_KEY_SCHEMA, *_VALUE_SCHEMA])
_PRIMARY_KEY: Final = PrimaryKey(len(_KEY_SCHEMA))
_NO_ENTRIES: Final[dict[Place, Stored]] = {}  #: the entries of an absent key; never written to
MIN_PLAIN_INT, MAX_PLAIN_INT = -(2**63), 2**63 - 1  #: limits of plain integers
_encode: Final = msgspec.msgpack.Encoder().encode
_ROW_KEY: Final = msgspec.msgpack.Decoder(tuple[msgspec.Raw, Place])


class ObjectRows:
    """Captured entries; a deleted entry has no value. Implements `rows.SegmentRows`.

    Args:
        entries: values by entry; the caller no longer modifies them.
    """

    def __init__(self, entries: Mapping[Entry, Stored | None]) -> None:
        self._by_entry = entries

    def __len__(self) -> int:
        return len(self._by_entry)

    @cached_property
    def groups(self) -> Groups:
        return np.fromiter(map(itemgetter(0), self._by_entry), np.int32, len(self._by_entry))

    def add_to(self, sums: ProofSums) -> None:
        sums.add(self.groups, self._present[1])

    def replace_in(self, sums: ProofSums, before: Mapping[Entry, Stored | None]) -> None:
        """Replaces the values `before` of the same entries in a proof; None: the entry was or is absent."""
        previous = self._hashed(_encoded_values([before[entry] for entry in self._by_entry]))
        for change, (present, hashes) in ((sums.remove, previous), (sums.add, self._present)):
            change(self.groups[present], hashes[present])

    def to_batch(self, rows: RowIds) -> pa.RecordBatch:
        """The rows with the numbers `rows`, in the layout of a segment."""
        keys, values = (column.take(pa.array(rows)) for column in (self._keys, self._values))
        columns = [pa.array(self.groups[rows]), values.is_null(), keys, values]
        return pa.RecordBatch.from_arrays(columns, schema=_SEGMENT_SCHEMA)

    @cached_property
    def _keys(self) -> pa.Array:
        return pa.array([_row_key(key, place) for _, key, place in self._by_entry], _BINARY_TYPE)

    @cached_property
    def _key_hashes(self) -> Hashes:
        return hash_column(self._keys)

    @cached_property
    def _values(self) -> pa.Array:
        return _encoded_values(list(self._by_entry.values()))

    @cached_property
    def _present(self) -> tuple[Mask, Hashes]:
        """Whether each entry has a value, and its hash."""
        return self._hashed(self._values)

    def _hashed(self, values: pa.Array) -> tuple[Mask, Hashes]:
        """Whether each value is present, and the hash of its entry, as `PrimaryKey.row_hashes` computes it."""
        column = value_input(values)
        present = np.ones(len(values), np.bool_) if column.valid is None else column.valid
        return present, row_hashes(self._key_hashes, [column], ~present)


class ObjectTable:
    """A named keyed state of a subtask. Not thread-safe: used on the slot's loop."""

    is_typed: Final = True  #: the types are fixed
    is_mostly_changed: Final = False  #: changes are handed over without a copy, so a full copy never pays
    row_bytes: Final = 256  #: copying an entry costs about as much as copying this many bytes of columns

    def __init__(self, name: str) -> None:
        self.schema = TableSchema(name, _KEY_SCHEMA, _VALUE_SCHEMA)
        #: A key whose only entry is at place None holds the value without a dictionary. That takes a third of the
        #: memory, and the garbage collector does not traverse a dictionary per key.
        self._groups: dict[int, dict[bytes, Stored | dict[Place, Stored]]] = {}
        self._count = 0  #: of entries: each barrier asks for it
        self._changed: dict[Entry, Stored | None] = {}  #: entries changed since the last capture; None: deleted
        self._before: dict[Entry, Stored | None] = {}  #: their values at the last capture; None: they were absent
        self._history = ProofHistory(ProofSums())

    def __len__(self) -> int:
        return self._count

    # ------------------------------------------------------------ entries

    def entries_of(self, group: int, key: bytes) -> dict[Place, Stored]:
        """The entries of a key by place, in the order of writing. A view: do not keep or change it."""
        keys = self._groups.get(group)
        return _NO_ENTRIES if keys is None else _places(keys.get(key, _NO_ENTRIES))

    def value_of(self, group: int, key: bytes) -> Stored | None:
        """The single value of a key, at place None; None if it is absent."""
        keys = self._groups.get(group)
        content = None if keys is None else keys.get(key)
        return content.get(None) if isinstance(content, dict) else content

    def put(self, entry: Entry, value: Stored) -> None:
        """Sets an entry. It becomes the last entry of its key, also after a restore."""
        previous = self._set(entry, value)
        if entry not in self._changed:
            self._before[entry] = previous
        elif entry[2] is not None:
            del self._changed[entry]  # moves it to the end of the changes
        self._changed[entry] = value

    def delete(self, entry: Entry) -> None:
        """Removes an entry, if present. The next delta holds its tombstone."""
        previous = self._remove(entry)
        if previous is None:
            return
        if self._before.setdefault(entry, previous) is None:
            del self._changed[entry], self._before[entry]
        else:
            self._changed[entry] = None

    def items(self) -> Iterator[tuple[Entry, Stored]]:
        """All entries; the table must not change during iteration."""
        for group, keys in self._groups.items():
            for key, content in keys.items():
                for place, value in _places(content).items():
                    yield (group, key, place), value

    # ------------------------------------------------------------ snapshots

    def proof(self) -> LazyProof:
        """The proof of the present entries, from the puts and deletes since the table was created or restored."""
        if not self._changed:
            return self._history.newest
        changed, before = ObjectRows(dict(self._changed)), dict(self._before)
        return self._history.preview(partial(changed.replace_in, before=before))

    def copy_all(self) -> ObjectRows:
        """A copy of every entry; the record of changes stays."""
        return ObjectRows(dict(self.items()))

    def capture_all(self) -> list[ObjectRows]:
        """A copy of every entry; later deltas are relative to it."""
        self._take_changes()
        rows = self.copy_all()
        return [rows] if len(rows) else []

    def capture_changes(self) -> list[ObjectRows]:
        """The changes since the last capture, without a copy. An entry added and deleted since leaves no trace."""
        changed = self._take_changes()
        return [changed] if len(changed) else []

    def begin_changes(self) -> None:
        """Begins the record of changes and the proof with the present entries: after a restore."""
        sums, entries = ProofSums(), self.items()
        while part := dict(itertools.islice(entries, HASHED_ROWS)):
            ObjectRows(part).add_to(sums)
        self._history = ProofHistory(sums)

    def apply_segment(self, batch: pa.RecordBatch, groups: range) -> None:
        """Applies the rows of a segment that belong to `groups`. The next capture is a base, so no change is recorded.

        Raises:
            JobRejected: the segment belongs to a table with typed columns.
        """
        kinds = batch.schema.types[2:]
        if kinds != [_BINARY_TYPE, _BINARY_TYPE]:
            detail = f"the checkpoint has columns of type {', '.join(map(str, kinds))} here, not objects"
            raise JobRejected("state-type-changed", self.schema.name, detail)
        columns = (column.to_pylist() for column in _PRIMARY_KEY.in_groups(batch, groups).columns)
        for group, deleted, row_key, value in zip(*columns, strict=True):
            key, place = _ROW_KEY.decode(row_key)
            if deleted:
                self._remove((group, bytes(key), place))
            else:
                self._set((group, bytes(key), place), value)

    # ------------------------------------------------------------ internals

    def _take_changes(self) -> ObjectRows:
        """The changes since the last capture, which is now."""
        changed = ObjectRows(self._changed)
        if len(changed):
            self._history.advance(partial(changed.replace_in, before=self._before))
            self._changed, self._before = {}, {}
        return changed

    def _set(self, entry: Entry, value: Stored) -> Stored | None:
        """Sets an entry. Returns its value before; None: it was absent."""
        group, key, place = entry
        keys = self._groups.get(group)
        if keys is None:
            keys = self._groups[group] = {}
        content = keys.get(key)
        if place is None and not isinstance(content, dict):
            keys[key] = value
            previous = content
        else:
            places = keys[key] = {} if content is None else _places(content)
            previous = places.pop(place, None)
            places[place] = value
        if previous is None:
            self._count += 1
        return previous

    def _remove(self, entry: Entry) -> Stored | None:
        """Removes an entry. Returns its value before; None: it was absent."""
        group, key, place = entry
        keys = self._groups.get(group, {})
        places = _places(keys.get(key, _NO_ENTRIES))
        previous = places.pop(place, None)
        if previous is not None:
            if not places:
                del keys[key]
            self._count -= 1
        return previous


def _row_key(key: bytes, place: Place) -> bytes:
    """Msgpack of (key, place). Most keys have a single place, and the encoder takes six times as long."""
    return b"\x92" + key + b"\xc0" if place is None else _encode((msgspec.Raw(key), place))


def _places(content: Stored | dict[Place, Stored]) -> dict[Place, Stored]:
    """The entries of a key by place."""
    return content if isinstance(content, dict) else {None: content}


def is_plain(value: Any) -> bool:
    """Whether a value may be stored without encoding: immutable, always encodable, and equal after a restore."""
    kind = type(value)
    if kind is int:
        return bool(MIN_PLAIN_INT <= value <= MAX_PLAIN_INT)
    return kind is float or kind is bool or (kind is str and value.isascii())


def map_place(key: Any) -> bytes:
    """The place of a map key, exactly a str, int or bytes: a dictionary takes `True` for `1`, a restored map does not.

    Raises:
        TypeError: the key is neither str, int nor bytes.
    """
    if type(key) not in (str, int, bytes):
        raise TypeError(f"a key of a map state is str, int or bytes, not {type(key).__name__}")
    return msgspec.msgpack.encode(key)


def _encoded_values(values: Sequence[Stored | None]) -> pa.Array:
    is_encoded = set(map(type, values)) <= {bytes, type(None)}
    return pa.array(values if is_encoded else list(map(_as_bytes, values)), _BINARY_TYPE)


def _as_bytes(value: Stored | None) -> bytes | None:
    return value if value is None or type(value) is bytes else _encode((None, value))
