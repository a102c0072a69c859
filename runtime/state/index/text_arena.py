"""Byte sequences end to end, by number.

The arena only grows, so a capture may decode from it in another thread while values are added.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.state.index.growing import GrowingArray
from runtime.state.index.hashing import WORD_BYTES

Numbers = npt.NDArray[np.int64]

UNKNOWN_NUMBER: Final = -1  #: the number of a value that is not in a table


class TextArena:
    """Values by number. Value n lies at `offsets[n]` to `offsets[n + 1]` of `data`; a word behind the last is free."""

    def __init__(self) -> None:
        self._data = GrowingArray(np.uint8, 1024)
        self._offsets = GrowingArray(np.int64, 65)
        self.count = 0  #: values; changed last, because a decoding thread reads up to this number

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes. Fetch the array again after `reserve`."""
        return self._data.data

    @property
    def offsets(self) -> Numbers:
        """By number, the first byte of the value. Fetch the array again after `reserve`."""
        return self._offsets.data

    def reserve(self, values: int, nbytes: int) -> None:
        """Makes room for further values."""
        end = int(self.offsets[self.count])
        if end + nbytes + WORD_BYTES > len(self._data):
            self._data.grow(2 * (end + nbytes + WORD_BYTES))
        if self.count + values >= len(self._offsets):
            self._offsets.grow(2 * (self.count + values + 1))

    def values(self) -> Any:
        """All values as an Arrow array of type large_binary, without a copy."""
        count = self.count  # read before offsets and data, which only grow
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), count, buffers)
