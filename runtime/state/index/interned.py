"""Text, binary and decimal keys as numbers: each distinct value gets the next number, vectorised.

Values lie end to end in an arena. Values are found by a 64-bit hash and compared eight bytes at a time. A value whose
hash belongs to another value is kept in a dictionary; this is very rare. The arena only grows, so a capture may decode
from it in another thread while new values are added.
"""

from copy import copy
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.state.index.growing import GrowingArray
from runtime.state.index.hashing import (
    MAX_MIXED_BYTES,
    WORD_BYTES,
    first_bytes,
    hash_text,
    padded,
    text_buffers,
    words_of,
)
from runtime.state.index.key_index import NOT_FOUND, KeyIndex

Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Texts = tuple[Bytes, Codes, Codes]  #: bytes, start and length of each value

UNKNOWN_CODE: Final = -1  #: the code of a value that is not interned


class InternedCodec:
    """Implements `key_codec.KeyCodec`."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._index = KeyIndex(1)
        self._number_by_row_id = GrowingArray(np.int64, self._index.capacity)
        self._collisions: dict[bytes, int] = {}  #: values whose hash belongs to another value
        self._data = GrowingArray(np.uint8, 1024)
        self._offsets = GrowingArray(np.int64, 65)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def encode(self, column: pa.Array, learn: bool) -> Codes:
        texts = text_buffers(_as_bytes(column))
        hashes = hash_text(*texts).view(np.int64)
        codes, missing = self._look_up(hashes, texts)
        if learn and len(missing):
            _, first = np.unique(hashes[missing], return_index=True)
            self._learn(hashes, texts, np.sort(missing[first]))
            codes, _ = self._look_up(hashes, texts)
        for row in np.flatnonzero(codes == _COLLISION_CODE).tolist():
            codes[row] = self._collision_code(_value(texts, row), learn)
        return codes

    def decode(self, codes: Codes, nulls: Mask) -> pa.Array:
        values = self._values().take(pa.array(codes, mask=nulls | (codes < 0)))
        return _from_bytes(values, self._kind)

    def with_type(self, kind: Any) -> "InternedCodec":
        """A codec that shares the arena, which only grows, and decodes to a wider type."""
        wider = copy(self)
        wider._kind = kind
        return wider

    def compact(self, codes: Codes) -> tuple["InternedCodec", Codes]:
        """A codec with only the values of `codes`, and `codes` in its numbering; `UNKNOWN_CODE` stays."""
        fresh = InternedCodec(self._kind)
        known = codes != UNKNOWN_CODE
        renumbered = np.full(len(codes), UNKNOWN_CODE, dtype=np.int64)
        values = self._values().take(pa.array(codes[known]))
        renumbered[known] = fresh.encode(_from_bytes(values, self._kind), learn=True)
        return fresh, renumbered

    # ------------------------------------------------------------ looking up

    def _look_up(self, hashes: Codes, texts: Texts) -> tuple[Codes, Codes]:
        """Codes, and the rows whose hash is new. `_COLLISION_CODE`: the hash belongs to another value."""
        row_ids = self._index.find(hashes[np.newaxis, :])
        found = np.flatnonzero(row_ids != NOT_FOUND)
        codes = np.full(len(hashes), UNKNOWN_CODE, dtype=np.int64)
        numbers = self._number_by_row_id.data[row_ids[found]]
        codes[found] = np.where(self._same(numbers, texts, found), numbers, _COLLISION_CODE)
        return codes, np.flatnonzero(row_ids == NOT_FOUND)

    def _same(self, numbers: Codes, texts: Texts, rows: Codes) -> Mask:
        """By row, whether the stored value with the number in `numbers` equals the value in `texts`."""
        data, starts, lengths = texts
        stored, offsets = self._data.data, self._offsets.data
        left, theirs, mine = lengths[rows], starts[rows], offsets[numbers]
        same: Mask = left == offsets[numbers + 1] - mine
        for position in np.flatnonzero(same & (left > MAX_MIXED_BYTES)).tolist():
            value = stored[mine[position] : mine[position] + left[position]].tobytes()
            same[position] = value == _value(texts, int(rows[position]))
        at = np.flatnonzero(same & (left > 0) & (left <= MAX_MIXED_BYTES))
        left, theirs, mine = left[at], theirs[at], mine[at]
        words, stored_words = words_of(padded(data)), words_of(stored)
        while len(at):
            alike = first_bytes(words[theirs], left) == first_bytes(stored_words[mine], left)
            same[at[~alike]] = False
            more = alike & (left > WORD_BYTES)
            at, left, theirs, mine = (
                at[more],
                left[more] - WORD_BYTES,
                theirs[more] + WORD_BYTES,
                mine[more] + WORD_BYTES,
            )
        return same

    # ------------------------------------------------------------ learning

    def _learn(self, hashes: Codes, texts: Texts, rows: Codes) -> None:
        """Adds rows whose hashes are new and distinct."""
        numbers = self._append(texts, rows)
        row_ids = self._index.add(hashes[np.newaxis, rows])
        self._number_by_row_id.grow(self._index.capacity)
        self._number_by_row_id.data[row_ids] = numbers

    def _append(self, texts: Texts, rows: Codes) -> Codes:
        data, starts, lengths = texts[0], texts[1][rows], texts[2][rows]
        end = int(self._offsets.data[self._count])
        stops = end + np.cumsum(lengths)
        added = int(lengths.sum())
        if end + added + WORD_BYTES > len(self._data):
            self._data.grow(2 * (end + added + WORD_BYTES))
        inside = np.arange(added) - np.repeat(stops - lengths - end, lengths)
        self._data.data[end : end + added] = data[np.repeat(starts, lengths) + inside]
        if self._count + len(rows) >= len(self._offsets):
            self._offsets.grow(2 * (self._count + len(rows) + 1))
        self._offsets.data[self._count + 1 : self._count + len(rows) + 1] = stops
        numbers = np.arange(self._count, self._count + len(rows))
        self._count += len(rows)  # last, because a decoding thread reads up to this number
        return numbers

    def _collision_code(self, value: bytes, learn: bool) -> int:
        if learn and value not in self._collisions:
            texts = text_buffers(pa.array([value], pa.large_binary()))
            self._collisions[value] = int(self._append(texts, np.zeros(1, dtype=np.int64))[0])
        return self._collisions.get(value, UNKNOWN_CODE)

    def _values(self) -> pa.Array:
        """All interned values, without a copy."""
        count = self._count  # read before offsets and data, which only grow
        buffers = [None, pa.py_buffer(self._offsets.data), pa.py_buffer(self._data.data)]
        return pa.Array.from_buffers(pa.large_binary(), count, buffers)


_COLLISION_CODE: Final = -2


def _value(texts: Texts, row: int) -> bytes:
    data, starts, lengths = texts
    return data[starts[row] : starts[row] + lengths[row]].tobytes()


def _as_bytes(column: pa.Array) -> pa.Array:
    return column.view(pa.binary(16)) if pa.types.is_decimal128(column.type) else column


def _from_bytes(values: pa.Array, kind: Any) -> pa.Array:
    if pa.types.is_decimal128(kind):
        return _to_fixed_size(values, 16).view(kind)
    return _to_fixed_size(values, kind.byte_width) if pa.types.is_fixed_size_binary(kind) else values.cast(kind)


def _to_fixed_size(values: pa.Array, width: int) -> pa.Array:
    return values.cast(pa.binary()).cast(pa.binary(width))
