"""Byte sequences as numbers: each distinct value gets the next number, in the order of first occurrence."""

from typing import Final

import numpy as np

from runtime.kernels.loading import native
from runtime.state.index.growing import GrowingArray
from runtime.state.index.hashing import Texts
from runtime.state.index.text_arena import Numbers, TextArena

_MIN_BUCKETS: Final = 256
_MAX_SPARSE_BUCKETS: Final = 1 << 15  #: up to this number, of 256 KB, a quarter is filled; then half: caches are small
_ALL_BITS: Final = 2**64 - 1


class TextTable:
    """The numbers of values, by the kernels `runtime.kernels.texts`.

    Args:
        hash_mask: bits of the hash in use: all, except in tests of collisions.
    """

    def __init__(self, hash_mask: int = _ALL_BITS) -> None:
        self.arena = TextArena()  #: the values by number
        self._kernels = native().texts
        self._hash_mask = np.uint64(hash_mask)
        self._buckets = GrowingArray(np.uint64, _MIN_BUCKETS)

    def numbers(self, texts: Texts, learn: bool) -> Numbers:
        """By row, the number of the value. Without `learn`, an absent value is `UNKNOWN_NUMBER`; else it is added."""
        numbers = np.empty(len(texts[1]), dtype=np.int64)
        row = self._number_rows(texts, 0, numbers, learn)
        while row < len(numbers):
            self._make_room(int(texts[2][row]), len(numbers) - row)
            row = self._number_rows(texts, row, numbers, learn)
        return numbers

    def _number_rows(self, texts: Texts, first: int, numbers: Numbers, learn: bool) -> int:
        """Numbers the rows from `first` on; returns the first row for which there is no room."""
        arena, count = self.arena, np.array([self.arena.count])
        table = self._buckets.data, self._room, arena.data, arena.offsets, count
        stopped: int = self._kernels.number_texts(*texts, first, *table, numbers, learn, self._hash_mask)
        arena.count = int(count[0])
        return stopped

    @property
    def _room(self) -> int:
        """The number of values for which the buckets have room."""
        buckets = len(self._buckets)
        return buckets // 4 if buckets <= _MAX_SPARSE_BUCKETS else buckets // 2

    def _make_room(self, length: int, rows: int) -> None:
        """Makes room for a value of `length` bytes, and for more of the `rows` that follow."""
        self.arena.reserve(min(rows, self.arena.count + 1), length)
        if self.arena.count >= self._room:
            larger = GrowingArray(np.uint64, 2 * len(self._buckets))
            self._kernels.spread_buckets(self._buckets.data, larger.data)
            self._buckets = larger
