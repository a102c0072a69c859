"""Typed keyed state from rows of a DataFrame: a row per key, with the columns that `weir-state` reads.

The operator declares the table, so columns, types and key groups are those of the job. This module uses no Spark; a
call makes the state of a single subtask. State of Python functions has no columns: a function fills it (`bootstrap`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from runtime.core.job.graph import Partitioning
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.dataflow.plan import CompiledJob
from runtime.errors import JobRejected
from runtime.ports import SnapshotStore
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import TableSchema
from spark_jobs.savepoints.declared import check_state, declared_state
from spark_jobs.savepoints.state_tables import NO_TYPES, add_rows, write_table


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """Rows of a state of an operator or source. Can be pickled.

    Args:
        schema: the table's columns; a type may stay open until rows determine it.
        parallelism: number of subtasks into which the state is split.
    """

    uid: str
    schema: TableSchema
    is_keyed: bool  #: the state is behind `key_by`; the manifest then records its key types
    max_parallelism: int
    parallelism: int

    @classmethod
    def of(cls, job: CompiledJob, uid: str, name: str, parallelism: int) -> TableRows:
        """Finds the declared columns of state `name` by opening operator or source `uid`.

        Raises:
            JobRejected: there is no such operator or state, or the state has no columns; all are named.
        """
        state = declared_state(job, uid)
        check_state(state, uid, name)
        kind = state.kinds[name]
        table = state.tables.get(name)
        if not isinstance(table, KeyedTable):
            detail = f"state {name!r} is {kind} without columns: fill it with a function, or as a list"
            raise JobRejected("cannot-bootstrap", uid, detail)
        keyed = any(edge.target == uid and edge.partitioning is Partitioning.HASH for edge in job.graph.edges)
        return cls(
            uid=uid, schema=table.schema, is_keyed=keyed, max_parallelism=job.graph.max_parallelism,
            parallelism=parallelism,
        )  # fmt: skip

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that determine the key group."""
        return tuple(self.schema.keys.names[place] for place in self.schema.partition_columns)

    @property
    def columns(self) -> list[str]:
        return [*self.schema.keys.names, *self.schema.values.names]

    def snapshot(
        self, index: int, batches: Iterable[pa.RecordBatch], store: SnapshotStore, prefix: str, _: Callable[[], int]
    ) -> SubtaskSnapshot:
        """The state of subtask `index`, stored under `prefix`.

        Args:
            batches: rows in the key groups of the subtask.

        Raises:
            JobRejected: two rows have the same key, or a type does not match; operator, state and keys are named.
        """
        table = KeyedTable(self.schema, self.max_parallelism)
        for batch in batches:
            self._check_nulls(batch)
            keys = [batch.column(name) for name in self.schema.keys.names]
            add_rows(table, keys, [batch.column(name) for name in self.schema.values.names], self.uid)
        types = {field.name: str(field.type) for field in table.schema.keys if field.name in self.keys}
        return write_table(store, prefix, table, types if self.is_keyed else NO_TYPES)

    def _check_nulls(self, batch: pa.RecordBatch) -> None:
        for field in self.schema.values:
            if not field.nullable and batch.column(field.name).null_count:
                raise JobRejected("null-value", self.uid, f"column {field.name!r} has no value in some rows")
