"""The state of a checkpoint as Arrow rows: its contents, and the rows of a state in a range of key groups.

The module reads with the code that restores jobs, so it returns exactly the rows that a restored job would have. It
uses no Spark. (Flink's State Processor API.)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from runtime.core.job.column_types import key_rule, value_rule
from runtime.core.snapshot.manifest import Manifest, OperatorSnapshot, Segment, SubtaskSnapshot, TableColumns
from runtime.core.snapshot.manifest_codec import (
    MANIFEST_FILE,
    SigningKeys,
    decode_manifest,
    manifest_folder,
    relative_paths,
)
from runtime.core.snapshot.proofs import StateProof, add_proofs
from runtime.errors import CorruptState, JobRejected
from runtime.io.pins import PinnedCheckpoint
from runtime.io.store import open_store, storage_uri
from runtime.ports import SnapshotStore
from runtime.state.broadcast import BROADCAST_GROUPS
from runtime.state.files.segments import read_segment
from runtime.state.index.key_codec import common_declared_type
from runtime.state.keyed_table import KeyedTable
from runtime.state.object_table import Entry, ObjectTable
from runtime.state.proofs import check_proof, proof_of_rows
from runtime.state.schema import TableSchema

IDENTITY_COLUMNS: Final = ("operator", "state", "key_group")
OBJECT_SCHEMA: Final = pa.schema(
    [("key", pa.string()), ("place", pa.string()), ("value", pa.string()), ("expires_at", pa.timestamp("us", "UTC"))]
)
OBJECT_KEY_COUNT: Final = 2  #: number of first columns of `OBJECT_SCHEMA` that identify an entry
CONTENTS_SCHEMA: Final = pa.schema(
    [
        ("operator", pa.string()),
        ("kind", pa.string()),
        ("state", pa.string()),
        ("subtask", pa.int32()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("value", pa.string()),
    ]
)
PARTITION_BYTES: Final = 64 << 20  #: compressed bytes of state files per task, which holds their rows in memory
_decode: Final = msgspec.msgpack.Decoder().decode
_PARAMETRIC_TYPE: Final = re.compile(
    r"(?P<kind>timestamp|decimal128|fixed_size_binary)[\[(](?P<first>[^,\])]+)(?:, (?P<second>[^\])]+))?[\])]"
)


@dataclass(frozen=True)
class OpenedCheckpoint:
    """An opened checkpoint. Can be pickled."""

    root: str
    manifest: Manifest
    pin: PinnedCheckpoint | None = None  #: None: retention does not delete this checkpoint

    @property
    def store(self) -> SnapshotStore:
        return open_store(self.root)

    def renew_pin(self) -> None:
        """Renews the pin, so that retention keeps the files. Call it repeatedly while reading."""
        if self.pin is not None:
            self.pin.renew()


def open_checkpoint(path: str, keys: SigningKeys = ()) -> OpenedCheckpoint:
    """Opens the checkpoint in the folder or URI `path`, where a job wrote it, or a savepoint that was copied there.

    A periodic checkpoint is pinned first, so that retention keeps it while it is read (`io.pins`).

    Args:
        keys: the manifest must be signed with one of them; empty: signatures are not checked.

    Raises:
        CorruptState: a file is missing, truncated, altered or not a manifest; it is named.
        JobRejected: the manifest's format is newer than this software, its signature is missing or of another key, or
            the checkpoint was moved and shares files with other checkpoints.
    """
    place = storage_uri("path", path)
    parent, _, folder = place.rpartition("/")
    root = parent or "/"
    pin = _pin(root, folder)
    data = open_store(place).get(MANIFEST_FILE)
    manifest = decode_manifest(data, f"{place}/{MANIFEST_FILE}", keys, signed=bool(keys))
    if folder == manifest_folder(manifest) and not manifest.kind.is_savepoint:
        return OpenedCheckpoint(root, manifest, pin)
    files = relative_paths(manifest, path)
    return OpenedCheckpoint(place, manifest.with_segments(lambda s: msgspec.structs.replace(s, path=files[s.path])))


def _pin(root: str, folder: str) -> PinnedCheckpoint | None:
    """Pins a periodic checkpoint before its manifest is read. Savepoints stay until a user discards them."""
    manifest = f"{folder}/{MANIFEST_FILE}"
    if not folder.startswith("chk-") or manifest not in open_store(root).list(f"{folder}/"):
        return None
    pin = PinnedCheckpoint(root, folder)
    pin.renew()
    return pin


# ---------------------------------------------------------------- contents


def contents(opened: OpenedCheckpoint) -> pa.RecordBatch:
    """A row for each state of each subtask, for each element of a list, and for each pending commit.

    `kind` is keyed, broadcast, list, union, in flight, commit, watermark or finished; `value` is JSON. `bytes` is the
    size of the state's files, which may be shared with other checkpoints.
    """
    rows = [row for uid, operator in sorted(opened.manifest.operators.items()) for row in _contents_of(uid, operator)]
    return pa.RecordBatch.from_pylist(rows, schema=CONTENTS_SCHEMA)


def _contents_of(uid: str, operator: OperatorSnapshot) -> Iterator[dict[str, Any]]:
    yield {"operator": uid, "kind": "finished", "value": json.dumps(str(operator.finished))}
    for index, snapshot in sorted(operator.subtasks.items()):
        here = {"operator": uid, "subtask": index}
        yield {**here, "kind": "watermark", "value": json.dumps(snapshot.watermark)}
        in_flight = {rows.name: rows.segments for rows in snapshot.in_flight}
        for kind, states in (("keyed", snapshot.keyed), ("broadcast", snapshot.broadcast), ("in flight", in_flight)):
            for name, segments in states.items():
                rows, nbytes = sum(s.rows for s in segments), sum(s.nbytes for s in segments)
                yield {**here, "kind": kind, "state": name, "rows": rows, "bytes": nbytes}
        for kind, lists in (("list", snapshot.lists), ("union", snapshot.unions)):
            for name, values in lists.items():
                yield from ({**here, "kind": kind, "state": name, "value": json.dumps(value)} for value in values)
        yield from ({**here, "kind": "commit", "value": json.dumps(each)} for each in snapshot.committables)


# ---------------------------------------------------------------- the rows of a state


def partitions_by_size(nbytes: int, key_groups: int, partition_bytes: int = PARTITION_BYTES) -> int:
    return min(key_groups, max(1, math.ceil(nbytes / partition_bytes)))


def state_description(operator: str, name: str) -> str:
    return f"state {name!r} of operator {operator!r}"


@dataclass(frozen=True)
class SubtaskFiles:
    """The files of a state of a subtask, oldest first, and the proof of the state."""

    segments: tuple[Segment, ...]
    proof: StateProof


@dataclass(frozen=True)
class CheckpointState:
    """A named state of an operator in a checkpoint, readable by ranges of key groups. Can be pickled.

    `stored`: columns that hold the rows of all files. `files`: of each subtask; empty for a state without rows.
    `key_types`: Arrow types of the operator's key columns, where known.
    """

    checkpoint: OpenedCheckpoint
    operator: str
    name: str
    stored: pa.Schema
    files: tuple[SubtaskFiles, ...]
    value_columns: frozenset[str]
    is_broadcast: bool
    key_types: Mapping[str, str] = field(default_factory=dict)

    @property
    def key_groups(self) -> int:
        return self.checkpoint.manifest.max_parallelism

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(segment.nbytes for segment in self.segments)

    @property
    def partition_count(self) -> int:
        """The number of ranges of key groups by which the state is read, so that each fits into memory."""
        return partitions_by_size(self.nbytes, self.key_groups)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The files of all subtasks; a key has rows in the files of a single subtask only."""
        return tuple(segment for files in self.files for segment in files.segments)

    @property
    def holds_objects(self) -> bool:
        """Whether the state is of Python functions, stored as encoded entries by key."""
        names, types = self.stored.names[2:], {str(kind) for kind in self.stored.types[2:]}
        return bool(names == ["key", "value"] and types == {"large_binary"})

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns of a typed table."""
        return pa.schema([column for column in list(self.stored)[2:] if column.name not in self.value_columns])

    @property
    def value_schema(self) -> pa.Schema:
        """The value columns of a typed table."""
        return pa.schema([column for column in list(self.stored)[2:] if column.name in self.value_columns])

    @property
    def partition_fields(self) -> list[pa.Field]:
        """The key columns of a typed table that determine the key group."""
        keys = self.key_schema
        return [keys.field(place) for place in self._table_schema.partition_columns]

    @property
    def _table_schema(self) -> TableSchema:
        return TableSchema(self.name, self.key_schema, self.value_schema)

    @property
    def schema(self) -> pa.Schema:
        """The columns of `rows`: operator, state, key group, then the columns of the state."""
        columns = OBJECT_SCHEMA if self.holds_objects else list(self.stored)[0 if self.is_broadcast else 2 :]
        return pa.schema([*identity_fields(self, columns), *(pa.field(column.name, column.type) for column in columns)])

    # ------------------------------------------------------------ reading

    def rows(self, groups: range) -> Iterator[pa.RecordBatch]:
        """The rows of `groups`, subtask by subtask; broadcast state once, with key group null.

        Raises:
            CorruptState: a file is missing, truncated or altered, or the rows differ from the proof; it is named.
        """
        for files in self.files:
            if self.holds_objects:
                entries = self.read_objects([files], groups).items()
                yield self._with_identity(object_columns(entries, is_broadcast=self.is_broadcast))
            elif self.is_broadcast:
                batches = [read_segment(self.checkpoint.store, segment) for segment in files.segments]
                check_proof(self._description, files.proof, proof_of_rows(None, batches))
                for batch in batches:
                    yield self._with_identity([pa.nulls(batch.num_rows, pa.int32()), *batch.columns])
            else:
                copied = self.read_table([files], groups).copy_all()
                batch = copied.to_batch(np.arange(len(copied)))
                yield self._with_identity([batch.column(0), *batch.columns[2:]])

    @property
    def _description(self) -> str:
        return state_description(self.operator, self.name)

    def read_table(self, files: Sequence[SubtaskFiles], groups: range) -> KeyedTable:
        """The typed table that `files` hold for the key groups `groups`. Raises as `rows`."""
        self.checkpoint.renew_pin()
        table = KeyedTable(self._table_schema, self.key_groups)
        for segment in _segments_of(files):
            if overlap := _overlap(segment, groups):
                table.apply_segment(read_segment(self.checkpoint.store, segment, overlap), overlap)
        self._check(table, files, groups)
        return table

    def read_objects(self, files: Sequence[SubtaskFiles], groups: range) -> ObjectTable:
        """The entries that `files` hold for the key groups `groups`; of broadcast state all. Raises as `rows`."""
        self.checkpoint.renew_pin()
        table = ObjectTable(self.name)
        for segment in _segments_of(files):
            overlap = _overlap(segment, groups)
            if overlap or self.is_broadcast:
                batch = read_segment(self.checkpoint.store, segment, overlap)
                table.apply_segment(batch, BROADCAST_GROUPS if self.is_broadcast else overlap)
        self._check(table, files, BROADCAST_GROUPS if self.is_broadcast else groups)
        return table

    def _check(self, table: KeyedTable | ObjectTable, files: Sequence[SubtaskFiles], groups: range) -> None:
        """Compares the entries with the proof of the state. Raises CorruptState: they differ."""
        table.begin_changes()
        check_proof(self._description, add_proofs((part.proof for part in files), groups), table.proof()())

    def has_keys_of_rows(self) -> bool:
        """Whether the entries of an object state have keys of rows; some state is stored per key group, without keys.

        Reads the first block of a file, since all entries of a state are of the same form.

        Raises:
            CorruptState: the file is missing, truncated or altered; it is named.
        """
        first = next((segment for segment in self.segments if segment.rows), None)
        if first is None:
            return False
        group = range(first.first_group, first.first_group + 1)
        entries = read_segment(self.checkpoint.store, first, group).column("key")
        return isinstance(_decode(entries[0].as_py())[0], list)

    def _with_identity(self, columns: list[pa.Array]) -> pa.RecordBatch:
        names = [pa.array([text] * len(columns[0]), pa.string()) for text in (self.operator, self.name)]
        return pa.RecordBatch.from_arrays([*names, *columns], schema=self.schema)


def _segments_of(files: Iterable[SubtaskFiles]) -> Iterator[Segment]:
    return (segment for part in files for segment in part.segments)


def identity_fields(state: CheckpointState, columns: Iterable[pa.Field], *names: str) -> list[pa.Field]:
    """The columns that precede `columns` of a state: operator, state and key group. `names`: further reserved names.

    Raises:
        JobRejected: a column of the state has a reserved name.
    """
    clashes = sorted({column.name for column in columns} & {*IDENTITY_COLUMNS, *names})
    if clashes:
        raise JobRejected("column-clash", state.name, f"a column of the state is called {clashes[0]!r}")
    return [pa.field("operator", pa.string()), pa.field("state", pa.string()), pa.field("key_group", pa.int32())]


def has_rows(opened: OpenedCheckpoint, operator: str, name: str) -> bool:
    """Whether the checkpoint holds rows of this state.

    Raises:
        CorruptState: no subtask has a file of the state, and it has entries by its proof.
    """
    if operator not in opened.manifest.operators:
        return False
    files = subtask_files(opened, operator, name)
    if any(part.segments for part in files):
        return True
    for part in files:
        check_proof(state_description(operator, name), part.proof, {})
    return False


def find_state(opened: OpenedCheckpoint, operator: str, name: str) -> CheckpointState:
    """The state `name` of `operator`. Reads the head of a file.

    Raises:
        CorruptState: the file is missing, truncated or altered; it is named.
        JobRejected: operator or state is unknown; the known names are listed.
    """
    operators = opened.manifest.operators
    if operator not in operators:
        raise _unknown_error("operator", operator, sorted(operators))
    snapshots = [snapshot for _, snapshot in sorted(operators[operator].subtasks.items())]
    names = sorted({state for snapshot in snapshots for state in (*snapshot.keyed, *snapshot.broadcast)})
    if name not in names:
        raise _unknown_error("state", name, names)
    key_types = next((snapshot.key_types for snapshot in snapshots if snapshot.key_types), {})
    if not has_rows(opened, operator, name):
        return _empty_state(opened, operator, name, snapshots, key_types)
    is_broadcast = any(snapshot.broadcast.get(name) for snapshot in snapshots)
    files = subtask_files(opened, operator, name)
    stored = _stored_schema(opened, next(part.segments[-1] for part in files if part.segments))
    if not is_broadcast:
        stored = _with_recorded_types(stored, name, snapshots)
    distinct_files = files[:1] if is_broadcast else files
    return CheckpointState(
        opened, operator, name, stored, distinct_files, _value_columns(snapshots, name), is_broadcast, key_types
    )


def subtask_files(opened: OpenedCheckpoint, operator: str, name: str) -> tuple[SubtaskFiles, ...]:
    """The files of each subtask that has some, or should have some by the proof of the state."""
    snapshots = [snapshot for _, snapshot in sorted(opened.manifest.operators[operator].subtasks.items())]
    parts = (
        SubtaskFiles(snapshot.keyed.get(name) or snapshot.broadcast.get(name) or (), snapshot.proofs.get(name, {}))
        for snapshot in snapshots
    )
    return tuple(part for part in parts if part.segments or part.proof)


def _with_recorded_types(stored: pa.Schema, state: str, snapshots: list[SubtaskSnapshot]) -> pa.Schema:
    """The columns of a file, widened to the types that subtasks recorded: their files may have different types."""
    fields = list(stored)
    for snapshot in snapshots:
        for number, column in enumerate(fields[2:], start=2):
            if (kind := snapshot.value_types.get(f"{state}.{column.name}")) is not None:
                common = common_declared_type(column.type, kind, value_rule)
            else:
                common = common_declared_type(column.type, snapshot.key_types.get(column.name, "null"), key_rule)
            fields[number] = column.with_type(common)
    return pa.schema(fields)


def _empty_state(
    opened: OpenedCheckpoint, operator: str, name: str, snapshots: list[SubtaskSnapshot], key_types: Mapping[str, str]
) -> CheckpointState:
    """A state without rows, with the manifest's columns. Raises JobRejected: the manifest does not name them."""
    tables = [snapshot.empty_tables[name] for snapshot in snapshots if name in snapshot.empty_tables]
    if not tables:
        detail = f"{name!r} of {operator!r} has no rows in this checkpoint, and its columns are not known"
        raise JobRejected("empty-state", "state", detail)
    columns = max(tables, key=_typed_columns)
    fields = [(column, arrow_type(kind)) for part in (columns.keys, columns.values) for column, kind in part.items()]
    stored = pa.schema([("key group", pa.int32()), ("deleted", pa.bool_()), *fields])
    is_broadcast = any(name in snapshot.broadcast for snapshot in snapshots)
    return CheckpointState(opened, operator, name, stored, (), frozenset(columns.values), is_broadcast, key_types)


def _typed_columns(columns: TableColumns) -> int:
    """The number of columns with a known type: subtasks without rows may not know the types."""
    return sum(kind != "null" for part in (columns.keys, columns.values) for kind in part.values())


def arrow_type(name: str) -> pa.DataType:
    """Parses the type that Arrow prints as `name`; supports the types of keyed tables.

    Raises:
        ValueError: the type is not supported.
    """
    if match := _PARAMETRIC_TYPE.fullmatch(name):
        kind, first, second = match["kind"], match["first"], match["second"]
        if kind == "timestamp":
            return pa.timestamp(first, second.removeprefix("tz=") if second else None)
        return pa.decimal128(int(first), int(second)) if kind == "decimal128" else pa.binary(int(first))
    return pa.type_for_alias(name)


def _unknown_error(kind: str, name: str, names: list[str]) -> JobRejected:
    return JobRejected(f"unknown-{kind}", kind, f"the checkpoint has no {kind} {name!r}, only {', '.join(names)}")


def _value_columns(snapshots: list[SubtaskSnapshot], state: str) -> frozenset[str]:
    columns = (column for snapshot in snapshots for column in snapshot.value_types)
    return frozenset(column.removeprefix(f"{state}.") for column in columns if column.startswith(f"{state}."))


def object_columns(entries: Iterable[tuple[Entry, Any]], *, is_broadcast: bool) -> list[pa.Array]:
    """Columns of `ObjectTable` entries: key group, key, place, value and expiry."""
    rows = [_object_row(*entry, stored, is_broadcast=is_broadcast) for entry, stored in entries]
    types = [pa.int32(), *OBJECT_SCHEMA.types]
    return [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(types)]


def _object_row(group: int, key: bytes, place: Any, stored: Any, *, is_broadcast: bool) -> tuple[Any, ...]:
    values = _decode(key)
    expires, value = _expiry_and_value(values, stored, is_broadcast=is_broadcast)
    key_value = values[0] if isinstance(values, list) and len(values) == 1 else values
    return (
        group,
        _encode_json(key_value),
        _encode_json(_decode_place(place)),
        _encode_json(value),
        None if expires is None else expires * 1000,
    )


def _expiry_and_value(key: Any, stored: Any, *, is_broadcast: bool) -> tuple[int | None, Any]:
    """Expiry (ms) and value. Timers have no value: their time is `place`. State per key group never expires."""
    if not isinstance(stored, bytes) or not stored:
        return None, stored or None if isinstance(stored, bytes) else stored
    if is_broadcast:
        return None, _decode(stored)
    if isinstance(key, list):
        expires, value = _decode(stored)
        return expires, value
    try:
        return None, _decode(stored)
    except msgspec.DecodeError:  # buffered rows, as an Arrow stream
        return None, stored


def _decode_place(place: Any) -> Any:
    """The key within a map, or the index in a list."""
    return _decode(place) if isinstance(place, bytes) else place


def _encode_json(value: Any) -> str | None:
    """`value` as JSON; bytes become base 64."""
    return None if value is None else msgspec.json.encode(value).decode()


def _overlap(segment: Segment, groups: range) -> range:
    return range(max(groups.start, segment.first_group), min(groups.stop, segment.last_group + 1))


def _stored_schema(opened: OpenedCheckpoint, newest: Segment) -> pa.Schema:
    """The schema of the newest file: older files may have fewer columns. Reads only the head if the file has blocks."""
    end = newest.blocks[0].offset if newest.blocks else newest.nbytes
    head = newest.content or opened.store.get_range(newest.path, 0, end)
    try:
        return pa.ipc.read_schema(pa.py_buffer(head))
    except pa.ArrowInvalid as error:
        raise CorruptState(newest.path, f"not an Arrow stream: {error}") from error
