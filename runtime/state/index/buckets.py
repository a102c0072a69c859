"""Slots of keys by hash: open addressing in numpy.

Every step works on all keys of a batch at once: those not settled move on to the next bucket together, so a batch costs
a few array passes however many keys it has. It never grows: `index` moves the keys on to a larger one. Keys
lie anywhere in it, so the first batches touch all of its memory: `touch` has the system hand that out before.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.state.index.hashing import mix

Slots = npt.NDArray[np.intp]
CodeRows = npt.NDArray[np.int64]  #: shape (columns, keys)
CodeColumns = Sequence[npt.NDArray[np.int64]]  #: the same by column, of all slots

NOWHERE: Final = -1  #: the slot of a key that is not there
_EMPTY: Final = (
    0  # zeroes: memory that the system hands out only when it is touched, so a large one costs nothing at once
)
_REMOVED: Final = -1
_FEWEST: Final = 256
_PAGE: Final = 1024  #: buckets in a page of memory
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


class Buckets:
    """Room for `keys` keys, and for half as many again.

    Args:
        keys: how many will come at least.
    """

    def __init__(self, keys: int) -> None:
        self._buckets = np.zeros(max(_FEWEST, _size(keys)), dtype=np.int32)  #: slot + 1
        self._filled = 0  #: buckets that are not empty, at most
        self._touched = 0

    def suits(self, keys: int) -> bool:
        """Whether it is as large as one that is made for `keys` keys."""
        return len(self._buckets) == max(_FEWEST, _size(keys))

    def left(self, keys: int) -> int:
        """How many keys may still come, where the index has `keys`."""
        return len(self._buckets) // 2 - self._filled

    def touch(self, count: int) -> None:
        """Touches the memory of the next `count` buckets. Only for one that has no keys yet."""
        stop = self._touched + count
        self._buckets[self._touched : stop : _PAGE] = _EMPTY
        self._touched = stop

    def takes(self, codes: CodeRows, keys: int) -> bool:
        """Whether these keys, with which the index has `keys`, may be placed."""
        return bool((self._filled + codes.shape[1]) * 2 <= len(self._buckets))

    def find(self, wanted: CodeRows, codes: CodeColumns) -> Slots:
        """The slot of each key, or `NOWHERE`; `codes` are those of all slots."""
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

    def place(self, slots: Slots, codes: CodeRows) -> None:
        """Takes in keys that are not there."""
        waiting, at = slots.astype(np.int32) + np.int32(1), self._home(codes)
        while len(waiting):
            free = self._buckets[at] <= _EMPTY
            self._buckets[at[free]] = waiting[free]  # of several that meet here, the last one wins
            lost = self._buckets[at] != waiting
            waiting, at = waiting[lost], self._next(at[lost])
        self._filled += len(slots)

    def remove(self, slots: Slots, codes: CodeRows, following: bool) -> None:
        """Forgets keys that are there."""
        waiting, at = slots + 1, self._home(codes)
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
