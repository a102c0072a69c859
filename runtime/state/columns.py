"""Value columns of a table: typed numpy arrays by row id, with a validity mask where the field is nullable.

Values have a fixed width. Times are held as integers, and decimals as pairs of words; both are converted to Arrow when
rows leave the table.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.kernels.hash_constants import FLOAT_WORDS, INTEGER_WORDS
from runtime.state.index.growing import GrowingArray
from runtime.state.index.hashing import WORD_BYTES, Hashes, HashInput, hash_text, padded
from runtime.state.index.key_index import RowIds

Mask = npt.NDArray[np.bool_]

#: A decimal128 as Arrow stores it: the 128 bits of the unscaled number.
DECIMAL_WORDS: Final = np.dtype([("low", "<u8"), ("high", "<i8")])
_DECIMAL_BYTES: Final = DECIMAL_WORDS.itemsize


@dataclass(frozen=True, slots=True)
class ColumnRows:
    """Copied rows of a value column."""

    field: pa.Field
    values: npt.NDArray[Any]
    valid: Mask | None  #: None: all values are valid

    def take(self, rows: RowIds) -> "ColumnRows":
        valid = None if self.valid is None else self.valid.take(rows)
        return ColumnRows(self.field, self.values.take(rows), valid)

    def hash_input(self) -> HashInput:
        """The column as `value_input` makes it of the column in Arrow."""
        if self.values.dtype == DECIMAL_WORDS:
            return HashInput(_hash_decimals(self.values), valid=self.valid)
        if self.values.dtype.kind == "f":
            return HashInput(self.values.astype(np.float64, copy=False), FLOAT_WORDS, self.valid)
        is_wide = self.values.dtype.itemsize == WORD_BYTES
        return HashInput(self.values if is_wide else self.values.astype(np.int64), INTEGER_WORDS, self.valid)

    def to_arrow(self) -> pa.Array:
        kind = self.field.type
        if pa.types.is_decimal128(kind):
            nulls = None if self.valid is None else pa.array(self.valid).buffers()[1]
            words = pa.py_buffer(np.ascontiguousarray(self.values))
            return pa.Array.from_buffers(kind, len(self.values), [nulls, words])
        array = pa.array(self.values, mask=None if self.valid is None else ~self.valid)
        return array.view(kind) if pa.types.is_temporal(kind) else array


def _hash_decimals(values: npt.NDArray[Any]) -> Hashes:
    data = np.ascontiguousarray(values).view(np.uint8)
    starts = np.arange(len(values), dtype=np.int64) * _DECIMAL_BYTES
    return hash_text(padded(data), starts, np.full(len(values), _DECIMAL_BYTES, dtype=np.int64))


def storage_dtype(kind: Any) -> np.dtype[Any]:
    """The numpy type that holds values of an Arrow type.

    Raises:
        TypeError: the type has no fixed width.
    """
    if pa.types.is_decimal128(kind):
        return DECIMAL_WORDS
    if pa.types.is_temporal(kind):
        return np.dtype(f"int{kind.bit_width}")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    raise TypeError(f"a state value of type {kind} has no fixed width")


def decimal_words(column: pa.Array) -> npt.NDArray[Any]:
    """The words of a column of decimal128; those of a null are undefined. A view of its memory."""
    words = np.frombuffer(column.buffers()[1] or b"", DECIMAL_WORDS)
    return words[column.offset : column.offset + len(column)]


class ValueColumn:
    """A value column. `data` and `valid` are indexed by row id; growth replaces both arrays."""

    def __init__(self, field: pa.Field, capacity: int) -> None:
        self.field = field
        self._values = GrowingArray(storage_dtype(field.type), capacity)
        self._valid = GrowingArray(bool, capacity) if field.nullable else None

    @property
    def data(self) -> npt.NDArray[Any]:
        return self._values.data

    @property
    def valid(self) -> Mask | None:
        return None if self._valid is None else self._valid.data

    def grow(self, capacity: int) -> None:
        self._values.grow(capacity)
        if self._valid is not None:
            self._valid.grow(capacity)

    def widen(self, field: pa.Field) -> None:
        """Converts to the wider type of `field`, which holds all values of the present type."""
        values = GrowingArray(storage_dtype(field.type), len(self._values))
        values.data[:] = self._values.data
        self.field, self._values = field, values

    def clear(self, row_ids: RowIds) -> None:
        self.data[row_ids] = 0
        if (valid := self.valid) is not None:
            valid[row_ids] = False

    def copy(self, row_ids: RowIds) -> ColumnRows:
        valid = self.valid
        return ColumnRows(self.field, self.data[row_ids], None if valid is None else valid[row_ids])

    def put(self, row_ids: RowIds, values: pa.Array) -> None:
        """Writes restored values at `row_ids`."""
        data = self.data
        if pa.types.is_decimal128(self.field.type):
            filled = values.fill_null(pa.scalar(0).cast(values.type)) if values.null_count else values
            data[row_ids] = decimal_words(filled)
            if self.valid is not None:
                self.valid[row_ids] = values.is_valid().to_numpy(zero_copy_only=False)
            return
        if pa.types.is_temporal(self.field.type):
            values = values.view(pa.from_numpy_dtype(data.dtype))
        if (valid := self.valid) is not None:
            valid[row_ids] = values.is_valid().to_numpy(zero_copy_only=False)
        filled = values.fill_null(pa.scalar(0).cast(values.type)) if values.null_count else values
        data[row_ids] = filled.to_numpy(zero_copy_only=False)
