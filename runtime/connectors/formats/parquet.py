"""Parquet files, row group by row group."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.connectors.formats.base import Chunk, MalformedFile, check_schema, require_columns

_BATCH_ROWS: Final = 65_536


@dataclass(frozen=True)
class ParquetFormat:
    """Parquet files.

    Args:
        schema: the wanted columns with their types; a field that is not nullable must have a value. None: all columns
            of the first file.
    """

    schema: pa.Schema | None = None

    def check(self) -> None:
        if self.schema is not None:
            check_schema(self.schema)

    def columns(self) -> pa.Schema | None:
        return self.schema

    def read(self, path: Path, first_row: int) -> Iterator[Chunk]:
        try:
            with pq.ParquetFile(path) as file:
                yield from self._chunks(file, first_row)
        except (pa.ArrowException, OSError) as error:
            if not _is_file_error(error):
                raise
            raise MalformedFile(f"it is not a readable Parquet file: {error}") from error

    def _chunks(self, file: Any, first_row: int) -> Iterator[Chunk]:
        at = 0
        names = self._names(file)
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if at + rows <= first_row:
                at += rows
                continue
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
                stop = at + batch.num_rows
                if stop > first_row:
                    skipped = max(0, first_row - at)
                    numbers = np.arange(at + skipped, stop)
                    yield Chunk(batch=self._to_schema(batch.slice(skipped)), rows=numbers, next_row=stop)
                at = stop

    def _names(self, file: Any) -> list[str] | None:
        if self.schema is None:
            return None
        require_columns(self.schema, file.schema_arrow.names, "it")
        return list(self.schema.names)

    def _to_schema(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the wanted schema. The writer's metadata is dropped, so that batches of all files are equal."""
        if self.schema is None:
            return pa.RecordBatch.from_arrays(batch.columns, schema=schema_without_metadata(batch.schema))
        columns = [_cast(batch.column(item.name), item) for item in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _cast(column: pa.Array, wanted: pa.Field) -> pa.Array:
    if column.null_count and not wanted.nullable:
        raise MalformedFile(f"column {wanted.name!r}: a value is missing")
    try:
        return column.cast(wanted.type)
    except pa.ArrowException as error:
        raise MalformedFile(f"column {wanted.name!r}: {error}") from error


def _is_file_error(error: Exception) -> bool:
    """Whether the file's content is at fault, so that every further read fails. System errors (too many open files, a
    disk that does not answer, too little memory) carry an errno or have their own type. Arrow's errors about file
    content have neither.
    """
    return getattr(error, "errno", None) is None and not isinstance(error, MemoryError | pa.ArrowCancelled)


def schema_without_metadata(schema: pa.Schema) -> pa.Schema:
    return pa.schema([item.remove_metadata() for item in schema])
