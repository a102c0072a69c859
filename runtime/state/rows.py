"""Rows copied out of a table, and their layout in a segment.

The copy is taken at the barrier as plain arrays; turning it into Arrow, the costly part, is left to the background.
A segment's columns are: key group, whether the row is a tombstone, the keys, the values; rows are sorted by key group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.state.columns import ColumnRows
from runtime.state.index import CodeRows
from runtime.state.keycodes import KeyCodec
from runtime.state.schema import TableSchema

_OWN_COLUMNS: Final = 2  #: key group and tombstone mark, by position: names are the author's


class SegmentRows(Protocol):
    """Rows on their way to a segment."""

    @property
    def groups(self) -> npt.NDArray[np.int32]: ...
    @property
    def nbytes(self) -> int: ...
    def to_batch(self) -> pa.RecordBatch:
        """The rows in the layout of a segment, not sorted yet."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a table, or the keys of deleted ones (`values` is None)."""

    schema: TableSchema
    groups: npt.NDArray[np.int32]
    codes: CodeRows
    codecs: tuple[KeyCodec, ...]
    values: tuple[ColumnRows, ...] | None

    @property
    def nbytes(self) -> int:
        values = sum(column.values.nbytes for column in self.values or ())
        return self.groups.nbytes + self.codes.nbytes + values

    def key_column(self, position: int) -> pa.Array:
        nulls = self.codes[-1] & (1 << position) != 0
        return self.codecs[position].decode(self.codes[position], nulls)

    def to_batch(self) -> pa.RecordBatch:
        """The rows in the layout of a segment, not sorted yet."""
        count, deleted = len(self.groups), self.values is None
        keys = [self.key_column(position) for position in range(len(self.schema.keys))]
        if self.values is None:
            values = [pa.nulls(count, field.type) for field in self.schema.values]
        else:
            values = [column.to_arrow() for column in self.values]
        marks = pa.array(np.full(count, deleted))
        return pa.RecordBatch.from_arrays([pa.array(self.groups), marks, *keys, *values], schema=_layout(self.schema))


@dataclass(frozen=True, slots=True)
class StoredRows:
    """What one segment says about the key groups asked for."""

    deleted_keys: list[pa.Array]
    keys: list[pa.Array]
    values: list[pa.Array]


def segment_batch(parts: Sequence[SegmentRows]) -> pa.RecordBatch:
    """All parts as one batch, sorted by key group."""
    batch = pa.concat_batches([part.to_batch() for part in parts])
    order = np.argsort(batch.column(0).to_numpy(), kind="stable")
    return batch.take(pa.array(order))


def types_of(batch: pa.RecordBatch, schema: TableSchema) -> tuple[list[pa.DataType], list[pa.DataType]]:
    """The key and value types that a segment holds."""
    kinds = [field.type for field in batch.schema][_OWN_COLUMNS:]
    return kinds[: len(schema.keys)], kinds[len(schema.keys) :]


def column_names(batch: pa.RecordBatch) -> list[str]:
    """The names of the keys and values that a segment holds."""
    return list(batch.schema.names[_OWN_COLUMNS:])


def rows_in(batch: pa.RecordBatch, schema: TableSchema, groups: range) -> StoredRows:
    """The rows of a segment that lie in `groups`."""
    start, stop = np.searchsorted(batch.column(0).to_numpy(), [groups.start, groups.stop])
    part = batch.slice(int(start), int(stop - start))
    deleted = part.column(1)
    gone, kept = part.filter(deleted), part.filter(pa.array(~deleted.to_numpy(zero_copy_only=False)))
    keys = range(_OWN_COLUMNS, _OWN_COLUMNS + len(schema.keys))
    values = range(keys.stop, keys.stop + len(schema.values))
    return StoredRows(
        deleted_keys=[gone.column(i) for i in keys],
        keys=[kept.column(i) for i in keys],
        values=[kept.column(i) for i in values],
    )


def _layout(schema: TableSchema) -> pa.Schema:
    own = [pa.field("key group", pa.int32()), pa.field("deleted", pa.bool_())]
    return pa.schema([*own, *schema.keys, *(field.with_nullable(True) for field in schema.values)])
