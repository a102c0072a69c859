"""Kernels of the key hash, which is part of the checkpoint format. Its definition: `index.hashing`."""

from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.kernels.hash_constants import (
    COMBINE_MULTIPLIER,
    FLOAT_WORDS,
    INTEGER_WORDS,
    MIX_1,
    MIX_2,
    MIX_SHIFT_BITS,
    NULL_HASH,
    PIECE_BYTES,
)
from runtime.kernels.jit import (
    BYTES,
    INTEGERS,
    NOTHING,
    WORDS,
    WORDS_OUT,
    compiled,
    inlined,
    load_byte_of,
    load_word_at,
    load_word_of,
    outlined,
)

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_BLOCK_ROWS: Final = 1024  #: whose words stay in the first cache
_MAGNITUDE_BITS: Final = np.uint64(0x7FFFFFFFFFFFFFFF)
_INFINITY: Final = np.uint64(0x7FF0000000000000)
_NAN: Final = np.uint64(0x7FF8000000000000)


@inlined
def mix_word(word: np.uint64) -> np.uint64:
    """MurmurHash3's finaliser."""
    word = (word ^ (word >> MIX_SHIFT_BITS)) * MIX_1
    word = (word ^ (word >> MIX_SHIFT_BITS)) * MIX_2
    return word ^ (word >> MIX_SHIFT_BITS)


@inlined
def float_word(word: np.uint64) -> np.uint64:
    """The bits of a float64, with -0.0 as 0.0 and a single NaN."""
    magnitude = word & _MAGNITUDE_BITS
    if magnitude == np.uint64(0):
        return magnitude
    return _NAN if magnitude > _INFINITY else word


@inlined
def word_at(data: int, at: int, count: int) -> np.uint64:
    """The first `count` bytes (1 to 8) at position `at` as a little-endian word.

    `data`: an address, from which at least 16 bytes can be read.
    """
    unused_bits = np.uint64(64 - 8 * count)
    if at + count >= 8:
        return np.uint64(load_word_at(data + at + count - 8) >> unused_bits)
    return np.uint64((load_word_at(data + at) << unused_bits) >> unused_bits)


@compiled(NOTHING, WORDS, WORDS_OUT)
def mix(words: Words, mixed: Words) -> None:
    """`mixed[i]` becomes the mixed `words[i]`. Both may be the same array. 2 multiplications a word."""
    for row in range(len(words)):
        mixed[row] = mix_word(words[row])


@compiled(NOTHING, INTEGERS, INTEGERS, INTEGERS, WORDS_OUT, releases_gil=False)
def hash_rows(addresses: Integers, kinds: Integers, masks: Integers, hashes: Words) -> None:
    """`hashes[i]` becomes the hash of row `i` of several columns.

    Each loop over rows has no branch, so that LLVM makes vectors of it: 0.24 ns a word instead of 1.4 ns with AVX-512.
    The kernel keeps the GIL, as a thread that took it would delay the end of a call by up to 5 ms.

    Args:
        addresses: of the words of each column, 8 bytes a row.
        kinds: of the words of each column: `INTEGER_WORDS`, `FLOAT_WORDS` or `HASHED_WORDS`.
        masks: address of the validity of each row, a byte each; 0: all rows are valid.
    """
    words = np.empty(_BLOCK_ROWS, dtype=np.uint64)
    for start in range(0, len(hashes), _BLOCK_ROWS):
        block = hashes[start : start + _BLOCK_ROWS]
        rows = len(block)
        for column in range(len(addresses)):
            address, kind = addresses[column] + 8 * start, kinds[column]
            if kind == INTEGER_WORDS:
                for row in range(rows):
                    words[row] = mix_word(load_word_of(address, row))
            elif kind == FLOAT_WORDS:
                for row in range(rows):
                    words[row] = mix_word(float_word(load_word_of(address, row)))
            else:
                for row in range(rows):
                    words[row] = load_word_of(address, row)
            if masks[column] != 0:
                mask = masks[column] + start
                for row in range(rows):
                    words[row] = words[row] if load_byte_of(mask, row) != 0 else NULL_HASH
            if column == 0:
                for row in range(rows):
                    block[row] = words[row]
            else:
                for row in range(rows):
                    block[row] = mix_word(block[row] * COMBINE_MULTIPLIER + words[row])


@outlined
def piece_hash(data: int, at: int, left: int) -> np.uint64:
    """The hash of up to 64 bytes at position `at`: two multiplications per 8 bytes.

    `data`: an address, from which at least 16 bytes can be read.
    """
    mixed = mix_word(np.uint64(left))
    while left > 8:
        mixed = mix_word(mixed ^ load_word_at(data + at))
        left -= 8
        at += 8
    if left > 0:
        mixed = mix_word(mixed ^ word_at(data, at, left))
    return mixed


@compiled(NOTHING, BYTES, INTEGERS, INTEGERS, WORDS_OUT, releases_gil=False)
def hash_texts(data: Bytes, starts: Integers, lengths: Integers, hashes: Words) -> None:
    """`hashes[i]` becomes the hash of the `lengths[i]` bytes of `data` (at least 16) from `starts[i]` on.

    Of a longer value than 64 bytes, it is the sum of the hashes of its pieces, the later ones mixed with their offsets.
    """
    begin = data.ctypes.data
    for row in range(len(starts)):
        start, length = starts[row], lengths[row]
        hashes[row] = piece_hash(begin, start, min(length, PIECE_BYTES))
        for offset in range(PIECE_BYTES, length, PIECE_BYTES):
            following = piece_hash(begin, start + offset, min(length - offset, PIECE_BYTES))
            hashes[row] += mix_word(following + np.uint64(offset))
