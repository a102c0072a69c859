"""Texts as dictionary codes inside a slot: a column of few distinct texts stays as a Parquet file stores it.

The declared type of such a column stays text. Its field carries a mark, which tells it from a column that an author
declares with a dictionary type. Filters, broadcast joins and pre-aggregation work on the codes. All other receivers get
plain texts: `task.output` decodes at every other edge, so authors, sinks, state and the wire see the declared type.

A dictionary may differ from batch to batch, repeat a value, hold null and hold values that no row has.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_MARK: Final = b"weir:encoded-text"
_MAX_KNOWN_DICTIONARIES: Final = 8


def encoded_field(field: pa.Field, kind: pa.DictionaryType) -> pa.Field:
    """The field of a column with the declared type of `field`, stored as the dictionary type `kind`."""
    return field.with_type(kind).with_metadata({**(field.metadata or {}), _MARK: b""})


def is_encoded(field: pa.Field) -> bool:
    return pa.types.is_dictionary(field.type) and _MARK in (field.metadata or {})


def encoded_columns(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if is_encoded(field)]


def declared_field(field: pa.Field) -> pa.Field:
    """The field with its declared type, without the mark."""
    if not is_encoded(field):
        return field
    metadata = {key: value for key, value in field.metadata.items() if key != _MARK}
    return pa.field(field.name, field.type.value_type, field.nullable, metadata or None)


def declared_schema(schema: pa.Schema) -> pa.Schema:
    """The columns with their declared types."""
    return (
        pa.schema([declared_field(field) for field in schema], schema.metadata) if encoded_columns(schema) else schema
    )


def decode(batch: pa.RecordBatch, names: Collection[str] | None = None) -> pa.RecordBatch:
    """The batch with its encoded columns as plain texts; `names`: only these columns."""
    schema = batch.schema
    fields, columns = list(schema), batch.columns
    numbers = [
        number for number, field in enumerate(fields) if is_encoded(field) and (names is None or field.name in names)
    ]
    if not numbers:
        return batch
    for number in numbers:
        fields[number], columns[number] = declared_field(fields[number]), columns[number].dictionary_decode()
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, schema.metadata))


class ByDictionary:
    """A function of texts, computed per dictionary value and remembered for the last few dictionaries.

    A file has a dictionary per row group. Dictionaries of a few values often recur, in one of a few orders.

    Args:
        function: maps plain values to an array of results, of the same length.
    """

    def __init__(self, function: Callable[[pa.Array], npt.NDArray[Any]]) -> None:
        self._function = function
        self._known: tuple[tuple[pa.Array, npt.NDArray[Any]], ...] = ()  #: results by dictionary, the latest first

    def of_codes(self, column: pa.DictionaryArray) -> npt.NDArray[Any]:
        """The result for each code, and last the result for null."""
        values, cache = column.dictionary, self._known  # read once: subtasks on threads may share an expression
        for dictionary, results in cache:
            if dictionary.equals(values):
                return results
        results = self._function(pa.concat_arrays([values, pa.nulls(1, values.type)]))
        self._known = ((values, results), *cache[: _MAX_KNOWN_DICTIONARIES - 1])
        return results

    def of_rows(self, column: pa.DictionaryArray) -> npt.NDArray[Any]:
        """The result for each row."""
        return self.of_codes(column).take(codes_of(column))  # half the time of indexing


def codes_of(column: pa.DictionaryArray) -> npt.NDArray[np.integer[Any]]:
    """The code of each row; null: the number of dictionary values."""
    codes = column.indices
    if codes.null_count:
        codes = codes.cast(pa.int64()).fill_null(len(column.dictionary))  # a small type may not hold the number
    return np.asarray(codes)


def columns_with_many_values(batch: pa.RecordBatch) -> list[str]:
    """The encoded columns whose dictionary is longer than the batch, for example after a filter."""
    return [name for name in encoded_columns(batch.schema) if not has_few_values(batch.column(name))]


def has_few_values(column: pa.Array) -> bool:
    """Whether a column is dictionary-encoded, and work per dictionary value is less than work per row."""
    return pa.types.is_dictionary(column.type) and len(column.dictionary) <= len(column)
