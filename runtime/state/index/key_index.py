"""The key index: rows of key codes -> row ids, vectorised.

Row ids of removed keys are reused. The mapping has two forms: blocks for integers that are close together,
buckets for all other keys. When a form is full, a new one replaces it. The keys are moved a few at a time with each
call, so that no single batch pays for all of them. Until the move is complete, both forms are searched.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.state.index.blocks import Blocks
from runtime.state.index.buckets import NOWHERE, Buckets, CodeColumns, CodeRows, Slots
from runtime.state.index.growing import GrowingArray

__all__ = ["NOWHERE", "CodeRows", "KeyIndex", "Slots"]

_SMALLEST: Final = 64
_STEP: Final = 4096  #: minimum number of keys moved per call
_PER_KEY: Final = 4  #: keys moved per added key: the move ends long before the new form is full
_PIECE: Final = 1 << 16  #: row ids processed at a time: they fit the cache
_PREPARING: Final = 1 << 18  #: number of keys from which the next buckets are prepared ahead of time
_TOUCHED_PER_KEY: Final = 24  #: buckets touched per added key: all of them well before they are needed


class KeyIndex:
    """Finds, adds and removes keys of `width` codes each.

    Args:
        width: codes per key.
    """

    def __init__(self, width: int) -> None:
        self._codes = [GrowingArray(np.int64, _SMALLEST) for _ in range(width)]  #: by column, by row id
        self._live = GrowingArray(bool, _SMALLEST)  #: by row id
        self.used = 0  #: row ids ever assigned: all live ids are below
        self._free = GrowingArray(np.intp, _SMALLEST)  #: row ids for reuse, the last first
        self._freed = 0  #: length of `_free` in use
        self._form: Blocks | Buckets = Blocks()
        self._former: Blocks | Buckets | None = None  #: only read
        self._waiting = np.zeros(0, dtype=bool)  #: by row id: live, and still to be moved from the former form
        self._followed = 0  #: no row id below is waiting
        self._next: Buckets | None = None  #: prepared for the time when the form is full

    def __len__(self) -> int:
        return self.used - self._freed

    @property
    def capacity(self) -> int:
        """Row ids that fit without growing."""
        return len(self._live)

    def slots(self) -> Slots:
        """The row ids of all keys."""
        return np.flatnonzero(self._live.data[: self.used])

    def column(self, position: int) -> npt.NDArray[np.int64]:
        """A code of each key, by row id. Read only; fetch it again after keys were added."""
        return self._codes[position].data

    def codes_of(self, row_ids: Slots) -> CodeRows:
        """A copy of the codes of these keys."""
        codes = np.empty((len(self._codes), len(row_ids)), dtype=np.int64)
        for row, column in zip(codes, self._codes, strict=True):
            np.take(column.data, row_ids, out=row, mode="clip")  # row ids are in range; a checked `out` costs a copy
        return codes

    def find(self, codes: CodeRows) -> Slots:
        """The row id of each key, or `NOWHERE`."""
        self._follow(_STEP + codes.shape[1])
        found = self._form.find(codes, self._columns())
        if self._former is None:
            return found
        missing = np.flatnonzero(found == NOWHERE)
        former = self._former.find(codes[:, missing], self._columns())
        found[missing] = np.where((former >= 0) & self._waiting[former], former, NOWHERE)
        return found

    def add(self, codes: CodeRows) -> Slots:
        """Assign a row id to each key. The keys must be distinct and absent."""
        count = codes.shape[1]
        row_ids = self._take_slots(count)
        for column, row in zip(self._codes, codes, strict=True):
            column.data[row_ids] = row
        self._live.data[row_ids] = True
        if count and not self._form.takes(codes, len(self)):
            self._renew()
            self._waiting[row_ids] = False
        self._form.place(row_ids, codes)
        self._follow(_STEP + _PER_KEY * count)
        self._prepare(count)
        return row_ids

    def remove(self, row_ids: Slots) -> None:
        """Remove the keys at these row ids, which must be live and distinct."""
        waiting = row_ids < len(self._waiting)
        waiting[waiting] = self._waiting[row_ids[waiting]]
        self._waiting[row_ids[waiting]] = False
        here = row_ids[~waiting]
        self._form.remove(here, self.codes_of(here), following=self._former is not None)
        self._live.data[row_ids] = False
        self._put_back(row_ids)

    def recode(self, column: int, row_ids: Slots, codes: npt.NDArray[np.int64]) -> None:
        """Replace one code of all live keys; different keys must stay different."""
        self._codes[column].data[row_ids] = codes
        self._former, self._waiting = None, np.zeros(0, dtype=bool)
        self._renew()
        self._follow(self.used)

    # ------------------------------------------------------------ moving to a new form

    def _renew(self) -> None:
        """Start a new form, to which all live keys are moved."""
        self._follow(self.used)
        self._former, self._waiting, self._followed = self._form, self._live.data[: self.used].copy(), 0
        self._form = Blocks.spanning(self._pieces(), len(self)) or self._buckets()

    def _pieces(self) -> Iterator[CodeRows]:
        """The codes of all keys, newest first, then oldest: keys too far apart for blocks show up early."""
        live = self._live.data
        starts = deque(range(0, self.used, _PIECE))
        starts.rotate(1)
        for start in starts:
            stop = min(start + _PIECE, self.used)
            row_ids = np.flatnonzero(live[start:stop]) + start
            if len(row_ids):
                yield self.codes_of(row_ids)

    def _buckets(self) -> Buckets:
        prepared, self._next = self._next, None
        return prepared if prepared is not None and prepared.suits(len(self)) else Buckets(len(self))

    def _prepare(self, count: int) -> None:
        """Touch the memory of the next form, a little with each call, once the present form is nearly full."""
        keys = len(self)
        left = self._form.left(keys)
        if keys < _PREPARING or 3 * left > keys or self._former is not None:
            return
        if self._next is None:
            self._next = Buckets(keys + max(0, left) + 1)
        self._next.touch(_TOUCHED_PER_KEY * count)

    def _follow(self, count: int) -> None:
        """Move the keys of the next `count` row ids to the new form."""
        if self._former is None:
            return
        stop = self._followed + count
        row_ids = np.flatnonzero(self._waiting[self._followed : stop]) + self._followed
        self._form.place(row_ids, self.codes_of(row_ids))
        self._waiting[row_ids] = False
        self._followed = stop
        if stop >= len(self._waiting):
            self._former, self._waiting = None, np.zeros(0, dtype=bool)

    # ------------------------------------------------------------ slots

    def _columns(self) -> CodeColumns:
        return [column.data for column in self._codes]

    def _take_slots(self, count: int) -> Slots:
        again = min(count, self._freed)
        self._freed -= again
        reused = self._free.data[self._freed : self._freed + again].copy()
        fresh = np.arange(self.used, self.used + count - again)
        self.used += count - again
        if self.used > self.capacity:
            for part in (self._live, *self._codes):
                part.grow(_power(self.used))
        return np.concatenate([reused, fresh])

    def _put_back(self, row_ids: Slots) -> None:
        freed = self._freed + len(row_ids)
        if freed > len(self._free):
            self._free.grow(_power(freed))
        self._free.data[self._freed : freed] = row_ids
        self._freed = freed


def _power(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()
