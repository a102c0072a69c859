"""Arrow IPC files and streams (Feather version 2 is the file form), batch by batch.

A damaged file may hold offsets outside its buffers, which Arrow does not check when it reads. Every batch is therefore
validated in full before its values are used.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from runtime.connectors.formats.base import Chunk, MalformedFile, ScannedFormat, check_schema
from runtime.connectors.formats.columns import chunk_of, is_file_error, needed_columns
from runtime.connectors.formats.input_file import InputFile, Scan

_FILE_MAGIC: Final = b"ARROW1"
_MAX_EXPANSION: Final = 1_000  #: bytes in memory per byte of a file; compression reaches less
_ALLOCATION: Final = re.compile(r"alloc of size (\d+) failed")


@dataclass(frozen=True)
class ArrowFormat(ScannedFormat):
    """Arrow IPC files and streams; each file is recognised by its first bytes.

    Args:
        schema: the wanted columns with their types; a field that is not nullable must have a value. None: all columns
            of the first file.
    """

    splits_files: ClassVar[bool] = False

    schema: pa.Schema | None = None

    def check(self) -> None:
        if self.schema is not None:
            check_schema(self.schema)

    def columns(self) -> pa.Schema | None:
        return self.schema

    def scan(self, file: InputFile, scan: Scan) -> Iterator[Chunk]:
        try:
            with file.open_native() as content:
                row = 0
                for batch, schema in self._batches(content, scan):
                    batch.validate(full=True)
                    if row + batch.num_rows > scan.first_row:
                        yield chunk_of(batch, row, scan.first_row, schema)
                    row += batch.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if not is_file_error(error) and not _is_impossible_size(error, file):
                raise
            raise MalformedFile(f"it is not a readable Arrow file or stream: {error}") from error

    def _batches(self, content: Any, scan: Scan) -> Iterator[tuple[pa.RecordBatch, pa.Schema | None]]:
        is_file = content.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        open_reader = pa.ipc.open_file if is_file else pa.ipc.open_stream
        content.seek(0)
        reader = open_reader(content)
        columns = reader.schema.names
        names, schema = needed_columns(self.schema, columns, scan)
        if len(names) < len(columns):
            content.seek(0)
            places = [columns.index(name) for name in names]
            reader = open_reader(content, options=pa.ipc.IpcReadOptions(included_fields=places))
        numbers = range(reader.num_record_batches) if is_file else ()
        for batch in map(reader.get_batch, numbers) if is_file else reader:
            yield batch, schema


def _is_impossible_size(error: Exception, file: InputFile) -> bool:
    """Whether memory ran out for a length that the file cannot have: a damaged file may name any length."""
    match = _ALLOCATION.search(str(error)) if isinstance(error, MemoryError) else None
    return match is not None and int(match[1]) > _MAX_EXPANSION * file.size_bytes
