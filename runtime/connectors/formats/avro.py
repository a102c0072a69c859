"""Avro object container files, block by block. Blocks before the first wanted row are not decoded."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final
from uuid import UUID

import pyarrow as pa

from runtime.connectors.avro_types import arrow_type
from runtime.connectors.formats.base import Chunk, MalformedFile, ScannedFormat, check_schema
from runtime.connectors.formats.columns import chunk_of, is_file_error, needed_columns
from runtime.connectors.formats.input_file import InputFile, Scan
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.libraries import import_library

_SYNC_BYTES: Final = 16  #: of the marker that ends the header and every block
_SEARCH_BYTES: Final = 1 << 16
_SMALL_FILE_BYTES: Final = 64 << 20  #: a smaller file exhausts the memory only by a damaged length


@dataclass(frozen=True)
class AvroFormat(ScannedFormat):
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

    def scan(self, file: InputFile, scan: Scan) -> Iterator[Chunk]:
        avro = import_library("fastavro", "avro")
        with file.open() as content:
            try:
                yield from self._chunks(avro.block_reader(content), content, scan)
            except (MalformedFile, EnvironmentFailure, JobRejected):
                raise
            except Exception as error:  # fastavro and its codecs raise errors of many types for the content of a file
                is_damaged_length = isinstance(error, MemoryError) and file.size_bytes < _SMALL_FILE_BYTES
                if not is_file_error(error) and not is_damaged_length:
                    raise
                raise MalformedFile(f"it is not a readable Avro file: {error!r}") from error

    def _chunks(self, blocks: Any, content: BinaryIO, scan: Scan) -> Iterator[Chunk]:
        columns, row = _columns_of(blocks.writer_schema), 0
        names, schema = needed_columns(self.schema, columns.names, scan)
        columns = pa.schema([columns.field(name) for name in names])
        if scan.start and not _skip_to_block(content, scan.start):
            return
        while scan.begins(content.tell() - _SYNC_BYTES) and (block := next(blocks, None)) is not None:
            stop = row + block.num_records
            if stop > scan.first_row:
                records = list(block)
                if len(records) != block.num_records:
                    raise MalformedFile(f"a block holds {len(records)} rows, not {block.num_records}")
                yield chunk_of(_batch_of(records, columns), row, scan.first_row, schema)
            row = stop


def _skip_to_block(content: BinaryIO, start: int) -> bool:
    """Moves behind the first sync marker at byte `start` or later (Avro's `DataFileReader.sync`). False: there is none.

    A block belongs to the split in which the marker before it begins. `content` stands behind the header.
    """
    header_bytes = content.tell()
    content.seek(header_bytes - _SYNC_BYTES)
    marker = content.read(_SYNC_BYTES)
    at = content.seek(max(start, header_bytes - _SYNC_BYTES))
    window = b""
    while read := content.read(_SEARCH_BYTES):
        window += read
        place = window.find(marker)
        if place >= 0:
            content.seek(at + place + _SYNC_BYTES)
            return True
        at += max(0, len(window) - _SYNC_BYTES + 1)
        window = window[-_SYNC_BYTES + 1 :]
    return False


def _columns_of(schema: Any) -> pa.Schema:
    """The columns of a file. Raises MalformedFile if its records are no rows."""
    if not isinstance(schema, dict) or schema.get("type") != "record" or not schema.get("fields"):
        raise MalformedFile("its Avro schema is not that of a record with fields")
    try:
        struct: pa.StructType = arrow_type(schema, {}, "record")[0]
    except JobRejected as error:
        raise MalformedFile(error.detail) from error
    return pa.schema(list(struct))


def _batch_of(records: list[dict[str, Any]], columns: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for item in columns:
        values = [record[item.name] for record in records]
        if item.type == pa.string():
            values = [str(value) if isinstance(value, UUID) else value for value in values]
        arrays.append(pa.array(values, item.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
