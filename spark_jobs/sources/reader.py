"""Reads the splits of a bounded input in a slot, while later splits may still be written.

Splits are assigned to subtasks by key group: positions (split, next row) are keyed state and follow their key groups at
a rescale. A subtask reads its splits in the order of their numbers and waits for a missing split, even if later splits
exist. So the order of rows, and with it the watermark, is the same in every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.access.data_roots import CheckedFolder, descriptor_path
from runtime.connectors.formats import MalformedFile, ParquetFormat
from runtime.connectors.sources.event_clock import BoundedOutOfOrderness, EventClockReader
from runtime.connectors.sources.open_file import OpenFile
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.ports import OperatorContext
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes
from runtime.state.keyed_table import KeyedTable
from spark_jobs.sources.splits import InputFolder, split_name

LIST_INTERVAL_MS: Final = 200  #: between two listings of an incomplete folder
_KEY_SCHEMA: Final = pa.schema([pa.field("input", pa.string()), pa.field("split", pa.int64())])
_VALUE_SCHEMA: Final = pa.schema(
    [pa.field("next_row", pa.int64(), nullable=False), pa.field("done", pa.bool_(), nullable=False)]
)


@dataclass(slots=True)
class Position:
    """The read position in a split."""

    next_row: int = 0
    done: bool = False


class SplitReader(EventClockReader):
    """Reads the splits of a subtask. The folder `path` may appear later; other arguments are as in `from_spark`."""

    def __init__(
        self, path: str, schema: pa.Schema | None, event_time: str | None, max_disorder_ms: int | None, early: bool
    ) -> None:
        self._folder = InputFolder(Path(path))
        self._checked_folder = CheckedFolder.of("path", path)
        self._schema, self._event_time, self._early = schema, event_time, early
        self._clock = BoundedOutOfOrderness(event_time, max_disorder_ms)
        self._input = ""  #: id of the input, once its manifest is read
        self._format = ParquetFormat(schema)
        self._positions: dict[int, Position] = {}
        self._changed_splits: set[int] = set()  #: splits whose position has changed since the last snapshot
        self._next_split = 0  #: all splits of this subtask below this number are done
        self._existing_splits: set[int] = set()
        self._end_split: int | None = None  #: last split + 1, once the folder is complete
        self._listed_at_ms: int | None = None
        self._current: OpenFile | None = None

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._table: KeyedTable = context.state.keyed_table("splits", _KEY_SCHEMA, _VALUE_SCHEMA)
        slots = self._table.row_ids()
        inputs = set(self._table.key_column("input", slots).to_pylist())
        if len(inputs) > 1:
            raise JobRejected("input-replaced", context.uid, f"its state is of several inputs: {sorted(inputs)}")
        self._input = next(iter(inputs), "")
        columns = [self._table.value_column(name, slots).to_pylist() for name in _VALUE_SCHEMA.names]
        for split, *values in zip(self._table.key_column("split", slots).to_pylist(), *columns, strict=True):
            self._positions[split] = Position(*values)

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        while self._current is not None or self._begin_next():
            batch = self._read_batch(max_rows)
            if batch is not None:
                return batch
        return None

    @property
    def exhausted(self) -> bool:
        return self._current is None and self._end_split is not None and self._next_split >= self._end_split

    def snapshot(self, checkpoint: int) -> None:
        numbers = sorted(self._changed_splits)
        if not numbers:
            return
        slots = self._table.upsert(self._keys(numbers))
        positions = [self._positions[number] for number in numbers]
        self._table.column("next_row")[slots] = [position.next_row for position in positions]
        self._table.column("done")[slots] = [position.done for position in positions]
        self._table.touch(slots)
        self._changed_splits.clear()

    def close(self) -> None:
        if self._current is not None:
            self._current.close()

    # ------------------------------------------------------------ splits

    def _begin_next(self) -> bool:
        """Opens the next split of this subtask. Returns False if it does not exist (yet)."""
        if self._end_split is None:
            self._list_folder()
        while self._input and (self._end_split is None or self._next_split < self._end_split):
            if self._is_own(self._next_split) and not self._position(self._next_split).done:
                if self._next_split in self._existing_splits:
                    self._current = self._open_split(self._next_split)
                    return True
                if self._end_split is None:
                    return False
            self._next_split += 1
        return False

    def _list_folder(self) -> None:
        """Lists the folder, at most every `LIST_INTERVAL_MS`.

        Raises:
            JobRejected: the restored positions belong to another input than the folder's.
        """
        now = self._context.now_ms()
        if self._listed_at_ms is not None and 0 <= now - self._listed_at_ms < LIST_INTERVAL_MS:
            return
        self._listed_at_ms = now
        self._checked_folder.check()
        manifest = self._folder.manifest()
        complete = self._folder.completion()  # read before the listing, which then contains all splits
        if manifest is None or (complete is None and not self._early):
            return
        if self._input not in ("", manifest.id):
            detail = f"the checkpoint has positions in input {self._input}; {self._folder.path} holds {manifest.id}"
            raise JobRejected("input-replaced", self._context.uid, f"{detail}: start a run without a restore")
        self._input, self._existing_splits = manifest.id, self._folder.splits()
        self._format = ParquetFormat(self._schema or manifest.columns)
        if complete is not None:
            lost_splits = sorted(set(complete.splits) - self._existing_splits)
            if lost_splits:
                raise EnvironmentFailure(f"{self._folder.path / split_name(lost_splits[0])}: the split is gone")
            self._end_split = max(complete.splits, default=-1) + 1

    def _is_own(self, number: int) -> bool:
        (group,) = key_groups_of_hashes(hash_columns(self._keys([number])), self._context.max_parallelism).tolist()
        return group in self._context.key_groups

    def _keys(self, numbers: list[int]) -> list[pa.Array]:
        return [pa.array([self._input] * len(numbers), pa.string()), pa.array(np.array(numbers, dtype=np.int64))]

    def _position(self, number: int) -> Position:
        return self._positions.get(number) or Position()

    def _open_split(self, number: int) -> OpenFile:
        name, position = split_name(number), self._positions.setdefault(number, Position())
        descriptor = self._checked_folder.open_to_read(name)
        if descriptor is None:
            raise DataRejected(f"{self._folder.path / name}: this link leads out of the folder of inputs")
        chunks = self._format.read(descriptor_path(descriptor), position.next_row)
        return OpenFile(self._folder.path / name, descriptor, chunks)

    def _read_batch(self, max_rows: int) -> pa.RecordBatch | None:
        """Rows of the current split; None at its end or if no rows are available yet."""
        assert self._current is not None, "a split is open"
        path, position = self._current.path, self._positions[self._next_split]
        try:
            piece = self._current.next_piece(max_rows, self._event_time)
        except MalformedFile as error:
            raise DataRejected(f"{path}: {error}") from error
        self._changed_splits.add(self._next_split)
        if piece is None:
            position.done = True
            self.close()
            self._current = None
            self._next_split += 1
            return None
        if piece.malformed:
            raise DataRejected(f"{path}: {piece.malformed[0]}")
        position.next_row = piece.next_row
        self._clock.on_batch(piece.batch)
        return piece.batch if piece.batch.num_rows else None
