"""Row ids of keys by hash: open addressing with linear probing.

Compiled kernels (`runtime.kernels.buckets`) handle key after key.

The table never grows; `KeyIndex` moves the keys to a larger table. Keys are spread over the whole table, so the first
batches fault in all of its pages; `touch` faults in pages ahead of time.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.kernels.loading import native

RowIds = npt.NDArray[np.intp]
CodeRows = npt.NDArray[np.int64]  #: shape (columns, keys)
CodeMatrix = npt.NDArray[np.int64]  #: the codes by row id, shape (row ids, columns)

NOT_FOUND: Final = -1  #: the row id of an absent key
_EMPTY_BUCKET: Final = 0  # the kernel provides zero pages on first touch, so a large table costs no memory at first
_MAX_CACHED_KEYS: Final = 1 << 16  #: up to this number of keys, a table of twice the size fits the cache
_BUCKETS_PER_PAGE: Final = 1024  #: buckets per page of memory


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

    def find(self, keys: CodeRows, codes: CodeMatrix) -> RowIds:
        """The row id of each key, or `NOT_FOUND`; `codes` are the codes of all row ids."""
        row_ids = np.empty(keys.shape[1], dtype=np.intp)
        native().buckets.find(np.ascontiguousarray(keys), codes, self._buckets, row_ids)
        return row_ids

    def insert(self, row_ids: RowIds, codes: CodeRows) -> None:
        """Adds keys, which must be absent."""
        self._filled += len(row_ids)
        native().buckets.insert(np.ascontiguousarray(codes), row_ids, self._buckets)

    def remove(self, row_ids: RowIds, codes: CodeRows, following: bool) -> None:
        """Removes keys, which must be present."""
        native().buckets.remove(np.ascontiguousarray(codes), row_ids, self._buckets)


def _bucket_count(keys: int) -> int:
    per_key = 6 if keys <= _MAX_CACHED_KEYS else 3
    return 1 << (per_key * keys - 1).bit_length() if keys else 0
