"""A Parquet file in progress: written under a hidden name, then closed, made durable and renamed to pending."""

import contextlib
import os
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.access.data_roots import CheckedFolder
from runtime.durable import OutputFile, name_write_errors

ROW_GROUP_BYTES: Final = 32 << 20  #: approximate size of a row group


class ParquetFile:
    """Collects rows up to a row group, then writes them."""

    def __init__(
        self, folder: CheckedFolder, name: str, schema: pa.Schema, number: int, row_group_bytes: int = ROW_GROUP_BYTES
    ) -> None:
        """`name`: without suffix; `number`: number of the file among the files of its writer."""
        self.number, self.rows = number, 0
        self.schema = schema
        self.path = folder.path / f"{name}.inprogress"
        self.waiting_bytes = 0
        self._row_group_bytes = row_group_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._file = OutputFile(folder.open_to_write(self.path.name, os.O_EXCL))
        self._parquet: Any = pq.ParquetWriter(
            self._file, schema, compression="zstd", use_dictionary=dictionary_columns(schema)
        )

    @property
    def written_bytes(self) -> int:
        """Size of the row groups written so far; of the whole file once it is finished."""
        return self._file.size

    @property
    def crc32(self) -> int:
        """The checksum of the bytes written so far."""
        return self._file.crc32

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        if self.waiting_bytes >= self._row_group_bytes:
            self.write_group()

    def write_group(self) -> None:
        """Writes the collected rows as a row group."""
        if self._waiting:
            with name_write_errors(self.path):
                self._parquet.write_table(pa.Table.from_batches(self._waiting), sum(map(len, self._waiting)))
        self._waiting, self.waiting_bytes = [], 0

    def finish(self) -> Path:
        """Closes the file durably under its pending name. The rename is durable once the caller syncs the folder."""
        self.write_group()
        with name_write_errors(self.path):
            self._parquet.close()
            self._file.persist()
            self._file.close()
        return self.path.rename(self.path.with_suffix(".pending"))

    def discard(self) -> None:
        """Closes and deletes the file. Does nothing harmful after a failed `finish`."""
        for part in (self._parquet, self._file):
            with contextlib.suppress(OSError):  # the file is deleted below in any case
                part.close()
        self.path.unlink(missing_ok=True)


def dictionary_columns(schema: pa.Schema) -> bool | list[str]:
    """The columns to dictionary-encode: text. For numbers, writing would take 1.5 times as long and save no space."""
    if any(pa.types.is_nested(item.type) for item in schema):
        return True  # nested fields would have to be listed by their own paths
    return [item.name for item in schema if not pa.types.is_primitive(item.type)]
