"""Tables with a transaction log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import weir
from runtime.access.secrets import resolve
from runtime.ports import Sink
from tests.contracts.sinks.disks import delete_folder
from tests.contracts.sinks.targets.target import Target
from tests.iceberg import postgres_catalog_in
from tests.postgres import locked


class DeltaFolder(Target):
    """A partitioned Delta table, created by the first commit."""

    obstructions: ClassVar[Mapping[str, str]] = {
        "full": "No space left on device",
        "read-only": "Read-only file system",
    }
    on_deletion = "the file to commit is neither pending nor committed"

    def delete(self) -> None:
        delete_folder(self.place.folder / "table")

    def sink(self) -> Sink:
        return weir.DeltaSink(str(self.place.folder / "table"), partition_by=("day",))

    def ids(self) -> list[int]:
        ids: list[int] = DeltaTable(self.place.folder / "table").to_pyarrow_table(columns=["id"])["id"].to_pylist()
        return ids

    def leftovers(self) -> list[str]:
        table = DeltaTable(self.place.folder / "table")
        names = {Path(uri).name for uri in table.file_uris()}
        return [path.name for path in (self.place.folder / "table").glob("part-*") if path.name not in names]


class IcebergTable(Target):
    """A partitioned Iceberg table in a catalog in Postgres, created by the first row."""

    servers = ("postgres",)
    obstructions: ClassVar[Mapping[str, str]] = {
        "full": "No space left on device",
        "read-only": "Read-only file system",
        "locked catalog": "canceling statement due to lock timeout",
    }
    on_deletion = "which was dropped or replaced"

    def obstructed(self, name: str) -> AbstractContextManager[None]:
        if name == "locked catalog":
            return locked(self._url, f"{self.place.name}.iceberg_tables")
        return super().obstructed(name)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """The disk of the warehouse and the catalog wait."""
        with super().stalled(), self.place.servers["postgres"].stall.closed():
            yield

    def delete(self) -> None:
        with self._catalog() as catalog:
            catalog.drop_table("shop.rows")

    def create(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {self.place.name}")

    def sink(self) -> Sink:
        catalog = postgres_catalog_in(self._url, self.place.name, self.place.folder)
        return weir.IcebergSink("shop.rows", catalog, partition_by=("day",))

    def ids(self) -> list[int]:
        ids: list[int] = self._table().scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
        paths = self._table().inspect.files()["file_path"].to_pylist()
        plain = [number for path in paths for number in pq.read_table(path.removeprefix("file://"))["id"].to_pylist()]
        assert sorted(plain) == sorted(ids)
        return ids

    def leftovers(self) -> list[str]:
        names = {Path(path).name for path in self._table().inspect.files()["file_path"].to_pylist()}
        folder = self.place.folder / "warehouse" / "shop" / "rows" / "data"
        return [path.name for path in folder.glob("part-*") if path.name not in names]

    def _table(self) -> Any:
        with self._catalog() as catalog:
            return catalog.load_table("shop.rows")

    @contextmanager
    def _catalog(self) -> Iterator[Any]:
        catalog = postgres_catalog_in(self._url, self.place.name, self.place.folder)
        properties = {name: resolve(name, value, ()) for name, value in catalog.items()}
        with closing(load_catalog("default", **properties)) as iceberg:
            yield iceberg

    @property
    def _url(self) -> str:
        return self.place.servers["postgres"].address
