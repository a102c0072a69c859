"""Dead letters: malformed rows, stored as JSON lines in a folder that the author names.

There is one file per subtask and attempt. Its rows are durable before a snapshot stores a position behind them.
After a restart, rows that are read again are written again, into the file of the new attempt. Each row is therefore
stored at least once; source file and row number identify duplicates.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from runtime.access.data_roots import CheckedFolder
from runtime.connectors.formats import Malformed
from runtime.connectors.names import encode_name
from runtime.durable import make_folder, name_write_errors, sync_path
from runtime.ports import OperatorContext


class DeadLetters:
    """Appends to a file that is created with the first malformed row.

    Args:
        folder: folder of the dead-letter files.
        context: context of the subtask that reads the rows; the file name is made from it.
    """

    def __init__(self, folder: Path, context: OperatorContext) -> None:
        name = f"{encode_name(context.job)}-{context.token}-{encode_name(context.uid)}-{context.index}.jsonl"
        self._folder = CheckedFolder.of("dead_letter_path", folder)
        self._path = folder / name
        self._file: BinaryIO | None = None
        self._unsynced = False

    def write(self, file: str, rows: Iterable[Malformed]) -> None:
        """Adds rows of the source file `file`."""
        with name_write_errors(self._path):
            for entry in rows:
                self._open_file().write(msgspec.json.encode(_dead_letter(file, entry)) + b"\n")
                self._unsynced = True

    def sync(self) -> None:
        """Makes all written rows durable."""
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
