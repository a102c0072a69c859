"""How far each split of a source's files has been read, as keyed state.

A split is a file or a byte range of a large file. Its position has a key group, with which it moves at a rescale: that
of path and first byte in a watched folder. The splits of a listing are assigned to key groups (`assign_groups`); a
third key column, the salt, puts the position there. Broadcast state holds facts about the whole source, which every
subtask writes alike: whether the positions are a complete listing, the size of splits, and the types of partition
columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from runtime.connectors.sources.split_groups import assign_groups
from runtime.ports import OperatorContext
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes, salts_for
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
            it.
    """

    def __init__(self, context: OperatorContext, split_bytes: int | None) -> None:
        """Declares the state and reads the restored positions."""
        self._context = context
        self._positions: dict[Split, SplitPosition] = {}
        self._salts: dict[Split, int] = {}  #: of the splits of a listing
        self._changed: set[Split] = set()  #: splits whose newest position is not in the keyed tables yet
        self._files: KeyedTable = context.state.keyed_table("files", _FILE_KEYS, _POSITION)
        self._parts: KeyedTable = context.state.keyed_table("splits", _PART_KEYS, _PART_POSITION)
        self._listed: KeyedTable = context.state.keyed_table("listed_splits", _LISTED_KEYS, _PART_POSITION)
        for path, *position in _rows_of(self._files, _FILE_KEYS, _POSITION):
            self._positions[Split(path)] = SplitPosition(*position)
        for path, start, stop, *position in _rows_of(self._parts, _PART_KEYS, _PART_POSITION):
            self._positions[Split(path, start, stop)] = SplitPosition(*position)
        for path, start, salt, stop, *position in _rows_of(self._listed, _LISTED_KEYS, _PART_POSITION):
            split = Split(path, start, stop or None)
            self._positions[split], self._salts[split] = SplitPosition(*position), salt
        self._cut_sizes = {split.path: place.size_bytes for split, place in self._positions.items() if split.stop}
        self._facts = context.state.broadcast_map("reading")
        if _SPLIT_BYTES not in self._facts:
            self._facts[_SPLIT_BYTES] = split_bytes

    def __len__(self) -> int:
        return len(self._positions)

    # ------------------------------------------------------------ facts about the source

    @property
    def is_listing_complete(self) -> bool:
        """Whether the restored positions include every file of the listing of a bounded source."""
        return bool(self._facts.get(_LISTED))

    @property
    def are_assigned(self) -> bool:
        """Whether the splits of a listing were assigned, so that paths do not reveal their subtasks."""
        return bool(self._salts)

    def complete_listing(self, partition_types: dict[str, str]) -> None:
        """Records that the positions include every file of the listing."""
        self._facts[_LISTED] = True
        self._facts[_PARTITION_TYPES] = partition_types

    @property
    def partition_types(self) -> dict[str, str]:
        """The inferred types of partition columns, by name."""
        types: dict[str, str] = self._facts.get(_PARTITION_TYPES, {})
        return types

    @property
    def split_bytes(self) -> int | None:
        size: int | None = self._facts[_SPLIT_BYTES]
        return size

    # ------------------------------------------------------------ splits

    def own_of_listing(self, splits: Sequence[Split], sizes: Mapping[str, int]) -> list[Split]:
        """The splits of a listing, in reading order, assigned to the subtask's key groups.

        Every subtask of the attempt assigns alike. A source that was unbounded before a restore has positions by path
        and first byte, and goes on so.

        Args:
            sizes: bytes of each file, by path.
        """
        if self._context.restored:
            return self.own(splits)
        if not splits:
            return []
        context = self._context
        lengths = [(split.stop or sizes[split.path]) - split.start for split in splits]
        groups = assign_groups(lengths, context.parallelism, context.max_parallelism)
        salts = salts_for(hash_columns(_key_columns(splits)), groups, context.max_parallelism)
        numbers = np.flatnonzero(np.isin(groups, context.key_groups)).tolist()
        self._salts |= {splits[number]: int(salts[number]) for number in numbers}
        return [splits[number] for number in numbers]

    def own(self, splits: Sequence[Split]) -> list[Split]:
        """The splits whose path and first byte lie in the subtask's key groups."""
        files = [split for split in splits if split.is_whole_file]
        parts = [split for split in splits if not split.is_whole_file]
        return [*self._in_own_groups(files, len(_FILE_KEYS)), *self._in_own_groups(parts, len(_PART_KEYS))]

    def _in_own_groups(self, splits: Sequence[Split], keys: int) -> Iterable[Split]:
        if not splits:
            return ()
        key_groups = self._context.key_groups
        groups = key_groups_of_hashes(hash_columns(_key_columns(splits)[:keys]), self._context.max_parallelism)
        return (split for split, group in zip(splits, groups.tolist(), strict=True) if group in key_groups)

    def known_size(self, path: str) -> int | None:
        """The size of a file when it was begun or cut; None if it has no position here, 0 if it was not opened."""
        position = self._positions.get(Split(path))
        return self._cut_sizes.get(path) if position is None else position.size_bytes

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
        listed = [split for split in changed if split in self._salts]
        plain_splits = [split for split in changed if split not in self._salts]
        files = [split for split in plain_splits if split.is_whole_file]
        parts = [split for split in plain_splits if not split.is_whole_file]
        self._write(
            self._listed, listed, [*_key_columns(listed), pa.array([self._salts[s] for s in listed], pa.int64())]
        )
        self._write(self._files, files, _key_columns(files)[:1])
        self._write(self._parts, parts, _key_columns(parts))
        self._changed.clear()

    def _write(self, table: KeyedTable, splits: Sequence[Split], keys: Sequence[pa.Array]) -> None:
        if not splits:
            return
        rows = table.upsert(keys)
        positions = [self._positions[split] for split in splits]
        for name in _POSITION.names:
            table.column(name)[rows] = [getattr(position, name) for position in positions]
        if table is not self._files:
            table.column("stop")[rows] = [split.stop or 0 for split in splits]
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
_LISTED_KEYS: Final = pa.schema([*_PART_KEYS, pa.field("salt", pa.int64())])
_POSITION: Final = pa.schema(
    [
        pa.field("next_row", pa.int64(), nullable=False),
        pa.field("done", pa.bool_(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
    ]
)
#: `stop` 0: a whole file
_PART_POSITION: Final = pa.schema([pa.field("stop", pa.int64(), nullable=False), *_POSITION])
