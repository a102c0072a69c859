"""Dealing the rows of a batch to the subtasks that own their keys: hash, one stable radix sort, slices.

Sorting once and cutting costs half of what a filter per target costs, and keeps the order of rows within each target.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.keygroups import owner_of
from runtime.state.hashing import key_groups


def by_key_group(
    batch: pa.RecordBatch, keys: Sequence[str], max_parallelism: int, parallelism: int
) -> list[pa.RecordBatch | None]:
    """The rows of `batch` for each subtask, in their order; None where there are none."""
    if parallelism == 1 or not batch.num_rows:
        return [batch if batch.num_rows else None, *[None] * (parallelism - 1)]
    owners = _owners(max_parallelism, parallelism)[key_groups(batch, keys, max_parallelism)]
    counts = np.bincount(owners, minlength=parallelism)
    if counts.max() == batch.num_rows:
        return [batch if count else None for count in counts]
    ordered = batch.take(pa.array(np.argsort(owners, kind="stable")))
    starts = np.cumsum(counts) - counts
    return [
        ordered.slice(int(start), int(count)) if count else None for start, count in zip(starts, counts, strict=True)
    ]


@lru_cache(maxsize=64)
def _owners(max_parallelism: int, parallelism: int) -> npt.NDArray[np.uint16]:
    """The owner of each key group; 16 bits, for which numpy sorts by radix."""
    owners = [owner_of(group, max_parallelism, parallelism) for group in range(max_parallelism)]
    return np.array(owners, dtype=np.uint16)
