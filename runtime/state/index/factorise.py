"""The distinct keys of a batch, and the distinct key of each row.

For callers that work once per distinct key; `KeyedTable.upsert` accepts repeated keys itself. Columns become dense
codes; codes of several columns are combined by arithmetic. Where the range of codes is small (small integers, window
starts, dictionary-encoded strings), marking the codes that occur is many times cheaper than hashing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.kernels.loading import native
from runtime.state.index.buckets import CodeRows
from runtime.state.index.hashing import as_int64, dictionary_rows, is_text
from runtime.state.index.key_codec import take_rows

_MIN_MARKED_CODES: Final = 1 << 16  #: a code range up to this size is always marked
_MARKED_CODES_PER_ROW: Final = 8  #: a larger code range is marked up to this many codes per row

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DistinctKeys:
    """The distinct keys of some rows."""

    first_rows: npt.NDArray[np.intp]  #: by distinct key, the number of its first row
    key_numbers: npt.NDArray[np.intp]  #: by row, the number of its distinct key

    def __len__(self) -> int:
        return len(self.first_rows)

    def take_keys(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Each distinct key once, in the order of the numbers; `columns` are the key columns of the rows."""
        return [take_rows(column, self.first_rows) for column in columns]


def factorise(columns: Sequence[pa.Array]) -> DistinctKeys:
    """The distinct rows of `columns`. Nulls are a value, equal to each other."""
    return _distinct([_codes(column) for column in columns], len(columns[0]))


def _distinct(columns: Sequence[tuple[Codes, int]], rows: int) -> DistinctKeys:
    codes, space = columns[0]
    for following in columns[1:]:
        column, width = following
        if space * width > _max_marked_codes(rows):
            codes, space = _renumber_densely(codes, space)
            column, width = _renumber_densely(column, width)
        codes, space = codes * width + column, space * width
    which, count = _renumber_densely(codes, space)
    first = np.empty(count, dtype=np.intp)
    first[which[::-1]] = np.arange(rows - 1, -1, -1)  # of repeated numbers, numpy keeps the last: the first row
    return DistinctKeys(first, which.astype(np.intp, copy=False))


def distinct_codes(codes: CodeRows) -> DistinctKeys:
    """The distinct columns of `codes`: a key each."""
    keys = codes.shape[1]
    buckets = np.zeros(1 << (2 * keys).bit_length(), dtype=np.int32)
    first, numbers = np.empty(keys, dtype=np.intp), np.empty(keys, dtype=np.intp)
    count = native().buckets.distinct(np.ascontiguousarray(codes), buckets, first, numbers)
    return DistinctKeys(first[:count], numbers)


def _max_marked_codes(rows: int) -> int:
    return max(_MIN_MARKED_CODES, _MARKED_CODES_PER_ROW * rows)


def _codes(column: pa.Array) -> tuple[Codes, int]:
    """Codes of a column, equal where the values are equal, and their exclusive upper bound."""
    if pa.types.is_dictionary(column.type):
        return _dictionary_codes(column)
    if is_text(column.type) or pa.types.is_decimal(column.type):
        return _dictionary_encode(column)
    if pa.types.is_null(column.type):
        return np.zeros(len(column), dtype=np.int64), 1
    codes, space = _integer_codes(as_int64(column))
    if column.null_count:
        codes = np.where(column.is_null().to_numpy(zero_copy_only=False), space, codes)
        space += 1
    return codes, space


def _dictionary_codes(column: pa.DictionaryArray) -> tuple[Codes, int]:
    """Codes of the dictionary's values, because a dictionary may hold duplicates and nulls."""
    values = column.dictionary
    codes, space = _dictionary_encode(values) if len(values) else (np.empty(0, dtype=np.int64), 0)
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    codes = np.append(np.where(nulls, space, codes), space)
    return codes[dictionary_rows(column)], space + 1


def _dictionary_encode(column: pa.Array) -> tuple[Codes, int]:
    if pa.types.is_floating(column.type):
        return _integer_codes(as_int64(column))  # -0.0 equals 0.0, and all NaNs are equal
    encoded = _without_views(column).dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), max(1, len(encoded.dictionary))


def _without_views(column: pa.Array) -> pa.Array:
    """The column, converted if it has a view type: view types have no dictionary kernel."""
    if pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pa.types.is_binary_view(column.type) else column


def _integer_codes(values: Codes) -> tuple[Codes, int]:
    if not len(values):
        return values, 1
    low, high = int(values.min()), int(values.max())
    if high - low < _max_marked_codes(len(values)):
        return values - low, high - low + 1
    return _hash_codes(values)


def _hash_codes(values: Codes) -> tuple[Codes, int]:
    distinct = distinct_codes(values[np.newaxis, :])
    return distinct.key_numbers, len(distinct)


def _renumber_densely(codes: Codes, space: int) -> tuple[Codes, int]:
    """Codes renumbered without gaps, in their order where the range is small, and the number of distinct codes."""
    if space > _max_marked_codes(len(codes)):
        return _hash_codes(codes)
    present = np.zeros(space, dtype=bool)
    present[codes] = True
    occurring = np.flatnonzero(present)
    if len(occurring) == space:
        return codes, space
    renumbered = np.empty(space, dtype=np.int64)
    renumbered[occurring] = np.arange(len(occurring))
    return renumbered[codes], len(occurring)
