"""Changes of a state between two checkpoints: keys that were added, changed and removed.

Both checkpoints are read by ranges of key groups; memory holds one range of each. This module uses no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from runtime.errors import JobRejected
from runtime.operators.running_aggregate import is_different
from runtime.state.index.key_index import NOT_FOUND, RowIds
from runtime.state.keyed_table import KeyedTable
from runtime.state.object_table import Entry
from spark_jobs.state.rows import (
    IDENTITY_COLUMNS,
    OBJECT_KEY_COUNT,
    OBJECT_SCHEMA,
    CheckpointState,
    OpenedCheckpoint,
    find_state,
    has_rows,
    identity_fields,
    object_columns,
)

CHANGE: Final = "change"
BEFORE: Final = "before"  #: the older values of the value columns, as a struct
ADDED, CHANGED, REMOVED = "added", "changed", "removed"


@dataclass(frozen=True)
class StateChanges:
    """A state in two checkpoints. `now`, `before`: None if a checkpoint has no rows of the state. Can be pickled."""

    now: CheckpointState | None
    before: CheckpointState | None
    schema: pa.Schema  #: of the rows: operator, state, key group, change, keys, values, older values

    @property
    def newest(self) -> CheckpointState:
        """The state in the newer checkpoint that has it."""
        state = self.now or self.before
        assert state is not None, "a checkpoint has the state"
        return state

    @property
    def key_groups(self) -> int:
        return self.newest.key_groups

    @property
    def nbytes(self) -> int:
        """Bytes of the state's files in both checkpoints."""
        return sum(state.nbytes for state in (self.now, self.before) if state is not None)

    @property
    def is_broadcast(self) -> bool:
        return any(state is not None and state.is_broadcast for state in (self.now, self.before))

    def rows(self, groups: range) -> Iterator[pa.RecordBatch]:
        """The changed keys in `groups`.

        Raises:
            CorruptState: a file is missing, truncated or altered; it is named.
            JobRejected: the types of a column in the two checkpoints are incompatible.
        """
        yield from self._objects(groups) if self.newest.holds_objects else self._columns(groups)

    # ------------------------------------------------------------ typed columns

    def _columns(self, groups: range) -> Iterator[pa.RecordBatch]:
        now, before = _table(self.now, groups), _table(self.before, groups)
        if now is not None and before is not None and now.is_typed and before.is_typed:
            before.bind_types(*_types(now))
            now.bind_types(*_types(before))
        if now is not None and now.is_typed:
            yield from self._additions_and_updates(now, before)
        if before is not None and before.is_typed:
            slots = before.row_ids()
            removed_rows = (
                slots if now is None or not now.is_typed else slots[now.find(_keys(before, slots)) == NOT_FOUND]
            )
            yield self._table_change_rows(
                REMOVED, before, removed_rows, values=None, before=_values(before, removed_rows)
            )

    def _additions_and_updates(self, now: KeyedTable, before: KeyedTable | None) -> Iterator[pa.RecordBatch]:
        slots = now.row_ids()
        if before is None or not before.is_typed:
            yield self._table_change_rows(ADDED, now, slots, values=_values(now, slots), before=None)
            return
        there = before.find(_keys(now, slots))
        new_rows, common_rows, old = slots[there == NOT_FOUND], slots[there != NOT_FOUND], there[there != NOT_FOUND]
        yield self._table_change_rows(ADDED, now, new_rows, values=_values(now, new_rows), before=None)
        changed = np.zeros(len(common_rows), dtype=bool)
        for column, other in zip(_values(now, common_rows), _values(before, old), strict=True):
            changed |= is_different(other, column).to_numpy(zero_copy_only=False)
        common_rows, old = common_rows[changed], old[changed]
        yield self._table_change_rows(
            CHANGED, now, common_rows, values=_values(now, common_rows), before=_values(before, old)
        )

    def _table_change_rows(
        self,
        change: str,
        table: KeyedTable,
        slots: RowIds,
        *,
        values: list[pa.Array] | None,
        before: list[pa.Array] | None,
    ) -> pa.RecordBatch:
        return self._change_rows(
            change, pa.array(table.key_groups(slots), pa.int32()), _keys(table, slots), values, before
        )

    # ------------------------------------------------------------ Python objects

    def _objects(self, groups: range) -> Iterator[pa.RecordBatch]:
        now, before = _entries(self.now, groups), _entries(self.before, groups)
        added = [entry for entry in now if entry not in before]
        changed = [entry for entry, value in now.items() if before.get(entry, value) != value]
        removed = [entry for entry in before if entry not in now]
        parts: list[tuple[str, list[Any], bool, bool]] = [
            (ADDED, added, True, False), (CHANGED, changed, True, True), (REMOVED, removed, False, True)
        ]  # fmt: skip
        for change, entries, has_now, has_before in parts:
            new = self._split((entry, now[entry]) for entry in entries) if has_now else None
            old = self._split((entry, before[entry]) for entry in entries) if has_before else None
            value = new or old
            assert value is not None, "a change has a value on one side"
            groups, keys, _ = value
            yield self._change_rows(change, groups, keys, new and new[2], old and old[2])

    def _split(self, entries: Iterable[tuple[Entry, Any]]) -> tuple[pa.Array, list[pa.Array], list[pa.Array]]:
        """Key groups, key columns and value columns of `entries`."""
        groups, *columns = object_columns(entries, is_broadcast=self.is_broadcast)
        return groups, columns[:OBJECT_KEY_COUNT], columns[OBJECT_KEY_COUNT:]

    # ------------------------------------------------------------ inside

    def _change_rows(
        self, change: str, groups: pa.Array, keys: list[pa.Array], values: list[pa.Array] | None,
        before: list[pa.Array] | None,
    ) -> pa.RecordBatch:  # fmt: skip
        count, fields = len(groups), list(self.schema)
        texts = [pa.array([text] * count, pa.string()) for text in (self.newest.operator, self.newest.name)]
        first = len(IDENTITY_COLUMNS) + 1 + len(keys)
        now = values if values is not None else [pa.nulls(count, field.type) for field in fields[first:-1]]
        inner = self.schema.field(BEFORE).type
        if before is None:
            was = pa.nulls(count, inner)
        else:
            parts = [column.cast(field.type) for column, field in zip(before, inner, strict=True)]
            was = pa.StructArray.from_arrays(parts, fields=list(inner))
        columns = [*texts, groups, pa.array([change] * count, pa.string()), *keys, *now, was]
        cast = [column.cast(field.type) for column, field in zip(columns, fields, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)


def find_changes(now: OpenedCheckpoint, since: OpenedCheckpoint, operator: str, name: str) -> StateChanges:
    """The changes of a state since an older checkpoint. Reads the head of a file of each checkpoint.

    Raises:
        JobRejected: neither checkpoint has the state, the state has no keys, or its columns or key groups differ.
    """
    if now.manifest.max_parallelism != since.manifest.max_parallelism:
        detail = f"it has {since.manifest.max_parallelism} key groups; this one has {now.manifest.max_parallelism}"
        raise JobRejected("other-key-groups", "since", detail)
    pair = [find_state(each, operator, name) if has_rows(each, operator, name) else None for each in (now, since)]
    if pair == [None, None]:
        pair[0] = find_state(now, operator, name)  # finds a state without rows; raises if the state is unknown
    states = [state for state in pair if state is not None]
    for state in states:
        if state.is_broadcast and not state.holds_objects:
            raise JobRejected("no-keys", name, "broadcast rows have no keys, so changes cannot be matched")
    return StateChanges(pair[0], pair[1], _schema(states))


def _schema(states: list[CheckpointState]) -> pa.Schema:
    """The schema of the changes. Raises JobRejected: the older state has other columns."""
    parts = [_columns_of(state) for state in states]
    now, before = ((keys.names, values.names) for keys, values in (parts[0], parts[-1]))
    if now != before:
        detail = f"it had the columns {', '.join(chain(*before))}, and has {', '.join(chain(*now))}"
        raise JobRejected("state-columns-changed", states[0].name, detail)
    keys, values = parts[0]
    identity = [*identity_fields(states[0], (*keys, *values), CHANGE, BEFORE), pa.field(CHANGE, pa.string())]
    plain = [pa.field(field.name, field.type) for field in (*keys, *values)]
    return pa.schema([*identity, *plain, pa.field(BEFORE, pa.struct([pa.field(f.name, f.type) for f in values]))])


def _columns_of(state: CheckpointState) -> tuple[pa.Schema, pa.Schema]:
    if state.holds_objects:
        columns = list(OBJECT_SCHEMA)
        return pa.schema(columns[:OBJECT_KEY_COUNT]), pa.schema(columns[OBJECT_KEY_COUNT:])
    return state.key_schema, state.value_schema


def _table(state: CheckpointState | None, groups: range) -> KeyedTable | None:
    return None if state is None else state.read_table(state.files, groups)


def _entries(state: CheckpointState | None, groups: range) -> dict[Any, Any]:
    return {} if state is None else dict(state.read_objects(state.files, groups).items())


def _types(table: KeyedTable) -> tuple[list[Any], list[Any]]:
    return [field.type for field in table.schema.keys], [field.type for field in table.schema.values]


def _keys(table: KeyedTable, slots: RowIds) -> list[pa.Array]:
    return [table.key_column(field.name, slots) for field in table.schema.keys]


def _values(table: KeyedTable, slots: RowIds) -> list[pa.Array]:
    return [table.value_column(field.name, slots) for field in table.schema.values]
