"""The columns of a stream: without Arrow encodings whose kernels lack `take` and `filter`, and all nullable.

DuckDB, Polars and other Arrow producers return string views. Partitioning, keyed state and joins all take rows. So a
batch is converted where an operator emits it; the values stay unchanged.

Batches of a stream may differ in nullability, for example by the files that they come from. A channel and a file have
one schema each, so every column of a stream may hold nulls.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows without views and run ends; `batch` itself if no column has such a type."""
    schema = schema_without_views(batch.schema)
    return batch if schema.types == batch.schema.types else with_schema(batch, schema)


def schema_without_views(schema: pa.Schema) -> pa.Schema:
    """The same columns, with types without views and run ends."""
    return pa.schema([_field(field) for field in schema], schema.metadata)


def nullable_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns, all of which may hold nulls at any depth; `schema` itself if they already may."""
    result = pa.schema([_nullable_field(field) for field in schema], schema.metadata)
    return schema if result.equals(schema) else result


class NullableRows:
    """Makes all columns of batches with `schema` nullable, at any depth.

    With a dozen columns, a view of the batch takes a third of the time of a new batch from its columns.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = nullable_schema(schema)
        self._row_type = None if self.schema is schema else pa.struct(list(self.schema))

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows with nullable columns; `batch` itself if its columns already are nullable."""
        if self._row_type is None:
            return batch
        rows = pa.RecordBatch.from_struct_array(batch.to_struct_array().view(self._row_type))
        return rows if self.schema.metadata is None else rows.replace_schema_metadata(self.schema.metadata)


def with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows in the types of `schema`; `batch` itself if it has this schema object."""
    if schema is batch.schema:
        return batch
    columns = [_cast(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def type_without_views(kind: Any) -> Any:
    """The type without views and run ends, also inside lists, structs, maps and dictionaries."""
    types = pa.types
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_run_end_encoded(kind):
        return type_without_views(kind.value_type)
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, type_without_views(kind.value_type), kind.ordered)
    if types.is_struct(kind):
        return pa.struct([_field(kind.field(number)) for number in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field), kind.keys_sorted)
    if types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    return pa.list_(_field(kind.value_field), kind.list_size) if types.is_fixed_size_list(kind) else kind


def _nullable_field(field: pa.Field) -> pa.Field:
    return field.with_type(_nullable_type(field.type)).with_nullable(True)


def _nullable_type(kind: Any) -> Any:
    """The type whose nested values may be null, except the keys of a map."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([_nullable_field(kind.field(number)) for number in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(kind.key_field, _nullable_field(kind.item_field), kind.keys_sorted)
    if types.is_list(kind):
        return pa.list_(_nullable_field(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(_nullable_field(kind.value_field))
    return pa.list_(_nullable_field(kind.value_field), kind.list_size) if types.is_fixed_size_list(kind) else kind


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(type_without_views(field.type))


def _cast(column: pa.Array, kind: Any) -> pa.Array:
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    return column if column.type == kind else column.cast(kind)
