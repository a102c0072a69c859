"""Text, binary and decimal keys as numbers: each distinct value gets the next number."""

import threading
from copy import copy
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.state.index.growing import GrowingArray
from runtime.state.index.hashing import Hashes, hash_column, text_buffers
from runtime.state.index.text_arena import UNKNOWN_NUMBER
from runtime.state.index.text_table import TextTable

Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

UNKNOWN_CODE: Final = UNKNOWN_NUMBER  #: the code of a value that is not interned


class InternedCodec:
    """Implements `key_codec.KeyCodec`."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._table = TextTable()
        self._hashes = GrowingArray(np.uint64, 1)  #: by code
        self._hashed = 0  #: codes whose hash is there
        self._hash_lock = threading.Lock()

    def __len__(self) -> int:
        return self._table.arena.count

    def encode(self, column: pa.Array, learn: bool) -> Codes:
        return self._table.numbers(text_buffers(_as_bytes(column)), learn)

    def decode(self, codes: Codes, nulls: Mask) -> pa.Array:
        values = self._table.arena.values().take(pa.array(codes, mask=nulls | (codes < 0)))
        return _from_bytes(values, self._kind)

    def hashes(self, codes: Codes) -> Hashes:
        """The hash of the value of each code, as `hash_column` computes it; of an unknown code, it is arbitrary."""
        with self._hash_lock:  # captures on the loop, rows of deltas in the background
            hashed, count = self._hashed, len(self)
            if hashed < count and int(codes.max(initial=-1)) >= hashed:
                self._hashes.grow(max(len(self._hashes), 2 * hashed, count))
                self._hashes.data[hashed:count] = hash_column(self._table.arena.values()[hashed:count])
                self._hashed = count
            indices = np.minimum(codes, self._hashed - 1) if self._hashed else np.zeros_like(codes)
            return self._hashes.data[indices]

    def with_type(self, kind: Any) -> "InternedCodec":
        """A codec that shares the table, which only grows, and decodes to a wider type."""
        wider = copy(self)
        wider._kind = kind
        return wider

    def compact(self, codes: Codes) -> tuple["InternedCodec", Codes]:
        """A codec with only the values of `codes`, and `codes` in its numbering; `UNKNOWN_CODE` stays."""
        codec = InternedCodec(self._kind)
        is_known = codes != UNKNOWN_CODE
        renumbered = np.full(len(codes), UNKNOWN_CODE, dtype=np.int64)
        values = self._table.arena.values().take(pa.array(codes[is_known]))
        renumbered[is_known] = codec.encode(_from_bytes(values, self._kind), learn=True)
        return codec, renumbered


def _as_bytes(column: pa.Array) -> pa.Array:
    return column.view(pa.binary(16)) if pa.types.is_decimal128(column.type) else column


def _from_bytes(values: pa.Array, kind: Any) -> pa.Array:
    if pa.types.is_decimal128(kind):
        return _to_fixed_size(values, 16).view(kind)
    return _to_fixed_size(values, kind.byte_width) if pa.types.is_fixed_size_binary(kind) else values.cast(kind)


def _to_fixed_size(values: pa.Array, width: int) -> pa.Array:
    return values.cast(pa.binary()).cast(pa.binary(width))
