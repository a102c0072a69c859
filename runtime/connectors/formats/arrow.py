"""Arrow IPC files and streams (Feather version 2 is the file form), batch by batch.

A damaged file may hold offsets outside its buffers, which Arrow does not check when it reads. Every batch is therefore
validated in full before its values are used.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from runtime.connectors.formats.base import Chunk, MalformedFile, check_schema, require_columns
from runtime.connectors.formats.columns import chunk_of, is_file_error

_FILE_MAGIC: Final = b"ARROW1"
_MAX_EXPANSION: Final = 1_000  #: bytes in memory per byte of a file; compression reaches less
_ALLOCATION: Final = re.compile(r"alloc of size (\d+) failed")


@dataclass(frozen=True)
class ArrowFormat:
    """Arrow IPC files and streams; each file is recognised by its first bytes.

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
            with pa.OSFile(str(path)) as file:
                row = 0
                for batch in self._batches(file):
                    batch.validate(full=True)
                    if row + batch.num_rows > first_row:
                        yield chunk_of(batch, row, first_row, self.schema)
                    row += batch.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if not is_file_error(error) and not _is_impossible_size(error, path):
                raise
            raise MalformedFile(f"it is not a readable Arrow file or stream: {error}") from error

    def _batches(self, file: Any) -> Iterator[pa.RecordBatch]:
        is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        file.seek(0)
        reader = pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
        if self.schema is not None:
            require_columns(self.schema, reader.schema.names, "it")
        if not is_file:
            yield from reader
            return
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _is_impossible_size(error: Exception, path: Path) -> bool:
    """Whether memory ran out for a length that the file cannot have: a damaged file may name any length."""
    found = _ALLOCATION.search(str(error)) if isinstance(error, MemoryError) else None
    return found is not None and int(found[1]) > _MAX_EXPANSION * path.stat().st_size
