"""What can be computed per key: counts, sums, extremes, means. As in SQL, nulls are ignored, and nulls alone give null.

Each aggregate first reduces a batch to one value per distinct key, then folds those into the table, so the table is
touched once per key and batch. Integer sums are exact and refuse to overflow; a mean is kept as sum and count.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.errors import DataRejected, JobRejected
from runtime.state.columns import storage_dtype
from runtime.state.factorise import Distinct
from runtime.state.index import Slots
from runtime.state.table import KeyedTable

_INT64_LIMIT: Final = 2**63
_HIGH_LIMIT: Final = 2**31
_LOW_HALF: Final = 2**32 - 1

Values = npt.NDArray[Any]
Rows = npt.NDArray[np.intp]


class Aggregate(ABC):
    """One aggregate of one column (or of rows). Its state columns have the name it is given, plus a suffix."""

    @abstractmethod
    def fields(self, name: str) -> list[pa.Field]:
        """State columns; a type that depends on the data is null."""

    @abstractmethod
    def kinds(self, schema: pa.Schema) -> list[Any]:
        """The types of the state columns for input of `schema`."""

    @abstractmethod
    def fold(self, table: KeyedTable, name: str, batch: pa.RecordBatch, distinct: Distinct, slots: Slots) -> None:
        """Takes a batch in; `slots` are those of its distinct keys."""

    @abstractmethod
    def result(self, table: KeyedTable, name: str, slots: Slots) -> pa.Array:
        """The values now."""


class Count(Aggregate):
    """The number of rows."""

    def fields(self, name: str) -> list[pa.Field]:
        return [pa.field(f"{name}:count", pa.int64(), nullable=False)]

    def kinds(self, schema: pa.Schema) -> list[Any]:
        return [pa.int64()]

    def fold(self, table: KeyedTable, name: str, batch: pa.RecordBatch, distinct: Distinct, slots: Slots) -> None:
        table.column(f"{name}:count")[slots] += np.bincount(distinct.which, minlength=len(distinct))

    def result(self, table: KeyedTable, name: str, slots: Slots) -> pa.Array:
        return table.value_column(f"{name}:count", slots)


class CountIf(Count):
    """The number of rows in which a boolean column is true."""

    def __init__(self, column: str) -> None:
        self._column = column

    def kinds(self, schema: pa.Schema) -> list[Any]:
        kind = _kind(schema, self._column)
        if not pa.types.is_boolean(kind):
            raise JobRejected("bad-aggregate", self._column, f"count_if needs a boolean column, not {kind}")
        return [pa.int64()]

    def fold(self, table: KeyedTable, name: str, batch: pa.RecordBatch, distinct: Distinct, slots: Slots) -> None:
        true = batch.column(self._column).fill_null(False).to_numpy(zero_copy_only=False)
        table.column(f"{name}:count")[slots] += np.bincount(distinct.which[true], minlength=len(distinct))


class Sum(Aggregate):
    """The sum of a numeric column: int64 for integers, float64 otherwise."""

    def __init__(self, column: str) -> None:
        self._column = column

    def fields(self, name: str) -> list[pa.Field]:
        return [pa.field(f"{name}:sum", pa.null())]

    def kinds(self, schema: pa.Schema) -> list[Any]:
        kind = _kind(schema, self._column)
        if pa.types.is_integer(kind):
            return [pa.int64()]
        if pa.types.is_floating(kind):
            return [pa.float64()]
        raise JobRejected("bad-aggregate", self._column, f"a sum or mean needs a numeric column, not {kind}")

    def fold(self, table: KeyedTable, name: str, batch: pa.RecordBatch, distinct: Distinct, slots: Slots) -> None:
        values, rows = _present(batch.column(self._column), distinct.which)
        sums = table.column(f"{name}:sum")
        sums[slots] = _added(sums[slots], _sums(values, rows, len(distinct), sums.dtype, name), name)
        table.valid(f"{name}:sum")[slots] |= _occurs(rows, len(distinct))

    def result(self, table: KeyedTable, name: str, slots: Slots) -> pa.Array:
        return table.value_column(f"{name}:sum", slots)


class Mean(Sum):
    """The mean of a numeric column, as float64."""

    def fields(self, name: str) -> list[pa.Field]:
        return [*super().fields(name), pa.field(f"{name}:count", pa.int64(), nullable=False)]

    def kinds(self, schema: pa.Schema) -> list[Any]:
        return [*super().kinds(schema), pa.int64()]

    def fold(self, table: KeyedTable, name: str, batch: pa.RecordBatch, distinct: Distinct, slots: Slots) -> None:
        super().fold(table, name, batch, distinct, slots)
        _, rows = _present(batch.column(self._column), distinct.which)
        table.column(f"{name}:count")[slots] += np.bincount(rows, minlength=len(distinct))

    def result(self, table: KeyedTable, name: str, slots: Slots) -> pa.Array:
        counts = table.column(f"{name}:count")[slots]
        sums = table.column(f"{name}:sum")[slots]
        return pa.array(sums / np.maximum(counts, 1), mask=counts == 0)


class _Extreme(Aggregate):
    """What `Min` and `Max` share. The state has the type of the column."""

    _better: np.ufunc  #: of two values, which to keep; of a number and NaN, see the subclass
    _suffix: str

    def __init__(self, column: str) -> None:
        self._column = column

    def fields(self, name: str) -> list[pa.Field]:
        return [pa.field(f"{name}:{self._suffix}", pa.null())]

    def kinds(self, schema: pa.Schema) -> list[Any]:
        kind = _kind(schema, self._column)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)):
            raise JobRejected("bad-aggregate", self._column, f"min and max need a number or a time, not {kind}")
        return [kind]

    def fold(self, table: KeyedTable, name: str, batch: pa.RecordBatch, distinct: Distinct, slots: Slots) -> None:
        values, rows = _present(batch.column(self._column), distinct.which)
        column, valid = table.column(f"{name}:{self._suffix}"), table.valid(f"{name}:{self._suffix}")
        best, occurs = self._reduced(values.astype(column.dtype), rows, len(distinct))
        before = np.where(valid[slots], column[slots], best)
        with np.errstate(invalid="ignore"):  # comparing with NaN is meant
            column[slots] = np.where(occurs, self._better(before, best), column[slots])
        valid[slots] |= occurs

    def result(self, table: KeyedTable, name: str, slots: Slots) -> pa.Array:
        return table.value_column(f"{name}:{self._suffix}", slots)

    def _reduced(self, values: Values, rows: Rows, count: int) -> tuple[Values, npt.NDArray[np.bool_]]:
        best = np.zeros(count, dtype=values.dtype)
        best[rows] = values  # any value of the key will do to start from
        with np.errstate(invalid="ignore"):  # comparing with NaN is meant
            self._better.at(best, rows, values)
        return best, _occurs(rows, count)


class Min(_Extreme):
    """The smallest value; NaN counts as larger than every number, as in Spark."""

    _better = np.fmin
    _suffix = "min"


class Max(_Extreme):
    """The largest value; NaN counts as larger than every number, as in Spark."""

    _better = np.maximum
    _suffix = "max"


class AggregateSet:
    """The aggregates of one operator, by output column."""

    def __init__(self, aggregates: Mapping[str, Aggregate]) -> None:
        self._aggregates = dict(aggregates)

    @property
    def names(self) -> list[str]:
        return list(self._aggregates)

    def fields(self) -> pa.Schema:
        return pa.schema([field for name, wanted in self._aggregates.items() for field in wanted.fields(name)])

    def kinds(self, schema: pa.Schema) -> list[Any]:
        return [kind for wanted in self._aggregates.values() for kind in wanted.kinds(schema)]

    def fold(self, table: KeyedTable, batch: pa.RecordBatch, distinct: Distinct, slots: Slots) -> None:
        for name, wanted in self._aggregates.items():
            wanted.fold(table, name, batch, distinct, slots)
        table.touch(slots)

    def results(self, table: KeyedTable, slots: Slots) -> list[pa.Array]:
        return [wanted.result(table, name, slots) for name, wanted in self._aggregates.items()]


def _kind(schema: pa.Schema, column: str) -> Any:
    if column not in schema.names:
        raise JobRejected("unknown-column", column, f"there is no such column; there are {', '.join(schema.names)}")
    return schema.field(column).type


def _present(column: pa.Array, which: Rows) -> tuple[Values, Rows]:
    """The values that are not null, as stored, and the distinct key of each."""
    if column.null_count:
        which = which[column.is_valid().to_numpy(zero_copy_only=False)]
        column = column.drop_null()
    if pa.types.is_temporal(column.type):
        column = column.view(pa.from_numpy_dtype(storage_dtype(column.type)))
    return column.to_numpy(zero_copy_only=False), which


def _occurs(rows: Rows, count: int) -> npt.NDArray[np.bool_]:
    occurs = np.zeros(count, dtype=bool)
    occurs[rows] = True
    return occurs


def _sums(values: Values, rows: Rows, count: int, dtype: np.dtype[Any], name: str) -> Values:
    if dtype == np.int64 and len(values) and not _fits(values):
        return _checked_sums(values, rows, count, name)
    sums = np.zeros(count, dtype=dtype)
    np.add.at(sums, rows, values.astype(dtype, copy=False))  # equal types: numpy has a fast loop for these only
    return sums


def _fits(values: Values) -> bool:
    """Whether no sum of these values can leave 64 bits."""
    return max(int(values.max()), -int(values.min())) * len(values) < _INT64_LIMIT


def _checked_sums(values: Values, rows: Rows, count: int, name: str) -> Values:
    """Sums of large integers, in two halves that cannot overflow."""
    high, low = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.add.at(high, rows, (values >> 32).astype(np.int64))
    np.add.at(low, rows, (values & _LOW_HALF).astype(np.int64))
    high += low >> 32
    if len(high) and (int(high.max()) >= _HIGH_LIMIT or int(high.min()) < -_HIGH_LIMIT):
        raise _overflow(name)
    return (high << 32) | (low & _LOW_HALF)


def _added(before: Values, more: Values, name: str) -> Values:
    total = before + more
    if total.dtype == np.int64 and (((before ^ total) & (more ^ total)) < 0).any():
        raise _overflow(name)
    return np.asarray(total)


def _overflow(name: str) -> DataRejected:
    return DataRejected(f"the sum {name!r} leaves the range of a 64-bit integer")
