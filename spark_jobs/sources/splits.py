"""The folder of a bounded input: a manifest, ordered Parquet splits, and a mark that it is complete.

    input.json              an id and the columns; written before the first split, never changed
    split-000007.parquet    partition 7 of the DataFrame, as Spark wrote it, with Parquet's statistics
    complete.json           the numbers of all splits, and their rows; written last

A split appears complete and durable, by a rename that never replaces a file, and does not change. So a job may read
splits while later splits are written, and positions (split, row) in checkpoints stay valid. After the stage was killed,
the DataFrame is computed again and must reproduce the existing splits. So all splits are the rows of a single
computation, the last.
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

from runtime.durable import make_folder, rename_without_replacing, sync_folder
from runtime.errors import EnvironmentFailure, JobRejected
from spark_jobs.sources.digest import digest_of

CHANGED: Final = "input-changed"
_MANIFEST: Final = "input.json"
_COMPLETE: Final = "complete.json"
_SPLIT: Final = re.compile(r"split-(\d{6,})\.parquet")
_ASIDE: Final = ".aside-"  #: prefix of staging files; hidden from Parquet readers

Note = TypeVar("Note", bound=msgspec.Struct)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Identity and columns of the input. `schema` is an Arrow IPC message. Positions in checkpoints carry the `id`."""

    id: str
    schema: bytes

    @property
    def columns(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.BufferReader(self.schema))


class Complete(msgspec.Struct, frozen=True, kw_only=True):
    """The final contents of the folder. Empty partitions have no split, so numbers may have gaps."""

    splits: list[int]
    rows: int


@dataclass(frozen=True)
class InputFolder:
    """The folder of an input; its name is the uid of the source."""

    path: Path

    def manifest(self) -> Manifest | None:
        return _read(self.path / _MANIFEST, Manifest)

    def complete(self) -> Complete | None:
        return _read(self.path / _COMPLETE, Complete)

    def splits(self) -> set[int]:
        """The numbers of the existing splits."""
        with contextlib.suppress(FileNotFoundError):
            return {int(found[1]) for entry in os.scandir(self.path) if (found := _SPLIT.fullmatch(entry.name))}
        return set()

    def has(self, number: int) -> bool:
        return (self.path / name_of(number)).exists()

    def rows(self, number: int) -> int:
        """The number of rows in an existing split."""
        return int(pq.read_metadata(self.path / name_of(number)).num_rows)

    # ------------------------------------------------------------ writer (the stage)

    def begin(self, columns: pa.Schema, *, keep: bool) -> Manifest:
        """Write the manifest, or accept the existing manifest. Deletes staging files of a killed stage.

        Args:
            keep: keep existing splits. If False, an incomplete input begins anew, with another id.

        Raises:
            JobRejected: the columns have changed (`input-changed`), or the folder has foreign files (`occupied`).
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
            for name in [_MANIFEST, *map(name_of, sorted(self.splits()))]:  # manifest first: splits require it
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
        """A new staging path on the same file system, hidden from readers."""
        return self.path / f"{_ASIDE}{uuid4().hex}"

    def publish(self, file: Path, number: int) -> None:
        """Publish a complete `file` as split `number`, or drop it if the split exists with the same rows.

        Raises:
            JobRejected: the existing split has other rows (`input-changed`).
        """
        target = self.path / name_of(number)
        _sync(file)
        try:
            rename_without_replacing(file, target)
            sync_folder(self.path)
        except FileExistsError:
            if digest_of(file) != digest_of(target):
                detail = f"split {number} has other rows when it is computed again, and a job may have read the first"
                raise self.changed(detail) from None
            file.unlink()

    def finish(self, splits: set[int]) -> Complete:
        """Mark the folder complete with `splits`.

        Raises:
            JobRejected: an existing split is not among `splits`, since the DataFrame has changed (`input-changed`).
        """
        gone = self.splits() - splits
        if gone:
            raise self.changed(f"split {min(gone)} has no rows when it is computed again")
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
        """Write a note atomically and durably. An existing file stays."""
        file = self.aside()
        file.write_bytes(msgspec.json.encode(note))
        _sync(file)
        with contextlib.suppress(FileExistsError):
            rename_without_replacing(file, self.path / name)
        file.unlink(missing_ok=True)
        sync_folder(self.path)


def name_of(number: int) -> str:
    """The file name of a split. Names sort as numbers do."""
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
