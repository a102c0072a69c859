"""The key index: rows of key codes -> slots, vectorised.

Slots of removed keys are used again. Where a slot is found is kept in one of two forms, blocks for numbers that lie
close together and buckets for all else. When a form has no room left, a new one takes its place, and the keys follow
little by little with each call: no single batch pays for all keys. Until then both are asked.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.state.blocks import Blocks
from runtime.state.buckets import NOWHERE, Buckets, CodeRows, Slots

__all__ = ["NOWHERE", "CodeRows", "KeyIndex", "Slots"]

_SMALLEST: Final = 64
_STEP: Final = 4096  #: keys that follow with each call at least
_PER_KEY: Final = 4  #: and for each key that is added: all have followed long before there is no room again


class KeyIndex:
    """Finds, adds and removes keys of `width` codes each.

    Args:
        width: codes per key.
    """

    def __init__(self, width: int) -> None:
        self.codes: CodeRows = np.empty((width, _SMALLEST), dtype=np.int64)  #: by slot
        self.live = np.zeros(_SMALLEST, dtype=bool)  #: by slot
        self.used = 0  #: slots ever taken: all live ones lie below
        self._free: Slots = np.empty(0, dtype=np.intp)
        self._form: Blocks | Buckets = Blocks()
        self._former: Blocks | Buckets | None = None  #: only read
        self._waiting = np.zeros(0, dtype=bool)  #: by slot: the former has it, and it is live and has not followed yet
        self._followed = 0  #: no slot below is waiting

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
        self._follow(_STEP + codes.shape[1])
        found = self._form.find(codes, self.codes)
        if self._former is None:
            return found
        missing = np.flatnonzero(found == NOWHERE)
        former = self._former.find(codes[:, missing], self.codes)
        found[missing] = np.where((former >= 0) & self._waiting[former], former, NOWHERE)
        return found

    def add(self, codes: CodeRows) -> Slots:
        """Gives each key a slot. The keys must be distinct and not there yet."""
        count = codes.shape[1]
        slots = self._take_slots(count)
        self.codes[:, slots] = codes
        self.live[slots] = True
        if count and not self._form.takes(codes, len(self)):
            self._renew()
            self._waiting[slots] = False
        self._form.place(slots, codes)
        self._follow(_STEP + _PER_KEY * count)
        return slots

    def remove(self, slots: Slots) -> None:
        """Frees slots, which must be live and distinct."""
        waiting = slots < len(self._waiting)
        waiting[waiting] = self._waiting[slots[waiting]]
        self._waiting[slots[waiting]] = False
        here = slots[~waiting]
        self._form.remove(here, self.codes[:, here], following=self._former is not None)
        self.live[slots] = False
        self._free = np.concatenate([self._free, slots])

    def recode(self, column: int, slots: Slots, codes: npt.NDArray[np.int64]) -> None:
        """Gives other codes to one column of all live slots; keys that differed must still differ."""
        self.codes[column, slots] = codes
        self._former, self._waiting = None, np.zeros(0, dtype=bool)
        self._renew()
        self._follow(self.used)

    # ------------------------------------------------------------ from one form to the next

    def _renew(self) -> None:
        """Begins a new form, which all live keys are to follow to."""
        self._follow(self.used)
        slots = self.slots()
        self._former, self._waiting, self._followed = self._form, self.live.copy(), 0
        self._form = Blocks.spanning(self.codes[:, slots]) or Buckets(len(slots))

    def _follow(self, count: int) -> None:
        """Lets the keys of the next `count` slots follow."""
        if self._former is None:
            return
        stop = self._followed + count
        slots = np.flatnonzero(self._waiting[self._followed : stop]) + self._followed
        self._form.place(slots, self.codes[:, slots])
        self._waiting[slots] = False
        self._followed = stop
        if stop >= len(self._waiting):
            self._former, self._waiting = None, np.zeros(0, dtype=bool)

    # ------------------------------------------------------------ slots

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
