"""The primary key of state: key group and key columns; and the columns of a segment, which begin with it.

State per key group, such as the rows of a join, has the same key columns in every key group. So two entries are the
same entry only if their key groups are equal too. Columns are addressed by position: their names belong to the author.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.state.index.factorise import factorise
from runtime.state.index.hashing import Hashes, HashInput, hash_columns, hash_rows, value_input
from runtime.state.index.key_index import RowIds

OWN_FIELDS: Final = (pa.field("key group", pa.int32()), pa.field("deleted", pa.bool_()))  #: precede the keys
_GROUP_COLUMN, _DELETED_COLUMN = range(len(OWN_FIELDS))
_TOMBSTONE_HASH: Final = np.uint64(0xA0761D6478BD642F)  #: stands for the values of a deleted entry

BROADCAST_GROUP: Final = 0  #: broadcast entries have no key group of their own

Groups = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    """The primary key of the entries of a state with `columns` key columns."""

    columns: int

    @staticmethod
    def groups(batch: pa.RecordBatch) -> Groups:
        """The key group of each row of a segment."""
        return np.asarray(batch.column(_GROUP_COLUMN).to_numpy())

    @staticmethod
    def deleted(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """By row, whether it is the tombstone of a deleted entry."""
        return np.asarray(batch.column(_DELETED_COLUMN).to_numpy(zero_copy_only=False))

    def keys(self, columns: Sequence[Any]) -> list[Any]:
        """The key columns, of the columns or fields of a segment."""
        return list(columns)[len(OWN_FIELDS) : len(OWN_FIELDS) + self.columns]

    def values(self, columns: Sequence[Any]) -> list[Any]:
        """The value columns, of the columns or fields of a segment."""
        return list(columns)[len(OWN_FIELDS) + self.columns :]

    @staticmethod
    def in_groups(batch: pa.RecordBatch, groups: range) -> pa.RecordBatch:
        """The rows in `groups`; the rows of `batch` are sorted by key group."""
        start, stop = np.searchsorted(PrimaryKey.groups(batch), [groups.start, groups.stop])
        return batch.slice(int(start), int(stop - start))

    def newest_rows(self, batch: pa.RecordBatch) -> RowIds:
        """The last row of each entry, in the order of rows."""
        distinct = factorise([batch.column(_GROUP_COLUMN), *self.keys(batch.columns)])
        newest = np.empty(len(distinct), dtype=np.intp)
        newest[distinct.key_numbers] = np.arange(batch.num_rows)  # numpy keeps the last of repeated assignments
        newest.sort()
        return newest

    def row_hashes(self, batch: pa.RecordBatch) -> tuple[Hashes, Hashes]:
        """The hash of each row's key columns, and that of the row."""
        keys = hash_columns(self.keys(batch.columns))
        values = [value_input(column) for column in self.values(batch.columns)]
        return keys, row_hashes(keys, values, self.deleted(batch))


def row_hashes(keys: Hashes, values: Sequence[HashInput], deleted: npt.NDArray[np.bool_]) -> Hashes:
    """The hash of each row of a segment from the hash of its keys and from its values; a tombstone has no values."""
    rows = hash_rows([HashInput(keys), *values])
    if deleted.any():
        tombstones = np.full(np.count_nonzero(deleted), _TOMBSTONE_HASH)
        rows[deleted] = hash_rows([HashInput(keys[deleted]), HashInput(tombstones)])
    return rows
