"""Minimum and maximum of a changelog: the number of rows of each value, since a value that is taken back leaves others.

A keyed state has an entry per key and value, with its number of rows. The minimum or maximum itself is a state column,
so a row that changes none is cheap. If the last row of the minimum is taken back and the batch brings no smaller value,
the entries of all keys are searched for the next one, in a single pass per batch.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from runtime.errors import JobRejected
from runtime.operators.aggregates import (
    Aggregate,
    Change,
    Mask,
    Max,
    Min,
    Positions,
    Signs,
    StateColumns,
    Values,
    cast_exactly,
    column_type,
    valid_values,
)
from runtime.operators.column_names import free_name
from runtime.ports import OperatorContext
from runtime.state.index.growing import GrowingArray
from runtime.state.index.key_index import NOT_FOUND
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import OPEN_TYPE, namespace_field

_ROWS: Final = "value:rows"  #: by entry, the number of rows with its value


class CountedExtreme(Aggregate):
    """A minimum or maximum from which rows can be taken back. Owned by a single operator."""

    def __init__(self, extreme: Min | Max) -> None:
        self._extreme = extreme
        (self._column,) = extreme.columns() or ()

    def columns(self) -> tuple[str, ...] | None:
        return self._extreme.columns()

    @property
    def definition(self) -> str:
        return f"Counted{self._extreme.definition}"

    def fields(self, name: str) -> list[pa.Field]:
        return [*self._extreme.fields(name), pa.field(f"{name}:entries", pa.int64(), nullable=False)]

    def state_types(self, schema: pa.Schema) -> list[Any]:
        if pa.types.is_float16(column_type(schema, self._column)):
            detail = "min and max of a changelog need a float of 32 bits or more: cast the column before the changelog"
            raise JobRejected("bad-aggregate", self._column, detail)
        return [*self._extreme.state_types(schema), pa.int64()]

    def open(self, context: OperatorContext, state: str, table: KeyedTable) -> None:
        """Declares the entries under the name `state`. `table`: the state columns of the keys."""
        self._table, keys = table, table.schema.keys
        self._partition_keys = {keys.names[column] for column in table.schema.partition_columns}
        self._value = free_name("value", keys.names)
        columns = [*(field.with_type(OPEN_TYPE) for field in keys), namespace_field(self._value, OPEN_TYPE)]
        rows = pa.schema([pa.field(_ROWS, pa.int64(), nullable=False)])
        self._entries: KeyedTable = context.state.keyed_table(state, pa.schema(columns), rows)
        self._owners = GrowingArray(np.int64, 1)  #: by entry, the row of its key in `table`
        if len(self._entries):
            entries = self._entries.row_ids()
            owners = table.find([self._entries.key_column(key, entries) for key in keys.names])
            assert not (owners == NOT_FOUND).any(), f"state {state!r} has values of keys that have no row"
            self._set_owners(entries, owners)

    def accumulate(self, state: StateColumns, name: str, batch: pa.RecordBatch, at: Positions) -> Change:
        return self.accumulate_signed(state, name, batch, at, None)

    def accumulate_signed(
        self, state: StateColumns, name: str, batch: pa.RecordBatch, at: Positions, signs: Signs | None
    ) -> Change:
        column = batch.column(self._column)
        rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        if signs is None:
            signs = np.ones(batch.num_rows, dtype=np.int64)
        batch, at = (batch, at) if len(rows) == batch.num_rows else (batch.take(pa.array(rows)), at[rows])
        keys = [
            batch.column(key) if key in self._partition_keys else self._table.key_column(key, at)
            for key in self._table.schema.keys.names
        ]
        values = batch.column(self._column)
        self._entries.bind_types([each.type for each in (*keys, values)], [pa.int64()])
        return partial(self._change, state, name, [*keys, values], at, signs[rows])

    def merge(self, state: StateColumns, name: str, parts: pa.RecordBatch, at: Positions) -> Change:
        """Chooses the best value only, for totals without entries, from which no row is taken back."""
        return self._extreme.merge(state, name, parts, at)

    def delete(self, owners: Positions) -> None:
        """Deletes the entries of keys that leave the state."""
        entries = self._entries.row_ids()
        due = entries[np.isin(self._owners.data[entries], owners)] if len(entries) else entries
        if len(due):
            self._entries.delete(due)

    def result(self, state: StateColumns, name: str, row_ids: Positions) -> pa.Array:
        return self._extreme.result(state, name, row_ids)

    def _change(self, state: StateColumns, name: str, columns: Sequence[pa.Array], at: Positions, signs: Signs) -> None:
        if not len(at):
            return
        row_entries = self._entries.upsert(columns)
        first_rows = self._entries.first_rows(row_entries)
        entries, owners = row_entries[first_rows], at[first_rows]
        self._set_owners(entries, owners)
        counts = self._entries.column(_ROWS)
        before = counts[entries]
        np.add.at(counts, row_entries, signs)
        after = counts[entries]
        np.add.at(state.column(f"{name}:entries"), owners, (after != 0).astype(np.int64) - (before != 0))
        self._choose(state, name, owners, self._values_of(entries, state, name), before > 0, after > 0)
        self._entries.touch(entries)
        self._entries.delete(entries[after == 0])

    def _choose(self, state: StateColumns, name: str, owners: Positions, values: Values, had: Mask, has: Mask) -> None:
        """Updates the best values of the keys `owners`. `had`, `has`: whether rows had, and now have, each value."""
        best, valid = state.column(self._best(name)), state.valid(self._best(name))
        keys, at = np.unique(owners, return_inverse=True)
        is_lost = np.zeros(len(keys), dtype=bool)
        is_lost[at[had & ~has & valid[owners] & _are_equal(values, best[owners])]] = True
        chosen, is_chosen = np.zeros(len(keys), best.dtype), np.zeros(len(keys), dtype=bool)
        self._extreme.choose_values(chosen, is_chosen, values[has], at[has])
        former, is_known = best[keys], valid[keys]
        rivals = chosen.copy()
        self._extreme.choose_values(rivals, is_chosen.copy(), former[is_known], np.flatnonzero(is_known))
        # A value that is at least as good as the lost one is the best; otherwise any entry of the key may be.
        unknown = is_lost & ~(is_chosen & _are_equal(rivals, chosen))
        stays = is_known & ~is_lost
        best[keys] = np.where(stays, rivals, chosen)
        valid[keys] = stays | is_chosen
        if unknown.any():
            self._search(best, valid, keys[unknown], state, name)

    def _search(self, best: Values, valid: Mask, keys: Positions, state: StateColumns, name: str) -> None:
        """Chooses among all entries of `keys`."""
        entries = self._entries.row_ids()
        owners = self._owners.data[entries]
        is_candidate = np.isin(owners, keys) & (self._entries.column(_ROWS)[entries] > 0)
        valid[keys] = False
        values = self._values_of(entries[is_candidate], state, name)
        self._extreme.choose_values(best, valid, values, owners[is_candidate])

    def _values_of(self, entries: Positions, state: StateColumns, name: str) -> Values:
        """The values of entries in the type of the state column."""
        values, _ = valid_values(self._entries.key_column(self._value, entries), entries)
        return cast_exactly(values, state.column(self._best(name)).dtype, name)

    def _best(self, name: str) -> str:
        """The state column with the minimum or maximum."""
        column: str = self._extreme.fields(name)[0].name
        return column

    def _set_owners(self, entries: Positions, owners: Positions) -> None:
        last = int(entries.max())
        if last >= len(self._owners):
            self._owners.grow(2 * (last + 1))
        self._owners.data[entries] = owners


def _are_equal(left: Values, right: Values) -> Mask:
    """By row, whether two values are equal; NaN equals NaN."""
    return np.asarray((left == right) | ((left != left) & (right != right)))
