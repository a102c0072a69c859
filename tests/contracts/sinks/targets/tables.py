"""Tables with a transaction log."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

import weir
from runtime.ports import Sink
from tests.contracts.sinks.targets.target import Target


class DeltaFolder(Target):
    """A partitioned Delta table, created by the first commit."""

    def sink(self) -> Sink:
        return weir.DeltaSink(str(self.place.folder / "table"), partition_by=("day",))

    def ids(self) -> list[int]:
        found: list[int] = DeltaTable(self.place.folder / "table").to_pyarrow_table(columns=["id"])["id"].to_pylist()
        return found

    def leftovers(self) -> list[str]:
        table = DeltaTable(self.place.folder / "table")
        named = {Path(uri).name for uri in table.file_uris()}
        return [path.name for path in (self.place.folder / "table").glob("part-*") if path.name not in named]
