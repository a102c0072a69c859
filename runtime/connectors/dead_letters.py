"""Dead letters: malformed rows, stored as JSON lines in a folder that the author names.

There is one file per subtask and attempt; in a bucket, one object per checkpoint with malformed rows. Rows are durable
before a snapshot stores a position behind them.
After a restart, rows that are read again are written again, into the file of the new attempt. Each row is therefore
stored at least once; source file and row number identify duplicates.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import msgspec

from runtime.access.data_roots import CheckedFolder
from runtime.connectors.bucket import Bucket
from runtime.connectors.formats import Malformed
from runtime.connectors.names import encode_name
from runtime.durable import make_folder, name_write_errors, sync_path
from runtime.ports import OperatorContext
from runtime.s3 import PART_BYTES, is_bucket

_ARGUMENT: Final = "dead_letter_path"  #: of the source


class DeadLetters(Protocol):
    def write(self, file: str, rows: Iterable[Malformed]) -> None:
        """Adds rows of the source file `file`."""

    def sync(self) -> None:
        """Makes all written rows durable."""

    def close(self) -> None: ...


def open_dead_letters(path: str, context: OperatorContext) -> DeadLetters:
    """`path`: a folder, or a URL of a bucket. `context`: of the subtask that reads the rows; it is in the names."""
    name = f"{encode_name(context.job)}-{context.token}-{encode_name(context.uid)}-{context.index}"
    if is_bucket(path):
        return BucketDeadLetters(Bucket(path, _ARGUMENT), name)
    return FileDeadLetters(Path(path), name)


class BucketDeadLetters:
    """Collects rows, and creates an object with them at each checkpoint, or earlier if it would exceed a part."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        self._bucket, self._name = bucket, name
        self._waiting = bytearray()
        self._number = 0

    def write(self, file: str, rows: Iterable[Malformed]) -> None:
        for entry in rows:
            self._waiting += msgspec.json.encode(_dead_letter(file, entry)) + b"\n"
            if len(self._waiting) >= PART_BYTES:
                self.sync()

    def sync(self) -> None:
        if not self._waiting:
            return
        self._bucket.check()
        self._number += 1
        while not self._bucket.create(f"{self._name}-{self._number}.jsonl", bytes(self._waiting)):
            self._number += 1  # of another run with these names
        self._waiting.clear()

    def close(self) -> None:
        """Rows behind the last checkpoint are read again."""


class FileDeadLetters:
    """Appends to a file that is created with the first malformed row.

    Args:
        folder: folder of the dead-letter files.
        name: of the file, without suffix.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = CheckedFolder.of(_ARGUMENT, folder)
        self._path = folder / f"{name}.jsonl"
        self._file: BinaryIO | None = None
        self._unsynced = False

    def write(self, file: str, rows: Iterable[Malformed]) -> None:
        with name_write_errors(self._path):
            for entry in rows:
                self._open_file().write(msgspec.json.encode(_dead_letter(file, entry)) + b"\n")
                self._unsynced = True

    def sync(self) -> None:
        if self._file is not None and self._unsynced:
            with name_write_errors(self._path):
                self._file.flush()
                os.fsync(self._file.fileno())
            self._unsynced = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_file(self) -> BinaryIO:
        if self._file is None:
            self._folder.check()
            make_folder(self._path.parent)
            self._file = os.fdopen(self._folder.open_to_write(self._path.name, os.O_APPEND), "ab")
            sync_path(self._path.parent)
        return self._file


def _dead_letter(file: str, entry: Malformed) -> dict[str, Any]:
    return {
        "file": file,
        "row": None if entry.row is None else entry.row + 1,
        "column": entry.column,
        "reason": entry.reason,
        "text": entry.text,
    }
