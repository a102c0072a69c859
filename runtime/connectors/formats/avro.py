"""Avro object container files, block by block. Blocks before the first wanted row are not decoded."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from runtime.connectors.avro_types import arrow_type
from runtime.connectors.formats.base import Chunk, MalformedFile, check_schema, require_columns
from runtime.connectors.formats.columns import chunk_of, is_file_error
from runtime.connectors.libraries import import_library
from runtime.errors import JobRejected

_SMALL_FILE_BYTES: Final = 64 << 20  #: a smaller file exhausts the memory only by a damaged length


@dataclass(frozen=True)
class AvroFormat:
    """Avro files with a record per row. Needs the extra `avro`.

    Logical types become dates, times, timestamps and decimals; enums and UUIDs become text. A union is a column only
    if it has a single type besides `null`.

    Args:
        schema: the wanted columns with their types; a field that is not nullable must have a value. None: all columns
            of the first file.
    """

    schema: pa.Schema | None = None

    def check(self) -> None:
        import_library("fastavro", "avro")
        if self.schema is not None:
            check_schema(self.schema)

    def columns(self) -> pa.Schema | None:
        return self.schema

    def read(self, path: Path, first_row: int) -> Iterator[Chunk]:
        avro = import_library("fastavro", "avro")
        with path.open("rb") as file:
            try:
                yield from self._chunks(avro.block_reader(file), first_row)
            except MalformedFile:
                raise
            except Exception as error:  # fastavro and its codecs raise errors of many types for the content of a file
                is_damaged_length = isinstance(error, MemoryError) and path.stat().st_size < _SMALL_FILE_BYTES
                if not is_file_error(error) and not is_damaged_length:
                    raise
                raise MalformedFile(f"it is not a readable Avro file: {error!r}") from error

    def _chunks(self, blocks: Any, first_row: int) -> Iterator[Chunk]:
        columns, row = _columns_of(blocks.writer_schema), 0
        if self.schema is not None:
            require_columns(self.schema, columns.names, "it")
        for block in blocks:
            stop = row + block.num_records
            if stop > first_row:
                records = list(block)
                if len(records) != block.num_records:
                    raise MalformedFile(f"a block holds {len(records)} rows, not {block.num_records}")
                yield chunk_of(_batch_of(records, columns), row, first_row, self.schema)
            row = stop


def _columns_of(schema: Any) -> pa.Schema:
    """The columns of a file. Raises MalformedFile if its records are no rows."""
    if not isinstance(schema, dict) or schema.get("type") != "record" or not schema.get("fields"):
        raise MalformedFile("its Avro schema is not that of a record with fields")
    try:
        found: pa.StructType = arrow_type(schema, {}, "record")[0]
    except JobRejected as error:
        raise MalformedFile(error.detail) from error
    return pa.schema(list(found))


def _batch_of(records: list[dict[str, Any]], columns: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for item in columns:
        values = [record[item.name] for record in records]
        if item.type == pa.string():
            values = [str(value) if isinstance(value, UUID) else value for value in values]
        arrays.append(pa.array(values, item.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
