"""The text table in numpy, for processes without compiled kernels.

Values are found by a 64-bit hash and compared eight bytes at a time, all rows of a batch together. A value whose hash
belongs to another value is kept in a dictionary; this is very rare.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.state.index.growing import GrowingArray
from runtime.state.index.hashing import (
    MAX_MIXED_BYTES,
    WORD_BYTES,
    Texts,
    first_bytes,
    hash_text,
    padded,
    text_buffers,
    words_of,
)
from runtime.state.index.key_index import NOT_FOUND, KeyIndex
from runtime.state.index.text_arena import UNKNOWN_NUMBER, Numbers, TextArena

Mask = npt.NDArray[np.bool_]

_COLLISION: Final = -2


class NumpyTexts:
    """Implements `text_table.TextTable`."""

    def __init__(self) -> None:
        self.arena = TextArena()
        self._index = KeyIndex(1)
        self._number_by_row_id = GrowingArray(np.int64, self._index.capacity)
        self._collisions: dict[bytes, int] = {}  #: values whose hash belongs to another value

    def numbers(self, texts: Texts, learn: bool) -> Numbers:
        hashes = hash_text(*texts).view(np.int64)
        numbers, missing = self._look_up(hashes, texts)
        if learn and len(missing):
            _, first = np.unique(hashes[missing], return_index=True)
            self._learn(hashes, texts, np.sort(missing[first]))
            numbers, _ = self._look_up(hashes, texts)
        for row in np.flatnonzero(numbers == _COLLISION).tolist():
            numbers[row] = self._collision_number(_value(texts, row), learn)
        return numbers

    # ------------------------------------------------------------ looking up

    def _look_up(self, hashes: Numbers, texts: Texts) -> tuple[Numbers, Numbers]:
        """Numbers, and the rows whose hash is new. `_COLLISION`: the hash belongs to another value."""
        row_ids = self._index.find(hashes[np.newaxis, :])
        found = np.flatnonzero(row_ids != NOT_FOUND)
        numbers = np.full(len(hashes), UNKNOWN_NUMBER, dtype=np.int64)
        known = self._number_by_row_id.data[row_ids[found]]
        numbers[found] = np.where(self._same(known, texts, found), known, _COLLISION)
        return numbers, np.flatnonzero(row_ids == NOT_FOUND)

    def _same(self, numbers: Numbers, texts: Texts, rows: Numbers) -> Mask:
        """By row, whether the stored value with the number in `numbers` equals the value in `texts`."""
        data, starts, lengths = texts
        stored, offsets = self.arena.data, self.arena.offsets
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

    def _learn(self, hashes: Numbers, texts: Texts, rows: Numbers) -> None:
        """Adds rows whose hashes are new and distinct."""
        numbers = self.arena.append(texts, rows)
        row_ids = self._index.add(hashes[np.newaxis, rows])
        self._number_by_row_id.grow(self._index.capacity)
        self._number_by_row_id.data[row_ids] = numbers

    def _collision_number(self, value: bytes, learn: bool) -> int:
        if learn and value not in self._collisions:
            texts = text_buffers(pa.array([value], pa.large_binary()))
            self._collisions[value] = int(self.arena.append(texts, np.zeros(1, dtype=np.int64))[0])
        return self._collisions.get(value, UNKNOWN_NUMBER)


def _value(texts: Texts, row: int) -> bytes:
    data, starts, lengths = texts
    return data[starts[row] : starts[row] + lengths[row]].tobytes()
