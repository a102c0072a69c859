"""Arrays that grow without a copy.

A large array has its own memory mapping. To grow, the kernel extends the address range, elsewhere if needed, and moves
the page table entries: no data is copied, and a new page takes no memory until it is touched. Such growth is impossible
while a view of the old array exists, or on a system without `mremap`. Where it is impossible, a longer copy replaces
the array. Earlier views stay readable, but show the old array.

Another thread may read `data` at any time: the returned array holds all earlier writes.
"""

import mmap
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_MIN_MAPPED_BYTES: Final = 1 << 20  #: a smaller array is copied: that is cheap, and pages are coarse


class GrowingArray:
    """An array that starts with zeroes.

    Args:
        dtype: type of the elements.
        count: initial length.
    """

    def __init__(self, dtype: npt.DTypeLike, count: int) -> None:
        assert count > 0, "an array needs at least one element"
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._memory = _zeroes(count * self._dtype.itemsize)

    def __len__(self) -> int:
        return len(self._memory) // self._dtype.itemsize

    @property
    def data(self) -> npt.NDArray[Any]:
        """The array at its present length. Do not keep it: growth replaces it, and copies while a view exists."""
        return np.frombuffer(self._memory, dtype=self._dtype)

    def grow(self, count: int) -> None:
        """Extends the array to `count` elements; new elements are zero."""
        assert count >= len(self), "an array cannot shrink"
        nbytes = count * self._dtype.itemsize
        if nbytes > len(self._memory) and not _extend_mapping(self._memory, nbytes):
            longer = _zeroes(nbytes)
            np.frombuffer(longer, dtype=self._dtype)[: len(self)] = self.data
            self._memory = longer


def _zeroes(nbytes: int) -> mmap.mmap | bytearray:
    if nbytes < _MIN_MAPPED_BYTES:
        return bytearray(nbytes)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # some kernels have no huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)  # random access then causes fewer TLB misses
    return pages


def _extend_mapping(memory: mmap.mmap | bytearray, nbytes: int) -> bool:
    if not isinstance(memory, mmap.mmap):
        return False
    try:
        memory.resize(nbytes)
    except (BufferError, SystemError, OSError):  # a view exists; no mremap; no address range left
        return False
    return True
