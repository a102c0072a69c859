"""Row ids of keys by hash: open addressing with linear probing, in numpy.

Every step handles all keys of a batch: unresolved keys move to the next bucket together. So a batch costs a few array
passes, however many keys it has. The table never grows; `KeyIndex` moves the keys to a larger one. Keys are spread over
the whole table, so the first batches fault in all of its pages; `touch` does this ahead of time.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.state.index.hashing import mix

Slots = npt.NDArray[np.intp]
CodeRows = npt.NDArray[np.int64]  #: shape (columns, keys)
CodeColumns = Sequence[npt.NDArray[np.int64]]  #: by column, indexed by row id

NOWHERE: Final = -1  #: the row id of an absent key
_EMPTY: Final = 0  # the kernel provides zero pages on first touch, so a large table costs no memory at first
_REMOVED: Final = -1
_FEWEST: Final = 256
_PAGE: Final = 1024  #: buckets per page of memory
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


class Buckets:
    """A hash table with room for `keys` keys, and half as many again.

    Args:
        keys: expected minimum.
    """

    def __init__(self, keys: int) -> None:
        self._buckets = np.zeros(max(_FEWEST, _size(keys)), dtype=np.int32)  #: row id + 1
        self._filled = 0  #: upper bound of the buckets that are not empty
        self._touched = 0

    def suits(self, keys: int) -> bool:
        """Whether this table has the size of a new one for `keys` keys."""
        return len(self._buckets) == max(_FEWEST, _size(keys))

    def left(self, keys: int) -> int:
        """The keys that may still be added to an index of `keys` keys."""
        return len(self._buckets) // 2 - self._filled

    def touch(self, count: int) -> None:
        """Touch the memory of the next `count` buckets. Only valid before the first key is added."""
        stop = self._touched + count
        self._buckets[self._touched : stop : _PAGE] = _EMPTY
        self._touched = stop

    def takes(self, codes: CodeRows, keys: int) -> bool:
        """Whether these keys, with which the index has `keys`, may be added."""
        return bool((self._filled + codes.shape[1]) * 2 <= len(self._buckets))

    def find(self, wanted: CodeRows, codes: CodeColumns) -> Slots:
        """The row id of each key, or `NOWHERE`; `codes` are the codes of all row ids."""
        at = self._home(wanted)
        here = self._buckets[at].astype(np.intp)
        same = _same(here, wanted, codes)
        found = np.where(same, here - 1, NOWHERE)
        waiting = np.flatnonzero(~same & (here != _EMPTY))
        at = at[waiting]
        while len(waiting):
            at = self._next(at)
            here = self._buckets[at].astype(np.intp)
            same = _same(here, wanted[:, waiting], codes)
            found[waiting[same]] = here[same] - 1
            onward = ~same & (here != _EMPTY)
            waiting, at = waiting[onward], at[onward]
        return found

    def place(self, row_ids: Slots, codes: CodeRows) -> None:
        """Add keys, which must be absent."""
        waiting, at = row_ids.astype(np.int32) + np.int32(1), self._home(codes)
        while len(waiting):
            free = self._buckets[at] <= _EMPTY
            self._buckets[at[free]] = waiting[free]  # several may choose the same bucket: numpy keeps the last
            lost = self._buckets[at] != waiting
            waiting, at = waiting[lost], self._next(at[lost])
        self._filled += len(row_ids)

    def remove(self, row_ids: Slots, codes: CodeRows, following: bool) -> None:
        """Remove keys, which must be present."""
        waiting, at = row_ids + 1, self._home(codes)
        while len(waiting):
            here = self._buckets[at] == waiting
            self._buckets[at[here]] = _REMOVED
            waiting, at = waiting[~here], self._next(at[~here])

    def _home(self, codes: CodeRows) -> Slots:
        hashes = codes[0].view(np.uint64)
        for column in codes[1:]:
            hashes = hashes * _ODD + column.view(np.uint64)
        return (mix(hashes) & np.uint64(len(self._buckets) - 1)).view(np.intp)

    def _next(self, at: Slots) -> Slots:
        return (at + 1) & (len(self._buckets) - 1)


def _size(keys: int) -> int:
    return 1 << (3 * keys - 1).bit_length() if keys else 0


def _same(here: Slots, wanted: CodeRows, codes: CodeColumns) -> npt.NDArray[np.bool_]:
    same = here > _EMPTY
    for column, values in zip(codes, wanted, strict=True):
        same &= column[here - 1] == values
    return same
