"""How far each file of a source has been read, as keyed state.

A file's position belongs to the key group of its path, so it moves with its key group at a rescale. Broadcast state
holds facts about the whole source, which every subtask writes alike.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from runtime.ports import OperatorContext
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes
from runtime.state.keyed_table import KeyedTable

_LISTED: Final = "listed"  #: key in the broadcast state


@dataclass(slots=True)
class FilePosition:
    """How far a file has been read."""

    next_row: int = 0
    done: bool = False
    size_bytes: int = 0


class FilePositions:
    """The positions of the files of a subtask's key groups, by path."""

    def __init__(self, context: OperatorContext) -> None:
        """Declares the state and reads the restored positions."""
        self._groups, self._max_parallelism = context.key_groups, context.max_parallelism
        self._by_path: dict[str, FilePosition] = {}
        self._changed: set[str] = set()  #: files whose newest position is not in the keyed table yet
        self._facts = context.state.broadcast_map("reading")
        self._table: KeyedTable = context.state.keyed_table("files", _KEY_SCHEMA, _VALUE_SCHEMA)
        rows = self._table.row_ids()
        columns = [self._table.value_column(name, rows).to_pylist() for name in _VALUE_SCHEMA.names]
        for path, *values in zip(self._table.key_column("file", rows).to_pylist(), *columns, strict=True):
            self._by_path[path] = FilePosition(*values)

    def __len__(self) -> int:
        return len(self._by_path)

    def __getitem__(self, path: str) -> FilePosition:
        return self._by_path[path]

    def is_done(self, path: str) -> bool:
        return path in self._by_path and self._by_path[path].done

    @property
    def is_listing_complete(self) -> bool:
        """Whether the restored positions include every file of the listing of a bounded source."""
        return bool(self._facts.get(_LISTED))

    def complete_listing(self) -> None:
        """Records that the positions include every file of the listing."""
        self._facts[_LISTED] = True

    def own(self, paths: list[str]) -> list[str]:
        """The paths in the subtask's key groups."""
        if not paths:
            return []
        groups = key_groups_of_hashes(hash_columns([pa.array(paths, pa.string())]), self._max_parallelism)
        return [path for path, group in zip(paths, groups.tolist(), strict=True) if group in self._groups]

    def add(self, path: str, size_bytes: int) -> FilePosition:
        """The position of a file; a new file begins at its first row."""
        if path not in self._by_path:
            self._by_path[path] = FilePosition(size_bytes=size_bytes)
            self._changed.add(path)
        return self._by_path[path]

    def unfinished(self) -> Iterable[str]:
        """The files that have not been read to their end."""
        return (path for path, position in self._by_path.items() if not position.done)

    def advance(self, path: str, next_row: int) -> None:
        self._by_path[path].next_row = next_row
        self._changed.add(path)

    def finish(self, path: str) -> None:
        self._by_path[path].done = True
        self._changed.add(path)

    def snapshot(self) -> None:
        """Writes the changed positions to the state."""
        paths = sorted(self._changed)
        if not paths:
            return
        rows = self._table.upsert([pa.array(paths, pa.string())])
        found = [self._by_path[path] for path in paths]
        columns: dict[str, list[Any]] = {
            name: [getattr(position, name) for position in found] for name in _VALUE_SCHEMA.names
        }
        for name, values in columns.items():
            self._table.column(name)[rows] = values
        self._table.touch(rows)
        self._changed.clear()


_KEY_SCHEMA: Final = pa.schema([pa.field("file", pa.string())])
_VALUE_SCHEMA: Final = pa.schema(
    [
        pa.field("next_row", pa.int64(), nullable=False),
        pa.field("done", pa.bool_(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
    ]
)
