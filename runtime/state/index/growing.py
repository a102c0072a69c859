"""Arrays that grow without being copied.

A large one lies in pages of its own. To grow, the system gives it more addresses, elsewhere if need be, and moves the
pages there by their table: nothing is copied, and a new page costs nothing until it is touched. While somebody still
looks at the old array this cannot be; then, and where the system does not offer it, a longer copy takes its place.
So what was handed out stays readable in any case, but it is not the array any more.

Another thread may ask for the array at any time: whatever it gets holds what was written before.
"""

import mmap
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_MAPPED_BYTES: Final = 1 << 20  #: a smaller one is copied: that is cheap, and pages are coarse


class GrowingArray:
    """An array of zeroes.

    Args:
        dtype: of what it holds.
        count: how long it is at first.
    """

    def __init__(self, dtype: npt.DTypeLike, count: int) -> None:
        assert count > 0, "an array begins with something"
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._memory = _zeroes(count * self._dtype.itemsize)

    def __len__(self) -> int:
        return len(self._memory) // self._dtype.itemsize

    @property
    def data(self) -> npt.NDArray[Any]:
        """The array as long as it is now. Do not keep it: growing replaces it, and costs a copy while it is held."""
        return np.frombuffer(self._memory, dtype=self._dtype)

    def grow(self, count: int) -> None:
        """Makes it `count` long, with zeroes behind what was there."""
        assert count >= len(self), "an array does not get shorter"
        nbytes = count * self._dtype.itemsize
        if nbytes > len(self._memory) and not _lengthened(self._memory, nbytes):
            longer = _zeroes(nbytes)
            np.frombuffer(longer, dtype=self._dtype)[: len(self)] = self.data
            self._memory = longer


def _zeroes(nbytes: int) -> mmap.mmap | bytearray:
    if nbytes < _MAPPED_BYTES:
        return bytearray(nbytes)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # not every kernel has them
            pages.madvise(mmap.MADV_HUGEPAGE)  # what is touched here and there costs fewer look-ups of addresses
    return pages


def _lengthened(memory: mmap.mmap | bytearray, nbytes: int) -> bool:
    if not isinstance(memory, mmap.mmap):
        return False
    try:
        memory.resize(nbytes)
    except (BufferError, SystemError, OSError):  # somebody looks at it; the system cannot; it has no room there
        return False
    return True
