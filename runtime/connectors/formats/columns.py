"""Batches of files with their own schema (Parquet, Arrow, Avro), cast to the columns of the stream."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from runtime.connectors.formats.base import Chunk, MalformedFile, require_columns
from runtime.connectors.formats.input_file import Scan
from runtime.state.encoded_texts import encoded_field, is_encoded


def chunk_of(batch: pa.RecordBatch, row: int, first_row: int, schema: pa.Schema | None) -> Chunk:
    """The rows of `batch` from row `first_row` of the file on, in the columns of `schema` (None: all columns).

    Args:
        row: number of the first row of `batch`; at least one row is at or after `first_row`.

    Raises:
        MalformedFile: a value has no counterpart in the type of its column, or is missing.
    """
    skipped, stop = max(0, first_row - row), row + batch.num_rows
    return Chunk(batch=_to_schema(batch.slice(skipped), schema), rows=np.arange(row + skipped, stop), next_row=stop)


def needed_columns(schema: pa.Schema | None, names: Sequence[str], scan: Scan) -> tuple[list[str], pa.Schema | None]:
    """The columns of a file to read, and the schema of the rows (None: that of the file).

    Args:
        schema: the columns of the format; None: the columns of the file.
        names: the columns of the file.

    Raises:
        MalformedFile: the file lacks a needed column, or has it twice.
    """
    if schema is not None:
        row_schema = scan.narrow(schema)
        require_columns(row_schema.names, names, "it")
        return row_schema.names, row_schema
    require_columns(scan.columns or (), names, "it")
    return scan.names(names), None


def _to_schema(batch: pa.RecordBatch, schema: pa.Schema | None) -> pa.RecordBatch:
    """The batch in the schema. The writer's metadata is dropped, so that batches of all files are equal."""
    if schema is None:
        schema = pa.schema([item if is_encoded(item) else item.remove_metadata() for item in batch.schema])
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    fields = [_stored_field(batch.schema.field(item.name), item) for item in schema]
    columns = [_cast(batch.column(item.name), item) for item in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, schema.metadata))


def _stored_field(file_field: pa.Field, field: pa.Field) -> pa.Field:
    """`field`, encoded if the column in the file is encoded and its values have the type of `field`."""
    keeps = is_encoded(file_field) and file_field.type.value_type == field.type
    return encoded_field(field, file_field.type) if keeps else field


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.null_count and not field.nullable:
        raise MalformedFile(f"column {field.name!r}: a value is missing")
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise MalformedFile(f"column {field.name!r}: {error}") from error


def is_file_error(error: Exception) -> bool:
    """Whether the file's content is at fault, so that every further read fails. System errors (too many open files, a
    disk that does not answer, too little memory) carry an errno or have their own type. Arrow's errors about file
    content have neither.
    """
    return getattr(error, "errno", None) is None and not isinstance(error, MemoryError | pa.ArrowCancelled)
