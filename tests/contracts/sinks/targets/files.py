"""Folders of Parquet files."""

from __future__ import annotations

import pyarrow.dataset as ds
import pyarrow.parquet as pq

import weir
from runtime.ports import Sink
from tests.contracts.sinks.targets.target import Target


class ParquetFolder(Target):
    def sink(self) -> Sink:
        return weir.ParquetSink(str(self.place.folder / "out"))

    def ids(self) -> list[int]:
        folder = self.place.folder / "out"
        if not any(folder.glob("part-*")):
            return []
        found: list[int] = ds.dataset(folder, format="parquet").to_table(columns=["id"])["id"].to_pylist()
        return found

    def leftovers(self) -> list[str]:
        return [path.name for path in (self.place.folder / "out").glob(".weir-*")]


class PartitionedFolder(ParquetFolder):
    """Sub-folders by the value of a column, with several files of a checkpoint in each."""

    def sink(self) -> Sink:
        return weir.ParquetSink(str(self.place.folder / "out"), partition_by=("day",), max_bytes=512)

    def ids(self) -> list[int]:
        files = [path for path in (self.place.folder / "out").rglob("part-*") if path.parent.name.startswith("day=")]
        return [number for path in files for number in pq.read_table(path, columns=["id"])["id"].to_pylist()]
