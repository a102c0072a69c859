"""How far each split of a source's files has been read, as keyed state.

A split is a file or a byte range of a large file. Its position belongs to the key group of its path and first byte, so
it moves with its key group at a rescale. Broadcast state holds facts about the whole source, which every subtask writes
alike: whether the positions are a complete listing, the size of splits, and the types of partition columns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from runtime.ports import OperatorContext
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes
from runtime.state.keyed_table import KeyedTable

_LISTED, _SPLIT_BYTES, _PARTITION_TYPES = "listed", "split_bytes", "partition_types"  #: keys in the broadcast state


class Split(NamedTuple):
    """A file (`stop` None), or the rows of a file that begin from byte `start` to byte `stop` (exclusive)."""

    path: str
    start: int = 0
    stop: int | None = None

    @property
    def is_whole_file(self) -> bool:
        return self.stop is None

    def __str__(self) -> str:
        """The path, and the first byte unless it is 0: rows of a split are counted from there."""
        return f"{self.path} (from byte {self.start})" if self.start else self.path


def reading_order(split: Split) -> tuple[str, int]:
    return split.path, split.start


@dataclass(slots=True)
class SplitPosition:
    """How far a split has been read. `size_bytes` is that of the file."""

    next_row: int = 0
    done: bool = False
    size_bytes: int = 0


class FilePositions:
    """The positions of the splits of a subtask's key groups.

    Args:
        split_bytes: the size of splits for a source without state; None: files are not cut. The first attempt fixes
            it. A source whose savepoint has no size, from an older version, goes on reading whole files.
    """

    def __init__(self, context: OperatorContext, split_bytes: int | None) -> None:
        """Declares the state and reads the restored positions."""
        self._groups, self._max_parallelism = context.key_groups, context.max_parallelism
        self._positions: dict[Split, SplitPosition] = {}
        self._changed: set[Split] = set()  #: splits whose newest position is not in the keyed tables yet
        self._files: KeyedTable = context.state.keyed_table("files", _FILE_KEYS, _POSITION)
        self._parts: KeyedTable = context.state.keyed_table("splits", _PART_KEYS, _PART_POSITION)
        for path, *position in _rows_of(self._files, _FILE_KEYS, _POSITION):
            self._positions[Split(path)] = SplitPosition(*position)
        for path, start, stop, *position in _rows_of(self._parts, _PART_KEYS, _PART_POSITION):
            self._positions[Split(path, start, stop)] = SplitPosition(*position)
        self._cut_sizes = {split.path: found.size_bytes for split, found in self._positions.items() if split.stop}
        self._facts = context.state.broadcast_map("reading")
        if _SPLIT_BYTES not in self._facts:
            self._facts[_SPLIT_BYTES] = None if context.restored else split_bytes

    def __len__(self) -> int:
        return len(self._positions)

    # ------------------------------------------------------------ facts about the source

    @property
    def is_listing_complete(self) -> bool:
        """Whether the restored positions include every file of the listing of a bounded source."""
        return bool(self._facts.get(_LISTED))

    def complete_listing(self, partition_types: dict[str, str]) -> None:
        """Records that the positions include every file of the listing."""
        self._facts[_LISTED] = True
        self._facts[_PARTITION_TYPES] = partition_types

    @property
    def partition_types(self) -> dict[str, str]:
        """The inferred types of partition columns, by name."""
        found: dict[str, str] = self._facts.get(_PARTITION_TYPES, {})
        return found

    @property
    def split_bytes(self) -> int | None:
        size: int | None = self._facts[_SPLIT_BYTES]
        return size

    # ------------------------------------------------------------ splits

    def own(self, splits: Sequence[Split]) -> list[Split]:
        """The splits in the subtask's key groups."""
        files = [split for split in splits if split.is_whole_file]
        parts = [split for split in splits if not split.is_whole_file]
        return [*self._in_own_groups(files, len(_FILE_KEYS)), *self._in_own_groups(parts, len(_PART_KEYS))]

    def _in_own_groups(self, splits: Sequence[Split], keys: int) -> Iterable[Split]:
        if not splits:
            return ()
        groups = key_groups_of_hashes(hash_columns(_key_columns(splits)[:keys]), self._max_parallelism)
        return (split for split, group in zip(splits, groups.tolist(), strict=True) if group in self._groups)

    def known_size(self, path: str) -> int | None:
        """The size of a file when it was begun or cut; None if it has no position here, 0 if it was not opened."""
        whole = self._positions.get(Split(path))
        return self._cut_sizes.get(path) if whole is None else whole.size_bytes

    def is_done(self, split: Split) -> bool:
        return split in self._positions and self._positions[split].done

    def unfinished(self) -> list[Split]:
        """The splits that have not been read to their end, in any order."""
        return [split for split, position in self._positions.items() if not position.done]

    def add(self, split: Split, size_bytes: int) -> SplitPosition:
        """The position of a split; a new split begins at its first row."""
        if split not in self._positions:
            self._positions[split] = SplitPosition(size_bytes=size_bytes)
            self._changed.add(split)
            if not split.is_whole_file:
                self._cut_sizes[split.path] = size_bytes
        return self._positions[split]

    def advance(self, split: Split, next_row: int) -> None:
        self._positions[split].next_row = next_row
        self._changed.add(split)

    def finish(self, split: Split) -> None:
        self._positions[split].done = True
        self._changed.add(split)

    def snapshot(self) -> None:
        """Writes the changed positions to the state."""
        changed = sorted(self._changed, key=reading_order)
        self._write(self._files, [split for split in changed if split.is_whole_file], len(_FILE_KEYS))
        self._write(self._parts, [split for split in changed if not split.is_whole_file], len(_PART_KEYS))
        self._changed.clear()

    def _write(self, table: KeyedTable, splits: Sequence[Split], keys: int) -> None:
        if not splits:
            return
        rows = table.upsert(_key_columns(splits)[:keys])
        found = [self._positions[split] for split in splits]
        for name in _POSITION.names:
            table.column(name)[rows] = [getattr(position, name) for position in found]
        if table is self._parts:
            table.column("stop")[rows] = [split.stop for split in splits]
        table.touch(rows)


def _key_columns(splits: Sequence[Split]) -> list[pa.Array]:
    return [pa.array([split.path for split in splits], pa.string()), pa.array(np.array([s.start for s in splits]))]


def _rows_of(table: KeyedTable, keys: pa.Schema, values: pa.Schema) -> Iterable[tuple[Any, ...]]:
    rows = table.row_ids()
    columns = [table.key_column(name, rows) for name in keys.names]
    columns += [table.value_column(name, rows) for name in values.names]
    return zip(*(column.to_pylist() for column in columns), strict=True)


_FILE_KEYS: Final = pa.schema([pa.field("file", pa.string())])
_PART_KEYS: Final = pa.schema([pa.field("file", pa.string()), pa.field("start", pa.int64())])
_POSITION: Final = pa.schema(
    [
        pa.field("next_row", pa.int64(), nullable=False),
        pa.field("done", pa.bool_(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
    ]
)
_PART_POSITION: Final = pa.schema([pa.field("stop", pa.int64(), nullable=False), *_POSITION])
