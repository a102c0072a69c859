"""Which key group each split of a listing belongs to.

The next split in reading order goes to the subtask with the fewest bytes so far. Subtasks then read about as much each,
and their places in the listing stay close together: with files in the order of time, so do their watermarks. Within the
key groups of a subtask, consecutive splits are spread by the golden ratio, so that each part of the key groups, at
another parallelism, has its share of any stretch of the listing.
"""

import heapq
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.job.key_groups import key_group_range
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes

_GOLDEN_RATIO: Final = (5**0.5 - 1) / 2  #: its multiples, modulo 1, fill an interval evenly


def assign_groups(lengths: Sequence[int], parallelism: int, max_parallelism: int) -> npt.NDArray[np.int64]:
    """A key group for each split of `lengths` (bytes, in reading order)."""
    groups = np.empty(len(lengths), dtype=np.int64)
    ranges = [key_group_range(index, max_parallelism, parallelism) for index in range(parallelism)]
    subtasks = [(0, 0, index) for index in range(parallelism)]  #: bytes, splits, index
    for number, length in enumerate(lengths):
        in_bytes, splits, index = subtasks[0]
        key_groups = ranges[index]
        groups[number] = key_groups[int(splits * _GOLDEN_RATIO % 1 * len(key_groups))]
        heapq.heapreplace(subtasks, (in_bytes + length, splits + 1, index))
    return groups


def keys_of_groups(max_parallelism: int, owned: range) -> pa.Array:
    """For each key group in `owned`, the smallest number that hashes into it: its key in keyed state."""
    count = max_parallelism
    while True:
        count *= 4
        groups = key_groups_of_hashes(hash_columns([pa.array(np.arange(count))]), max_parallelism)
        group_numbers, first = np.unique(groups, return_index=True)
        if len(group_numbers) == max_parallelism:
            return pa.array(first[owned.start : owned.stop].astype(np.int64))
