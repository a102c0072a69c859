"""The key index: rows of key codes -> slots, vectorised.

An open-addressing hash table in numpy. Every step works on all keys of a batch at once: those not settled move on to
the next bucket together, so a batch costs a few array passes however many keys it has. Slots of removed keys are used
again.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.state.hashing import mix

Slots = npt.NDArray[np.intp]
CodeRows = npt.NDArray[np.int64]  #: shape (columns, keys)

NOWHERE: Final = -1  #: the slot of a key that is not there
_EMPTY: Final = -1
_REMOVED: Final = -2
_SMALLEST: Final = 64
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


class KeyIndex:
    """Finds, adds and removes keys of `width` codes each.

    Args:
        width: codes per key.
    """

    def __init__(self, width: int) -> None:
        self.codes: CodeRows = np.empty((width, _SMALLEST), dtype=np.int64)  #: by slot
        self.live = np.zeros(_SMALLEST, dtype=bool)  #: by slot
        self.used = 0  #: slots ever taken: all live ones lie below
        self._buckets = np.full(_SMALLEST * 4, _EMPTY, dtype=np.intp)
        self._filled = 0  #: buckets that are not empty, at most
        self._free: Slots = np.empty(0, dtype=np.intp)

    def __len__(self) -> int:
        return self.used - len(self._free)

    @property
    def capacity(self) -> int:
        """Slots that fit without growing."""
        return len(self.live)

    def slots(self) -> Slots:
        """The slots of all keys."""
        return np.flatnonzero(self.live[: self.used])

    def find(self, codes: CodeRows) -> Slots:
        """The slot of each key, or `NOWHERE`."""
        found = np.full(codes.shape[1], NOWHERE, dtype=np.intp)
        waiting = np.arange(codes.shape[1])
        at = self._home(codes)
        while len(waiting):
            here = self._buckets[at]
            same = here >= 0
            for column, wanted in zip(self.codes, codes, strict=True):
                same &= column[here] == wanted[waiting]
            found[waiting[same]] = here[same]
            onward = ~same & (here != _EMPTY)
            waiting, at = waiting[onward], self._next(at[onward])
        return found

    def add(self, codes: CodeRows) -> Slots:
        """Gives each key a slot. The keys must be distinct and not there yet."""
        count = codes.shape[1]
        slots = self._take_slots(count)
        self.codes[:, slots] = codes
        self.live[slots] = True
        if (self._filled + count) * 2 > len(self._buckets):
            self._rebuild()
        else:
            self._place(slots, codes)
        return slots

    def remove(self, slots: Slots) -> None:
        """Frees slots, which must be live and distinct."""
        waiting, at = slots, self._home(self.codes[:, slots])
        while len(waiting):
            here = self._buckets[at] == waiting
            self._buckets[at[here]] = _REMOVED
            waiting, at = waiting[~here], self._next(at[~here])
        self.live[slots] = False
        self._free = np.concatenate([self._free, slots])

    def recode(self, column: int, slots: Slots, codes: npt.NDArray[np.int64]) -> None:
        """Gives other codes to one column of all live slots; keys that differed must still differ."""
        self.codes[column, slots] = codes
        self._rebuild()

    def _home(self, codes: CodeRows) -> Slots:
        hashes = mix(codes[0].view(np.uint64))
        for column in codes[1:]:
            hashes = mix(hashes * _ODD + column.view(np.uint64))
        return (hashes & np.uint64(len(self._buckets) - 1)).astype(np.intp)

    def _next(self, at: Slots) -> Slots:
        return (at + 1) & (len(self._buckets) - 1)

    def _take_slots(self, count: int) -> Slots:
        again = min(count, len(self._free))
        reused, self._free = self._free[len(self._free) - again :], self._free[: len(self._free) - again]
        fresh = np.arange(self.used, self.used + count - again)
        self.used += count - again
        if self.used > self.capacity:
            self._grow(self.used)
        return np.concatenate([reused, fresh])

    def _grow(self, needed: int) -> None:
        capacity = 1 << (needed - 1).bit_length()
        codes = np.empty((self.codes.shape[0], capacity), dtype=np.int64)
        codes[:, : self.capacity] = self.codes
        live = np.zeros(capacity, dtype=bool)
        live[: self.capacity] = self.live
        self.codes, self.live = codes, live

    def _place(self, slots: Slots, codes: CodeRows) -> None:
        waiting, at = slots, self._home(codes)
        while len(waiting):
            free = self._buckets[at] < 0
            self._buckets[at[free]] = waiting[free]  # of several that meet here, the last one wins
            lost = self._buckets[at] != waiting
            waiting, at = waiting[lost], self._next(at[lost])
        self._filled += len(slots)

    def _rebuild(self) -> None:
        """Makes room, and forgets buckets of removed keys."""
        slots = self.slots()
        size = max(_SMALLEST * 4, 1 << (4 * len(slots) - 1).bit_length())
        self._buckets = np.full(size, _EMPTY, dtype=np.intp)
        self._filled = 0
        self._place(slots, self.codes[:, slots])
