"""Kernels of the text table: byte sequences -> numbers in the order of their first occurrence.

Open addressing with linear probing (Knuth, TAOCP 3, 6.4, algorithm L). A bucket is 64 bits: the upper half of the
value's hash, and its number + 1; 0: empty. The upper bits of the hash choose the first bucket, so that growth moves
buckets nearly in sequence and needs no values. Values are compared a word at a time; they lie end to end in an arena.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.kernels.hashes import Bytes, Integers, Words, word_at
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
    fold_product,
    inlined,
    load_word_at,
    prefetch,
)

UNKNOWN: Final = -1  #: the number of a value that is not in the table
_SECRET_0: Final = np.uint64(0xA0761D6478BD642F)
_SECRET_1: Final = np.uint64(0xE7037ED1A0B428DB)
_SECRET_2: Final = np.uint64(0x8EBC6AF09C88C6E3)
_HALF_BITS: Final = np.uint64(32)
_BLOCK_ROWS: Final = 256
_NUMBER_MASK: Final = np.uint64(0xFFFFFFFF)


@inlined
def hash_bytes(data: int, at: int, length: int) -> np.uint64:
    """A hash of `length` bytes: a multiplication per 16 bytes, as wyhash (Wang Yi). It is not stored anywhere.

    `data`: an address, from which at least 16 bytes can be read; `at`: the position of the first byte.
    """
    begin = data + at
    end = begin + length
    digest = _SECRET_0 ^ np.uint64(length)
    while begin + 16 < end:
        digest = fold_product(load_word_at(begin) ^ _SECRET_1, load_word_at(begin + 8) ^ digest)
        begin += 16
    first, last = np.uint64(0), np.uint64(0)
    if begin + 8 <= end:
        first, last = load_word_at(begin), load_word_at(end - 8)
    elif begin < end:
        first = word_at(data, begin - data, end - begin)
    return np.uint64(fold_product(_SECRET_2, fold_product(first ^ _SECRET_1, last ^ digest)))


@inlined
def same_bytes(left: int, at: int, right: int, there: int, length: int) -> bool:
    """Whether `length` bytes agree; arguments as of `word_at`. A loop without an early exit is faster."""
    if length < 8:
        return length == 0 or bool(word_at(left, at, length) == word_at(right, there, length))
    different = load_word_at(left + at + length - 8) ^ load_word_at(right + there + length - 8)
    for word in range(length >> 3):
        different |= load_word_at(left + at + 8 * word) ^ load_word_at(right + there + 8 * word)
    return bool(different == np.uint64(0))


@inlined
def shift_of(buckets: Words) -> np.uint64:
    """The bits of a hash behind those that choose one of `buckets`, whose number is a power of two of at least 2."""
    shift = np.uint64(64)
    count = len(buckets)
    while count > 1:
        count >>= 1
        shift -= np.uint64(1)
    return shift


@compiled(INTEGER, BYTES, INTEGERS, INTEGERS, INTEGER, WORDS_OUT, INTEGER, BYTES_OUT, INTEGERS_OUT, INTEGERS_OUT,
          INTEGERS_OUT, FLAG, WORD)  # fmt: skip
def number_texts(
    data: Bytes,
    starts: Integers,
    lengths: Integers,
    first: int,
    buckets: Words,
    room: int,
    arena: Bytes,
    offsets: Integers,
    count: Integers,
    numbers: Integers,
    learn: bool,
    hash_mask: np.uint64,
) -> int:
    """Finds the number of each value, and adds absent values if `learn`.

    Stops at the first new value for which buckets, arena or offsets have no room. Works in blocks of rows, a step for
    all rows of a block: hash, first two buckets, place in the arena, comparison. A step prefetches for the next one.
    Rows that are not done then probe further, and new values are added.

    Args:
        data, starts, lengths: the values, by row.
        first: the row to begin with.
        room: the number of values for which `buckets` have room, less than their number.
        arena, offsets: bytes of the known values; value n lies at `offsets[n]` to `offsets[n + 1]`.
        count: the number of known values, in an array of length 1; updated.
        numbers: written by row; `UNKNOWN`: absent.
        hash_mask: bits of the hash in use: all, except in tests of collisions.

    Returns:
        The row at which it stopped; the number of rows: at none. A step per row, and a step per word of its value.
    """
    shift, last = shift_of(buckets), np.uint64(len(buckets) - 1)
    value_count = count[0]
    bytes_in, bytes_known = data.ctypes.data, arena.ctypes.data
    buckets_at, offsets_at = buckets.ctypes.data, offsets.ctypes.data
    hashes, candidates = np.empty(_BLOCK_ROWS, dtype=np.uint64), np.empty(_BLOCK_ROWS, dtype=np.int64)
    for start in range(first, len(starts), _BLOCK_ROWS):
        rows = min(_BLOCK_ROWS, len(starts) - start)
        for i in range(rows):
            hashes[i] = hash_bytes(bytes_in, starts[start + i], lengths[start + i]) & hash_mask
            prefetch(buckets_at + 8 * np.int64(hashes[i] >> shift))
        for i in range(rows):
            place, tag = hashes[i] >> shift, hashes[i] >> _HALF_BITS
            bucket, following = buckets[place], buckets[(place + np.uint64(1)) & last]
            if bucket >> _HALF_BITS != tag:
                bucket = following
            candidates[i] = np.int64(bucket & _NUMBER_MASK) - 1 if bucket >> _HALF_BITS == tag else UNKNOWN
            prefetch(offsets_at + 8 * max(candidates[i], 0))
        for i in range(rows):
            begin = bytes_known + offsets[np.uint64(max(candidates[i], 0))]
            prefetch(begin)
            prefetch(begin + lengths[start + i])
        for i in range(rows):
            row, number = start + i, np.uint64(max(candidates[i], 0))
            begin, length = offsets[number], lengths[row]
            is_known = (
                candidates[i] >= 0
                and offsets[number + np.uint64(1)] - begin == length
                and same_bytes(bytes_in, starts[row], bytes_known, begin, length)
            )
            numbers[row] = candidates[i] if is_known else UNKNOWN
        for i in range(rows):
            row = start + i
            if numbers[row] != UNKNOWN:
                continue
            at, length = starts[row], lengths[row]
            place, tag = hashes[i] >> shift, hashes[i] >> _HALF_BITS
            while True:
                bucket = buckets[place]
                if bucket == np.uint64(0):
                    if not learn:
                        break
                    end = offsets[value_count]
                    if value_count >= room or value_count + 1 >= len(offsets) or end + length + 8 > len(arena):
                        count[0] = value_count
                        return row
                    for byte in range(length):
                        arena[end + byte] = data[at + byte]
                    offsets[value_count + 1] = end + length
                    numbers[row] = value_count
                    value_count += 1
                    buckets[place] = (tag << _HALF_BITS) | np.uint64(value_count)
                    break
                if bucket >> _HALF_BITS == tag:
                    number = bucket & _NUMBER_MASK
                    begin = offsets[number - np.uint64(1)]
                    if offsets[number] - begin == length and same_bytes(bytes_in, at, bytes_known, begin, length):
                        numbers[row] = np.int64(number) - 1
                        break
                place = (place + np.uint64(1)) & last
    count[0] = value_count
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
