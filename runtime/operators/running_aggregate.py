"""Aggregates over all rows so far, per key; each batch emits the new values of its keys.

A changelog output has a column `op` with Flink's row kinds: `insert` for a new key, `update_before` to retract the
previous row of a key, `update_after` for its replacement. A key with unchanged values emits no row.

The input may be a changelog too, whose rows take back earlier rows (`retraction`). A key whose rows are all taken back
is deleted: its last row is emitted with op `delete`, and its state is freed. Otherwise keys are never removed, and
`delete` does not occur.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runtime.errors import JobRejected
from runtime.operators.aggregates import Aggregate, AggregateSet
from runtime.operators.retraction import (
    DELETE,
    INSERT,
    OP_COLUMN,
    UNMATCHED_COUNTER,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    RetractableSet,
)
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.index.factorise import factorise
from runtime.state.index.key_codec import take_rows
from runtime.state.index.key_index import NOT_FOUND, RowIds
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import OPEN_TYPE

_MAX_ROWS_PER_BATCH: Final = 65_536


class RunningAggregate(Operator):
    """Emits the keys, then a column per aggregate. Within a batch, keys are in the order of their first rows.

    Args:
        keys: key columns.
        aggregates: aggregates by output column.
        changelog: emit changes, with a last column `op`.
        retracts: the input is a changelog. The output must be one too, since only a changelog can delete a key.
    """

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        changelog: bool = False,
        retracts: bool = False,
    ) -> None:
        assert changelog or not retracts, "only a changelog can delete a key"
        self._keys = tuple(keys)
        self._retractable = RetractableSet(aggregates) if retracts else None
        self._aggregates = self._retractable or AggregateSet(aggregates)
        self._changelog = changelog
        self._names = [*self._keys, *aggregates]
        if changelog and not aggregates:
            raise JobRejected("bad-aggregates", ", ".join(self._keys), "a changelog needs at least one aggregate")
        names = [*self._names, OP_COLUMN] if changelog else self._names
        if len(set(names)) != len(names):
            raise JobRejected("duplicate-column", ", ".join(self._keys), f"output columns must differ: {names}")

        self._has_sorted_input = False

    @property
    def retracts(self) -> bool:
        """Whether the input is a changelog."""
        return self._retractable is not None

    def open(self, context: OperatorContext) -> None:
        keys = pa.schema([pa.field(key, OPEN_TYPE) for key in self._keys])
        self._context = context
        self._table: KeyedTable = context.state.keyed_table("aggregates", keys, self._aggregates.fields())
        if self._retractable is not None:
            self._retractable.open(context, self._table)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        if not batch.num_rows:
            return
        rows = self._changes(batch) if self._changelog else self._new_values(batch)
        if rows.num_rows:
            out.emit(rows)

    def process_sorted(self, batch: pa.RecordBatch, out: Collector) -> None:
        """Accumulates rows and emits none: `finish` emits the values of each key once."""
        self._has_sorted_input = True
        if batch.num_rows:
            self._table.touch(self._accumulate(batch, self._key_columns(batch)))

    def finish(self, out: Collector) -> None:
        if not self._has_sorted_input:
            return
        row_ids = self._table.row_ids()
        row_ids = row_ids[self._aggregates.have_rows(self._table, row_ids)]
        for start in range(0, len(row_ids), _MAX_ROWS_PER_BATCH):
            some = row_ids[start : start + _MAX_ROWS_PER_BATCH]
            rows = self._output_batch([self._table.key_column(key, some) for key in self._keys], some)
            out.emit(_with_op(rows, INSERT) if self._changelog else rows)

    def _key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        kinds = [batch.schema.field(key).type for key in self._keys]
        self._table.bind_types(kinds, self._aggregates.state_types(batch.schema))
        return [batch.column(key) for key in self._keys]

    def _accumulate(self, batch: pa.RecordBatch, keys: Sequence[pa.Array]) -> RowIds:
        """Adds the rows; returns the row id of each, whose keys may repeat."""
        row_ids = self._table.upsert(keys)
        self._aggregates.accumulate(self._table, batch, row_ids)
        return row_ids

    def _new_values(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = self._key_columns(batch)
        row_ids = self._accumulate(batch, keys)
        first_rows = self._table.first_rows(row_ids)
        changed = row_ids[first_rows]
        self._table.touch(changed)
        return self._results(changed, [take_rows(key, first_rows) for key in keys])

    def _changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = self._key_columns(batch)
        distinct = factorise(columns)
        keys = distinct.take_keys(columns)
        is_known = self._table.find(keys) != NOT_FOUND
        row_ids = self._table.upsert(keys)
        had_rows = is_known & self._aggregates.have_rows(self._table, row_ids)
        before = self._results(row_ids, keys)
        self._aggregates.accumulate(self._table, batch, row_ids[distinct.key_numbers])
        self._table.touch(row_ids)
        has_rows = self._aggregates.have_rows(self._table, row_ids)
        now = self._results(row_ids, keys)
        differs = _any_different(before, now, self._aggregates.names).to_numpy(zero_copy_only=False)
        updated = had_rows & has_rows & differs
        kinds = [
            (now, ~had_rows & has_rows, INSERT),
            (before, had_rows & ~has_rows, DELETE),
            (before, updated, UPDATE_BEFORE),
            (now, updated, UPDATE_AFTER),
        ]
        if self._retractable is not None:
            without_rows = row_ids[~has_rows]
            if unmatched := len(without_rows) - len(self._retractable.free(without_rows)):
                self._context.count(UNMATCHED_COUNTER, unmatched)
        rows = pa.concat_batches([_with_op(rows.filter(pa.array(mask)), op) for rows, mask, op in kinds])
        first_rows = np.concatenate([distinct.first_rows[mask] for _, mask, _ in kinds])
        return rows.take(pa.array(np.argsort(first_rows, kind="stable")))  # changes of a key stay in their order

    def _results(self, row_ids: RowIds, keys: Sequence[pa.Array]) -> pa.RecordBatch:
        """The output rows of `keys`. Columns that the table converts (dictionaries, -0.0) are read from the table."""
        types = [field.type for field in self._table.schema.keys]
        key_columns = [
            values if values.type == kind and not pa.types.is_floating(kind) else self._table.key_column(key, row_ids)
            for key, kind, values in zip(self._keys, types, keys, strict=True)
        ]
        return self._output_batch(key_columns, row_ids)

    def _output_batch(self, keys: Sequence[pa.Array], row_ids: RowIds) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([*keys, *self._aggregates.results(self._table, row_ids)], names=self._names)


def _with_op(rows: pa.RecordBatch, op: str) -> pa.RecordBatch:
    return rows.append_column(OP_COLUMN, pa.array([op] * len(rows), pa.string()))


def _any_different(before: pa.RecordBatch, now: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """By row, whether any of the columns `names` differs."""
    return reduce(pc.or_, (is_different(before[name], now[name]) for name in names), pa.array([False] * len(now)))


def is_different(before: pa.Array, now: pa.Array) -> pa.Array:
    """By row, whether two columns of the same type differ. Nulls are equal to each other, and so are NaNs."""
    difference = pc.fill_null(pc.not_equal(before, now), False)
    if pa.types.is_floating(now.type):
        difference = pc.and_not(difference, pc.fill_null(pc.and_(pc.is_nan(before), pc.is_nan(now)), False))
    return pc.or_(difference, pc.xor(before.is_valid(), now.is_valid()))
