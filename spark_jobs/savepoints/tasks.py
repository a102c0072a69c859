"""Spark tasks of a savepoint: send rows to the subtasks that own their keys, and store the resulting state.

Each public function returns a task for `mapInArrow`. A task stores files under the name of its attempt and returns a
row per subtask. Spark accepts the rows of exactly one attempt, so the manifest names the files of exactly one attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from runtime.core.job.key_groups import key_group_range
from runtime.core.snapshot.checksums import verified_chunks
from runtime.core.snapshot.manifest import Segment, SubtaskSnapshot
from runtime.errors import DataRejected, JobRejected
from runtime.io.filesystem import FileStore
from runtime.operators.partition import owners_of_groups
from runtime.ports import SnapshotStore
from runtime.state.files.segment_log import COPY_CHUNK_BYTES
from runtime.state.index.hashing import key_groups
from spark_jobs.batch.failures import errors_for_spark
from spark_jobs.batch.subtask import wall_clock_ms
from spark_jobs.batch.wire import from_stream, to_stream
from spark_jobs.savepoints.redistribution import Assembly, Part, PartKind, Redistribution
from spark_jobs.session import current_task
from spark_jobs.state.rows import OpenedCheckpoint

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]

PLACE_COLUMN: Final = "place"  #: number of the row's target subtask, among all subtasks of the Spark job
UNIT_BYTES: Final = 1 << 24  #: bytes of old state files, compressed, that a task reads
MAX_UNITS: Final = 256
SNAPSHOT_SCHEMA: Final = pa.schema([("place", pa.int32()), ("snapshot", pa.binary())])
PARTS_SCHEMA: Final = pa.schema(
    [
        ("place", pa.int32()),
        ("state", pa.string()),
        ("unit", pa.int32()),
        ("number", pa.int32()),
        ("kind", pa.string()),
        ("rows", pa.binary()),
    ]
)
COPIED_SCHEMA: Final = pa.schema([("number", pa.int32())])


def _with_typed_errors(run: Task) -> Task:
    """The task with errors whose text the driver can parse."""

    def task(batches: Batches) -> Batches:
        with errors_for_spark():
            yield from run(batches)

    return task


# ---------------------------------------------------------------- state from rows


class StateMaker(Protocol):
    """Makes the state of a subtask from rows."""

    @property
    def uid(self) -> str: ...
    @property
    def parallelism(self) -> int: ...
    @property
    def max_parallelism(self) -> int: ...
    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that determine the key group."""

    def snapshot(
        self,
        index: int,
        batches: Iterable[pa.RecordBatch],
        store: SnapshotStore,
        prefix: str,
        now_ms: Callable[[], int],
        /,
    ) -> SubtaskSnapshot: ...


@dataclass(frozen=True, kw_only=True)
class RowColumns:
    """The columns of input rows. `columns`: names and types in the job; in Spark, a column is named by its number."""

    operator: str
    columns: pa.Schema
    keys: tuple[str, ...]

    def cast(self, spark_batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Casts a batch from Spark to the types of the job. The job's columns begin at position `first` of the batch.

        Raises:
            DataRejected: a value does not fit its column type.
            JobRejected: a key is null.
        """
        arrays = []
        for column, field in zip(spark_batch.columns[first:], self.columns, strict=True):
            try:
                arrays.append(column.cast(field.type))
            except pa.ArrowException as error:
                detail = f"operator {self.operator!r}, column {field.name!r}: a value is no {field.type}: {error}"
                raise DataRejected(detail) from error
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.columns)
        for key in self.keys:
            if batch.column(key).null_count:
                detail = f"key column {key!r} is null in {batch.column(key).null_count} rows of a batch"
                raise JobRejected("null-key", self.operator, detail)
        return batch


def partition_rows(rows: RowColumns, maker: StateMaker) -> Task:
    """Prepends to each row the number of the subtask that owns its key."""

    def run(batches: Batches) -> Batches:
        for spark_batch in batches:
            groups = key_groups(rows.cast(spark_batch, 0), rows.keys, maker.max_parallelism)
            owners = owners_of_groups(maker.max_parallelism, maker.parallelism)[groups].astype(np.int32)
            yield pa.RecordBatch.from_arrays(
                [pa.array(owners), *spark_batch.columns], names=[PLACE_COLUMN, *spark_batch.schema.names]
            )

    return _with_typed_errors(run)


def bootstrap_state(rows: RowColumns, maker: StateMaker, folder: str) -> Task:
    """Makes the state of each subtask from its sorted rows, and stores the state below `folder`."""

    def run(batches: Batches) -> Batches:
        for owner, group in _group_by_place(batches):
            typed = (rows.cast(batch, 1) for batch in group)
            prefix = f"{maker.uid}/{_attempt_prefix(owner)}"
            yield _snapshot_row(owner, maker.snapshot(owner, typed, FileStore(folder), prefix, wall_clock_ms))

    return _with_typed_errors(run)


def _group_by_place(batches: Batches) -> Iterator[tuple[int, Batches]]:
    """The rows of each subtask, which are adjacent. Consume the rows of a group before the next group."""
    return groupby(_split_by_place(batches), key=lambda batch: batch.column(0)[0].as_py())


def _split_by_place(batches: Batches) -> Batches:
    for batch in batches:
        places = batch.column(0).to_numpy()
        borders = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
        yield from (batch.slice(start, stop - start) for start, stop in pairwise(borders) if start < stop)


# ---------------------------------------------------------------- redistributed state


def read_parts(units: Sequence[tuple[Redistribution, int, range]]) -> Task:
    """Reads units of old state. A unit: (redistribution of its operator, number of its first subtask, key groups)."""

    def run(batches: Batches) -> Batches:
        for ids in batches:
            for unit in ids.column(0).to_pylist():
                redistribution, first, groups = units[unit]
                for number, part in enumerate(redistribution.read_parts(groups)):
                    row = [first + part.owner, part.state, unit, number, str(part.kind), to_stream(part.batch)]
                    columns = [pa.array([value], kind) for value, kind in zip(row, PARTS_SCHEMA.types, strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, schema=PARTS_SCHEMA)

    return _with_typed_errors(run)


def store_parts(places: Sequence[tuple[Redistribution, int]], folder: str) -> Task:
    """Stores the state of each new subtask. `places`: by `PLACE_COLUMN`, the redistribution and the subtask index."""

    def run(batches: Batches) -> Batches:
        for place, group in _group_by_place(batches):
            redistribution, index = places[place]
            assembly = Assembly(redistribution, index)
            for batch in group:
                for row in batch.to_pylist():
                    for part_rows in from_stream(row["rows"]):
                        part = Part(state=row["state"], kind=PartKind(row["kind"]), owner=index, batch=part_rows)
                        assembly.add(part)
            prefix = f"{redistribution.uid}/{_attempt_prefix(index)}"
            yield _snapshot_row(place, assembly.snapshot(FileStore(folder), prefix))

    return _with_typed_errors(run)


def copy_files(opened: OpenedCheckpoint, files: Sequence[tuple[Segment, str]], folder: str) -> Task:
    """Copies state files unchanged, and verifies their checksums."""

    def run(batches: Batches) -> Batches:
        for ids in batches:
            for number in ids.column(0).to_pylist():
                segment, path = files[number]
                opened.renew_pin()
                FileStore(folder).put(path, verified_chunks(segment, _file_chunks(opened.store, segment)))
                yield pa.RecordBatch.from_arrays([pa.array([number], pa.int32())], schema=COPIED_SCHEMA)

    return _with_typed_errors(run)


def _file_chunks(store: SnapshotStore, segment: Segment) -> Iterator[bytes]:
    if segment.is_inline:
        yield segment.content
        return
    for offset in range(0, segment.nbytes, COPY_CHUNK_BYTES):
        yield store.get_range(segment.path, offset, COPY_CHUNK_BYTES)


def units_of(redistribution: Redistribution, unit_bytes: int = UNIT_BYTES) -> list[range]:
    """At most `MAX_UNITS` ranges of old key groups, each with about `unit_bytes` of state files."""
    groups = redistribution.checkpoint.manifest.max_parallelism
    count = min(groups, MAX_UNITS, 1 + redistribution.nbytes // unit_bytes)
    return [key_group_range(index, groups, count) for index in range(count)]


# ---------------------------------------------------------------- inside


def _attempt_prefix(index: int) -> str:
    return f"{index}-{current_task().taskAttemptId()}"


def _snapshot_row(place: int, snapshot: SubtaskSnapshot) -> pa.RecordBatch:
    columns: list[Any] = [pa.array([place], pa.int32()), pa.array([msgspec.json.encode(snapshot)], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=SNAPSHOT_SCHEMA)
