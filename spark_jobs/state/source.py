"""Checkpoints as DataFrames: the Spark data source `weir-state`.

    spark.read.format("weir-state").load("/storage/7/savepoint-12-3")                    its contents
    spark.read.format("weir-state").option("operator", "counts").option("state", "keys")
        .load("/storage/7/savepoint-12-3")                                              the rows of a state

    spark.read.format("weir-state").option("operator", "counts").option("state", "keys")
        .option("since", "/storage/7/chk-11-3").load("/storage/7/savepoint-12-3")       the changes since then

A state is read in parallel by ranges of key groups, with a task for each 64 MB of files. With
`spark.sql.python.filterPushdown.enabled`, comparisons of `key_group` with constants select the groups to read. A
complete key, given by `=`, `<=>` or `IN`, selects its own group. Otherwise all groups are read, and Spark filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from runtime.core.job.key_groups import key_group_range
from runtime.errors import JobRejected
from spark_jobs.column_types import spark_schema, to_spark_types
from spark_jobs.state.changes import StateChanges, find_changes
from spark_jobs.state.keys import groups_with_keys
from spark_jobs.state.rows import (
    CONTENTS_SCHEMA,
    CheckpointState,
    OpenedCheckpoint,
    contents,
    find_state,
    open_checkpoint,
    partitions_by_size,
)


class StateSource(DataSource):
    """Options: `path` (by `load`), `operator` and `state` for the rows of a state, `partitions` of the result.

    `since` names the folder of an older checkpoint and selects the added, changed and removed keys of the state. Column
    `change` has the kind of change; the values are followed by a struct `before` with the older values.
    """

    @classmethod
    def name(cls) -> str:
        return "weir-state"

    def schema(self) -> StructType:
        rows = self._rows
        return spark_schema(CONTENTS_SCHEMA if rows is None else rows.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        rows = self._rows
        if rows is None:
            return ContentsReader(self._checkpoint)
        return StateReader(rows, self._partitions(rows.key_groups, rows.nbytes))

    @cached_property
    def _checkpoint(self) -> OpenedCheckpoint:
        path = self.options.get("path")
        if not path:
            raise JobRejected("no-path", "path", "name the folder of a checkpoint or savepoint: .load(folder)")
        return open_checkpoint(path)

    @cached_property
    def _rows(self) -> CheckpointState | StateChanges | None:
        operator, state, since = (self.options.get(name) for name in ("operator", "state", "since"))
        if operator is None and state is None and since is None:
            return None
        if operator is None or state is None:
            missing = "operator" if operator is None else "state"
            raise JobRejected("incomplete", missing, "the rows of a state need both `operator` and `state`")
        if since is not None:
            return find_changes(self._checkpoint, open_checkpoint(since), operator, state)
        return find_state(self._checkpoint, operator, state)

    def _partitions(self, key_groups: int, nbytes: int) -> int:
        text = self.options.get("partitions", str(partitions_by_size(nbytes, key_groups)))
        if not text.isdigit() or not 0 < int(text) <= key_groups:
            detail = f"must be between 1 and the number of key groups, {key_groups}, not {text!r}"
            raise JobRejected("bad-partitions", "partitions", detail)
        return int(text)


class ContentsReader(DataSourceReader):
    """Reads the contents in a single partition: the manifest has them all."""

    def __init__(self, opened: OpenedCheckpoint) -> None:
        self._opened = opened

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield to_spark_types(contents(self._opened))


@dataclass
class GroupPartition(InputPartition):
    """Ranges of key groups, in order."""

    ranges: tuple[range, ...]


@dataclass(frozen=True)
class FilterPushdown:
    """A `pushFilters` that a session without filter pushdown accepts, and never calls.

    While filter pushdown is off, the default, Spark refuses a reader that overrides `pushFilters`. Spark compares
    `__func__` to detect an override. A reader cannot find out whether filter pushdown is on.
    """

    take: Callable[[list[Filter]], Iterator[Filter]]
    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __call__(self, filters: list[Filter]) -> Iterator[Filter]:
        return self.take(filters)


class StateReader(DataSourceReader):
    """Reads the rows of a state, or their changes, by ranges of key groups."""

    def __init__(self, rows: CheckpointState | StateChanges, count: int) -> None:
        self._rows, self._partition_count = rows, count
        self._selected_groups = range(rows.key_groups)
        self._selected_keys: dict[str, list[Any]] = {}  #: column -> values that the filters allow

    @property
    def pushFilters(self) -> FilterPushdown:  # noqa: N802  (a hook of PySpark)
        return FilterPushdown(self.narrow)

    def narrow(self, filters: list[Filter]) -> Iterator[Filter]:
        """Narrows key groups and keys; broadcast rows have no key groups. Spark still evaluates every filter."""
        for each in filters:
            match each:
                case _ if self._rows.is_broadcast:
                    pass
                case _ if getattr(each, "attribute", None) == ("key_group",):
                    self._selected_groups = _narrow_groups(self._selected_groups, each)
                case EqualTo(attribute=(column,), value=value) | EqualNullSafe(attribute=(column,), value=value):
                    self._selected_keys[column] = [value]
                case In(attribute=(column,), value=values):
                    self._selected_keys.setdefault(column, list(values))
            yield each

    def partitions(self) -> Sequence[InputPartition]:
        if self._rows.is_broadcast:
            return [GroupPartition((range(1),))]
        groups = self._rows.key_groups
        parts = (key_group_range(index, groups, self._partition_count) for index in range(self._partition_count))
        ranges = [
            range(max(p.start, self._selected_groups.start), min(p.stop, self._selected_groups.stop)) for p in parts
        ]
        state = self._rows.newest if isinstance(self._rows, StateChanges) else self._rows
        of_keys = groups_with_keys(state, self._selected_keys)
        if of_keys is None:
            return [GroupPartition((each,)) for each in ranges if each] or [GroupPartition(())]
        key_ranges = (tuple(range(group, group + 1) for group in sorted(of_keys) if group in each) for each in ranges)
        return [GroupPartition(each) for each in key_ranges if each] or [GroupPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, GroupPartition), "only partitions of this reader"
        for groups in partition.ranges:
            for batch in self._rows.rows(groups):
                yield to_spark_types(batch)


def _narrow_groups(groups: range, condition: Filter) -> range:
    match condition:
        case EqualTo(value=value):
            return range(max(groups.start, value), min(groups.stop, value + 1))
        case GreaterThan(value=value):
            return range(max(groups.start, value + 1), groups.stop)
        case GreaterThanOrEqual(value=value):
            return range(max(groups.start, value), groups.stop)
        case LessThan(value=value):
            return range(groups.start, min(groups.stop, value))
        case LessThanOrEqual(value=value):
            return range(groups.start, min(groups.stop, value + 1))
    return groups
