"""Aggregates of a changelog, whose rows may take back earlier rows (Flink: `retract` of an aggregate function).

A row with op `update_before` or `delete` subtracts the row that it takes back, so it needs the same values. Counts and
sums are exact, also if a row is taken back before it arrives. A sum of floats keeps the rounding of its additions
until its last value is gone: a rest is rounding if it is small beside the values that were added. Minimum and maximum
keep the number of rows of each value (`CountedExtreme`).
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runtime.errors import DataRejected, JobRejected
from runtime.operators.aggregates import (
    Aggregate,
    AggregateSet,
    Change,
    Count,
    CountIf,
    Mask,
    Max,
    Mean,
    Min,
    Positions,
    Signs,
    StateColumns,
    Sum,
    Values,
    add_counts,
    count_field,
    count_values,
    in_sequence,
    valid_values,
)
from runtime.operators.counted_extremes import CountedExtreme
from runtime.ports import OperatorContext
from runtime.state.columns import DECIMAL_WORDS
from runtime.state.keyed_table import KeyedTable

OP_COLUMN: Final = "op"  #: changelog column with the row kind
UNMATCHED_COUNTER: Final = "unmatched_retractions"  #: keys from which more rows were taken back than had arrived
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = "insert", "update_before", "update_after", "delete"
_KINDS: Final = (INSERT, UPDATE_AFTER, UPDATE_BEFORE, DELETE)
#: Of the sum of all magnitudes. The rounding of a sum of 100 million rows is less. A larger rest keeps its key, and is
#: counted; a smaller fraction of a long history could hide a row that was taken back too early.
_ROUNDING: Final = 1e-12
_ADDING_KINDS: Final = 2  #: the first kinds of `_KINDS` add rows


def signs_of(batch: pa.RecordBatch) -> Signs:
    """By row of a changelog, 1 if it adds a row, and -1 if it takes an earlier row back.

    Raises:
        JobRejected: the column `op` is missing.
        DataRejected: it holds another value than the row kinds.
    """
    if OP_COLUMN not in batch.schema.names:
        detail = f"the rows of a changelog need this column; there are {', '.join(batch.schema.names)}"
        raise JobRejected("unknown-column", OP_COLUMN, detail)
    ops = batch.column(OP_COLUMN).cast(pa.string())
    kinds = pc.index_in(ops, pa.array(_KINDS))
    if kinds.null_count:
        value = ops.filter(kinds.is_null())[0].as_py()
        raise DataRejected(f"column {OP_COLUMN!r} holds {value!r}, which is no row kind: {', '.join(_KINDS)}")
    return np.where(kinds.to_numpy() < _ADDING_KINDS, np.int64(1), np.int64(-1))


class RetractableAggregate(Protocol):
    """An aggregate from which rows can be taken back."""

    def accumulate_signed(
        self, state: StateColumns, name: str, batch: pa.RecordBatch, at: Positions, signs: Signs | None
    ) -> Change:
        """As `Aggregate.accumulate`; rows with sign -1 are taken back."""


class CountedSum(Sum):
    """A sum that is null again once all its values have been taken back."""

    def fields(self, name: str) -> list[pa.Field]:
        return [*super().fields(name), count_field(name)]

    def state_types(self, schema: pa.Schema) -> list[Any]:
        return [*super().state_types(schema), pa.int64()]

    def accumulate_signed(
        self, state: StateColumns, name: str, batch: pa.RecordBatch, at: Positions, signs: Signs | None
    ) -> Change:
        count = count_values(state, name, batch.column(self._column), at, signs)
        return in_sequence(super().accumulate_signed(state, name, batch, at, signs), count)

    def merge(self, state: StateColumns, name: str, parts: pa.RecordBatch, at: Positions) -> Change:
        return in_sequence(super().merge(state, name, parts, at), add_counts(state, f"{name}:count", parts, at))

    def result(self, state: StateColumns, name: str, row_ids: Positions) -> pa.Array:
        sums = super().result(state, name, row_ids)
        return pc.if_else(pa.array(state.column(f"{name}:count")[row_ids] > 0), sums, pa.scalar(None, sums.type))


class RetractableSet(AggregateSet):
    """The aggregates of a changelog by output column, and the number of rows of each key.

    Raises:
        JobRejected: an aggregate cannot take rows back; the error names its output column.
    """

    def __init__(self, aggregates: Mapping[str, Aggregate]) -> None:
        retractable = {name: _retractable(name, aggregate) for name, aggregate in aggregates.items()}
        self._retractable: dict[str, Any] = {**retractable, OP_COLUMN: Count()}
        super().__init__(self._retractable)
        self._extremes = [each for each in retractable.values() if isinstance(each, CountedExtreme)]
        self._sums = {name: each for name, each in retractable.items() if isinstance(each, Sum)}

    @property
    def names(self) -> list[str]:
        return [name for name in super().names if name != OP_COLUMN]

    def fields(self) -> pa.Schema:
        """Also the sum of the magnitudes in each sum of floats, since it was 0."""
        sizes = [pa.field(f"{name}:size", pa.float64(), nullable=False) for name in self._sums]
        return pa.schema([*super().fields(), *sizes])

    def state_types(self, schema: pa.Schema) -> list[Any]:
        return [*super().state_types(schema), *([pa.float64()] * len(self._sums))]

    @property
    def by_name(self) -> Mapping[str, Aggregate]:
        """All aggregates of the state, also the number of rows."""
        return self._aggregates

    def open(self, context: OperatorContext, table: KeyedTable) -> None:
        """Declares the further states of the aggregates. `table` holds their state columns."""
        self._context, self._table = context, table
        for number, extreme in enumerate(self._extremes):  # a restore with other aggregates is refused
            extreme.open(context, f"values.{number}", table)

    def accumulate(self, state: StateColumns, batch: pa.RecordBatch, at: Positions) -> None:
        """Adds and takes back the rows of a changelog. After an error, some aggregates may have changed.

        Raises:
            DataRejected: as `AggregateSet.accumulate`, or `op` holds another value than the row kinds.
            JobRejected: the column `op` is missing.
        """
        signs = signs_of(batch)
        for change in [
            each.accumulate_signed(state, name, batch, at, signs) for name, each in self._retractable.items()
        ]:
            change()
        for name, aggregate in self._sums.items():
            _clear_rounding(state, name, *valid_values(batch.column(*(aggregate.columns() or ())), at))

    def results(self, state: StateColumns, row_ids: Positions) -> list[pa.Array]:
        return [self._aggregates[name].result(state, name, row_ids) for name in self.names]

    def have_rows(self, state: StateColumns, row_ids: Positions) -> Mask:
        """Whether each key has rows. A negative number of rows: rows were taken back that have not arrived."""
        if not len(row_ids):  # the columns may have no types yet
            return np.zeros(0, dtype=bool)
        return np.asarray(state.column(f"{OP_COLUMN}:count")[row_ids] > 0)

    def free(self, row_ids: Positions) -> Positions:
        """Frees the state of keys without rows. It is kept while a row is awaited that was taken back before.

        Returns:
            The freed row ids.
        """
        if not len(row_ids):
            return row_ids
        empty = row_ids[self._are_empty(row_ids)]
        if len(empty):
            self._table.delete(empty)
        return empty

    def delete(self, row_ids: Positions) -> None:
        """Deletes the state of keys, with or without rows. Counts keys that await rows that were taken back before."""
        if not len(row_ids):
            return
        without_rows = row_ids[~self.have_rows(self._table, row_ids)]
        if unmatched := int(np.count_nonzero(~self._are_empty(without_rows))):
            self._context.count(UNMATCHED_COUNTER, unmatched)
        for extreme in self._extremes:
            extreme.delete(row_ids)
        self._table.delete(row_ids)

    def _are_empty(self, row_ids: Positions) -> Mask:
        """Whether the state of each key is that of a key without rows: also no row is awaited that was taken back."""
        empty = np.ones(len(row_ids), dtype=bool)
        sums = {f"{name}:sum" for name in self._sums}
        for field in self.fields():
            if not field.nullable or field.name in sums:  # not the minima and maxima, whose entries are counted
                empty &= _are_zero(self._table.column(field.name)[row_ids])
        return empty


def _retractable(name: str, aggregate: Aggregate) -> Any:
    """The aggregate for rows that may be taken back: a `RetractableAggregate`."""
    if isinstance(aggregate, Min | Max):
        return CountedExtreme(aggregate)
    if type(aggregate) is Sum:
        return CountedSum(*(aggregate.columns() or ()))
    if type(aggregate) in (Count, CountIf, Mean):
        return aggregate
    detail = f"{type(aggregate).__name__} cannot take rows of a changelog back: read the column {OP_COLUMN!r} before it"
    raise JobRejected("no-retraction", name, detail)


def _clear_rounding(state: StateColumns, name: str, values: Values, at: Positions) -> None:
    """Sets sums of floats without values to 0: the rest of roundings would stay in later sums.

    Another rest is of values that were taken back before they arrive.

    Args:
        values: the values that were added or taken back.

    Raises:
        DataRejected: a sum is infinite, so that no value could be taken back.
    """
    sums, sizes = state.column(f"{name}:sum"), state.column(f"{name}:size")
    if sums.dtype != np.float64:
        return
    with np.errstate(over="ignore"):
        np.add.at(sizes, at, np.abs(values))
    if not np.isfinite(sums[at]).all():
        raise DataRejected(f"the sum {name!r} exceeds the range of float64")
    rounding = _ROUNDING * np.minimum(sizes[at], np.finfo(np.float64).max)
    empty = at[(state.column(f"{name}:count")[at] == 0) & (np.abs(sums[at]) <= rounding)]
    sums[empty] = sizes[empty] = 0.0


def _are_zero(values: Values) -> Mask:
    if values.dtype == DECIMAL_WORDS:
        return np.asarray((values["low"] == 0) & (values["high"] == 0))
    return np.asarray(values == 0)
