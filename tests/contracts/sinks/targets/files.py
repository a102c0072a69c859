"""Folders of files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.dataset as ds
import pyarrow.parquet as pq

import weir
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from runtime.ports import Sink
from tests.contracts.sinks.disks import delete_folder
from tests.contracts.sinks.targets.target import Target


def unnamed(folder: Path, storage: Path) -> list[str]:
    """The hidden files of sinks in a folder that no manifest in `storage` names: any manifest may be restored."""
    manifests = [path.read_bytes() for path in storage.rglob(MANIFEST_FILE)]
    hidden = (path.name for path in folder.glob(".weir-*"))
    return [name for name in hidden if not any(name.encode() in manifest for manifest in manifests)]


class ParquetFolder(Target):
    obstructions: ClassVar[Mapping[str, str]] = {
        "full": "No space left on device",
        "read-only": "Read-only file system",
    }
    on_deletion = "is neither pending nor committed"

    def delete(self) -> None:
        delete_folder(self.place.folder / "out")

    def sink(self) -> Sink:
        return weir.ParquetSink(str(self.place.folder / "out"))

    def ids(self) -> list[int]:
        folder = self.place.folder / "out"
        if not any(folder.glob("part-*")):
            return []
        ids: list[int] = ds.dataset(folder, format="parquet").to_table(columns=["id"])["id"].to_pylist()
        return ids

    def leftovers(self) -> list[str]:
        return [path.name for path in (self.place.folder / "out").glob(".weir-*")]


class PartitionedFolder(ParquetFolder):
    """Sub-folders by the value of a column, with several files of a checkpoint in each."""

    obstructions: ClassVar[Mapping[str, str]] = {}  # those of its base
    without: ClassVar[Mapping[str, str]] = {"slow": "its base has it, with the same writer and committer"}

    def sink(self) -> Sink:
        return weir.ParquetSink(str(self.place.folder / "out"), partition_by=("day",), max_bytes=512)

    def ids(self) -> list[int]:
        files = [path for path in (self.place.folder / "out").rglob("part-*") if path.parent.name.startswith("day=")]
        return [number for path in files for number in pq.read_table(path, columns=["id"])["id"].to_pylist()]


class CompactedFolder(ParquetFolder):
    """Small files of several checkpoints, merged before they become visible."""

    on_deletion = "is neither (pending|there) nor committed"  # a merged file, or a small one
    without: ClassVar[Mapping[str, str]] = {"slow": "its base has it, with the same committer"}

    def sink(self) -> Sink:
        return weir.ParquetSink(str(self.place.folder / "out"), compact_checkpoints=3, compact_bytes=30_000)

    def leftovers(self) -> list[str]:
        return unnamed(self.place.folder / "out", self.place.job / "storage")


class JsonLinesFolder(Target):
    """Files in progress over several checkpoints, rolled by size."""

    def sink(self) -> Sink:
        limits: dict[str, Any] = {"max_bytes": 1_500, "roll_after_ms": None, "roll_after_idle_ms": None}
        return weir.JsonLinesSink(str(self._folder), partition_by=("day",), **limits)

    def ids(self) -> list[int]:
        files = self._folder.glob("day=*/part-*.jsonl")
        return [json.loads(line)["id"] for path in files for line in path.read_bytes().splitlines()]

    def leftovers(self) -> list[str]:
        return unnamed(self._folder, self.place.job / "storage")

    @property
    def _folder(self) -> Path:
        return self.place.folder / "out"
