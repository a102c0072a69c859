"""Rows of JSON objects as Arrow batches: by the compiled kernel where it can, by Arrow's parser elsewhere."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pa_json

from runtime.connectors.formats.bisect_malformed import as_array
from runtime.kernels.loading import native

_MAX_OTHER_SHARE: Final = 64  #: Arrow reads the whole text if more than a row in so many is outside the kernel's subset
_FRACTION_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_MAX_INT64: Final = 2**63 - 1
_MAX_TEXT_BYTES: Final = 2**31 - 2  #: Arrow's block size and the offsets of a text column have 32 bits


@lru_cache(maxsize=64)
def row_parser(schema: pa.Schema) -> "KernelRows":
    """The parser of rows with the columns `schema`. The first call of a process may load the compiled kernels."""
    kernel = native().json_objects
    types, low, high = zip(*(_kernel_type(item.type, kernel) for item in schema), strict=True)
    names = [item.name.encode() for item in schema]
    return KernelRows(
        schema=schema,
        kernel=kernel,
        other=pa.schema([item for item, kind in zip(schema, types, strict=True) if kind == kernel.SKIPPED_COLUMN]),
        types=np.array(types, dtype=np.int64),
        low=np.array(low, dtype=np.uint64),
        high=np.array(high, dtype=np.uint64),
        required=np.array([not item.nullable for item in schema], dtype=np.bool_),
        names=np.frombuffer(b"".join(names) + kernel.PADDING, dtype=np.uint8),
        name_ends=np.cumsum([len(name) for name in names], dtype=np.int64),
    )


def read_by_arrow(data: bytes, schema: pa.Schema) -> pa.Table:
    """All objects in `data`. Dates are ISO 8601 text. Crashes on `null` in place of an object.

    Raises:
        ArrowInvalid: an object is malformed, or `data` is too long; callers then divide the rows.
    """
    if len(data) > _MAX_TEXT_BYTES:
        raise pa.ArrowInvalid(f"the rows have {len(data)} bytes, of at most {_MAX_TEXT_BYTES}")
    options = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    as_text = pa.schema([item.with_type(_with_text(item.type)) for item in schema])
    parsing = pa_json.ParseOptions(explicit_schema=as_text, unexpected_field_behavior="ignore")
    table = pa_json.read_json(pa.BufferReader(data), options, parsing)
    return table if as_text == schema else table.cast(schema)


def _with_text(kind: pa.DataType) -> pa.DataType:
    """The type with text for dates, which Arrow's parser takes as numbers of days only."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([item.with_type(_with_text(item.type)) for item in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_text(kind.value_type)))
    return kind


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Parses rows by Arrow alone."""

    schema: pa.Schema

    def parse(self, data: bytes, count: int) -> pa.RecordBatch:
        """The rows of `data`, which is UTF-8. Raises ArrowInvalid unless `data` holds exactly `count` valid rows."""
        table = read_by_arrow(data, self.schema)
        if table.num_rows != count:
            raise pa.ArrowInvalid(f"{table.num_rows} objects in {count} lines")
        return pa.RecordBatch.from_arrays([as_array(column) for column in table.columns], schema=self.schema)


@dataclass(frozen=True, slots=True)
class KernelRows:
    """Parses rows by the kernel. Arrow parses the rows that the kernel refuses, and columns of types that it lacks."""

    schema: pa.Schema
    kernel: Any  #: the module `runtime.kernels.json_objects`
    other: pa.Schema  #: the columns of types that the kernel lacks
    types: npt.NDArray[np.int64]
    low: npt.NDArray[np.uint64]
    high: npt.NDArray[np.uint64]
    required: npt.NDArray[np.bool_]
    names: npt.NDArray[np.uint8]
    name_ends: npt.NDArray[np.int64]

    def parse(self, data: bytes, count: int) -> pa.RecordBatch:
        """The rows of `data`, which is UTF-8. Raises ArrowInvalid unless `data` holds exactly `count` valid rows."""
        if len(data) > _MAX_TEXT_BYTES:
            return ArrowRows(self.schema).parse(data, count)
        text = np.frombuffer(data + self.kernel.PADDING, dtype=np.uint8)
        shape = len(self.types), count
        values, lengths = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int32)
        valid = np.zeros(shape, dtype=np.bool_)
        row, place, refused, lines = 0, 0, list[int](), list[bytes]()
        while True:
            row, place = self.kernel.parse_rows(
                text, place, row, count, self.names, self.name_ends, self.types, self.low, self.high, self.required,
                values, lengths, valid,
            )  # fmt: skip
            if row == count:
                break
            if len(refused) * _MAX_OTHER_SHARE > count:
                return ArrowRows(self.schema).parse(data, count)
            end = data.find(b"\n", place) + 1 or len(data)
            refused.append(row)
            lines.append(data[place:end])
            valid[:, row] = False
            row, place = row + 1, end
        if data[place:].strip():
            return ArrowRows(self.schema).parse(data, count)
        arrow_batch = ArrowRows(self.other).parse(data, count) if len(self.other) else None
        columns = [
            arrow_batch.column(item.name)
            if arrow_batch is not None and as_type == self.kernel.SKIPPED_COLUMN
            else self._array(item.type, as_type, values[index], lengths[index], valid[index])
            for index, (item, as_type) in enumerate(zip(self.schema, self.types, strict=True))
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if not refused:
            return batch
        return _with_rows(batch, refused, ArrowRows(self.schema).parse(b"".join(lines), len(refused)))

    def _array(self, column_type: pa.DataType, as_type: int, values: Any, lengths: Any, valid: Any) -> pa.Array:
        """The column with the values that the kernel has written for it."""
        rows = len(values)
        nulls = rows - int(np.count_nonzero(valid))
        validity = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        if as_type == self.kernel.TEXT_COLUMN:
            sizes = np.abs(lengths[valid] if nulls else lengths)
            offsets = np.empty(rows + 1, dtype=np.int32)
            target = np.empty(int(sizes.sum(dtype=np.int64)) + 8, dtype=np.uint8)
            end = self.kernel.copy_texts(values, lengths, valid, offsets, target)
            return pa.Array.from_buffers(
                column_type, rows, [validity, pa.py_buffer(offsets), pa.py_buffer(target[:end])], nulls
            )
        if as_type == self.kernel.BOOLEAN_COLUMN:
            data = np.packbits(values == 1, bitorder="little")
        else:
            data = values if column_type.bit_width == 64 else values.astype(f"i{column_type.bit_width // 8}")
        return pa.Array.from_buffers(column_type, rows, [validity, pa.py_buffer(data)], nulls)


def _kernel_type(column_type: pa.DataType, kernel: Any) -> tuple[int, int, int]:
    """(type, low, high) of a column in the kernel."""
    if pa.types.is_signed_integer(column_type):
        high = 2 ** (column_type.bit_width - 1) - 1
        return kernel.INTEGER_COLUMN, high + 1, high
    if pa.types.is_unsigned_integer(column_type):
        return kernel.INTEGER_COLUMN, 0, min(2**column_type.bit_width - 1, _MAX_INT64)
    if pa.types.is_float64(column_type):
        return kernel.FLOAT_COLUMN, 0, 0
    if pa.types.is_boolean(column_type):
        return kernel.BOOLEAN_COLUMN, 0, 0
    if pa.types.is_string(column_type):
        return kernel.TEXT_COLUMN, 0, 0
    if pa.types.is_timestamp(column_type):
        return kernel.TIMESTAMP_COLUMN, 0, _FRACTION_DIGITS[column_type.unit]
    return kernel.SKIPPED_COLUMN, 0, 0


def _with_rows(batch: pa.RecordBatch, rows: list[int], replacements: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` with `replacements` in the places `rows`."""
    places = np.arange(batch.num_rows)
    places[rows] = batch.num_rows + np.arange(len(rows))
    return pa.concat_batches([batch, replacements]).take(pa.array(places))
