"""Redistributes keyed state to other keys, to another number of key groups, or both.

Spark's shuffle connects two halves, which use no Spark. `Redistribution.read_parts` reads the files of a range of old
key groups and assigns each row to a new subtask. `Assembly` collects the parts of a new subtask and stores them.

State stored per key group has no key. Watermarks of key groups (`operators.group_watermarks`) are redistributed only if
they are equal in all old key groups whose keys may move to the same new group. State with buffered rows is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from math import gcd
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from runtime.core.job.key_groups import key_group_range
from runtime.core.job.messages import MIN_WATERMARK
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import JobRejected
from runtime.operators.partition import owners_of_groups
from runtime.ports import SnapshotStore
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes
from runtime.state.index.key_codec import check_key_type
from runtime.state.index.key_index import RowIds
from runtime.state.keyed_table import KeyedTable
from runtime.state.object_table import ObjectTable
from runtime.state.schema import TableSchema
from spark_jobs.savepoints.state_tables import (
    add_rows,
    decode_key,
    duplicate_keys,
    encode_key,
    key_groups_of,
    merge_states,
    write_table,
)
from spark_jobs.state.rows import CheckpointState, OpenedCheckpoint, find_state

ROWS_PER_PART: Final = 65_536
#: The states of `operators.group_watermarks`, of windows and of joins.
WATERMARK_STATES: Final = ("fired", "watermarks")

_OBJECTS_SCHEMA: Final = pa.schema(
    [("key", pa.large_binary()), ("was", pa.large_binary()), ("place", pa.large_binary()), ("value", pa.large_binary())]
)
_TIMES_SCHEMA: Final = pa.schema([("group", pa.int32()), ("key", pa.large_binary()), ("time", pa.int64())])


class PartKind(StrEnum):
    """Content of a part: typed columns, Python objects, or watermarks of key groups (times)."""

    COLUMNS = "columns"
    OBJECTS = "objects"
    TIMES = "times"  #: watermarks of key groups


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of one state for the new subtask `owner`."""

    state: str
    kind: PartKind
    owner: int
    batch: pa.RecordBatch


@dataclass(frozen=True)
class Rekey:
    """A mapping from old keys to new keys.

    Args:
        function: takes and returns a key: the value of a single key column, or a tuple with a value per key column.
        keys: the new key columns with their types.
    """

    function: Callable[[Any], Any]
    keys: pa.Schema

    def check(self, uid: str) -> None:
        """Checks the new key columns. Raises JobRejected: a column cannot be a key; it is named."""
        if not len(self.keys):
            raise JobRejected("bad-keys", uid, "the new key needs at least one column")
        for column in self.keys:
            check_key_type(column.name, column.type)

    def columns(self, uid: str, old: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
        """The columns of the new keys. Raises JobRejected: a new key is invalid."""
        new_keys = {key: self._new_key(uid, key) for key in dict.fromkeys(old)}
        arrays = []
        for position, column in enumerate(self.keys):
            try:
                arrays.append(pa.array([new_keys[key][position] for key in old], column.type))
            except (pa.ArrowException, TypeError, OverflowError) as error:
                detail = f"a new key does not fit column {column.name!r} of type {column.type}: {error}"
                raise JobRejected("bad-key", uid, detail) from error
        return arrays

    def _new_key(self, uid: str, old: tuple[Any, ...]) -> tuple[Any, ...]:
        old_key = old[0] if len(old) == 1 else old
        try:
            new_key = self.function(old_key)
        except Exception as error:
            detail = f"the function for the new keys raised {type(error).__name__} for the key {old_key!r}: {error}"
            raise JobRejected("bad-key", uid, detail) from error
        key = tuple(new_key) if len(self.keys) > 1 and isinstance(new_key, list | tuple) else (new_key,)
        if len(key) != len(self.keys):
            detail = f"the new key of {old_key!r} has {len(key)} values; there are {len(self.keys)} key columns"
            raise JobRejected("bad-key", uid, detail)
        if None in key:
            column = self.keys.names[key.index(None)]
            raise JobRejected("null-key", uid, f"the new key of {old_key!r} is null in column {column!r}")
        return key


@dataclass(frozen=True, kw_only=True)
class Redistribution:
    """The redistribution of an operator's keyed state. Can be pickled with cloudpickle."""

    checkpoint: OpenedCheckpoint
    uid: str  #: uid in the savepoint that is read
    parallelism: int
    max_parallelism: int
    rekey: Rekey | None = None

    def read_parts(self, groups: range) -> Iterator[Part]:
        """The rows of the old key groups `groups`, by new subtask.

        Raises:
            CorruptState: a file is missing, truncated or altered; it is named.
            JobRejected: a state cannot be redistributed, or a new key is invalid; operator and state are named.
        """
        for name in self.states:
            state = find_state(self.checkpoint, self.uid, name)
            for files in state.files:
                if state.holds_objects:
                    yield from self._object_parts(state, state.read_objects([files], groups))
                else:
                    yield from self._column_parts(state.read_table([files], groups))

    @property
    def states(self) -> list[str]:
        """The names of the keyed states that have rows."""
        subtasks = self.checkpoint.manifest.operators[self.uid].subtasks.values()
        return sorted({name for snapshot in subtasks for name, segments in snapshot.keyed.items() if segments})

    @property
    def nbytes(self) -> int:
        """Bytes of all keyed-state files of the operator."""
        subtasks = self.checkpoint.manifest.operators[self.uid].subtasks.values()
        return sum(s.nbytes for subtask in subtasks for segments in subtask.keyed.values() for s in segments)

    # ------------------------------------------------------------ typed columns

    def _column_parts(self, table: KeyedTable) -> Iterator[Part]:
        rows, keys = table.copy_all(), len(table.schema.keys)
        for start in range(0, len(rows), ROWS_PER_PART):
            some: RowIds = np.arange(start, min(start + ROWS_PER_PART, len(rows)))
            batch = rows.to_batch(some)
            columns, fields = batch.columns[2:], list(batch.schema)[2:]
            key_columns = list(zip(columns[:keys], fields[:keys], strict=True))
            decides = set(table.schema.partition_columns)
            partition = [key_columns[place] for place in sorted(decides)]
            spaces = [key_columns[place] for place in range(keys) if place not in decides]
            if self.rekey is not None:
                old = list(zip(*(column.to_pylist() for column, _ in partition), strict=True))
                partition = list(zip(self.rekey.columns(self.uid, old), self.rekey.keys, strict=True))
            groups = key_groups_of_hashes(hash_columns([column for column, _ in partition]), self.max_parallelism)
            value_columns = list(zip(columns[keys:], fields[keys:], strict=True))
            pairs = [*partition, *spaces, *value_columns]
            schema = pa.schema([field for _, field in pairs])
            moved = pa.RecordBatch.from_arrays([column for column, _ in pairs], schema=schema)
            marked = moved.replace_schema_metadata({b"keys": str(len(partition) + len(spaces)).encode()})
            yield from self._parts_by_owner(table.schema.name, PartKind.COLUMNS, marked, groups)

    # ------------------------------------------------------------ Python objects

    def _object_parts(self, state: CheckpointState, table: ObjectTable) -> Iterator[Part]:
        entries: list[tuple[bytes, bytes, bytes, bytes]] = []
        times: list[tuple[int, bytes, int]] = []
        for (group, key, place), stored in table.items():
            assert isinstance(stored, bytes), "in a file, every value is bytes"
            if isinstance(decode_key(key), list):
                entries.append((key, key, msgspec.msgpack.encode(place), stored))
            elif state.name in WATERMARK_STATES:
                times.append((group, key, msgspec.msgpack.decode(stored)))
            else:
                detail = (
                    f"state {state.name!r} holds rows by key group, which cannot follow their keys: take a savepoint "
                    "while no rows wait"
                )
                raise JobRejected("rows-held", self.uid, detail)
        for start in range(0, len(entries), ROWS_PER_PART):
            yield from self._entry_parts(state.name, entries[start : start + ROWS_PER_PART])
        if times:
            batch = pa.RecordBatch.from_arrays(
                [pa.array(c) for c in zip(*times, strict=True)], names=_TIMES_SCHEMA.names
            )
            batch = batch.cast(_TIMES_SCHEMA)
            yield from (
                Part(state=state.name, kind=PartKind.TIMES, owner=owner, batch=batch)
                for owner in range(self.parallelism)
            )

    def _entry_parts(self, name: str, entries: list[tuple[bytes, bytes, bytes, bytes]]) -> Iterator[Part]:
        keys, was, places, values = zip(*entries, strict=True)
        if self.rekey is not None:
            columns = self.rekey.columns(self.uid, [tuple(decode_key(key)) for key in keys])
            keys = tuple(map(encode_key, zip(*(column.to_pylist() for column in columns), strict=True)))
        batch = pa.RecordBatch.from_arrays([pa.array(c, pa.large_binary()) for c in (keys, was, places, values)],
                                           schema=_OBJECTS_SCHEMA)  # fmt: skip
        yield from self._parts_by_owner(name, PartKind.OBJECTS, batch, key_groups_of(keys, self.max_parallelism))

    def _parts_by_owner(self, state: str, kind: PartKind, batch: pa.RecordBatch, groups: Any) -> Iterator[Part]:
        owners = owners_of_groups(self.max_parallelism, self.parallelism)[groups]
        for owner in np.unique(owners):
            rows = batch.filter(pa.array(owners == owner))
            yield Part(state=state, kind=kind, owner=int(owner), batch=rows)


@dataclass
class Assembly:
    """Collects the parts of a new subtask into its keyed state."""

    redistribution: Redistribution
    index: int
    _tables: dict[str, KeyedTable | ObjectTable] = field(default_factory=dict)
    _old_keys: dict[bytes, bytes] = field(default_factory=dict)  #: new key -> old key, in state of Python functions
    _times: dict[tuple[str, bytes], Any] = field(default_factory=dict)  #: (state, key) -> times (ms) by old key group

    def add(self, part: Part) -> None:
        """Adds the rows of a part.

        Raises:
            JobRejected: two old keys have the same new key; operator, state and keys are named.
        """
        match part.kind:
            case PartKind.COLUMNS:
                self._add_columns(part.state, part.batch)
            case PartKind.OBJECTS:
                self._add_objects(part.state, part.batch)
            case PartKind.TIMES:
                self._add_times(part.state, part.batch)

    def snapshot(self, store: SnapshotStore, prefix: str) -> SubtaskSnapshot:
        """Stores the state under `prefix`.

        Raises:
            JobRejected: old key groups of the same new key group differ in their watermarks; the operator is named.
        """
        self._redistribute_times()
        states = [write_table(store, prefix, table) for table in self._tables.values() if len(table)]
        return reduce(merge_states, states, SubtaskSnapshot())

    # ------------------------------------------------------------ inside

    def _add_columns(self, name: str, batch: pa.RecordBatch) -> None:
        keys = int(batch.schema.metadata[b"keys"])
        fields = list(batch.schema)
        table = self._tables.get(name)
        if table is None:
            schema = TableSchema(name, pa.schema(fields[:keys]), pa.schema(fields[keys:]))
            table = self._tables[name] = KeyedTable(schema, self.redistribution.max_parallelism)
        assert isinstance(table, KeyedTable), "a state has a single kind"
        add_rows(table, batch.columns[:keys], batch.columns[keys:], self.redistribution.uid)

    def _add_objects(self, name: str, batch: pa.RecordBatch) -> None:
        table = self._objects(name)
        columns = [column.to_pylist() for column in batch.columns]
        groups = key_groups_of(columns[0], self.redistribution.max_parallelism).tolist()
        for group, key, was, place, value in zip(groups, *columns, strict=True):
            if self._old_keys.setdefault(key, was) != was:
                raise duplicate_keys(self.redistribution.uid, name, [decode_key(key)])
            table.put((group, key, msgspec.msgpack.decode(place)), value)

    def _add_times(self, name: str, batch: pa.RecordBatch) -> None:
        before = self.redistribution.checkpoint.manifest.max_parallelism
        for group, key, time in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            times = self._times.setdefault((name, key), np.full(before, MIN_WATERMARK))
            times[group] = time

    def _redistribute_times(self) -> None:
        redistribution = self.redistribution
        before, after = redistribution.checkpoint.manifest.max_parallelism, redistribution.max_parallelism
        common = gcd(before, after) if redistribution.rekey is None else 1
        for (name, key), times in self._times.items():
            table = self._objects(name)
            for group in key_group_range(self.index, after, redistribution.parallelism):
                met = times[group % common :: common]
                if met.min() != met.max():
                    detail = (
                        f"its watermarks differ ({met.min()} and {met.max()} ms) in key groups that meet: rows would "
                        "be lost, or windows would fire twice; take a savepoint while no input is idle"
                    )
                    raise JobRejected("event-times-differ", redistribution.uid, detail)
                table.put((group, key, None), msgspec.msgpack.encode(int(met[0])))

    def _objects(self, name: str) -> ObjectTable:
        table = self._tables.setdefault(name, ObjectTable(name))
        assert isinstance(table, ObjectTable), "a state has a single kind"
        return table
