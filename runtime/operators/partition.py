"""Partitioning: the rows of a batch for each subtask, by key group or by an author's function.

A hash or a function gives the subtask of each row. For few subtasks, the rows of each subtask are selected; for more, a
stable radix sort is followed by slices. Both methods keep the order of rows within a subtask.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.job.key_groups import key_group_owner
from runtime.errors import DataRejected, JobRejected, WeirError
from runtime.state.index.hashing import hash_columns, key_groups, key_groups_of_hashes

_MAX_SELECTED_TARGETS: Final = 8  #: number of subtasks up to which selecting is cheaper than sorting

#: Maps a batch of the chosen columns and the number of subtasks to a subtask per row.
Partitioner = Callable[[pa.RecordBatch, int], npt.ArrayLike]


def check_partition_columns(schema: pa.Schema, columns: Sequence[str], target: str) -> None:
    """Raises JobRejected if `schema` lacks a column that the partitioner before operator `target` reads."""
    for column in columns:
        if column not in schema.names:
            detail = f"there is no such column for the partitioner before operator {target!r}; there are "
            raise JobRejected("unknown-column", column, detail + ", ".join(schema.names))


def partition_by_function(
    batch: pa.RecordBatch, columns: Sequence[str], function: Partitioner, target: str, parallelism: int
) -> list[pa.RecordBatch | None]:
    """The rows of `batch` for each subtask of `target`, chosen by a function, in order; None: the subtask gets no rows.

    Raises:
        WeirError: the function failed or returned an invalid result; the error names `target`.
        JobRejected: a column is missing, or raised by the function.
        DataRejected: raised by the function.
    """
    check_partition_columns(batch.schema, columns, target)
    try:
        rows = batch.select(list(columns))
        owners = _check_owners(np.asarray(function(rows, parallelism)), rows, parallelism)
    except (DataRejected, JobRejected):
        raise  # the function refused its input: a retry cannot help
    except Exception as error:
        raise WeirError(f"the partitioner before operator {target!r}: {type(error).__name__}: {error}") from error
    return _split_by_owner(batch, owners, parallelism)


def _check_owners(owners: npt.NDArray[Any], rows: pa.RecordBatch, parallelism: int) -> npt.NDArray[np.uint16]:
    if owners.shape != (rows.num_rows,) or owners.dtype.kind not in "iu":
        shape = " x ".join(map(str, owners.shape)) or "one"
        raise TypeError(f"it must return one integer for each of {rows.num_rows} rows, not {shape} of {owners.dtype}")
    wrong = np.flatnonzero((owners < 0) | (owners >= parallelism))
    if len(wrong):
        (values,) = rows.slice(int(wrong[0]), 1).to_pylist()
        raise ValueError(f"it returned {owners[wrong[0]]} for {values}; there are subtasks 0 to {parallelism - 1}")
    return owners.astype(np.uint16)


def partition_by_key_group(
    batch: pa.RecordBatch, keys: Sequence[str], max_parallelism: int, parallelism: int
) -> list[pa.RecordBatch | None]:
    """The rows of `batch` for each subtask, by key group, in order; None for a subtask without rows."""
    if parallelism == 1 or not batch.num_rows:
        return [batch if batch.num_rows else None, *[None] * (parallelism - 1)]
    return _split_by_owner(
        batch, owners_of_groups(max_parallelism, parallelism)[key_groups(batch, keys, max_parallelism)], parallelism
    )


def partition_with_key_sums(
    batch: pa.RecordBatch, keys: Sequence[str], max_parallelism: int, parallelism: int
) -> tuple[list[pa.RecordBatch | None], list[int]]:
    """As `partition_by_key_group`, with the sum of the hashes of the keys for each subtask (`Records.keys`)."""
    hashes, sums = hash_columns([batch[name] for name in keys]), np.zeros(parallelism, dtype=np.uint64)
    owners = owners_of_groups(max_parallelism, parallelism)[key_groups_of_hashes(hashes, max_parallelism)]
    np.add.at(sums, owners, hashes)
    return _split_by_owner(batch, owners, parallelism), sums.tolist()


def _split_by_owner(
    batch: pa.RecordBatch, owners: npt.NDArray[np.uint16], parallelism: int
) -> list[pa.RecordBatch | None]:
    if parallelism <= _MAX_SELECTED_TARGETS:
        return [_take_rows(batch, np.flatnonzero(owners == target)) for target in range(parallelism)]
    counts = np.bincount(owners, minlength=parallelism)
    if counts.max() == batch.num_rows:
        return [batch if count else None for count in counts]
    ordered = batch.take(pa.array(np.argsort(owners, kind="stable")))
    starts = np.cumsum(counts) - counts
    return [
        ordered.slice(int(start), int(count)) if count else None for start, count in zip(starts, counts, strict=True)
    ]


def _take_rows(batch: pa.RecordBatch, rows: npt.NDArray[np.intp]) -> pa.RecordBatch | None:
    if not len(rows):
        return None
    return batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))


@lru_cache(maxsize=64)
def owners_of_groups(max_parallelism: int, parallelism: int) -> npt.NDArray[np.uint16]:
    """The owner of each key group, as 16-bit integers, which numpy sorts by radix."""
    owners = [key_group_owner(group, max_parallelism, parallelism) for group in range(max_parallelism)]
    return np.array(owners, dtype=np.uint16)
