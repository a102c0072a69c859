"""Keyed state as a table: typed columns over a key index, with marks for rows changed since the last capture.

Operators work a batch at a time: `upsert` its keys, read and write columns at their row ids, `touch` them. Row ids of
deleted keys are reused, so an id is valid only as long as its key.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.errors import JobRejected
from runtime.kernels.loading import native
from runtime.state.columns import Mask, ValueColumn, storage_dtype
from runtime.state.index.factorise import distinct_codes
from runtime.state.index.growing import GrowingArray
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes
from runtime.state.index.interned import UNKNOWN_CODE, InternedCodec
from runtime.state.index.key_codec import KeyCodec, encode_column, key_codec, plain_type, take_rows
from runtime.state.index.key_index import NOT_FOUND, CodeRows, KeyIndex, RowIds
from runtime.state.primary_key import Groups
from runtime.state.proofs import HASHED_ROWS, LazyProof, ProofHistory, ProofSums
from runtime.state.rows import TableRows, segment_rows, segment_types
from runtime.state.schema import TableSchema

_MAX_KEY_COLUMNS = 63  #: the null marks of a key share an int64
_MAX_UNUSED_TEXTS = 1024  #: unused key texts up to this number are not worth a clean-up


class KeyedTable:
    """A named keyed state of a subtask. Not thread-safe: used on the slot's loop.

    Args:
        schema: columns; types may be null until the first rows arrive.
        max_parallelism: number of key groups of the job.
    """

    def __init__(self, schema: TableSchema, max_parallelism: int) -> None:
        assert len(schema.keys) <= _MAX_KEY_COLUMNS, "too many key columns"
        self.schema = schema
        self._max_parallelism = max_parallelism
        self._index = KeyIndex(len(schema.keys) + 1)  # the last code of a key marks its nulls
        self._codecs: list[KeyCodec] = []
        self._columns: dict[str, ValueColumn] = {}
        self._groups = GrowingArray(np.int32, self._index.capacity)
        self._dirty = GrowingArray(bool, self._index.capacity)
        self._captured = GrowingArray(bool, self._index.capacity)  #: whether a base or delta holds the key
        self._hashes = GrowingArray(np.uint64, 1)  #: by row id, at the capture of each; used by changes of `_history`
        self._dropped: list[tuple[Groups, RowIds]] = []  #: captured rows that were deleted since the last capture
        self._history = ProofHistory(ProofSums())
        self._seen = GrowingArray(bool, 1)  #: by row id, False; for `first_rows`
        self._tombstones: list[tuple[npt.NDArray[np.int32], CodeRows]] = []
        self._bound_types: tuple[list[Any], list[Any]] | None = None
        self.bind_types([field.type for field in schema.keys], [field.type for field in schema.values])

    def __len__(self) -> int:
        return len(self._index)

    @property
    def is_typed(self) -> bool:
        """Whether all types are known. Until then the table is empty."""
        return bool(self._codecs)

    def bind_types(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Binds open types; widens bound types where no value changes.

        Raises:
            JobRejected: the types of state and data have no common type.
        """
        if (kinds := (list(keys), list(values))) == self._bound_types:
            return
        before, self.schema = self.schema, self.schema.bind_types(keys, values)
        self._bound_types = kinds
        if self.is_typed:
            self._widen(before)
        elif self.schema.is_typed:
            self._codecs = [key_codec(field.type) for field in self.schema.keys]
            capacity = self._index.capacity
            self._columns = {field.name: ValueColumn(field, capacity) for field in self.schema.values}

    # ------------------------------------------------------------ keys

    def upsert(self, keys: Sequence[pa.Array]) -> RowIds:
        """Returns the row id of each row of `keys`, which may repeat. New rows hold zeroes and are not valid."""
        codes = self._encode(keys, learn=True)
        row_ids = self._index.find(codes)
        missing = np.flatnonzero(row_ids == NOT_FOUND)
        if len(missing):
            distinct = distinct_codes(codes[:, missing])
            row_ids[missing] = self._add(keys, codes, missing[distinct.first_rows])[distinct.key_numbers]
        return row_ids

    def find(self, keys: Sequence[pa.Array]) -> RowIds:
        """The row id of each row of `keys`, or `NOT_FOUND`."""
        return self._index.find(self._encode(keys, learn=False))

    def first_rows(self, row_ids: RowIds) -> RowIds:
        """Where each distinct row id occurs first in `row_ids`, in order."""
        self._seen.grow(self._index.capacity)
        rows = np.empty(len(row_ids), dtype=np.intp)
        return rows[: native().buckets.first_rows(row_ids, self._seen.data, rows)]

    def row_ids(self) -> RowIds:
        """The row ids of all keys."""
        return self._index.row_ids()

    def key_groups(self, row_ids: RowIds) -> npt.NDArray[np.int32]:
        """The key group of each row id."""
        return self._groups.data[row_ids]

    def key_codes(self, name: str) -> npt.NDArray[np.int64]:
        """A key column by row id, as 64-bit codes: integers and times are their own code. Read only."""
        return self._index.column(self.schema.keys.get_field_index(name))

    def key_column(self, name: str, row_ids: RowIds) -> pa.Array:
        """The values of a key column, as Arrow."""
        position = self.schema.keys.get_field_index(name)
        nulls = self._index.column(-1)[row_ids] & (1 << position) != 0
        return self._codecs[position].decode(self._index.column(position)[row_ids], nulls)

    def compact_texts(self) -> None:
        """Drops interned texts of deleted keys once there are many. Earlier captures keep their own codec."""
        assert not self._tombstones, "pending tombstones still use the codes"
        for position, codec in enumerate(self._codecs):
            if isinstance(codec, InternedCodec) and len(codec) > 2 * len(self) + _MAX_UNUSED_TEXTS:
                row_ids = self.row_ids()
                nulls = self._index.column(-1)[row_ids] & (1 << position) != 0
                codes = np.where(nulls, UNKNOWN_CODE, self._index.column(position)[row_ids])
                self._codecs[position], codes = codec.compact(codes)
                self._index.recode(position, row_ids, np.where(nulls, 0, codes))

    # ------------------------------------------------------------ values

    def column(self, name: str) -> npt.NDArray[Any]:
        """A value column by row id, writable. Fetch it again after an `upsert`: growth replaces the array."""
        return self._columns[name].data

    def valid(self, name: str) -> Mask:
        """The validity mask of a nullable value column, by row id. Fetch it again after an `upsert`."""
        mask = self._columns[name].valid
        assert mask is not None, "the field is not nullable"
        return mask

    def value_column(self, name: str, row_ids: RowIds) -> pa.Array:
        """The values of a value column, as Arrow."""
        return self._columns[name].copy(row_ids).to_arrow()

    def touch(self, row_ids: RowIds) -> None:
        """Marks rows as changed since the last capture."""
        self._dirty.data[row_ids] = True

    def delete(self, row_ids: RowIds) -> None:
        """Removes keys. The next delta holds their tombstones.

        Texts of deleted keys are dropped at once unless tombstones use them: a job may take no snapshots.
        """
        stored_ids = row_ids[self._captured.data[row_ids]]
        if len(stored_ids):
            groups = self._groups.data[stored_ids]
            self._tombstones.append((groups, self._index.codes_of(stored_ids)))
            self._dropped.append((groups, stored_ids))
        self._dirty.data[row_ids] = False
        self._captured.data[row_ids] = False
        self._index.remove(row_ids)
        if not self._tombstones:
            self.compact_texts()

    # ------------------------------------------------------------ snapshots

    @property
    def row_bytes(self) -> int:
        """Approximate size of a copied row."""
        values = sum(storage_dtype(field.type).itemsize for field in self.schema.values)
        return values + 8 * (len(self.schema.keys) + 1)

    @property
    def is_mostly_changed(self) -> bool:
        """Whether a full copy costs little more than a copy of the changed rows."""
        return 2 * int(np.count_nonzero(self._dirty.data[: self._index.used])) > len(self)

    def proof(self) -> LazyProof:
        """The proof of the present rows, from the rows that were changed and deleted since the restore."""
        changed = self._changed_rows()
        if not len(changed) and not self._dropped:
            return self._history.newest
        rows = self._copy(changed)
        groups, replaced_ids = _replaced(changed, rows, self._captured.data[changed], self._dropped)
        self._history.newest()  # computes the hashes of all captures
        hashes = self._hashes.data[replaced_ids]

        def change(sums: ProofSums) -> None:
            sums.remove(groups, hashes)
            rows.add_to(sums)

        return self._history.preview(change)

    def copy_all(self) -> TableRows:
        """A copy of every row; the marks of changed rows stay."""
        return self._copy(self.row_ids())

    def capture_all(self) -> list[TableRows]:
        """A copy of every row; later deltas are relative to it."""
        self._tombstones = []
        rows = self._take(self.row_ids())
        self.compact_texts()
        return [rows] if len(rows) else []

    def capture_changes(self) -> list[TableRows]:
        """Tombstones of keys deleted since the last capture, then copies of the rows changed since then."""
        deleted, self._tombstones = self._tombstones, []
        rows = []
        if deleted:
            groups = np.concatenate([groups for groups, _ in deleted])
            codes = np.concatenate([codes for _, codes in deleted], axis=1)
            rows.append(TableRows(self.schema, groups, codes, tuple(self._codecs), None))
        if len(changed := self._take(self._changed_rows())):
            rows.append(changed)
        self.compact_texts()
        return rows

    def begin_changes(self) -> None:
        """Begins the record of changes and the proof with the present rows: after a restore."""
        sums, row_ids, self._hashes = ProofSums(), self.row_ids(), GrowingArray(np.uint64, self._index.capacity)
        for start in range(0, len(row_ids), HASHED_ROWS):  # a second copy of all rows would not fit
            part = row_ids[start : start + HASHED_ROWS]
            rows = self._copy(part)
            rows.add_to(sums)
            self._hashes.data[part] = rows.hashes
        self._dirty.data[row_ids] = False
        self._captured.data[row_ids] = True
        self._history = ProofHistory(sums)
        self._dropped, self._tombstones = [], []
        self.compact_texts()

    def restore(self, keys: Sequence[pa.Array], values: Sequence[pa.Array]) -> None:
        """Writes restored rows with distinct keys. The rows are marked as changed, new rows as not captured."""
        row_ids = self.upsert(keys)
        for column, array in zip(self._columns.values(), values, strict=True):
            column.put(row_ids, array.cast(column.field.type))
        self.touch(row_ids)

    def apply_segment(self, batch: pa.RecordBatch, groups: range) -> None:
        """Applies the rows of a segment that belong to `groups`.

        Raises:
            JobRejected: a stored type and the declared type of a column have no common type.
        """
        self.bind_types(*segment_types(batch, self.schema.primary_key))
        rows = segment_rows(batch, self.schema.primary_key, groups)
        if len(rows.deleted_keys[0]):
            row_ids = self.find(rows.deleted_keys)
            self.delete(row_ids[row_ids != NOT_FOUND])
        if len(rows.keys[0]):
            self.restore(rows.keys, rows.values)

    # ------------------------------------------------------------ internals

    def _copy(self, row_ids: RowIds) -> TableRows:
        values = tuple(column.copy(row_ids) for column in self._columns.values())
        groups, codes = self._groups.data[row_ids], self._index.codes_of(row_ids)
        return TableRows(self.schema, groups, codes, tuple(self._codecs), values)

    def _changed_rows(self) -> RowIds:
        return np.flatnonzero(self._dirty.data[: self._index.used])

    def _take(self, row_ids: RowIds) -> TableRows:
        """A copy of the changed rows, or of all, which become unchanged and captured."""
        rows = self._copy(row_ids)
        if not len(row_ids) and not self._dropped:
            return rows
        are_known, dropped = self._captured.data[row_ids], self._dropped
        hashes, capacity = self._hashes, self._index.capacity

        def change(sums: ProofSums) -> None:
            hashes.grow(capacity)
            groups, replaced_ids = _replaced(row_ids, rows, are_known, dropped)
            sums.remove(groups, hashes.data[replaced_ids])
            rows.add_to(sums)
            hashes.data[row_ids] = rows.hashes

        self._history.advance(change)
        self._dropped = []
        self._dirty.data[row_ids] = False
        self._captured.data[row_ids] = True
        return rows

    def _widen(self, before: TableSchema) -> None:
        """Widens to the types of the schema; key codes stay unchanged. Earlier captures keep their types."""
        for position, (old, new) in enumerate(zip(before.keys, self.schema.keys, strict=True)):
            if old.type != new.type:
                self._codecs[position] = self._codecs[position].with_type(new.type)
        for field in self.schema.values:
            if self._columns[field.name].field.type != field.type:
                self._columns[field.name].widen(field)

    def _encode(self, columns: Sequence[pa.Array], learn: bool) -> CodeRows:
        if not self.is_typed:
            raise JobRejected("state-type-open", self.schema.name, f"unknown column type in {self.schema.describe()}")
        kinds = [plain_type(column.type) for column in columns]
        if learn and any(kind != field.type for kind, field in zip(kinds, self.schema.keys, strict=True)):
            self.bind_types(kinds, [field.type for field in self.schema.values])
        codes = np.zeros((len(columns) + 1, len(columns[0])), dtype=np.int64)
        for position, (codec, column) in enumerate(zip(self._codecs, columns, strict=True)):
            codes[position], nulls = encode_column(codec, column, learn)
            if nulls is not None:
                codes[position, nulls] = 0
                codes[-1, nulls] |= 1 << position
        return codes

    def _add(self, keys: Sequence[pa.Array], codes: CodeRows, missing: RowIds) -> RowIds:
        row_ids = self._index.add(codes[:, missing])
        self._grow()
        hashes = hash_columns([take_rows(keys[position], missing) for position in self.schema.partition_columns])
        self._groups.data[row_ids] = key_groups_of_hashes(hashes, self._max_parallelism)
        for column in self._columns.values():
            column.clear(row_ids)
        self._dirty.data[row_ids] = True
        self._captured.data[row_ids] = False
        return row_ids

    def _grow(self) -> None:
        for part in (self._groups, self._dirty, self._captured):
            part.grow(self._index.capacity)
        for column in self._columns.values():
            column.grow(self._index.capacity)


def _replaced(
    row_ids: RowIds, rows: TableRows, are_known: Mask, dropped: Sequence[tuple[Groups, RowIds]]
) -> tuple[Groups, RowIds]:
    """The rows of the last capture that `rows` replaces, or that were deleted since (`dropped`), with their groups."""
    groups = [*(groups for groups, _ in dropped), rows.groups[are_known]]
    return np.concatenate(groups), np.concatenate([*(ids for _, ids in dropped), row_ids[are_known]])
