"""The Spark jobs of a savepoint: one per bootstrapped operator, one for redistributed keyed state, one for file copies.

Rows pass between tasks and files only. The driver gets a row per subtask: its snapshot, which names its files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import pyarrow as pa

from runtime.core.snapshot.manifest import Manifest, OperatorSnapshot, Segment, SubtaskSnapshot
from runtime.errors import JobRejected, WeirError
from runtime.io.filesystem import FileStore
from spark_jobs.batch.execute import failure_of
from spark_jobs.batch.wire import quoted
from spark_jobs.savepoints.bootstrap import Bootstrap
from spark_jobs.savepoints.redeal import Redeal
from spark_jobs.savepoints.table_rows import TableRows
from spark_jobs.savepoints.tasks import (
    COPIED,
    PARTS,
    PLACE,
    STORED,
    Maker,
    Rows,
    bootstrap_state,
    copy_files,
    deal_rows,
    read_parts,
    store_parts,
    units_of,
)
from spark_jobs.state_rows import Opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_COPIERS: Final = 8
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class BootstrapRows:
    """The input rows of bootstrapped state. Columns of `frame` are named by their numbers."""

    maker: Maker
    rows: Rows
    frame: DataFrame
    order_by: tuple[str, ...]


def rows_for_operator(
    bootstrap: Bootstrap, frame: DataFrame, columns: pa.Schema | None, order_by: Sequence[str]
) -> BootstrapRows:
    """Rows for an operator to process; arguments as in `SavepointWriter.bootstrap_operator`.

    Raises:
        JobRejected: the operator cannot be bootstrapped, or a column is missing or duplicate; it is named.
    """
    bootstrap.check()
    edge, time = bootstrap.edge, bootstrap.time
    known = dict(zip(edge.keys, map(_named_type, edge.key_types), strict=True)) if edge.key_types else {}
    wanted = list(frame.columns) if columns is None else columns.names
    order = list(order_by) or ([] if time is None else [time])
    return _prepared(bootstrap, frame, wanted, columns, {name: kind for name, kind in known.items() if kind}, order)


def rows_for_table(table: TableRows, frame: DataFrame, columns: pa.Schema | None) -> BootstrapRows:
    """Rows of a state; arguments as in `SavepointWriter.write_state`.

    Raises:
        JobRejected: a column is missing or duplicate; it is named.
    """
    fields = [*table.schema.keys, *table.schema.values]
    known = {field.name: field.type for field in fields if not pa.types.is_null(field.type)}
    return _prepared(table, frame, table.columns, columns, known, [])


def _prepared(
    maker: Maker,
    frame: DataFrame,
    wanted: Sequence[str],
    columns: pa.Schema | None,
    known: Mapping[str, Any],
    order_by: Sequence[str],
) -> BootstrapRows:
    """Check all that is known before a row is read. `known`: column types that the job declares."""
    uid = maker.uid
    for name in frame.columns:
        if frame.columns.count(name) > 1:
            raise JobRejected("duplicate-column", uid, f"two columns of its rows are called {name!r}")
    for name in (*maker.keys, *order_by, *wanted):
        if name not in frame.columns or name not in wanted:
            there = ", ".join(frame.columns if name in wanted else wanted)
            raise JobRejected("unknown-column", uid, f"its rows have no column {name!r}; there are {there}")
    given = {} if columns is None else {field.name: field.type for field in columns}
    types = _arrow_types(uid, frame.select(*map(quoted, wanted))) | dict(known) | given
    numbered = frame.select(*(_column(frame, name).alias(f"c{number}") for number, name in enumerate(wanted)))
    schema = pa.schema([pa.field(name, types[name]) for name in wanted])
    rows = Rows(operator=uid, columns=schema, keys=maker.keys)
    order = tuple(f"c{list(wanted).index(name)}" for name in order_by)
    return BootstrapRows(maker=maker, rows=rows, frame=numbered, order_by=order)


def _arrow_types(uid: str, frame: DataFrame) -> dict[str, Any]:
    from pyspark.sql.pandas.types import to_arrow_type

    found = {}
    for column in frame.schema:
        try:
            found[column.name] = to_arrow_type(column.dataType, timezone="UTC")
        except Exception as error:
            detail = f"column {column.name!r} is {column.dataType.simpleString()}, which Arrow does not have: {error}"
            raise JobRejected("bad-column-type", uid, detail) from error
    return found


def _named_type(name: str | None) -> Any:
    """The Arrow type with the name `name` in a job's graph; None if the name does not determine it."""
    try:
        return None if name is None else pa.type_for_alias(name)
    except ValueError:
        return None


def _column(frame: DataFrame, name: str) -> Any:
    return frame[quoted(name)]


@dataclass(frozen=True, kw_only=True)
class Made:
    """Results of the tasks: snapshots of bootstrapped subtasks, and redistributed keyed state."""

    snapshots: dict[str, dict[int, SubtaskSnapshot]]
    dealt: dict[str, Redeal]

    def with_dealt(self, uid: str, held: OperatorSnapshot) -> OperatorSnapshot:
        """The operator with its redistributed keyed state.

        The watermark of each new subtask is the minimum over the running old subtasks, since it may hold rows of any of
        them. It is None if any running subtask has no watermark.
        """
        redeal, made = self.dealt[uid], self.snapshots[uid]
        running = [snapshot for snapshot in held.subtasks.values() if not snapshot.finished]
        times = [snapshot.watermark for snapshot in running]
        known = [time for time in times if time is not None]
        watermark = min(known) if known and len(known) == len(times) else None
        key_types = {name: kind for snapshot in held.subtasks.values() for name, kind in snapshot.key_types.items()}
        if redeal.rekey is not None:
            key_types = {column.name: str(column.type) for column in redeal.rekey.keys}
        subtasks = {}
        for index in sorted({*held.subtasks, *made}):
            old, new = held.subtasks.get(index, SubtaskSnapshot()), made.get(index, SubtaskSnapshot())
            subtasks[index] = msgspec.structs.replace(
                old,
                keyed=new.keyed,
                value_types=new.value_types or old.value_types,
                key_types=key_types,
                watermark=watermark,
            )
        return msgspec.structs.replace(held, subtasks=subtasks)


@dataclass
class Execution:
    """Collects the work of a savepoint, then runs it. `folder` is on a disk that all executors share."""

    spark: SparkSession
    folder: str
    _bootstraps: list[BootstrapRows] = field(default_factory=list)
    _redeals: dict[str, Redeal] = field(default_factory=dict)
    _copies: list[tuple[Segment, str]] = field(default_factory=list)
    _opened: Opened | None = None  #: the checkpoint that files are copied from

    def bootstrap(self, rows: BootstrapRows) -> None:
        self._bootstraps.append(rows)

    def redeal(self, uid: str, redeal: Redeal) -> None:
        self._redeals[uid] = redeal

    def copy(self, opened: Opened, uid: str, snapshot: SubtaskSnapshot) -> SubtaskSnapshot:
        """Schedule copies of the files of `snapshot`. Returns the snapshot with the target paths."""
        self._opened = opened

        def with_new_path(segment: Segment) -> Segment:
            path = f"{uid}/copied/{len(self._copies):06d}-{segment.path.rpartition('/')[2]}"
            self._copies.append((segment, path))
            return msgspec.structs.replace(segment, path=path)

        return snapshot.with_segments(with_new_path)

    def run(self) -> Made:
        """Run the Spark jobs.

        Raises:
            WeirError: a task failed in all attempts; the operator is named.
        """
        found: dict[str, dict[int, SubtaskSnapshot]] = {}
        for rows in self._bootstraps:
            made = _failing_clearly(lambda rows=rows: self._bootstrapped(rows))  # type: ignore[misc]
            before = found.setdefault(rows.maker.uid, {})
            for index, snapshot in made.items():
                before[index] = _united(before.get(index, SubtaskSnapshot()), snapshot)
        found |= _failing_clearly(self._dealt)
        _failing_clearly(self._copied)
        return Made(snapshots=found, dealt=self._redeals)

    def tidy(self, manifest: Manifest) -> None:
        """Delete files that the manifest does not name: they are from discarded task attempts."""
        store = FileStore(self.folder)
        named = {segment.path for segment in manifest.segments()}
        store.delete([path for path in (*store.list(""), *store.unfinished()) if path not in named])

    # ------------------------------------------------------------ inside

    def _bootstrapped(self, wanted: BootstrapRows) -> dict[int, SubtaskSnapshot]:
        from pyspark.sql.types import IntegerType, StructField, StructType

        dealt = StructType([StructField(PLACE, IntegerType()), *wanted.frame.schema.fields])
        frame = wanted.frame.mapInArrow(deal_rows(wanted.rows, wanted.maker), dealt)
        frame = frame.repartitionById(wanted.maker.parallelism, PLACE)
        frame = frame.sortWithinPartitions(PLACE, *wanted.order_by)
        return self._stored(frame, bootstrap_state(wanted.rows, wanted.maker, self.folder))

    def _dealt(self) -> dict[str, dict[int, SubtaskSnapshot]]:
        if not self._redeals:
            return {}
        units: list[tuple[Redeal, int, range]] = []
        places: list[tuple[Redeal, int]] = []
        names: list[tuple[str, int]] = []
        for uid, redeal in self._redeals.items():
            units += [(redeal, len(places), groups) for groups in units_of(redeal)]
            names += [(uid, index) for index in range(redeal.parallelism)]
            places += [(redeal, index) for index in range(redeal.parallelism)]
        numbers = self.spark.range(0, len(units), 1, len(units))
        frame = numbers.mapInArrow(read_parts(units), _spark_schema(PARTS))
        frame = frame.repartitionById(len(places), PLACE).sortWithinPartitions(PLACE, "state", "unit", "number")
        stored = self._stored(frame, store_parts(places, self.folder))
        found: dict[str, dict[int, SubtaskSnapshot]] = {uid: {} for uid in self._redeals}
        for place, snapshot in stored.items():
            uid, index = names[place]
            found[uid][index] = snapshot
        return found

    def _copied(self) -> None:
        if self._opened is None or not self._copies:
            return
        tasks = min(len(self._copies), MAX_COPIERS)
        numbers = self.spark.range(0, len(self._copies), 1, tasks)
        numbers.mapInArrow(copy_files(self._opened, self._copies, self.folder), _spark_schema(COPIED)).collect()

    def _stored(self, frame: DataFrame, task: Any) -> dict[int, SubtaskSnapshot]:
        rows = frame.mapInArrow(task, _spark_schema(STORED)).collect()
        return {row["place"]: msgspec.json.decode(bytes(row["snapshot"]), type=SubtaskSnapshot) for row in rows}


def _united(one: SubtaskSnapshot, other: SubtaskSnapshot) -> SubtaskSnapshot:
    """The union of two partial snapshots of a subtask."""
    return msgspec.structs.replace(
        one,
        keyed=one.keyed | other.keyed,
        value_types=one.value_types | other.value_types,
        key_types=one.key_types | other.key_types,
        empty_tables=one.empty_tables | other.empty_tables,
    )


def _spark_schema(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def _failing_clearly(run: Callable[[], T]) -> T:
    try:
        return run()
    except WeirError:
        raise
    except Exception as error:
        raise failure_of(error) from error
