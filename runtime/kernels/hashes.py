"""Kernels of the key hash, which is part of the checkpoint format. Its definition: `index.hashing`."""

from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.kernels.jit import BYTES, INTEGERS, NOTHING, WORDS, WORDS_OUT, compiled, inlined, load_word_at, outlined

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_MIX_1: Final = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2: Final = np.uint64(0xC4CEB9FE1A85EC53)
_MIX_SHIFT_BITS: Final = np.uint64(33)
_COMBINE_MULTIPLIER: Final = np.uint64(0xD6E8FEB86659FD93)
_PIECE_BYTES: Final = 64


@inlined
def mix_word(word: np.uint64) -> np.uint64:
    """MurmurHash3's finaliser."""
    word = (word ^ (word >> _MIX_SHIFT_BITS)) * _MIX_1
    word = (word ^ (word >> _MIX_SHIFT_BITS)) * _MIX_2
    return word ^ (word >> _MIX_SHIFT_BITS)


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


@compiled(NOTHING, WORDS_OUT, WORDS)
def combine(combined: Words, following: Words) -> None:
    """Adds the hashes of the next key column to `combined`, in place."""
    for row in range(len(combined)):
        combined[row] = mix_word(combined[row] * _COMBINE_MULTIPLIER + following[row])


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


@compiled(NOTHING, BYTES, INTEGERS, INTEGERS, WORDS_OUT)
def hash_texts(data: Bytes, starts: Integers, lengths: Integers, hashes: Words) -> None:
    """`hashes[i]` becomes the hash of the `lengths[i]` bytes of `data` (at least 16) from `starts[i]` on.

    Of a longer value than 64 bytes, it is the sum of the hashes of its pieces, the later ones mixed with their offsets.
    """
    begin = data.ctypes.data
    for row in range(len(starts)):
        start, length = starts[row], lengths[row]
        hashes[row] = piece_hash(begin, start, min(length, _PIECE_BYTES))
        for offset in range(_PIECE_BYTES, length, _PIECE_BYTES):
            following = piece_hash(begin, start + offset, min(length - offset, _PIECE_BYTES))
            hashes[row] += mix_word(following + np.uint64(offset))
