"""The folder that a standing PySpark stage fills with epochs, and from which a source reads them.

    epochs/000000000042/     an epoch: Parquet files, read in the order of their names, and `_weir.json`
    epochs/.000000000043-17  an epoch that the process with token 17 is writing aside
    released.json            how far epochs have been deleted: every one below `below`
    read/17-2-41             subtask 2 of attempt 17 has read the epochs below 41: for back-pressure only
    spark/                   Spark's checkpoint of the query

An epoch appears by one rename, whole and durable. It is never changed, and deleted only once no retained checkpoint
needs it. Epochs are numbered from 0, without a gap.
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

from runtime.durable import make_folder, rename_without_replacing, sync_folder, writing

CONTENTS: Final = "_weir.json"  #: hidden from readers of Parquet folders
_DIGITS: Final = 12
_READ: Final = "read"
_NOTE: Final = re.compile(r"(\d+)-(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Epoch:
    """Rows and files of an epoch that is there."""

    number: int
    folder: Path
    rows: int
    files: tuple[tuple[str, int], ...]  #: name and rows of each, in order


class EpochFolder:
    """The folder of one stage. Its methods do I/O; one process writes epochs, another releases them."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.epochs = self.path / "epochs"
        self.spark_checkpoint = self.path / "spark"

    # ------------------------------------------------------------ reading

    def find(self, number: int) -> Epoch | None:
        """The epoch, or None where it is not there: not written yet, or released."""
        folder = self.epochs / _name(number)
        try:
            contents = json.loads((folder / CONTENTS).read_text())
        except FileNotFoundError:
            return None
        return Epoch(number, folder, contents["rows"], tuple((name, rows) for name, rows in contents["files"]))

    def released_below(self) -> int:
        """Every epoch below this number has been released, whether or not it is still there."""
        try:
            return int(json.loads((self.path / "released.json").read_text())["below"])
        except FileNotFoundError:
            return 0

    def next_number(self) -> int:
        """One more than the newest epoch that was ever written."""
        return max([self.released_below(), *(number + 1 for number in self._numbers())])

    def read_below(self) -> int:
        """The subtasks of the newest attempt have read all epochs below this number, as far as they have noted it."""
        notes = self._read_notes()
        newest = max((token for token, _, _ in notes), default=0)
        read = min((below for token, _, below in notes if token == newest), default=0)
        return max(read, self.released_below())

    def size(self, number: int) -> int:
        """Bytes of an epoch; 0: it is not there any more."""
        try:
            with os.scandir(self.epochs / _name(number)) as entries:
                return sum(entry.stat().st_size for entry in entries)
        except FileNotFoundError:
            return 0

    # ------------------------------------------------------------ writing

    @contextlib.contextmanager
    def writing(self, number: int, token: int) -> Iterator[Path]:
        """A folder to write epoch `number` into. It becomes the epoch, durably, when the block is left without error.

        Raises:
            FileExistsError: the epoch is there; it stays as it is.
        """
        aside = self.epochs / f".{_name(number)}-{token}"
        yield aside
        with writing(aside):
            _seal(aside)
        rename_without_replacing(aside, self.epochs / _name(number))
        sync_folder(self.epochs)

    def prepare(self) -> None:
        """Makes the folder, and removes what killed processes left aside. Only for the one who may write."""
        make_folder(self.epochs)
        for leftover in self.epochs.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True)

    # ------------------------------------------------------------ positions of readers

    def note_read(self, token: int, index: int, below: int) -> None:
        """Replaces what the subtask, and its predecessors in older attempts, have noted.

        The note bounds what is unread. No correctness rests on it, so it is not made durable. Raises OSError.
        """
        folder = self.path / _READ
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / f"{token}-{index}-{below}"
        note.touch()
        for other, subtask, position in self._read_notes():
            if other < token or ((other, subtask) == (token, index) and position != below):
                (folder / f"{other}-{subtask}-{position}").unlink(missing_ok=True)

    def _read_notes(self) -> list[tuple[int, int, int]]:
        """Token, subtask and position of each."""
        try:
            with os.scandir(self.path / _READ) as entries:
                found = [_NOTE.fullmatch(entry.name) for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [(int(one[1]), int(one[2]), int(one[3])) for one in found if one]

    # ------------------------------------------------------------ releasing

    def release(self, below: int) -> int:
        """Deletes the epochs below this number: first it is written down, durably. Returns how many are gone."""
        doomed = sorted(number for number in self._numbers() if number < below)
        if not doomed:
            return 0
        self._note_released(below)
        for number in doomed:
            # Renamed first: a folder that is half deleted is no epoch.
            gone = self.epochs / f".{_name(number)}-released"
            with contextlib.suppress(FileNotFoundError):
                (self.epochs / _name(number)).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        return len(doomed)

    def _note_released(self, below: int) -> None:
        target, aside = self.path / "released.json", self.path / ".released.json"
        with writing(target):
            with aside.open("w") as file:
                json.dump({"below": max(below, self.released_below())}, file)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
            sync_folder(self.path)

    def _numbers(self) -> list[int]:
        try:
            with os.scandir(self.epochs) as entries:
                return [int(entry.name) for entry in entries if entry.name.isdigit()]
        except FileNotFoundError:
            return []


def _seal(folder: Path) -> None:
    """Notes rows and files, which proves that each can be opened, and makes all of it durable."""
    folder.mkdir(exist_ok=True)  # an epoch without rows may have no file
    files = [(file.name, _rows(file)) for file in sorted(folder.glob("*.parquet"))]
    contents = {"rows": sum(rows for _, rows in files), "files": [one for one in files if one[1]]}
    (folder / CONTENTS).write_text(json.dumps(contents))
    for file in folder.iterdir():
        if file.name.endswith(".crc"):  # Hadoop's own checksums; pages of Parquet carry theirs
            file.unlink()
        else:
            _sync(file)
    sync_folder(folder)


def _rows(file: Path) -> int:
    metadata: Any = pq.read_metadata(file)
    return int(metadata.num_rows)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name(number: int) -> str:
    return f"{number:0{_DIGITS}}"
