"""Parquet files, row group by row group."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.connectors.formats.base import Chunk, MalformedFile, check_schema, require_columns
from runtime.connectors.formats.columns import chunk_of, is_file_error

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
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if not is_file_error(error):
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
                    yield chunk_of(batch, at, first_row, self.schema)
                at = stop

    def _names(self, file: Any) -> list[str] | None:
        if self.schema is None:
            return None
        require_columns(self.schema, file.schema_arrow.names, "it")
        return list(self.schema.names)
