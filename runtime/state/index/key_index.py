"""The key index: rows of key codes -> row ids, vectorised.

Row ids of removed keys are reused. The mapping has two forms: blocks for integers that are close together,
buckets for all other keys. When a form is full, a new form replaces it. The keys are moved a few at a time with each
call, so that no single batch pays for all of them. Until the move is complete, both forms are searched.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.state.index.blocks import BlockIndex, BlockLimits
from runtime.state.index.buckets import NOT_FOUND, BucketIndex, CodeMatrix, CodeRows, RowIds
from runtime.state.index.growing import GrowingArray

__all__ = ["NOT_FOUND", "CodeRows", "KeyIndex", "RowIds"]

_MIN_CAPACITY: Final = 64
_PIECE_ROW_IDS: Final = 1 << 16  #: row ids processed at a time: they fit the cache
_TOUCHED_BUCKETS_PER_KEY: Final = 24  #: touched per added key, so that all buckets are touched before use


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTuning:
    """When an index changes its form, and how many keys are moved at a time."""

    blocks: BlockLimits = BlockLimits()
    min_moved_keys: int = 4096  #: minimum number of keys moved per call
    moved_per_added_key: int = 4  #: keys moved per added key: the move ends long before the new form is full
    min_prepared_keys: int = 1 << 18  #: number of keys from which the next buckets are prepared ahead of time
    min_buckets: int = 256  #: minimum number of buckets of a hash table; a power of two


DEFAULT_TUNING: Final = IndexTuning()


class KeyIndex:
    """Finds, adds and removes keys of `width` codes each.

    Args:
        width: codes per key.
        tuning: when the index changes its form.
    """

    def __init__(self, width: int, tuning: IndexTuning = DEFAULT_TUNING) -> None:
        self._tuning = tuning
        self._width = width
        self._codes = GrowingArray(np.int64, _MIN_CAPACITY * width)  #: the codes of a key lie together
        self._live = GrowingArray(bool, _MIN_CAPACITY)  #: by row id, whether it has a key
        self.used = 0  #: row ids ever assigned: all live ids are below
        self._reusable = GrowingArray(np.intp, _MIN_CAPACITY)  #: row ids for reuse; the last is reused first
        self._reusable_count = 0  #: length of `_reusable` in use
        self.form: BlockIndex | BucketIndex = BlockIndex(tuning.blocks)
        self._old_form: BlockIndex | BucketIndex | None = None  #: searched until all its keys are moved
        self._unmoved = np.zeros(0, dtype=bool)  #: by row id: live, and still to be moved from the old form
        self._moved_below = 0  #: no row id below is unmoved
        self._prepared_form: BucketIndex | None = None  #: touched ahead, to replace `form` when it is full

    def __len__(self) -> int:
        return self.used - self._reusable_count

    @property
    def capacity(self) -> int:
        """Number of row ids that fit without growing."""
        return len(self._live)

    def row_ids(self) -> RowIds:
        """The row ids of all keys."""
        return np.flatnonzero(self._live.data[: self.used])

    def column(self, position: int) -> npt.NDArray[np.int64]:
        """The codes in column `position`, by row id. Read only; fetch it again after keys were added."""
        return self._matrix()[:, position]

    def codes_of(self, row_ids: RowIds) -> CodeRows:
        """A copy of the codes of the keys at `row_ids`."""
        return np.ascontiguousarray(self._matrix()[row_ids].T)

    def find(self, codes: CodeRows) -> RowIds:
        """The row id of each key, or `NOT_FOUND`."""
        self._move_keys(self._tuning.min_moved_keys + codes.shape[1])
        row_ids = self.form.find(codes, self._matrix())
        if self._old_form is None:
            return row_ids
        missing = np.flatnonzero(row_ids == NOT_FOUND)
        former = self._old_form.find(codes[:, missing], self._matrix())
        row_ids[missing] = np.where((former >= 0) & self._unmoved[former], former, NOT_FOUND)
        return row_ids

    def add(self, codes: CodeRows) -> RowIds:
        """Assigns a row id to each key. The keys must be distinct and absent."""
        count = codes.shape[1]
        row_ids = self._allocate_row_ids(count)
        self._matrix()[row_ids] = codes.T
        self._live.data[row_ids] = True
        if count and not self.form.reserve(codes, len(self)):
            self._start_new_form()
            self._unmoved[row_ids] = False
        self.form.insert(row_ids, codes)
        self._move_keys(self._tuning.min_moved_keys + self._tuning.moved_per_added_key * count)
        self._prepare_buckets(count)
        return row_ids

    def remove(self, row_ids: RowIds) -> None:
        """Removes the keys at `row_ids`, which must be live and distinct."""
        waiting = row_ids < len(self._unmoved)
        waiting[waiting] = self._unmoved[row_ids[waiting]]
        self._unmoved[row_ids[waiting]] = False
        here = row_ids[~waiting]
        self.form.remove(here, self.codes_of(here), following=self._old_form is not None)
        self._live.data[row_ids] = False
        self._free_row_ids(row_ids)

    def recode(self, column: int, row_ids: RowIds, codes: npt.NDArray[np.int64]) -> None:
        """Replaces the codes of all live keys (`row_ids`) in a column; different keys must stay different."""
        self._matrix()[row_ids, column] = codes
        self._old_form, self._unmoved = None, np.zeros(0, dtype=bool)
        self._start_new_form()
        self._move_keys(self.used)

    # ------------------------------------------------------------ moving to a new form

    def _start_new_form(self) -> None:
        """Starts a new form, to which all live keys are moved step by step."""
        self._move_keys(self.used)
        self._old_form, self._unmoved, self._moved_below = self.form, self._live.data[: self.used].copy(), 0
        self.form = BlockIndex.spanning(self._key_pieces(), len(self), self._tuning.blocks) or self._new_buckets()

    def _key_pieces(self) -> Iterator[CodeRows]:
        """The codes of all keys, the newest piece first, then the oldest: keys too far apart for blocks come early."""
        live = self._live.data
        starts = deque(range(0, self.used, _PIECE_ROW_IDS))
        starts.rotate(1)
        for start in starts:
            stop = min(start + _PIECE_ROW_IDS, self.used)
            row_ids = np.flatnonzero(live[start:stop]) + start
            if len(row_ids):
                yield self.codes_of(row_ids)

    def _new_buckets(self) -> BucketIndex:
        prepared, self._prepared_form = self._prepared_form, None
        if prepared is not None and prepared.has_size_for(len(self)):
            return prepared
        return BucketIndex(len(self), self._tuning.min_buckets)

    def _prepare_buckets(self, count: int) -> None:
        """Touches the memory of the next form, a little with each call, once the present form is nearly full."""
        keys = len(self)
        left = self.form.free_keys(keys)
        if keys < self._tuning.min_prepared_keys or 3 * left > keys or self._old_form is not None:
            return
        if self._prepared_form is None:
            self._prepared_form = BucketIndex(keys + max(0, left) + 1, self._tuning.min_buckets)
        self._prepared_form.touch(_TOUCHED_BUCKETS_PER_KEY * count)

    def _move_keys(self, count: int) -> None:
        """Moves the keys of the next `count` row ids to the new form."""
        if self._old_form is None:
            return
        stop = self._moved_below + count
        row_ids = np.flatnonzero(self._unmoved[self._moved_below : stop]) + self._moved_below
        self.form.insert(row_ids, self.codes_of(row_ids))
        self._unmoved[row_ids] = False
        self._moved_below = stop
        if stop >= len(self._unmoved):
            self._old_form, self._unmoved = None, np.zeros(0, dtype=bool)

    # ------------------------------------------------------------ row ids

    def _matrix(self) -> CodeMatrix:
        return self._codes.data.reshape(-1, self._width)

    def _allocate_row_ids(self, count: int) -> RowIds:
        reused_count = min(count, self._reusable_count)
        self._reusable_count -= reused_count
        reused = self._reusable.data[self._reusable_count : self._reusable_count + reused_count].copy()
        new_ids = np.arange(self.used, self.used + count - reused_count)
        self.used += count - reused_count
        if self.used > self.capacity:
            self._live.grow(_power_of_two(self.used))
            self._codes.grow(self.capacity * self._width)
        return np.concatenate([reused, new_ids])

    def _free_row_ids(self, row_ids: RowIds) -> None:
        freed = self._reusable_count + len(row_ids)
        if freed > len(self._reusable):
            self._reusable.grow(_power_of_two(freed))
        self._reusable.data[self._reusable_count : freed] = row_ids
        self._reusable_count = freed


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()
