"""The Spark jobs of a savepoint: one per bootstrapped operator, one for redistributed keyed state, one for file copies.

Rows pass between tasks and files only. The driver gets a row per subtask: the snapshot, which names the state files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from runtime.core.snapshot.manifest import Manifest, OperatorSnapshot, Segment, SubtaskSnapshot
from runtime.core.snapshot.proofs import total_proof
from runtime.errors import CorruptState, JobRejected
from runtime.io.filesystem import FileStore
from spark_jobs.batch.failures import typed_task_errors
from spark_jobs.column_types import quote_name, spark_schema
from spark_jobs.savepoints.bootstrap import Bootstrap
from spark_jobs.savepoints.redistribution import WATERMARK_STATES, Redistribution
from spark_jobs.savepoints.state_tables import merge_states
from spark_jobs.savepoints.table_rows import TableRows
from spark_jobs.savepoints.tasks import (
    COPIED_SCHEMA,
    PARTS_SCHEMA,
    PLACE_COLUMN,
    SNAPSHOT_SCHEMA,
    RowColumns,
    StateMaker,
    bootstrap_state,
    copy_files,
    partition_rows,
    read_parts,
    store_parts,
    units_of,
)
from spark_jobs.state.rows import OpenedCheckpoint, arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_COPY_TASKS: Final = 8


@dataclass(frozen=True, kw_only=True)
class BootstrapRows:
    """The input rows of bootstrapped state. Columns of `frame` are named by their numbers."""

    maker: StateMaker
    rows: RowColumns
    frame: DataFrame
    order_by: tuple[str, ...]


def rows_for_operator(
    bootstrap: Bootstrap, frame: DataFrame, columns: pa.Schema | None, order_by: Sequence[str]
) -> BootstrapRows:
    """Rows for an operator to process; arguments as in `SavepointWriter.bootstrap_operator`.

    Raises:
        JobRejected: the operator cannot be bootstrapped, or a column is missing or duplicate; the cause is named.
    """
    bootstrap.check()
    edge, time = bootstrap.edge, bootstrap.time
    key_types = dict(zip(edge.keys, map(_named_type, edge.key_types), strict=True)) if edge.key_types else {}
    names = list(frame.columns) if columns is None else columns.names
    order = list(order_by) or ([] if time is None else [time])
    return _prepare_rows(
        bootstrap, frame, names, columns, {name: kind for name, kind in key_types.items() if kind}, order
    )


def rows_for_table(table: TableRows, frame: DataFrame, columns: pa.Schema | None) -> BootstrapRows:
    """Rows of a state; arguments as in `SavepointWriter.write_state`.

    Raises:
        JobRejected: a column is missing or duplicate; it is named.
    """
    fields = [*table.schema.keys, *table.schema.values]
    types = {field.name: field.type for field in fields if not pa.types.is_null(field.type)}
    return _prepare_rows(table, frame, table.columns, columns, types, [])


def _prepare_rows(
    maker: StateMaker,
    frame: DataFrame,
    names: Sequence[str],
    columns: pa.Schema | None,
    declared_types: Mapping[str, Any],
    order_by: Sequence[str],
) -> BootstrapRows:
    """The input rows, after all checks that need no row. `declared_types`: the job's Arrow types, by column."""
    uid = maker.uid
    for name in frame.columns:
        if frame.columns.count(name) > 1:
            raise JobRejected("duplicate-column", uid, f"two columns of its rows are called {name!r}")
    for name in (*maker.keys, *order_by, *names):
        if name not in frame.columns or name not in names:
            there = ", ".join(frame.columns if name in names else names)
            raise JobRejected("unknown-column", uid, f"its rows have no column {name!r}; there are {there}")
    schema_types = {} if columns is None else {field.name: field.type for field in columns}
    types = _arrow_types(uid, frame.select(*map(quote_name, names))) | dict(declared_types) | schema_types
    numbered = frame.select(*(_column(frame, name).alias(f"c{number}") for number, name in enumerate(names)))
    schema = pa.schema([pa.field(name, types[name]) for name in names])
    rows = RowColumns(operator=uid, columns=schema, keys=maker.keys)
    order = tuple(f"c{list(names).index(name)}" for name in order_by)
    return BootstrapRows(maker=maker, rows=rows, frame=numbered, order_by=order)


def _arrow_types(uid: str, frame: DataFrame) -> dict[str, Any]:
    from pyspark.sql.pandas.types import to_arrow_type

    types = {}
    for column in frame.schema:
        try:
            types[column.name] = to_arrow_type(column.dataType, timezone="UTC")
        except Exception as error:
            detail = f"column {column.name!r} is {column.dataType.simpleString()}, which Arrow does not have: {error}"
            raise JobRejected("bad-column-type", uid, detail) from error
    return types


def _named_type(name: str | None) -> Any:
    """The Arrow type with the name `name` in a job's graph; None if the name does not determine it."""
    try:
        return None if name is None else arrow_type(name)
    except ValueError:
        return None


def _column(frame: DataFrame, name: str) -> Any:
    return frame[quote_name(name)]


@dataclass(frozen=True, kw_only=True)
class StoredSnapshots:
    """Results of the tasks: stored snapshots by uid and subtask, and the redistributions that made some of them."""

    snapshots: dict[str, dict[int, SubtaskSnapshot]]
    redistributions: dict[str, Redistribution]

    def with_redistributed_state(self, uid: str, operator: OperatorSnapshot) -> OperatorSnapshot:
        """The operator with its redistributed keyed state.

        The watermark of each new subtask is the minimum over the running old subtasks, since a new subtask may get rows
        of any old one. The watermark is None if any running old subtask has none.
        """
        redistribution, snapshots = self.redistributions[uid], self.snapshots[uid]
        running = [snapshot for snapshot in operator.subtasks.values() if not snapshot.finished]
        times = [snapshot.watermark for snapshot in running]
        watermarks = [time for time in times if time is not None]
        watermark = min(watermarks) if watermarks and len(watermarks) == len(times) else None
        key_types = {name: kind for snapshot in operator.subtasks.values() for name, kind in snapshot.key_types.items()}
        if redistribution.rekey is not None:
            key_types = {column.name: str(column.type) for column in redistribution.rekey.keys}
        subtasks = {}
        for index in sorted({*operator.subtasks, *snapshots}):
            old, new = operator.subtasks.get(index, SubtaskSnapshot()), snapshots.get(index, SubtaskSnapshot())
            subtasks[index] = msgspec.structs.replace(
                old,
                keyed=new.keyed,
                proofs={name: old.proofs.get(name, {}) for name in old.broadcast} | new.proofs,
                value_types=new.value_types or old.value_types,
                key_types=key_types,
                watermark=watermark,
            )
        _check_redistributed(uid, operator, list(snapshots.values()), is_rekeyed=redistribution.rekey is not None)
        keys = operator.keys
        if redistribution.rekey is not None and keys is not None:
            keys = (tuple(redistribution.rekey.keys.names),) if len(keys) == 1 else None
        return msgspec.structs.replace(operator, subtasks=subtasks, keys=keys)


def _check_redistributed(uid: str, old: OperatorSnapshot, new: list[SubtaskSnapshot], *, is_rekeyed: bool) -> None:
    """Compares the keyed states before and after a redistribution: as many entries, and the same unless rekeyed.

    Watermarks are left out: they are entries of key groups, and there may be another number of key groups.

    Raises:
        CorruptState: a state differs; operator and state are named.
    """
    before = list(old.subtasks.values())
    for name in sorted({name for snapshot in before for name in snapshot.keyed} - {*WATERMARK_STATES}):
        totals = [total_proof(snapshot.proofs.get(name, {}) for snapshot in some) for some in (before, new)]
        was, now = totals
        if was.entries != now.entries or (was.hash != now.hash and not is_rekeyed):
            detail = (
                f"{was.entries} entries were read, and {now.entries} stored"
                if was.entries != now.entries
                else (f"its {was.entries} entries have other contents than those that were read")
            )
            raise CorruptState(f"state {name!r} of operator {uid!r}", detail)


@dataclass
class Execution:
    """Collects the Spark jobs of a savepoint, then runs them. `folder` is on a disk that all executors share."""

    spark: SparkSession
    folder: str
    _bootstraps: list[BootstrapRows] = field(default_factory=list)
    _redistributions: dict[str, Redistribution] = field(default_factory=dict)
    _copies: list[tuple[Segment, str]] = field(default_factory=list)
    _checkpoint: OpenedCheckpoint | None = None  #: the checkpoint that files are copied from

    def bootstrap(self, rows: BootstrapRows) -> None:
        self._bootstraps.append(rows)

    def redistribute(self, uid: str, redistribution: Redistribution) -> None:
        self._redistributions[uid] = redistribution

    def copy(self, opened: OpenedCheckpoint, uid: str, snapshot: SubtaskSnapshot) -> SubtaskSnapshot:
        """Schedules copies of the files of `snapshot`. Returns the snapshot with the target paths."""
        self._checkpoint = opened

        def with_new_path(segment: Segment) -> Segment:
            path = f"{uid}/copied/{len(self._copies):06d}-{segment.path.rpartition('/')[2]}"
            self._copies.append((segment, path))
            return msgspec.structs.replace(segment, path=path, content=b"")

        return snapshot.with_segments(with_new_path)

    def run(self) -> StoredSnapshots:
        """Runs the Spark jobs.

        Raises:
            WeirError: a task failed in all attempts; the operator is named.
        """
        snapshots: dict[str, dict[int, SubtaskSnapshot]] = {}
        with typed_task_errors():
            for rows in self._bootstraps:
                before = snapshots.setdefault(rows.maker.uid, {})
                for index, snapshot in self._run_bootstrap(rows).items():
                    before[index] = merge_states(before.get(index, SubtaskSnapshot()), snapshot)
            snapshots |= self._run_redistributions()
            self._run_copies()
        return StoredSnapshots(snapshots=snapshots, redistributions=self._redistributions)

    def delete_unnamed_files(self, manifest: Manifest) -> None:
        """Deletes files that the manifest does not name: they are from discarded task attempts."""
        store = FileStore(self.folder)
        paths = {segment.path for segment in manifest.segments()}
        store.delete([path for path in (*store.list(""), *store.leftover_files()) if path not in paths])

    # ------------------------------------------------------------ inside

    def _run_bootstrap(self, bootstrap: BootstrapRows) -> dict[int, SubtaskSnapshot]:
        from pyspark.sql.types import IntegerType, StructField, StructType

        schema = StructType([StructField(PLACE_COLUMN, IntegerType()), *bootstrap.frame.schema.fields])
        frame = bootstrap.frame.mapInArrow(partition_rows(bootstrap.rows, bootstrap.maker), schema)
        frame = frame.repartitionById(bootstrap.maker.parallelism, PLACE_COLUMN)
        frame = frame.sortWithinPartitions(PLACE_COLUMN, *bootstrap.order_by)
        return self._collect_snapshots(frame, bootstrap_state(bootstrap.rows, bootstrap.maker, self.folder))

    def _run_redistributions(self) -> dict[str, dict[int, SubtaskSnapshot]]:
        if not self._redistributions:
            return {}
        units: list[tuple[Redistribution, int, range]] = []
        places: list[tuple[Redistribution, int]] = []
        names: list[tuple[str, int]] = []
        for uid, redistribution in self._redistributions.items():
            units += [(redistribution, len(places), groups) for groups in units_of(redistribution)]
            names += [(uid, index) for index in range(redistribution.parallelism)]
            places += [(redistribution, index) for index in range(redistribution.parallelism)]
        numbers = self.spark.range(0, len(units), 1, len(units))
        frame = numbers.mapInArrow(read_parts(units), spark_schema(PARTS_SCHEMA))
        frame = frame.repartitionById(len(places), PLACE_COLUMN).sortWithinPartitions(
            PLACE_COLUMN, "state", "unit", "number"
        )
        stored = self._collect_snapshots(frame, store_parts(places, self.folder))
        snapshots: dict[str, dict[int, SubtaskSnapshot]] = {uid: {} for uid in self._redistributions}
        for place, snapshot in stored.items():
            uid, index = names[place]
            snapshots[uid][index] = snapshot
        return snapshots

    def _run_copies(self) -> None:
        if self._checkpoint is None or not self._copies:
            return
        tasks = min(len(self._copies), MAX_COPY_TASKS)
        numbers = self.spark.range(0, len(self._copies), 1, tasks)
        numbers.mapInArrow(
            copy_files(self._checkpoint, self._copies, self.folder), spark_schema(COPIED_SCHEMA)
        ).collect()

    def _collect_snapshots(self, frame: DataFrame, task: Any) -> dict[int, SubtaskSnapshot]:
        rows = frame.mapInArrow(task, spark_schema(SNAPSHOT_SCHEMA)).collect()
        return {row["place"]: msgspec.json.decode(bytes(row["snapshot"]), type=SubtaskSnapshot) for row in rows}
