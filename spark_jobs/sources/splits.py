"""The folder of a bounded input: a manifest, ordered Parquet splits, and a mark that there will be no more.

    input.json              an id and the columns; written before the first split, never changed
    split-000007.parquet    partition 7 of the DataFrame, as Spark wrote it, with Parquet's statistics
    complete.json           the numbers of all splits, and their rows; written last

A split appears whole and durable, by a rename that replaces nothing; it never changes. So a job may read splits while
later ones are written, and positions (split, row) in checkpoints stay true. A DataFrame that is computed again, after
the stage was killed, must give each of these splits again: together the splits are then the rows of one computation,
the last one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.connectors.durable import make_folder, rename_without_replacing, sync_folder
from runtime.errors import EnvironmentFailure, JobRejected
from spark_jobs.sources.digest import digest_of

CHANGED: Final = "input-changed"
_MANIFEST: Final = "input.json"
_COMPLETE: Final = "complete.json"
_SPLIT: Final = re.compile(r"split-(\d{6,})\.parquet")
_ASIDE: Final = ".aside-"  #: hidden from Parquet readers

Note = TypeVar("Note", bound=msgspec.Struct)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the input is. `schema` is an Arrow IPC message. Positions in checkpoints carry the `id`."""

    id: str
    schema: bytes

    @property
    def columns(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.BufferReader(self.schema))


class Complete(msgspec.Struct, frozen=True, kw_only=True):
    """What the folder holds in the end. Empty partitions have no split, so numbers may have gaps."""

    splits: list[int]
    rows: int


@dataclass(frozen=True)
class InputFolder:
    """The folder of one input; its name is the uid of the source."""

    path: Path

    def manifest(self) -> Manifest | None:
        return _read(self.path / _MANIFEST, Manifest)

    def complete(self) -> Complete | None:
        return _read(self.path / _COMPLETE, Complete)

    def splits(self) -> set[int]:
        """Numbers of the splits that are there."""
        with contextlib.suppress(FileNotFoundError):
            return {int(found[1]) for entry in os.scandir(self.path) if (found := _SPLIT.fullmatch(entry.name))}
        return set()

    def has(self, number: int) -> bool:
        return (self.path / name_of(number)).exists()

    def rows(self, number: int) -> int:
        """Rows of a split that is there."""
        return int(pq.read_metadata(self.path / name_of(number)).num_rows)

    # ------------------------------------------------------------ written by the stage

    def begin(self, columns: pa.Schema, *, keep: bool) -> Manifest:
        """Writes the manifest, or takes the one that is there. Removes what a killed stage left aside.

        Args:
            keep: splits that are there stay. If not, an input that is not complete begins anew, under another id.

        Raises:
            JobRejected: its columns have changed (`input-changed`), or the folder holds something else (`occupied`).
        """
        make_folder(self.path)
        found = self.manifest()
        if found is None:
            strangers = sorted(entry.name for entry in os.scandir(self.path) if entry.name[0] != ".")
            if strangers:
                raise JobRejected(
                    "occupied", self.path.name, f"{self.path} holds {strangers[0]!r}, which no stage wrote"
                )
        elif not keep:
            for name in [_MANIFEST, *map(name_of, sorted(self.splits()))]:  # first the manifest: no split without one
                (self.path / name).unlink()
            found = None
        if found is None:
            found = Manifest(id=uuid4().hex, schema=columns.serialize().to_pybytes())
            self._write(_MANIFEST, found)
        if not found.columns.equals(columns):
            raise self.changed(f"its columns were {_listed(found.columns)} and are {_listed(columns)}")
        for left in self.path.glob(f"{_ASIDE}*"):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()
        return found

    def aside(self) -> Path:
        """A new name for files on the same file system that no reader sees."""
        return self.path / f"{_ASIDE}{uuid4().hex}"

    def publish(self, file: Path, number: int) -> None:
        """Makes a whole `file` split `number`, unless that is there. The file is gone afterwards.

        Raises:
            JobRejected: the split that is there has other rows (`input-changed`).
        """
        target = self.path / name_of(number)
        _sync(file)
        try:
            rename_without_replacing(file, target)
            sync_folder(self.path)
        except FileExistsError:
            if digest_of(file) != digest_of(target):
                detail = f"split {number} has other rows when it is computed again, and a job may have read it"
                raise self.changed(detail) from None
            file.unlink()

    def finish(self, splits: set[int]) -> Complete:
        """Marks the folder complete: `splits` are all.

        Raises:
            JobRejected: a split is there that the DataFrame does not give any more (`input-changed`).
        """
        gone = self.splits() - splits
        if gone:
            raise self.changed(f"split {min(gone)} has no rows any more when it is computed again")
        found = Complete(splits=sorted(splits), rows=sum(map(self.rows, splits)))
        self._write(_COMPLETE, found)
        return found

    def changed(self, detail: str) -> JobRejected:
        remedy = (
            "make the DataFrame deterministic, read a snapshot of the data, or set early=False; "
            "a run without a restore reads it anew"
        )
        return JobRejected(CHANGED, self.path.name, f"{detail}: {remedy}")

    def _write(self, name: str, note: msgspec.Struct) -> None:
        """Whole and durable. What is there stays."""
        file = self.aside()
        file.write_bytes(msgspec.json.encode(note))
        _sync(file)
        with contextlib.suppress(FileExistsError):
            rename_without_replacing(file, self.path / name)
        file.unlink(missing_ok=True)
        sync_folder(self.path)


def name_of(number: int) -> str:
    """The file of a split. Names sort as numbers do."""
    return f"split-{number:06d}.parquet"


def _read(file: Path, kind: type[Note]) -> Note | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise EnvironmentFailure(f"{file}: {error}") from error


def _sync(file: Path) -> None:
    with file.open("rb+") as written:
        os.fsync(written.fileno())


def _listed(columns: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in columns)
