"""The epoch folder: a standing (long-running) PySpark stage writes epochs into it, and a source reads them.

    epochs/000000000042/     an epoch: Parquet files, read in name order, and `_weir.json`
    epochs/.000000000043-17  an epoch that the process with token 17 is still writing
    released.json            all epochs below its field `below` are released
    read/17-2-41             subtask 2 of attempt 17 has read all epochs below 41: for back-pressure only
    spark/                   Spark's checkpoint of the query

An epoch becomes visible by a single rename, complete and durable. An epoch never changes, and is deleted only when no
retained checkpoint needs it. Epochs are numbered from 0 without gaps.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from runtime.connectors.names import encode_name
from runtime.durable import make_folder, name_write_errors, rename_without_replacing, sync_path, write_file
from runtime.errors import JobRejected

CONTENTS_FILE: Final = "_weir.json"  #: hidden from readers of Parquet folders
_NUMBER_DIGITS: Final = 12
_POSITIONS_FOLDER: Final = "read"
_POSITION_NAME: Final = re.compile(r"(\d+)-(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class InputEpoch:
    """An existing epoch: its number of rows and its files."""

    number: int
    folder: Path
    rows: int
    files: tuple[tuple[str, int], ...]  #: name and number of rows of each file, in reading order


class EpochFolder:
    """The epoch folder of a stage. Methods do I/O. The stage's process writes epochs; the job master releases them."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.epochs = self.path / "epochs"
        self.spark_checkpoint = self.path / "spark"

    # ------------------------------------------------------------ reading

    def find(self, number: int) -> InputEpoch | None:
        """Epoch `number`; None if it is not yet written or already deleted."""
        folder = self.epochs / _folder_name(number)
        try:
            contents = json.loads((folder / CONTENTS_FILE).read_text())
        except FileNotFoundError:
            return None
        return InputEpoch(number, folder, contents["rows"], tuple((name, rows) for name, rows in contents["files"]))

    def released_below(self) -> int:
        """The number below which all epochs are released, whether already deleted or not."""
        try:
            return int(json.loads((self.path / "released.json").read_text())["below"])
        except FileNotFoundError:
            return 0

    def next_number(self) -> int:
        """The number of the next epoch to write, one above the newest that was ever written."""
        return max([self.released_below(), *(number + 1 for number in self._numbers())])

    def read_below(self) -> int:
        """The number below which all subtasks of the newest attempt with position notes have read every epoch."""
        notes = self._positions()
        newest = max((token for token, _, _ in notes), default=0)
        read = min((below for token, _, below in notes if token == newest), default=0)
        return max(read, self.released_below())

    def size(self, number: int) -> int:
        """Size of an epoch in bytes; 0 if it is deleted."""
        try:
            with os.scandir(self.epochs / _folder_name(number)) as entries:
                return sum(entry.stat().st_size for entry in entries)
        except FileNotFoundError:
            return 0

    # ------------------------------------------------------------ writing

    @contextlib.contextmanager
    def write_epoch(self, number: int, token: int) -> Iterator[Path]:
        """Yields a folder to write epoch `number` into. The folder becomes the epoch if the `with` body succeeds.

        Raises:
            FileExistsError: the epoch exists; it stays unchanged.
        """
        aside = self.epochs / f".{_folder_name(number)}-{token}"
        yield aside
        with name_write_errors(aside):
            _seal(aside)
        rename_without_replacing(aside, self.epochs / _folder_name(number))
        sync_path(self.epochs)

    def prepare(self) -> None:
        """Creates the folder and removes unfinished epochs of killed processes. Only the current writer may call it."""
        make_folder(self.epochs)
        for leftover in self.epochs.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True)

    # ------------------------------------------------------------ positions of readers

    def record_position(self, token: int, index: int, below: int) -> None:
        """Records that the subtask has read all epochs below `below`, and removes older notes.

        The notes bound the number of unread epochs. The notes are not durable: no guarantee needs them. Raises OSError.
        """
        folder = self.path / _POSITIONS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / f"{token}-{index}-{below}"
        note.touch()
        for other, subtask, position in self._positions():
            if other < token or ((other, subtask) == (token, index) and position != below):
                (folder / f"{other}-{subtask}-{position}").unlink(missing_ok=True)

    def _positions(self) -> list[tuple[int, int, int]]:
        """(token, subtask, position) of each note."""
        try:
            with os.scandir(self.path / _POSITIONS_FOLDER) as entries:
                notes = [_POSITION_NAME.fullmatch(entry.name) for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [(int(note[1]), int(note[2]), int(note[3])) for note in notes if note]

    # ------------------------------------------------------------ releasing

    def release(self, below: int) -> int:
        """Records the number `below` durably, then deletes the epochs below it. Returns the count of deleted epochs."""
        doomed = sorted(number for number in self._numbers() if number < below)
        if not doomed:
            return 0
        self._record_release(below)
        for number in doomed:
            # The rename comes first, so that a half-deleted folder is never taken for an epoch.
            trash = self.epochs / f".{_folder_name(number)}-released"
            with contextlib.suppress(FileNotFoundError):
                (self.epochs / _folder_name(number)).rename(trash)
            shutil.rmtree(trash, ignore_errors=True)
        return len(doomed)

    def _record_release(self, below: int) -> None:
        content = {"below": max(below, self.released_below())}
        write_file(self.path / "released.json", json.dumps(content).encode())

    def _numbers(self) -> list[int]:
        try:
            with os.scandir(self.epochs) as entries:
                return [int(entry.name) for entry in entries if entry.name.isdigit()]
        except FileNotFoundError:
            return []


def _seal(folder: Path) -> None:
    """Writes `_weir.json`, whose row counts prove that each file can be opened, and makes the folder durable."""
    folder.mkdir(exist_ok=True)  # an epoch without rows may have no file
    files = [(file.name, _row_count(file)) for file in sorted(folder.glob("*.parquet"))]
    contents = {"rows": sum(rows for _, rows in files), "files": [(name, rows) for name, rows in files if rows]}
    (folder / CONTENTS_FILE).write_text(json.dumps(contents))
    for file in folder.iterdir():
        if file.name.endswith(".crc"):  # Hadoop's checksum files; Parquet pages have checksums of their own
            file.unlink()
        else:
            sync_path(file)
    sync_path(folder)


def _row_count(file: Path) -> int:
    metadata: Any = pq.read_metadata(file)
    return int(metadata.num_rows)


def stage_folder(streams: str | Path, uid: str) -> str:
    """The folder of the stage of operator `uid`; "" while `streams`, the folder of the run's stages, is unknown."""
    return str(Path(streams) / encode_name(uid)) if streams else ""


def no_stage_error(field: str, *, runs_in_batch: bool = False) -> JobRejected:
    """The error for a source or sink whose stage is not part of a run. `runs_in_batch`: BATCH needs no stage."""
    detail = "its PySpark stage is started with a run: offer the job as a Pipeline and start it in the console"
    return JobRejected("no-stage", field, f"{detail}, or run it by weir.run_batch" if runs_in_batch else detail)


def _folder_name(number: int) -> str:
    return f"{number:0{_NUMBER_DIGITS}}"
