"""The state of an operator subtask: declared states, their restore, and their captures.

A capture is taken in one step at the barrier and shares no mutable object with the live state. The capture's `write`
and then its `compact` run later, on another thread. The first snapshot after a restore is complete, so a checkpoint
never depends on files of another lineage or on a savepoint, which a user may delete.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

import pyarrow as pa

from runtime.core.job.column_types import key_rule, value_rule
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.manifest import Segment, SubtaskSnapshot, TableColumns
from runtime.core.snapshot.proofs import StateProof
from runtime.errors import CorruptState, JobRejected
from runtime.ports import SnapshotStore
from runtime.state.broadcast import BROADCAST_GROUPS, BroadcastMap, BroadcastTable
from runtime.state.files.compaction import DEFAULT_POLICY, CompactionPolicy
from runtime.state.files.segment_log import PendingSegment, SegmentLog
from runtime.state.files.segments import read_segment, read_segments
from runtime.state.index.key_codec import common_declared_type
from runtime.state.keyed_table import KeyedTable
from runtime.state.list_state import OperatorList
from runtime.state.object_table import ObjectTable
from runtime.state.primary_key import OWN_FIELDS, PrimaryKey
from runtime.state.proofs import LazyProof, ProofOnce, check_proof, complete_proof
from runtime.state.rows import SegmentRows, rows_proof, segment_batches, segment_column_names
from runtime.state.schema import TableSchema, manifest_columns

LIST_STATE, UNION_LIST_STATE = "a list", "a union list"  #: values of `kinds`
_KEYED_STATE, _BROADCAST_STATE = "keyed state", "broadcast state"
_STATE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_MAX_SHOWN_FILES: Final = 3

ProvedSegments = tuple[tuple[PendingSegment, ...], LazyProof]  #: segments of a state, and the proof of the state
StateSegments = dict[str, tuple[PendingSegment, ...]]
Table = TypeVar("Table", KeyedTable, ObjectTable)


@dataclass(frozen=True, slots=True)
class StateCapture:
    """Implements `ports.Capture`."""

    keyed: StateSegments
    broadcast: StateSegments
    lists: dict[str, tuple[Any, ...]]
    unions: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    value_types: dict[str, str] = field(default_factory=dict)
    empty_tables: dict[str, TableColumns] = field(default_factory=dict)
    proofs: dict[str, LazyProof] = field(default_factory=dict)
    segment_logs: tuple[SegmentLog, ...] = ()  #: logs to compact after the snapshot

    def write(self, store: SnapshotStore, prefix: str) -> tuple[SubtaskSnapshot, int]:
        """Stores the segments that are not stored yet. May be called again after a failure.

        Proofs are computed first: while storage is away, the changes that they are made of would pile up.
        """
        proofs = {name: dict(proof()) for name, proof in self.proofs.items()}
        keyed, keyed_bytes = _write_segments(self.keyed, store, prefix)
        broadcast, broadcast_bytes = _write_segments(self.broadcast, store, prefix)
        snapshot = SubtaskSnapshot(
            keyed=keyed,
            broadcast=broadcast,
            lists=self.lists,
            unions=self.unions,
            value_types=self.value_types,
            empty_tables=self.empty_tables,
            proofs=proofs,
        )
        merged_bytes = sum(log.take_compacted_bytes() for log in self.segment_logs)
        return snapshot, keyed_bytes + broadcast_bytes + merged_bytes

    def compact(self, store: SnapshotStore, prefix: str) -> None:
        """Compacts the states with many segments; see `SegmentLog`.

        Raises:
            CorruptState, pa.ArrowException: files of a state could not be compacted; those of others were.
        """
        failures = []
        for log in self.segment_logs:
            try:
                log.compact(store, prefix)
            except (CorruptState, pa.ArrowException) as error:
                failures.append(error)
        if failures:
            raise failures[0]


class SubtaskState:
    """Implements `ports.StateStore`.

    Args:
        key_groups: the groups that the subtask owns.
        max_parallelism: number of key groups of the job.
        store: source of restored segments; required for a restore only.
        key_types: types of key columns by name, as far as the job graph knows them. A restored table is widened to
            these types at once. Otherwise a subtask without new rows would emit another type than its siblings.
        value_types: likewise the types of value columns, by `state.column`.
        compaction: policy that decides when the files of a state are compacted.
    """

    def __init__(
        self,
        key_groups: range,
        max_parallelism: int,
        store: SnapshotStore | None,
        key_types: Mapping[str, str] = MappingProxyType({}),
        value_types: Mapping[str, str] = MappingProxyType({}),
        compaction: CompactionPolicy = DEFAULT_POLICY,
    ) -> None:
        self._groups = key_groups
        self._max_parallelism = max_parallelism
        self._store = store
        self._graph_types = key_types, value_types
        self._compaction = compaction
        self._restored: SubtaskRestore | None = None
        self._tables: dict[str, KeyedTable | ObjectTable] = {}
        self._broadcast: dict[str, BroadcastTable] = {}
        self._maps: dict[str, BroadcastMap] = {}
        self._lists: dict[str, OperatorList] = {}
        self._unions: dict[str, OperatorList] = {}
        self._kinds: dict[str, str] = {}  #: kind of each declared state, by name
        self._segment_logs: dict[str, SegmentLog] = {}
        self._discarded: tuple[str, ...] = ()  #: prefixes of restored states that are over

    # ------------------------------------------------------------ declaring

    def keyed_table(self, name: str, keys: pa.Schema, values: pa.Schema) -> KeyedTable:
        """Declares a keyed table and reads its restored rows.

        Raises:
            CorruptState: a segment does not match its manifest.
            JobRejected: the name is taken, or the restored columns differ from the declared columns.
        """
        table = KeyedTable(TableSchema(name, keys, values), self._max_parallelism)
        self._declare(name, _KEYED_STATE, table.schema.primary_key)
        return self._restore_table(name, table)

    def object_table(self, name: str) -> ObjectTable:
        """Declares keyed state of Python objects and reads its restored entries.

        Raises:
            CorruptState: a segment does not match its manifest.
            JobRejected: the name is taken, or a table with typed columns was restored.
        """
        table = ObjectTable(name)
        self._declare(name, _KEYED_STATE, table.schema.primary_key)
        return self._restore_table(name, table)

    def list_state(self, name: str) -> OperatorList:
        """Declares a list state. After a restore it holds this subtask's share of the values."""
        self._declare(name, LIST_STATE)
        values = self._restored.lists.get(name, ()) if self._restored is not None else ()
        return self._lists.setdefault(name, OperatorList(name, values))

    def union_list_state(self, name: str) -> OperatorList:
        """Declares a union list state. After a restore it holds the values of all subtasks."""
        self._declare(name, UNION_LIST_STATE)
        values = self._restored.unions.get(name, ()) if self._restored is not None else ()
        return self._unions.setdefault(name, OperatorList(name, values))

    def broadcast_table(self, name: str) -> BroadcastTable:
        """Declares broadcast state of rows and reads its restored rows.

        Raises:
            CorruptState: a segment does not match its manifest.
        """
        self._declare(name, _BROADCAST_STATE)
        batches = [self._read(segment) for segment in self._broadcast_segments(name)]
        table = BroadcastTable(name, batches)
        check_proof(self._describe(name, self._broadcast_segments(name)), self._broadcast_proof(name), table.proof()())
        return self._broadcast.setdefault(name, table)

    def broadcast_map(self, name: str) -> BroadcastMap:
        """Declares broadcast state of entries and reads its restored entries.

        Raises:
            CorruptState: a segment does not match its manifest.
            JobRejected: the name is taken, or the restored state is a table of rows.
        """
        table = ObjectTable(name)
        self._declare(name, _BROADCAST_STATE, table.schema.primary_key)
        segments = self._broadcast_segments(name)
        for segment in segments:
            table.apply_segment(self._read(segment), BROADCAST_GROUPS)
        self._check_restored(name, table, segments, self._broadcast_proof(name))
        if segments:
            self._segment_logs[name].restore(segments, table.proof(), len(table), len(table) * table.row_bytes)
        return self._maps.setdefault(name, BroadcastMap(table))

    def discard(self, prefix: str) -> None:
        """Drops restored states whose names begin with `prefix`: later snapshots are without them."""
        assert not any(name.startswith(prefix) for name in self._kinds), "a declared state is not over"
        self._discarded = (*self._discarded, prefix)

    @property
    def kinds(self) -> Mapping[str, str]:
        """The kind of every declared state, by name."""
        return self._kinds

    @property
    def tables(self) -> Mapping[str, KeyedTable | ObjectTable]:
        """The declared keyed states, by name."""
        return self._tables

    # ------------------------------------------------------------ restoring

    def restore(self, restored: SubtaskRestore) -> None:
        """Provides the restored snapshots. Called before `open`, because state declarations read the snapshots."""
        assert not self._kinds, "states were declared before the restore"
        self._restored = restored

    def check_declarations(self) -> None:
        """Checks that every restored state has been declared: otherwise it would be lost silently.

        Raises:
            JobRejected: a restored state is missing or has another kind; the error names operator and state.
        """
        if self._restored is None:
            return
        operator = str(self._restored.subtask.operator)
        for name, kind in self._restored_states():
            if name.startswith(self._discarded):
                continue
            if name not in self._kinds:
                detail = f"the checkpoint holds state {name!r}, which this version of the operator does not declare"
                raise JobRejected("state-not-declared", operator, detail)
            if self._kinds[name] != kind:
                detail = f"state {name!r} is {kind} in the checkpoint and {self._kinds[name]} in this version"
                raise JobRejected("state-kind-changed", operator, detail)

    # ------------------------------------------------------------ capturing

    def capture(self, full: bool) -> StateCapture:
        """Copies the changes since the last capture. `full` (savepoints): copies all rows; recorded changes stay."""
        rows = {name: self._capture_broadcast(name, table, full) for name, table in self._broadcast.items()}
        maps = {name: self._capture_table(name, entries.table, full) for name, entries in self._maps.items()}
        keyed = {name: self._capture_table(name, table, full) for name, table in self._tables.items()}
        return StateCapture(
            keyed={name: segments for name, (segments, _) in keyed.items()},
            broadcast={name: segments for name, (segments, _) in (rows | maps).items()},
            lists={name: values.capture() for name, values in self._lists.items()},
            unions={name: values.capture() for name, values in self._unions.items()},
            segment_logs=() if full else tuple(self._segment_logs.values()),
            value_types=self._value_types(),
            empty_tables=self._empty_tables(),
            proofs={name: proof for name, (_, proof) in (rows | maps | keyed).items()},
        )

    def close(self) -> None:
        """Stops background compaction soon."""
        for log in self._segment_logs.values():
            log.stop()

    def _value_types(self) -> dict[str, str]:
        """The types of the value columns of typed tables, as far as they are bound."""
        typed = [table.schema for table in self._tables.values() if isinstance(table, KeyedTable) and table.is_typed]
        return {f"{schema.name}.{column.name}": str(column.type) for schema in typed for column in schema.values}

    def _empty_tables(self) -> dict[str, TableColumns]:
        """The columns of tables without rows: no segment file shows them to a reader of the checkpoint."""
        tables = {**self._tables, **{name: entries.table for name, entries in self._maps.items()}}
        return {name: manifest_columns(table.schema) for name, table in tables.items() if not len(table)}

    def _capture_table(self, name: str, table: KeyedTable | ObjectTable, full: bool) -> ProvedSegments:
        log, segments = self._segment_logs[name], tuple[PendingSegment, ...]()
        if not table.is_typed:
            proof = table.proof()
        elif full:
            proof = table.proof()
            segments = _as_tuple(self._table_segment(log, table, [table.copy_all()], proof, proof, 0))
        elif log.needs_base or table.is_mostly_changed or len(table) * table.row_bytes <= log.base_inline_bytes:
            rows, proof = table.capture_all(), table.proof()
            log.start_from(self._table_segment(log, table, rows, proof, proof, log.base_inline_bytes))
            segments = log.segments()
        else:
            rows, proof = table.capture_changes(), table.proof()
            changes = ProofOnce(partial(rows_proof, rows))
            log.append(self._table_segment(log, table, rows, changes, proof, log.delta_inline_bytes))
            segments = log.segments()
        return segments, complete_proof(name, proof, len(table))

    def _capture_broadcast(self, name: str, table: BroadcastTable, full: bool) -> ProvedSegments:
        log, proof = self._segment_logs[name], complete_proof(name, table.proof(), len(table))
        if full:
            return _as_tuple(self._broadcast_segment(log, table.batches, proof, proof, 0)), proof
        if log.needs_base or table.needs_base:
            rows = table.capture_all()
            log.start_from(self._broadcast_segment(log, rows, proof, proof, log.base_inline_bytes))
        else:
            changes, rows = table.changes_proof(), table.capture_changes()
            log.append(self._broadcast_segment(log, rows, changes, proof, log.delta_inline_bytes))
        return log.segments(), proof

    def _table_segment(
        self,
        log: SegmentLog,
        table: KeyedTable | ObjectTable,
        parts: Sequence[SegmentRows],
        proof: LazyProof,
        state: LazyProof,
        inline_bytes: int,
    ) -> PendingSegment | None:
        count = sum(len(part) for part in parts)
        if not count:
            return None
        batches, nbytes = lambda store: segment_batches(parts), count * table.row_bytes
        return log.new_segment(batches, proof, state, count, nbytes, inline_bytes=inline_bytes)

    def _broadcast_segment(
        self,
        log: SegmentLog,
        batches: Sequence[pa.RecordBatch],
        proof: LazyProof,
        state: LazyProof,
        inline_bytes: int,
    ) -> PendingSegment | None:
        if not batches:
            return None
        rows, nbytes = sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)
        groups, one_batch = (0, self._max_parallelism - 1), lambda _: [pa.concat_batches(batches)]
        return log.new_segment(one_batch, proof, state, rows, nbytes, groups, inline_bytes)

    # ------------------------------------------------------------ internals

    def _declare(self, name: str, kind: str, key: PrimaryKey | None = None) -> None:
        if not _STATE_NAME.fullmatch(name):
            raise JobRejected("bad-state-name", name, "a state name has at most 64 letters, digits, '_', '.' and '-'")
        if name in self._kinds:
            raise JobRejected("duplicate-state", name, "the operator declares this state twice")
        self._kinds[name] = kind
        groups = self._groups if kind == _KEYED_STATE else BROADCAST_GROUPS
        self._segment_logs[name] = SegmentLog(name, groups, key, self._compaction)

    def _snapshots(self) -> tuple[SubtaskSnapshot, ...]:
        return self._restored.snapshots if self._restored is not None else ()

    def _broadcast_segments(self, name: str) -> tuple[Segment, ...]:
        source = self._restored.broadcast if self._restored is not None else None
        return source.broadcast.get(name, ()) if source is not None else ()

    def _restored_states(self) -> list[tuple[str, str]]:
        """The name and kind of every restored state that is not empty."""
        assert self._restored is not None, "nothing was restored"
        copied = self._restored.broadcast
        by_kind: list[tuple[str, Mapping[str, Collection[Any]]]] = [
            *((_KEYED_STATE, snapshot.keyed) for snapshot in self._restored.snapshots),
            (_KEYED_STATE, self._restored.proofs),
            (LIST_STATE, self._restored.lists),
            (UNION_LIST_STATE, self._restored.unions),
            (_BROADCAST_STATE, {} if copied is None else copied.broadcast),
        ]
        return [(name, kind) for kind, states in by_kind for name, content in states.items() if content]

    @property
    def _snapshot_store(self) -> SnapshotStore:
        assert self._store is not None, "a restore needs a store"
        return self._store

    def _read(self, segment: Segment) -> pa.RecordBatch:
        return read_segment(self._snapshot_store, segment)

    def _restore_table(self, name: str, table: Table) -> Table:
        segments = [segment for snapshot in self._snapshots() for segment in snapshot.keyed.get(name, ())]
        if segments:
            for segment, groups, batch in read_segments(self._snapshot_store, self._parts_to_apply(table, segments)):
                self._check_columns(table, batch, segment)
                table.apply_segment(batch, groups)
        if isinstance(table, KeyedTable) and table.is_typed:
            table.bind_types(*self._common_graph_types(table.schema))
        expected = self._restored.proofs.get(name, {}) if self._restored is not None else {}
        self._check_restored(name, table, segments, expected)
        if segments and table.is_typed:
            self._segment_logs[name].restore(segments, table.proof(), len(table), len(table) * table.row_bytes)
        self._tables[name] = table
        return table

    def _check_restored(
        self, name: str, table: KeyedTable | ObjectTable, segments: Sequence[Segment], expected: StateProof
    ) -> None:
        """Compares the restored entries with the proof of the state in the manifest. Raises CorruptState."""
        table.begin_changes()
        check_proof(self._describe(name, segments), expected, table.proof()())

    def _describe(self, name: str, segments: Sequence[Segment]) -> str:
        """The restored state and its files, for errors."""
        operator = self._restored.subtask.operator if self._restored is not None else ""
        paths = [segment.path for segment in segments]
        files = ", ".join(paths[:_MAX_SHOWN_FILES]) + (", …" if len(paths) > _MAX_SHOWN_FILES else "")
        return f"state {name!r} of operator {str(operator)!r} ({files or 'without files'})"

    def _broadcast_proof(self, name: str) -> StateProof:
        source = self._restored.broadcast if self._restored is not None else None
        return source.proofs.get(name, {}) if source is not None else {}

    def _common_graph_types(self, schema: TableSchema) -> tuple[list[Any], list[Any]]:
        """The types that hold the values of a table and of the job graph, by key column and by value column."""
        key_types, value_types = self._graph_types
        keys = [common_declared_type(field.type, key_types.get(field.name, "null"), key_rule) for field in schema.keys]
        values = [
            common_declared_type(field.type, value_types.get(f"{schema.name}.{field.name}", "null"), value_rule)
            for field in schema.values
        ]
        return keys, values

    def _parts_to_apply(
        self, table: KeyedTable | ObjectTable, segments: Iterable[Segment]
    ) -> Iterator[tuple[Segment, range]]:
        """The segments with key groups of this subtask, and these key groups.

        Segments without such groups are read too until the table is typed: their columns have the types.
        """
        for segment in segments:
            groups = range(max(self._groups.start, segment.first_group), min(self._groups.stop, segment.last_group + 1))
            if groups or not table.is_typed:
                yield segment, groups

    def _check_columns(self, table: KeyedTable | ObjectTable, batch: pa.RecordBatch, segment: Segment) -> None:
        declared = [*table.schema.keys.names, *table.schema.values.names]
        if batch.num_columns < len(OWN_FIELDS):
            raise CorruptState(segment.path, "it lacks the columns of a keyed table")
        if segment_column_names(batch) != declared:
            detail = (
                f"the checkpoint has columns {segment_column_names(batch)}, this version of the operator {declared}"
            )
            raise JobRejected("state-columns-changed", table.schema.name, detail)


def _as_tuple(segment: PendingSegment | None) -> tuple[PendingSegment, ...]:
    return () if segment is None else (segment,)


def _write_segments(
    states: StateSegments, store: SnapshotStore, prefix: str
) -> tuple[dict[str, tuple[Segment, ...]], int]:
    written, total = {}, 0
    for name, pending in states.items():
        segments: list[Segment] = []
        for segment in pending:
            parts, nbytes = segment.write(store, prefix)
            segments += parts
            total += nbytes
        written[name] = tuple(segments)
    return written, total
