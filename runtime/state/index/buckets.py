"""Row ids of keys by hash: open addressing with linear probing.

Compiled kernels (`runtime.kernels.buckets`) handle key after key. Where there are none, numpy does the same on the same
buckets: every step handles all keys of a batch, and unresolved keys move to the next bucket together.

The table never grows; `KeyIndex` moves the keys to a larger table. Keys are spread over the whole table, so the first
batches fault in all of its pages; `touch` faults in pages ahead of time.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.kernels.loading import native
from runtime.state.index.hashing import mix

RowIds = npt.NDArray[np.intp]
CodeRows = npt.NDArray[np.int64]  #: shape (columns, keys)
CodeMatrix = npt.NDArray[np.int64]  #: the codes by row id, shape (row ids, columns)

NOT_FOUND: Final = -1  #: the row id of an absent key
_EMPTY_BUCKET: Final = 0  # the kernel provides zero pages on first touch, so a large table costs no memory at first
_REMOVED_BUCKET: Final = -1
_MAX_CACHED_KEYS: Final = 1 << 16  #: up to this number of keys, a table of twice the size fits the cache
_BUCKETS_PER_PAGE: Final = 1024  #: buckets per page of memory
_HASH_MULTIPLIER: Final = np.uint64(0xD6E8FEB86659FD93)


class BucketIndex:
    """A hash table with room for at least 1.5 times `keys` keys.

    Args:
        keys: number of keys for which there is room at least.
        min_buckets: minimum number of buckets, a power of two.
    """

    def __init__(self, keys: int, min_buckets: int) -> None:
        self._min_buckets = min_buckets
        self._buckets = np.zeros(max(min_buckets, _bucket_count(keys)), dtype=np.int32)  #: row id + 1
        self._filled = 0  #: upper bound of the buckets that are not empty
        self.touched = 0  #: buckets whose memory was touched ahead of time

    def __len__(self) -> int:
        return len(self._buckets)

    def has_size_for(self, keys: int) -> bool:
        """Whether this table has the size of a new table for `keys` keys."""
        return len(self) == max(self._min_buckets, _bucket_count(keys))

    def free_keys(self, keys: int) -> int:
        """The number of keys that may still be added to an index of `keys` keys."""
        return len(self._buckets) // 2 - self._filled

    def touch(self, count: int) -> None:
        """Touches the memory of the next `count` buckets. Only valid before the first key is added."""
        stop = self.touched + count
        self._buckets[self.touched : stop : _BUCKETS_PER_PAGE] = _EMPTY_BUCKET
        self.touched = stop

    def reserve(self, codes: CodeRows, keys: int) -> bool:
        """Whether there is room for new keys, after which the index has `keys` keys."""
        return bool((self._filled + codes.shape[1]) * 2 <= len(self._buckets))

    def find(self, wanted: CodeRows, codes: CodeMatrix) -> RowIds:
        """The row id of each key, or `NOT_FOUND`; `codes` are the codes of all row ids."""
        if (kernels := native()) is not None:
            found = np.empty(wanted.shape[1], dtype=np.intp)
            kernels.buckets.find(np.ascontiguousarray(wanted), codes, self._buckets, found)
            return found
        at = self._first_bucket(wanted)
        here = self._buckets[at].astype(np.intp)
        same = _match_mask(here, wanted, codes)
        found = np.where(same, here - 1, NOT_FOUND)
        waiting = np.flatnonzero(~same & (here != _EMPTY_BUCKET))
        at = at[waiting]
        while len(waiting):
            at = self._next_bucket(at)
            here = self._buckets[at].astype(np.intp)
            same = _match_mask(here, wanted[:, waiting], codes)
            found[waiting[same]] = here[same] - 1
            onward = ~same & (here != _EMPTY_BUCKET)
            waiting, at = waiting[onward], at[onward]
        return found

    def insert(self, row_ids: RowIds, codes: CodeRows) -> None:
        """Adds keys, which must be absent."""
        self._filled += len(row_ids)
        if (kernels := native()) is not None:
            kernels.buckets.insert(np.ascontiguousarray(codes), row_ids, self._buckets)
            return
        waiting, at = row_ids.astype(np.int32) + np.int32(1), self._first_bucket(codes)
        while len(waiting):
            free = self._buckets[at] <= _EMPTY_BUCKET
            self._buckets[at[free]] = waiting[free]  # several keys may choose a bucket: numpy keeps the last
            lost = self._buckets[at] != waiting
            waiting, at = waiting[lost], self._next_bucket(at[lost])

    def remove(self, row_ids: RowIds, codes: CodeRows, following: bool) -> None:
        """Removes keys, which must be present."""
        if (kernels := native()) is not None:
            kernels.buckets.remove(np.ascontiguousarray(codes), row_ids, self._buckets)
            return
        waiting, at = row_ids + 1, self._first_bucket(codes)
        while len(waiting):
            here = self._buckets[at] == waiting
            self._buckets[at[here]] = _REMOVED_BUCKET
            waiting, at = waiting[~here], self._next_bucket(at[~here])

    def _first_bucket(self, codes: CodeRows) -> RowIds:
        hashes = codes[0].view(np.uint64)
        for column in codes[1:]:
            hashes = hashes * _HASH_MULTIPLIER + column.view(np.uint64)
        return (mix(hashes) & np.uint64(len(self._buckets) - 1)).view(np.intp)

    def _next_bucket(self, at: RowIds) -> RowIds:
        return (at + 1) & (len(self._buckets) - 1)


def _bucket_count(keys: int) -> int:
    per_key = 6 if keys <= _MAX_CACHED_KEYS else 3
    return 1 << (per_key * keys - 1).bit_length() if keys else 0


def _match_mask(here: RowIds, wanted: CodeRows, codes: CodeMatrix) -> npt.NDArray[np.bool_]:
    same = here > _EMPTY_BUCKET
    for column, values in zip(codes.T, wanted, strict=True):
        same &= column[here - 1] == values
    return same
