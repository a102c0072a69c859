"""Aggregates per key: counts, sums, extremes, means. As in SQL, nulls are ignored, and only nulls give null.

An aggregate keeps its state in columns, with a position per key. `accumulate` adds rows. `merge` adds the state of
other rows: merging the states of two parts of the input gives the state of the whole input. Integer sums are exact:
an overflow is refused before any state has changed. A mean is kept as sum and count; a sum of integers beyond 64 bits
carries into a further column.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial, reduce
from operator import setitem
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.errors import DataRejected, JobRejected
from runtime.kernels.loading import native
from runtime.operators.decimal_sums import DECIMAL_DIGITS, add_decimals, unscaled_floats
from runtime.state.columns import DECIMAL_WORDS, decimal_words, storage_dtype

_INT64_LIMIT: Final = 2**63
_HIGH_LIMIT: Final = 2**31
_LOW_HALF: Final = 2**32 - 1

Values = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Signs = npt.NDArray[np.int64]  #: by row: 1 adds it, -1 takes back an earlier row
Positions = npt.NDArray[np.intp]
Change = Callable[[], None]  #: applies a checked change of the state


class StateColumns(Protocol):
    """State columns by name: writable arrays with a position per key."""

    def column(self, name: str) -> Values: ...
    def valid(self, name: str) -> Mask: ...
    def value_column(self, name: str, row_ids: Positions) -> pa.Array: ...


class Aggregate(ABC):
    """An aggregate of a column (or of rows). Its state columns have the name of its output column
    and a suffix, as in `count:sum`.
    """

    def columns(self) -> tuple[str, ...] | None:
        """The columns that the aggregate reads; None: perhaps all."""
        return None

    @property
    def definition(self) -> str:
        """Function and columns, such as `Sum(fare)`. A restore is refused if they differ from the checkpoint."""
        columns = self.columns()
        return f"{type(self).__name__}({'?' if columns is None else ', '.join(columns)})"

    @abstractmethod
    def fields(self, name: str) -> list[pa.Field]:
        """The state columns. Type null stands for a type that depends on the data."""

    @abstractmethod
    def state_types(self, schema: pa.Schema) -> list[Any]:
        """The types of the state columns for input of `schema`."""

    @abstractmethod
    def accumulate(self, state: StateColumns, name: str, batch: pa.RecordBatch, at: Positions) -> Change:
        """Checks `batch` and returns the change that adds it; `at` holds the position of each row's key.

        Raises:
            DataRejected: the state cannot hold a value or the result.
        """

    @abstractmethod
    def merge(self, state: StateColumns, name: str, parts: pa.RecordBatch, at: Positions) -> Change:
        """Checks `parts` (rows of state columns) and returns the change that adds them; `at` holds each row's position.

        Raises:
            DataRejected: as `accumulate`.
        """

    @abstractmethod
    def result(self, state: StateColumns, name: str, row_ids: Positions) -> pa.Array:
        """The current results of the keys at positions `row_ids`."""


class Count(Aggregate):
    """The number of rows."""

    def columns(self) -> tuple[str, ...] | None:
        return () if type(self) is Count else None

    def fields(self, name: str) -> list[pa.Field]:
        return [count_field(name)]

    def state_types(self, schema: pa.Schema) -> list[Any]:
        return [pa.int64()]

    def accumulate(self, state: StateColumns, name: str, batch: pa.RecordBatch, at: Positions) -> Change:
        return self.accumulate_signed(state, name, batch, at, None)

    def accumulate_signed(
        self, state: StateColumns, name: str, batch: pa.RecordBatch, at: Positions, signs: Signs | None
    ) -> Change:
        """As `accumulate`; rows of a changelog have signs."""
        return count_rows(state.column(f"{name}:count"), at, signs)

    def merge(self, state: StateColumns, name: str, parts: pa.RecordBatch, at: Positions) -> Change:
        return add_counts(state, f"{name}:count", parts, at)

    def result(self, state: StateColumns, name: str, row_ids: Positions) -> pa.Array:
        return state.value_column(f"{name}:count", row_ids)


class CountIf(Count):
    """The number of rows in which a boolean column is true."""

    def __init__(self, column: str) -> None:
        self._column = column

    def columns(self) -> tuple[str, ...] | None:
        return (self._column,)

    def state_types(self, schema: pa.Schema) -> list[Any]:
        kind = column_type(schema, self._column)
        if not pa.types.is_boolean(kind):
            raise JobRejected("bad-aggregate", self._column, f"count_if needs a boolean column, not {kind}")
        return [pa.int64()]

    def accumulate_signed(
        self, state: StateColumns, name: str, batch: pa.RecordBatch, at: Positions, signs: Signs | None
    ) -> Change:
        true = batch.column(self._column).fill_null(False).to_numpy(zero_copy_only=False)
        return count_rows(state.column(f"{name}:count"), at[true], None if signs is None else signs[true])


class Sum(Aggregate):
    """The sum of a numeric column: int64 for integers, float64 for floats, and 38 digits of the scale for decimals."""

    def __init__(self, column: str) -> None:
        self._column = column

    def columns(self) -> tuple[str, ...] | None:
        return (self._column,)

    def fields(self, name: str) -> list[pa.Field]:
        return [pa.field(f"{name}:sum", pa.null())]

    def state_types(self, schema: pa.Schema) -> list[Any]:
        kind = column_type(schema, self._column)
        if pa.types.is_integer(kind):
            return [pa.int64()]
        if pa.types.is_floating(kind):
            return [pa.float64()]
        if pa.types.is_decimal(kind) and not pa.types.is_decimal256(kind) and kind.scale <= DECIMAL_DIGITS:
            return [pa.decimal128(DECIMAL_DIGITS, kind.scale)]
        raise JobRejected("bad-aggregate", self._column, f"a sum or mean needs a numeric column, not {kind}")

    def accumulate(self, state: StateColumns, name: str, batch: pa.RecordBatch, at: Positions) -> Change:
        return self.accumulate_signed(state, name, batch, at, None)

    def accumulate_signed(
        self, state: StateColumns, name: str, batch: pa.RecordBatch, at: Positions, signs: Signs | None
    ) -> Change:
        """As `accumulate`; rows of a changelog have signs."""
        return self._accumulate_values(state, name, batch.column(self._column), at, signs)

    def merge(self, state: StateColumns, name: str, parts: pa.RecordBatch, at: Positions) -> Change:
        return self._accumulate_values(state, name, parts.column(f"{name}:sum"), at)

    def result(self, state: StateColumns, name: str, row_ids: Positions) -> pa.Array:
        return state.value_column(f"{name}:sum", row_ids)

    def _accumulate_values(
        self, state: StateColumns, name: str, column: pa.Array, at: Positions, signs: Signs | None = None
    ) -> Change:
        signs = valid_signs(column, signs)
        values, at = valid_values(column, at)
        sums, valid = state.column(f"{name}:sum"), state.valid(f"{name}:sum")
        return _add_values(sums, valid, at, values, name, self._carries(state, name), signs)

    def _carries(self, state: StateColumns, name: str) -> Values | None:
        """The column into which sums of integers carry; None: a sum beyond 64 bits is refused."""
        return None


class Mean(Sum):
    """The mean of a numeric column, as float64.

    The sum of integers is `carry` * 2^64 + `sum`, so that it has no limit of its own. Otherwise the carry is 0.
    """

    def fields(self, name: str) -> list[pa.Field]:
        return [*super().fields(name), count_field(name), pa.field(f"{name}:carry", pa.int64(), nullable=False)]

    def state_types(self, schema: pa.Schema) -> list[Any]:
        return [*super().state_types(schema), pa.int64(), pa.int64()]

    def accumulate_signed(
        self, state: StateColumns, name: str, batch: pa.RecordBatch, at: Positions, signs: Signs | None
    ) -> Change:
        count = count_values(state, name, batch.column(self._column), at, signs)
        return in_sequence(super().accumulate_signed(state, name, batch, at, signs), count)

    def merge(self, state: StateColumns, name: str, parts: pa.RecordBatch, at: Positions) -> Change:
        counts = (add_counts(state, f"{name}:{suffix}", parts, at) for suffix in ("count", "carry"))
        return reduce(in_sequence, counts, super().merge(state, name, parts, at))

    def result(self, state: StateColumns, name: str, row_ids: Positions) -> pa.Array:
        counts, carries = (state.column(f"{name}:{suffix}")[row_ids] for suffix in ("count", "carry"))
        sums = state.column(f"{name}:sum")[row_ids]
        divisors = np.maximum(counts, 1)
        if sums.dtype == DECIMAL_WORDS:
            scale = state.value_column(f"{name}:sum", row_ids).type.scale
            sums, divisors = unscaled_floats(sums), divisors * 10.0**scale
        elif carries.any():
            sums = sums + carries * 2.0**64
        return pa.array(sums / divisors, mask=counts <= 0)

    def _carries(self, state: StateColumns, name: str) -> Values | None:
        return state.column(f"{name}:carry")


class _Extreme(Aggregate):
    """Base of `Min` and `Max`. The state has the type of the column."""

    _choose: np.ufunc  #: chooses between two values; for NaN see the subclasses
    _suffix: str

    def __init__(self, column: str) -> None:
        self._column = column

    def columns(self) -> tuple[str, ...] | None:
        return (self._column,)

    def fields(self, name: str) -> list[pa.Field]:
        return [pa.field(f"{name}:{self._suffix}", pa.null())]

    def state_types(self, schema: pa.Schema) -> list[Any]:
        kind = column_type(schema, self._column)
        time = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)  # months and days have no order
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or time):
            raise JobRejected("bad-aggregate", self._column, f"min and max need a number or a time, not {kind}")
        return [kind]

    def accumulate(self, state: StateColumns, name: str, batch: pa.RecordBatch, at: Positions) -> Change:
        return self._accumulate_values(state, name, batch.column(self._column), at)

    def merge(self, state: StateColumns, name: str, parts: pa.RecordBatch, at: Positions) -> Change:
        return self._accumulate_values(state, name, parts.column(f"{name}:{self._suffix}"), at)

    def result(self, state: StateColumns, name: str, row_ids: Positions) -> pa.Array:
        return state.value_column(f"{name}:{self._suffix}", row_ids)

    def _accumulate_values(self, state: StateColumns, name: str, column: pa.Array, at: Positions) -> Change:
        values, at = valid_values(column, at)
        best, valid = state.column(f"{name}:{self._suffix}"), state.valid(f"{name}:{self._suffix}")
        return partial(self.choose_values, best, valid, cast_exactly(values, best.dtype, name), at)

    def choose_values(self, best: Values, valid: Mask, values: Values, at: Positions) -> None:
        """Chooses between `best` at the positions `at` and `values`; `valid`: where `best` holds a value."""
        indices = np.flatnonzero(~valid[at])
        best[at[indices]] = values[indices]  # any value of the key is a valid start
        valid[at[indices]] = True
        with np.errstate(invalid="ignore"):  # comparisons with NaN are intended
            self._choose.at(best, at, values)


class Min(_Extreme):
    """The smallest value; NaN counts as larger than every number, as in Spark."""

    _choose = np.fmin
    _suffix = "min"


class Max(_Extreme):
    """The largest value; NaN counts as larger than every number, as in Spark."""

    _choose = np.maximum
    _suffix = "max"


class AggregateSet:
    """The aggregates of an operator, by output column."""

    def __init__(self, aggregates: Mapping[str, Aggregate]) -> None:
        self._aggregates = dict(aggregates)

    @property
    def names(self) -> list[str]:
        return list(self._aggregates)

    def fields(self) -> pa.Schema:
        return pa.schema([field for name, aggregate in self._aggregates.items() for field in aggregate.fields(name)])

    def state_types(self, schema: pa.Schema) -> list[Any]:
        return [kind for aggregate in self._aggregates.values() for kind in aggregate.state_types(schema)]

    def row_count_column(self) -> str:
        """The state column that counts all rows; requires a `Count` among the aggregates."""
        return next(f"{name}:count" for name, aggregate in self._aggregates.items() if type(aggregate) is Count)

    def accumulate(self, state: StateColumns, batch: pa.RecordBatch, at: Positions) -> None:
        """Adds rows to all aggregates, or to none if any refuses them.

        Raises:
            DataRejected: the state cannot hold a value or the result.
        """
        for change in [aggregate.accumulate(state, name, batch, at) for name, aggregate in self._aggregates.items()]:
            change()

    def merge(self, state: StateColumns, parts: pa.RecordBatch, at: Positions) -> None:
        """Adds rows of state columns to all aggregates, or to none. Raises as `accumulate`."""
        for change in [aggregate.merge(state, name, parts, at) for name, aggregate in self._aggregates.items()]:
            change()

    def results(self, state: StateColumns, row_ids: Positions) -> list[pa.Array]:
        return [aggregate.result(state, name, row_ids) for name, aggregate in self._aggregates.items()]

    def have_rows(self, state: StateColumns, row_ids: Positions) -> Mask:
        """Whether each key of the state has rows: all have, unless rows are taken back."""
        return np.ones(len(row_ids), dtype=bool)


def count_field(name: str) -> pa.Field:
    return pa.field(f"{name}:count", pa.int64(), nullable=False)


def add_counts(state: StateColumns, field: str, parts: pa.RecordBatch, at: Positions) -> Change:
    """The change that adds the counts in column `field` of rows of state columns."""
    return partial(np.add.at, state.column(field), at, parts.column(field).to_numpy())


def in_sequence(first: Change, second: Change) -> Change:
    def change() -> None:
        first()
        second()

    return change


def column_type(schema: pa.Schema, column: str) -> Any:
    """The type of a column. Raises JobRejected if the column does not exist."""
    if column not in schema.names:
        raise JobRejected("unknown-column", column, f"there is no such column; there are {', '.join(schema.names)}")
    return schema.field(column).type


def valid_values(column: pa.Array, at: Positions) -> tuple[Values, Positions]:
    """The values that are not null, in storage form, and their positions."""
    if column.null_count:
        at = at[column.is_valid().to_numpy(zero_copy_only=False)]
        column = column.drop_null()
    if pa.types.is_decimal(column.type):
        return decimal_words(column.cast(pa.decimal128(DECIMAL_DIGITS, column.type.scale))), at
    if pa.types.is_temporal(column.type):
        column = column.view(pa.from_numpy_dtype(storage_dtype(column.type)))
    return column.to_numpy(zero_copy_only=False), at


def valid_signs(column: pa.Array, signs: Signs | None) -> Signs | None:
    """The signs of the values that are not null."""
    return signs if signs is None or not column.null_count else signs[column.is_valid().to_numpy(zero_copy_only=False)]


def count_rows(counts: Values, at: Positions, signs: Signs | None = None) -> Change:
    """The change that counts a row at each position; rows that are taken back count -1."""
    if signs is not None:
        return partial(np.add.at, counts, at, signs)
    return partial(native().folds.count_rows, at, counts)


def count_values(state: StateColumns, name: str, column: pa.Array, at: Positions, signs: Signs | None) -> Change:
    """The change that counts the values that are not null."""
    _, positions = valid_values(column, at)
    return count_rows(state.column(f"{name}:count"), positions, valid_signs(column, signs))


def _add_values(
    sums: Values,
    valid: Mask,
    at: Positions,
    values: Values,
    name: str,
    carries: Values | None,
    signs: Signs | None = None,
) -> Change:
    mark = partial(setitem, valid, at, True)
    if sums.dtype == DECIMAL_WORDS:
        return in_sequence(add_decimals(sums, at, values, name, signs), mark)
    folds = native().folds
    if sums.dtype == np.float64:
        floats = np.ascontiguousarray(values, dtype=np.float64)
        return partial(folds.add_floats, at, floats if signs is None else _negate(floats, signs, name), sums, valid)
    is_small = values.dtype != np.uint64 or int(values.max(initial=0)) < _INT64_LIMIT
    if is_small and (signs is None or int(values.min(initial=0)) > -_INT64_LIMIT):  # which has no opposite
        integers = np.ascontiguousarray(values, dtype=np.int64)
        integers = integers if signs is None else integers * signs
        if folds.fits_int64(at, integers, sums):
            return partial(folds.add_integers, at, integers, sums, valid)
    return in_sequence(_add_exactly(sums, at, values, name, carries, signs), mark)


def _negate(values: Values, signs: Signs, name: str) -> Values:
    """The values of a changelog with their signs. Raises DataRejected: NaN and infinity cannot be subtracted again."""
    if not np.isfinite(values).all():
        detail = "NaN or infinity, which no later row could take back: replace such values before the changelog"
        raise DataRejected(f"the sum {name!r} of a changelog received {detail}")
    return values * signs


def _add_exactly(
    sums: Values, at: Positions, values: Values, name: str, carries: Values | None, signs: Signs | None
) -> Change:
    if values.dtype != np.uint64:
        values = values.astype(np.int64, copy=False)  # for splitting into two halves
    row_ids, which = np.unique(at, return_inverse=True)
    high, low = _exact_sums(values, which, len(row_ids), 1 if signs is None else signs)
    if carries is not None:
        total, carry = _add_with_carry(sums[row_ids], carries[row_ids], high, low)
        return in_sequence(partial(setitem, sums, row_ids, total), partial(setitem, carries, row_ids, carry))
    if len(high) and (int(high.max()) >= _HIGH_LIMIT or int(high.min()) < -_HIGH_LIMIT):
        raise _overflow_error(name)
    return partial(setitem, sums, row_ids, _add_sums(sums[row_ids], (high << 32) | low, name))


def _exact_sums(values: Values, rows: Positions, count: int, signs: Signs | int) -> tuple[Values, Values]:
    """Sums of large integers, as `high` * 2^32 + `low`, where `low` is in [0, 2^32)."""
    high, low = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.add.at(high, rows, (values >> 32).astype(np.int64) * signs)
    np.add.at(low, rows, (values & _LOW_HALF).astype(np.int64) * signs)
    return high + (low >> 32), low & _LOW_HALF


def _add_with_carry(sums: Values, carries: Values, high: Values, low: Values) -> tuple[Values, Values]:
    """The 128-bit sums `carries` * 2^64 + `sums` after `high` * 2^32 + `low` was added, in the same form."""
    before = sums.view(np.uint64)
    after = before + ((high & _LOW_HALF) << 32 | low).view(np.uint64)
    total = after.view(np.int64)
    # A negative word stands for 2^64 less than its bits as an unsigned number.
    return total, carries - (sums < 0) + (high >> 32) + (after < before) + (total < 0)


def _add_sums(before: Values, increments: Values, name: str) -> Values:
    total = before + increments
    if (((before ^ total) & (increments ^ total)) < 0).any():
        raise _overflow_error(name)
    return np.asarray(total)


def cast_exactly(values: Values, kind: np.dtype[Any], name: str) -> Values:
    """The values in the type of the state, which may be narrower than the column since the column was widened."""
    if np.can_cast(values.dtype, kind):
        return values.astype(kind, copy=False)
    with np.errstate(over="ignore"):
        fitting = values.astype(kind)
    lost = (fitting != values) & (values == values)  # NaN is unequal to itself
    if lost.any():
        detail = f"the state of {name!r} has type {pa.from_numpy_dtype(kind)} and cannot hold {values[lost][0]}"
        raise DataRejected(f"{detail}: the column was narrower when the state was created")
    return fitting


def _overflow_error(name: str) -> DataRejected:
    return DataRejected(f"the sum {name!r} exceeds the range of a 64-bit integer")
