"""A Parquet file in progress. In a folder: written under a hidden name, then made durable and renamed to pending."""

import contextlib
import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.access.data_roots import CheckedFolder
from runtime.durable import OutputFile, name_write_errors
from runtime.errors import EnvironmentFailure

ROW_GROUP_BYTES: Final = 32 << 20  #: approximate size of a row group


class PendingOutput(Protocol):
    """Bytes of a file that becomes visible at a commit."""

    @property
    def size(self) -> int: ...
    def write(self, data: Any) -> int: ...

    def finish(self) -> Mapping[str, Any]:
        """Makes the file durable and pending. Returns how a committable names and proves it."""

    def discard(self) -> None:
        """Deletes the file. Does nothing harmful after a failed `finish`."""


class FolderFile(OutputFile):
    """A new file of a folder, which its errors name."""

    def __init__(self, folder: CheckedFolder, name: str) -> None:
        self._path = folder.path / name
        with name_write_errors(self._path):
            super().__init__(folder.open_to_write(name, os.O_EXCL))

    def write(self, data: Any) -> int:
        with name_write_errors(self._path):
            return super().write(data)

    def end(self) -> None:
        """Makes the file durable, and closes it."""
        with name_write_errors(self._path):
            self.persist()
            self.close()

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # the file is deleted below in any case
            self.close()
        self._path.unlink(missing_ok=True)


class HiddenFile(FolderFile):
    """Implements `PendingOutput` by a file under a hidden name. A caller syncs the folder after `finish`."""

    def __init__(self, folder: CheckedFolder, name: str) -> None:
        """`name`: without suffix."""
        super().__init__(folder, f"{name}.inprogress")

    def finish(self) -> Mapping[str, Any]:
        self.end()
        pending = self._path.rename(self._path.with_suffix(".pending"))
        folder = str(pending.parent.absolute())
        return {"pending": pending.name, "bytes": self.size, "crc32": self.crc32, "folder": folder}


class ParquetFile:
    """Collects rows up to a row group, then writes them."""

    def __init__(
        self, output: PendingOutput, schema: pa.Schema, number: int, row_group_bytes: int = ROW_GROUP_BYTES
    ) -> None:
        """`number`: number of the file among the files of its writer."""
        self.number, self.rows = number, 0
        self.schema = schema
        self.waiting_bytes = 0
        self._row_group_bytes = row_group_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._output = output
        self._parquet: Any = pq.ParquetWriter(
            output, schema, compression="zstd", use_dictionary=dictionary_columns(schema)
        )

    @property
    def written_bytes(self) -> int:
        """Size of the row groups written so far; of the whole file once it is finished."""
        return self._output.size

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        if self.waiting_bytes >= self._row_group_bytes:
            self.write_group()

    def write_group(self) -> None:
        """Writes the collected rows as a row group."""
        if self._waiting:
            self._parquet.write_table(pa.Table.from_batches(self._waiting), sum(map(len, self._waiting)))
        self._waiting, self.waiting_bytes = [], 0

    def finish(self) -> Mapping[str, Any]:
        """Completes the file. Returns what `PendingOutput.finish` does."""
        self.write_group()
        self._parquet.close()
        return self._output.finish()

    def discard(self) -> None:
        """Closes and deletes the file."""
        with contextlib.suppress(OSError, EnvironmentFailure):
            self._parquet.close()
        self._output.discard()


def dictionary_columns(schema: pa.Schema) -> bool | list[str]:
    """The columns to dictionary-encode: text. For numbers, writing would take 1.5 times as long and save no space."""
    if any(pa.types.is_nested(item.type) for item in schema):
        return True  # nested fields would have to be listed by their own paths
    return [item.name for item in schema if not pa.types.is_primitive(item.type)]
