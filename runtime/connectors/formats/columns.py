"""Batches of files with their own schema (Parquet, Arrow, Avro), cast to the columns of the stream."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from runtime.connectors.formats.base import Chunk, MalformedFile, require_columns
from runtime.connectors.formats.input_file import Scan
from runtime.state.encoded_texts import encoded_field, is_encoded


def chunk_of(batch: pa.RecordBatch, row: int, first_row: int, wanted: pa.Schema | None) -> Chunk:
    """The rows of `batch` from row `first_row` of the file on, in the columns of `wanted` (None: all columns).

    Args:
        row: number of the first row of `batch`; at least one row is at or after `first_row`.

    Raises:
        MalformedFile: a value has no counterpart in the type of its column, or is missing.
    """
    skipped, stop = max(0, first_row - row), row + batch.num_rows
    return Chunk(batch=_to_schema(batch.slice(skipped), wanted), rows=np.arange(row + skipped, stop), next_row=stop)


def needed_columns(schema: pa.Schema | None, found: Sequence[str], scan: Scan) -> tuple[list[str], pa.Schema | None]:
    """The columns of a file to read, and the schema of the rows (None: that of the file).

    Args:
        schema: the columns of the format; None: the columns of the file.
        found: the columns of the file.

    Raises:
        MalformedFile: the file lacks a needed column, or has it twice.
    """
    if schema is not None:
        wanted = scan.narrow(schema)
        require_columns(wanted.names, found, "it")
        return wanted.names, wanted
    require_columns(scan.columns or (), found, "it")
    return scan.names(found), None


def _to_schema(batch: pa.RecordBatch, wanted: pa.Schema | None) -> pa.RecordBatch:
    """The batch in the wanted schema. The writer's metadata is dropped, so that batches of all files are equal."""
    if wanted is None:
        wanted = pa.schema([item if is_encoded(item) else item.remove_metadata() for item in batch.schema])
        return pa.RecordBatch.from_arrays(batch.columns, schema=wanted)
    fields = [_stored_field(batch.schema.field(item.name), item) for item in wanted]
    columns = [_cast(batch.column(item.name), item) for item in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, wanted.metadata))


def _stored_field(found: pa.Field, wanted: pa.Field) -> pa.Field:
    """The wanted field, encoded if the column is encoded and its values have the wanted type."""
    keeps = is_encoded(found) and found.type.value_type == wanted.type
    return encoded_field(wanted, found.type) if keeps else wanted


def _cast(column: pa.Array, wanted: pa.Field) -> pa.Array:
    if column.null_count and not wanted.nullable:
        raise MalformedFile(f"column {wanted.name!r}: a value is missing")
    if column.type == wanted.type:
        return column
    try:
        return column.cast(wanted.type)
    except pa.ArrowException as error:
        raise MalformedFile(f"column {wanted.name!r}: {error}") from error


def is_file_error(error: Exception) -> bool:
    """Whether the file's content is at fault, so that every further read fails. System errors (too many open files, a
    disk that does not answer, too little memory) carry an errno or have their own type. Arrow's errors about file
    content have neither.
    """
    return getattr(error, "errno", None) is None and not isinstance(error, MemoryError | pa.ArrowCancelled)
