"""A file of rows in progress, which grows over several checkpoints, and its record in a checkpoint."""

import contextlib
import hashlib
import os
from abc import ABC, abstractmethod
from typing import Any, Final, Protocol

import pyarrow as pa

from runtime.access.data_roots import CheckedFolder
from runtime.connectors.sinks.claims import Contents, contents_of
from runtime.connectors.sinks.recorded_file import RecordedFile
from runtime.durable import OutputFile, name_write_errors
from runtime.errors import DataRejected
from runtime.operators.functions.row_values import rows_of

#: errors of libraries that convert or encode a value: a time out of range, text that is not UTF-8, a repeated map key
VALUE_ERRORS: Final = (ValueError, TypeError, OverflowError, KeyError)


class RowEncoder(Protocol):
    """Turns rows of one schema into bytes. A file is its header, followed by any number of encoded batches.

    Args:
        layout: files with the same layout may hold each other's rows.
    """

    @property
    def layout(self) -> str: ...
    def header(self, marker: bytes) -> bytes:
        """The beginning of a file. `marker`: 16 bytes, different in each file."""

    def encode(self, batch: pa.RecordBatch, marker: bytes) -> bytes:
        """Raises DataRejected for a value that the format cannot hold; the error names the column."""


class GrowingFile(RecordedFile, frozen=True, kw_only=True):
    """A file of rows in progress. A restore continues behind the recorded bytes.

    Args:
        layout: digest of the layout of its rows.
        origin: name of the first file from which its bytes were copied, over any number of restores.
        begun_ms, written_ms: time of its first and of its last row.
    """

    suffix: str
    layout: str
    origin: str
    begun_ms: int
    written_ms: int


class RowOutput(Protocol):
    @property
    def size(self) -> int: ...
    def write(self, data: bytes, /) -> int: ...


class RowFile(ABC):
    """A file in progress. Rows wait in memory until they are encoded together."""

    def __init__(self, output: RowOutput, name: str, number: int, partition: str, suffix: str, now_ms: int) -> None:
        """`name`: distinguishes the file from all others."""
        self.number, self.partition, self.suffix = number, partition, suffix
        self.rows, self.layout, self.origin = 0, "", name
        self.begun_ms = self.written_ms = now_ms
        self.encoder: RowEncoder | None = None  #: of the waiting rows
        self.waiting_bytes = 0
        self._output = output
        self._waiting: list[pa.RecordBatch] = []

    @property
    def size(self) -> int:
        return self._output.size

    @property
    def marker(self) -> bytes:
        return hashlib.md5(self.origin.encode(), usedforsecurity=False).digest()

    def begin(self, encoder: RowEncoder) -> None:
        """Writes the header."""
        self.layout = digest(self.suffix, encoder)
        self.append(encoder.header(self.marker), 0)

    def add(self, batch: pa.RecordBatch, now_ms: int) -> None:
        """Adds rows that wait to be encoded."""
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        self.written_ms = now_ms

    def take_waiting(self) -> pa.RecordBatch | None:
        """The waiting rows; None without any."""
        rows = pa.concat_batches(self._waiting) if self._waiting else None
        self._waiting, self.waiting_bytes = [], 0
        return rows

    def append(self, data: bytes, rows: int) -> None:
        self._output.write(data)
        self.rows += rows

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Makes the file durable and pending. Returns its committable without the number of rows and visible name."""

    @abstractmethod
    def discard(self) -> None:
        """Closes the file and deletes it, unless a checkpoint may name it."""


class HiddenRowFile(RowFile):
    """A file under a hidden name, which a checkpoint records while it grows."""

    def __init__(
        self,
        folder: CheckedFolder,
        name: str,
        number: int,
        partition: str,
        suffix: str,
        now_ms: int,
        recorded: GrowingFile | None = None,
    ) -> None:
        """`recorded`: the file that this file continues. Its content is copied by `copy_from`."""
        self._file = OutputFile(folder.open_to_write(name, os.O_EXCL))
        super().__init__(self._file, name, number, partition, suffix, now_ms)
        self.path = folder.path / name
        self.copied: Contents = {} if recorded is None else recorded.contents
        if recorded is not None:
            self.rows, self.layout, self.origin = recorded.rows, recorded.layout, recorded.origin
            self.begun_ms, self.written_ms = recorded.begun_ms, recorded.written_ms
        self.is_recorded = False  #: whether a checkpoint may name the file
        self._is_durable = False

    def copy_from(self, source: int, recorded: GrowingFile) -> None:
        """Copies the recorded part of an open file.

        The recorded file is not truncated and continued, because a process of an older attempt may still append to it,
        and another checkpoint may have recorded it with another length.
        """
        with name_write_errors(self.path):
            self._file.copy_head(source, recorded.bytes, recorded.crc32)

    def append(self, data: bytes, rows: int) -> None:
        with name_write_errors(self.path):
            super().append(data, rows)
        self._is_durable = False

    def persist(self) -> None:
        """Makes all appended rows durable. The name is durable once the caller syncs the folder."""
        if not self._is_durable:
            with name_write_errors(self.path):
                self._file.persist()
            self._is_durable = True

    def record(self) -> GrowingFile:
        """The record of the file, as far as it is durable."""
        self.is_recorded = True
        return GrowingFile(
            hidden=self.path.name,
            folder=str(self.path.parent.absolute()),
            partition=self.partition,
            suffix=self.suffix,
            bytes=self.size,
            crc32=self._file.crc32,
            rows=self.rows,
            layout=self.layout,
            origin=self.origin,
            copied=self.copied,
            begun_ms=self.begun_ms,
            written_ms=self.written_ms,
        )

    def finish(self) -> dict[str, Any]:
        self.persist()
        with name_write_errors(self.path):
            self._file.close()
        committable: dict[str, Any] = {
            "pending": self.path.name,
            "bytes": self.size,
            "crc32": self._file.crc32,
            "folder": str(self.path.parent.absolute()),
        }
        if self.is_recorded or self.copied:  # other attempts may have copied a part of it
            committable["parts"] = [contents_of(self.path.name, self.size, self.copied)]
        return committable

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # a full disk; rows behind the recorded length are not needed
            self._file.close()
        if not self.is_recorded:
            self.path.unlink(missing_ok=True)


def python_rows(batch: pa.RecordBatch, kind: str) -> list[dict[str, Any]]:
    """The rows as Python objects. Raises DataRejected, which names the format `kind` and the column of a bad value."""
    try:
        rows = list(rows_of(batch, maps_as_dicts=True))
    except VALUE_ERRORS:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.to_pylist(maps_as_pydicts="strict")
            except VALUE_ERRORS as error:
                raise DataRejected(f"{kind}: column {name!r}: a value cannot be written: {error}") from error
        raise
    return rows


def digest(suffix: str, encoder: RowEncoder) -> str:
    """A short text that differs between layouts."""
    return hashlib.sha256(f"{suffix}\n{encoder.layout}".encode()).hexdigest()
