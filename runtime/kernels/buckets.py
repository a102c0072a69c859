"""Kernels of the hash table of `index.buckets`, and of distinct keys and row ids.

A key is a column of `codes`, shape (codes per key, keys). Open addressing with linear probing; a bucket holds a row id
+ 1, 0: empty, -1: removed. The number of buckets is a power of two, and some buckets are always empty.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from runtime.kernels.hashes import Flags, Integers, mix_word
from runtime.kernels.jit import (
    FLAGS_OUT,
    INT32S_OUT,
    INTEGER,
    INTEGER_ROWS,
    INTEGERS,
    INTEGERS_OUT,
    NOTHING,
    compiled,
    inlined,
    prefetch,
)

Buckets = npt.NDArray[np.int32]
_HASH_MULTIPLIER: Final = np.uint64(0xD6E8FEB86659FD93)
_BLOCK_ROWS: Final = 256  #: rows whose buckets are read together: the processor then waits for many at a time


@inlined
def first_bucket(codes: Integers, row: int, last: np.uint64) -> Any:
    """The bucket at which the search for the key in column `row` of `codes` begins."""
    hashed = np.uint64(codes[0, row])
    for place in range(1, codes.shape[0]):
        hashed = hashed * _HASH_MULTIPLIER + np.uint64(codes[place, row])
    return np.int64(mix_word(hashed) & last)


@inlined
def is_same(codes: Integers, row: int, stored: Integers, row_id: np.int64) -> bool:
    """Whether the key in column `row` of `codes` is the key in line `row_id` of `stored`."""
    for place in range(codes.shape[0]):  # noqa: SIM110 - numba compiles no generators
        if codes[place, row] != stored[row_id, place]:
            return False
    return True


@compiled(NOTHING, INTEGER_ROWS, INTEGER_ROWS, INT32S_OUT, INTEGERS_OUT)
def find(codes: Integers, stored: Integers, buckets: Buckets, results: Integers) -> None:
    """`results[i]` becomes the row id of key i, or -1. `stored`: the codes by row id, shape (row ids, codes per key).

    Works in blocks of rows, a step for all rows of a block: hash, first bucket, comparison. A step prefetches for the
    next one. Rows that are not done then probe further.
    """
    last = np.uint64(len(buckets) - 1)
    hashes, candidates = np.empty(_BLOCK_ROWS, dtype=np.uint64), np.empty(_BLOCK_ROWS, dtype=np.int64)
    differences = np.empty(_BLOCK_ROWS, dtype=np.int64)
    buckets_at, stored_at, key_bytes = buckets.ctypes.data, stored.ctypes.data, 8 * codes.shape[0]
    for start in range(0, codes.shape[1], _BLOCK_ROWS):
        rows = min(_BLOCK_ROWS, codes.shape[1] - start)
        for place in range(codes.shape[0]):
            column = codes[place]
            for i in range(rows):
                before = hashes[i] * _HASH_MULTIPLIER if place else np.uint64(0)
                hashes[i] = before + np.uint64(column[np.uint64(start + i)])
        for i in range(rows):
            hashes[i] = mix_word(hashes[i]) & last
            prefetch(buckets_at + 4 * np.int64(hashes[i]))
        for i in range(rows):
            candidates[i] = np.int64(buckets[hashes[i]]) - 1
            differences[i] = candidates[i] < 0
            prefetch(stored_at + key_bytes * max(candidates[i], 0))
        for place in range(codes.shape[0]):
            column = codes[place]
            for i in range(rows):
                stored_code = stored[np.uint64(max(candidates[i], 0)), np.uint64(place)]
                differences[i] |= stored_code ^ column[np.uint64(start + i)]
        for i in range(rows):
            results[start + i] = candidates[i] if differences[i] == 0 else -1
        for i in range(rows):
            if results[start + i] >= 0 or candidates[i] == -1:
                continue
            at = np.int64(hashes[i])
            while True:
                at = (at + 1) & np.int64(last)
                here = np.int64(buckets[at])
                if here == 0:
                    break
                if here > 0 and is_same(codes, start + i, stored, np.int64(here - 1)):
                    results[start + i] = here - 1
                    break


@compiled(NOTHING, INTEGER_ROWS, INTEGERS, INT32S_OUT)
def insert(codes: Integers, row_ids: Integers, buckets: Buckets) -> None:
    """Adds keys, which must be absent and fit."""
    last = np.uint64(len(buckets) - 1)
    for row in range(codes.shape[1]):
        at = first_bucket(codes, row, last)
        while buckets[at] > 0:
            at = (at + 1) & np.int64(last)
        buckets[at] = np.int32(row_ids[row] + 1)


@compiled(NOTHING, INTEGER_ROWS, INTEGERS, INT32S_OUT)
def remove(codes: Integers, row_ids: Integers, buckets: Buckets) -> None:
    """Marks the buckets of keys, which must be present, as removed."""
    last = np.uint64(len(buckets) - 1)
    for row in range(codes.shape[1]):
        at = first_bucket(codes, row, last)
        while np.int64(buckets[at]) != row_ids[row] + 1:
            at = (at + 1) & np.int64(last)
        buckets[at] = np.int32(-1)


@compiled(INTEGER, INTEGER_ROWS, INT32S_OUT, INTEGERS_OUT, INTEGERS_OUT)
def distinct(codes: Integers, buckets: Buckets, first_rows: Integers, numbers: Integers) -> int:
    """Numbers the distinct keys in the order of their first rows.

    Args:
        codes: the keys.
        buckets: zeroes, more than keys.
        first_rows: written: by number, the first row with this key.
        numbers: written: by row, the number of its key.

    Returns:
        The number of distinct keys.
    """
    last = np.uint64(len(buckets) - 1)
    count = 0
    for row in range(codes.shape[1]):
        at = first_bucket(codes, row, last)
        while True:
            here = np.int64(buckets[at])
            if here == 0:
                first_rows[count] = row
                numbers[row] = count
                count += 1
                buckets[at] = np.int32(count)
                break
            same = True
            for place in range(codes.shape[0]):
                if codes[place, row] != codes[place, first_rows[here - 1]]:
                    same = False
                    break
            if same:
                numbers[row] = here - 1
                break
            at = (at + 1) & np.int64(last)
    return count


@compiled(INTEGER, INTEGERS, FLAGS_OUT, INTEGERS_OUT)
def first_rows(row_ids: Integers, marks: Flags, rows: Integers) -> int:
    """Writes to `rows` where each distinct row id occurs first, in order; returns the number of distinct row ids.

    `marks` holds False for every row id, before and after.
    """
    count = 0
    for row in range(len(row_ids)):
        if not marks[np.uint64(row_ids[row])]:
            marks[np.uint64(row_ids[row])] = True
            rows[count] = row
            count += 1
    for i in range(count):
        marks[np.uint64(row_ids[rows[i]])] = False
    return count
