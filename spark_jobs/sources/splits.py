"""The folder of a bounded input: a manifest, ordered Parquet splits, and a mark that the input is complete.

    input.json              an id and the columns; written before the first split, never changed
    split-000007.parquet    partition 7 of the DataFrame, as Spark wrote it, with Parquet's statistics
    complete.json           the numbers of all splits, and the total number of rows; written last

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

from runtime.durable import make_folder, rename_without_replacing, sync_path
from runtime.errors import EnvironmentFailure, JobRejected
from spark_jobs.sources.digest import digest_of

INPUT_CHANGED: Final = "input-changed"
_MANIFEST_NAME: Final = "input.json"
_COMPLETE_NAME: Final = "complete.json"
_SPLIT_PATTERN: Final = re.compile(r"split-(\d{6,})\.parquet")
_STAGING_PREFIX: Final = ".aside-"  #: prefix of staging files; hidden from Parquet readers

Note = TypeVar("Note", bound=msgspec.Struct)


class InputManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Identity and columns of the input. `schema` is an Arrow IPC message. Positions in checkpoints carry the `id`."""

    id: str
    schema: bytes

    @property
    def columns(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.BufferReader(self.schema))


class CompletionMark(msgspec.Struct, frozen=True, kw_only=True):
    """The final contents of the folder. Empty partitions have no split, so split numbers may have gaps."""

    splits: list[int]
    rows: int


@dataclass(frozen=True)
class InputFolder:
    """The folder of an input; its name is the uid of the source."""

    path: Path

    def manifest(self) -> InputManifest | None:
        return _read_note(self.path / _MANIFEST_NAME, InputManifest)

    def completion(self) -> CompletionMark | None:
        return _read_note(self.path / _COMPLETE_NAME, CompletionMark)

    def splits(self) -> set[int]:
        """The numbers of the existing splits."""
        with contextlib.suppress(FileNotFoundError):
            return {int(match[1]) for entry in os.scandir(self.path) if (match := _SPLIT_PATTERN.fullmatch(entry.name))}
        return set()

    def has_split(self, number: int) -> bool:
        return (self.path / split_name(number)).exists()

    def row_count(self, number: int) -> int:
        """The number of rows in an existing split."""
        return int(pq.read_metadata(self.path / split_name(number)).num_rows)

    # ------------------------------------------------------------ writer (the stage)

    def begin(self, columns: pa.Schema, *, keep: bool) -> InputManifest:
        """Writes the manifest, or accepts the existing manifest. Deletes staging files of a killed stage.

        Args:
            keep: keep existing splits. If False, an incomplete input begins anew, with another id.

        Raises:
            JobRejected: the columns have changed (`input-changed`), or the folder has foreign files (`occupied`).
        """
        make_folder(self.path)
        manifest = self.manifest()
        if manifest is None:
            strangers = sorted(entry.name for entry in os.scandir(self.path) if entry.name[0] != ".")
            if strangers:
                raise JobRejected(
                    "occupied", self.path.name, f"{self.path} holds {strangers[0]!r}, which no stage wrote"
                )
        elif not keep:
            for name in [_MANIFEST_NAME, *map(split_name, sorted(self.splits()))]:  # manifest first: splits require it
                (self.path / name).unlink()
            manifest = None
        if manifest is None:
            manifest = InputManifest(id=uuid4().hex, schema=columns.serialize().to_pybytes())
            self._write(_MANIFEST_NAME, manifest)
        if not manifest.columns.equals(columns):
            raise self.input_changed_error(
                f"its columns were {_format_columns(manifest.columns)} and are {_format_columns(columns)}"
            )
        for left in self.path.glob(f"{_STAGING_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()
        return manifest

    def staging_path(self) -> Path:
        """A new staging path on the same file system, hidden from readers."""
        return self.path / f"{_STAGING_PREFIX}{uuid4().hex}"

    def publish(self, file: Path, number: int) -> None:
        """Publishes a complete `file` as split `number`, or drops it if the split exists with the same rows.

        Raises:
            JobRejected: split `number` exists with other rows (`input-changed`).
        """
        target = self.path / split_name(number)
        sync_path(file)
        try:
            rename_without_replacing(file, target)
            sync_path(self.path)
        except FileExistsError:
            if digest_of(file) != digest_of(target):
                detail = f"split {number} has other rows when it is computed again, and a job may have read the first"
                raise self.input_changed_error(detail) from None
            file.unlink()

    def finish(self, splits: set[int]) -> CompletionMark:
        """Marks the folder complete with `splits`.

        Raises:
            JobRejected: an existing split is not among `splits`, since the DataFrame has changed (`input-changed`).
        """
        empty_splits = self.splits() - splits
        if empty_splits:
            raise self.input_changed_error(f"split {min(empty_splits)} has no rows when it is computed again")
        mark = CompletionMark(splits=sorted(splits), rows=sum(map(self.row_count, splits)))
        self._write(_COMPLETE_NAME, mark)
        return mark

    def input_changed_error(self, detail: str) -> JobRejected:
        remedy = (
            "make the DataFrame deterministic, read a snapshot of the data, or set early=False; "
            "a run without a restore reads it anew"
        )
        return JobRejected(INPUT_CHANGED, self.path.name, f"{detail}: {remedy}")

    def _write(self, name: str, note: msgspec.Struct) -> None:
        """Writes `note` as JSON, atomically and durably. An existing file is not replaced."""
        file = self.staging_path()
        file.write_bytes(msgspec.json.encode(note))
        sync_path(file)
        with contextlib.suppress(FileExistsError):
            rename_without_replacing(file, self.path / name)
        file.unlink(missing_ok=True)
        sync_path(self.path)


def split_name(number: int) -> str:
    """The file name of a split. Names sort as numbers do."""
    return f"split-{number:06d}.parquet"


def _read_note(file: Path, kind: type[Note]) -> Note | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise EnvironmentFailure(f"{file}: {error}") from error


def _format_columns(columns: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in columns)
