"""Kernels of the text table: byte sequences -> numbers in the order of their first occurrence.

Open addressing with linear probing (Knuth, TAOCP 3, 6.4, algorithm L). A bucket is 64 bits: the upper half of the
value's hash, and its number + 1; 0: empty. The upper bits of the hash choose the first bucket, so that growth moves
buckets nearly in sequence and needs no values. Values are compared a word at a time; they lie end to end in an arena.
Twin: `index.numpy_texts`.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.kernels.hashes import Bytes, Integers, Words, mix_word, word_at
from runtime.kernels.jit import (
    BYTES,
    BYTES_OUT,
    FLAG,
    INTEGER,
    INTEGERS,
    INTEGERS_OUT,
    NOTHING,
    WORD,
    WORDS,
    WORDS_OUT,
    compiled,
    inlined,
    load_word,
)

UNKNOWN: Final = -1  #: the number of a value that is not in the table
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF_BITS: Final = np.uint64(32)
_BLOCK_ROWS: Final = 256
_NUMBER_MASK: Final = np.uint64(0xFFFFFFFF)


@inlined
def hash_bytes(data: Bytes, at: int, length: int) -> np.uint64:
    """A hash of the `length` bytes at `at`: a multiplication per word, then a finaliser. It is not stored anywhere."""
    found = np.uint64(length) * _MULTIPLIER
    end = at + length
    while at + 8 < end:
        found = (((found << np.uint64(29)) | (found >> np.uint64(35))) ^ load_word(data, at)) * _MULTIPLIER
        at += 8
    if at < end:
        found = (((found << np.uint64(29)) | (found >> np.uint64(35))) ^ word_at(data, at, end - at)) * _MULTIPLIER
    return mix_word(found)


@inlined
def same_bytes(one: Bytes, at: int, other: Bytes, there: int, length: int) -> bool:
    """Whether `length` bytes agree."""
    if length < 8:
        return length == 0 or bool(word_at(one, at, length) == word_at(other, there, length))
    last = at + length - 8
    shift = there - at
    while at < last:
        if load_word(one, at) != load_word(other, at + shift):
            return False
        at += 8
    return bool(load_word(one, last) == load_word(other, last + shift))


@inlined
def shift_of(buckets: Words) -> np.uint64:
    """The bits of a hash behind those that choose one of `buckets`, whose number is a power of two of at least 2."""
    shift = np.uint64(64)
    count = len(buckets)
    while count > 1:
        count >>= 1
        shift -= np.uint64(1)
    return shift


@compiled(INTEGER, BYTES, INTEGERS, INTEGERS, INTEGER, WORDS_OUT, BYTES_OUT, INTEGERS_OUT, INTEGERS_OUT, INTEGERS_OUT,
          FLAG, WORD)  # fmt: skip
def number_texts(
    data: Bytes,
    starts: Integers,
    lengths: Integers,
    first: int,
    buckets: Words,
    arena: Bytes,
    offsets: Integers,
    count: Integers,
    numbers: Integers,
    learn: bool,
    hash_mask: np.uint64,
) -> int:
    """Finds the number of each value, and adds absent values if `learn`.

    Stops at the first new value for which buckets (at most half are filled), arena or offsets have no room.

    Args:
        data, starts, lengths: the values, by row.
        first: the row to begin with.
        arena, offsets: bytes of the known values; value n lies at `offsets[n]` to `offsets[n + 1]`.
        count: the number of known values, in an array of length 1; updated.
        numbers: written by row; `UNKNOWN`: absent.
        hash_mask: bits of the hash in use: all, except in tests of collisions.

    Returns:
        The row at which it stopped; the number of rows: at none. A step per row, and a step per word of its value.
    """
    shift, last = shift_of(buckets), np.int64(len(buckets) - 1)
    known = count[0]
    hashes, candidates = np.empty(_BLOCK_ROWS, dtype=np.uint64), np.empty(_BLOCK_ROWS, dtype=np.int64)
    begins, words = np.empty(_BLOCK_ROWS, dtype=np.int64), np.empty(_BLOCK_ROWS, dtype=np.uint64)
    for start in range(first, len(starts), _BLOCK_ROWS):
        rows = min(_BLOCK_ROWS, len(starts) - start)
        for i in range(rows):
            hashes[i] = hash_bytes(data, starts[start + i], lengths[start + i]) & hash_mask
        for i in range(rows):
            bucket = buckets[np.int64(hashes[i] >> shift)]
            candidates[i] = (
                np.int64(bucket & _NUMBER_MASK) - 1 if bucket >> _HALF_BITS == hashes[i] >> _HALF_BITS else -1
            )
        for i in range(rows):
            begins[i] = offsets[max(candidates[i], 0)]
        for i in range(rows):
            words[i] = load_word(arena, begins[i])
        for i in range(rows):
            row = start + i
            at, length = starts[row], lengths[row]
            number = candidates[i]
            if (
                number >= 0
                and offsets[number + 1] - begins[i] == length
                and (length < 8 or load_word(data, at) == words[i])
                and same_bytes(data, at, arena, begins[i], length)
            ):
                numbers[row] = number
                continue
            place = np.int64(hashes[i] >> shift)
            tag = hashes[i] >> _HALF_BITS
            while True:
                bucket = buckets[place]
                if bucket == np.uint64(0):
                    if not learn:
                        numbers[row] = UNKNOWN
                        break
                    end = offsets[known]
                    if 2 * (known + 1) > len(buckets) or known + 1 >= len(offsets) or end + length + 8 > len(arena):
                        count[0] = known
                        return row
                    for byte in range(length):
                        arena[end + byte] = data[at + byte]
                    offsets[known + 1] = end + length
                    numbers[row] = known
                    known += 1
                    buckets[place] = (tag << _HALF_BITS) | np.uint64(known)
                    break
                if bucket >> _HALF_BITS == tag:
                    number = np.int64(bucket & _NUMBER_MASK) - 1
                    begin = offsets[number]
                    if offsets[number + 1] - begin == length and same_bytes(data, at, arena, begin, length):
                        numbers[row] = number
                        break
                place = (place + 1) & last
    count[0] = known
    return len(starts)


@compiled(NOTHING, WORDS, WORDS_OUT)
def spread_buckets(buckets: Words, larger: npt.NDArray[np.uint64]) -> None:
    """Moves all buckets to the empty `larger`, nearly in sequence."""
    shift, last = shift_of(larger), np.int64(len(larger) - 1)
    for bucket in buckets:
        if bucket == np.uint64(0):
            continue
        place = np.int64((bucket & ~_NUMBER_MASK) >> shift)
        while larger[place] != np.uint64(0):
            place = (place + 1) & last
        larger[place] = bucket
