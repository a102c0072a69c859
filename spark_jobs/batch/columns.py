"""The columns that each step emits, inferred in the driver before Spark starts a job.

Sources and row functions declare their columns. Aggregates, windows and joins derive them from their input. A function
over batches reveals its columns only when it runs: the driver calls it with the first rows of its sources, after the
preceding steps. A later batch with other columns is an error that names the step and the column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.connectors.sources.directory import DirectorySource
from runtime.core.job.graph import Role
from runtime.core.job.ids import OperatorId
from runtime.dataflow.plan import CompiledJob
from runtime.errors import JobRejected
from runtime.operators.broadcast_join import BUILD_INPUT, BroadcastJoin
from runtime.operators.column_difference import check_distinct_columns
from runtime.operators.expressions import Filter, Project
from runtime.operators.functions.batch import MapBatches
from runtime.operators.retraction import INSERT, OP_COLUMN
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.windows.sliding import SlidingWindow
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.ports import DescribesColumns, Operator, Source
from runtime.state.index.hashing import hash_columns
from spark_jobs.batch.subtask import JobFacts, Subtask, context_of, wall_clock_ms
from spark_jobs.sources.frames import CheckedFrame

SAMPLE_ROWS: Final = 1_000
_MAX_SAMPLE_POLLS: Final = 1_000  #: maximum number of polls for the first rows of a source


class StepColumns:
    """The columns of a job's steps; each schema is inferred on first use and cached.

    Args:
        frames: the checked DataFrame of each `from_spark` source, by uid.
    """

    def __init__(self, job: CompiledJob, frames: Mapping[OperatorId, CheckedFrame]) -> None:
        self._job, self._graph, self._frames = job, job.graph, frames
        self._facts = JobFacts.of(job)
        self._schemas: dict[OperatorId, pa.Schema] = {}
        self._samples: dict[OperatorId, list[pa.RecordBatch]] = {}

    def schema_of(self, uid: OperatorId) -> pa.Schema:
        """The output schema of step `uid`.

        Raises:
            JobRejected: the columns cannot be inferred, or two have the same name; the step is named.
        """
        if uid not in self._schemas:
            self._schemas[uid] = self._infer(uid)
            check_distinct_columns(self._schemas[uid], uid)
        return self._schemas[uid]

    def pre_aggregated_schema(self, window: OperatorId) -> pa.Schema:
        """The schema of the pre-aggregated rows that `window` receives instead of its input rows."""
        (parts, *_) = self._pre_aggregate_nulls(window)
        return parts.schema

    # ------------------------------------------------------------ inference

    def _infer(self, uid: OperatorId) -> pa.Schema:
        if self._graph.by_uid[uid].role is Role.SOURCE:
            return self._infer_source(uid)
        if uid in self._job.sinks:  # it forwards its input
            return self.schema_of(self._input(uid))
        operator = self._job.operators[uid]()
        declared = self._job.columns.get((uid, "")) or operator.output_columns()
        if declared is not None:
            return declared
        if isinstance(operator, Filter | Project):
            return operator.columns_after(self.schema_of(self._input(uid)))
        if isinstance(operator, BroadcastJoin):
            return operator.joined_columns(
                self.schema_of(self._input(uid)), self.schema_of(self._input(uid, BUILD_INPUT))
            )
        if isinstance(operator, TumblingWindow | SlidingWindow | RunningAggregate):
            return self._infer_from_nulls(uid, operator)
        return self._infer_from_sample(uid)

    def _infer_source(self, uid: OperatorId) -> pa.Schema:
        if uid in self._frames:
            return self._frames[uid].shape.schema
        source = self._job.sources[uid]
        declared = source.output_columns() if isinstance(source, DescribesColumns) else None
        return self._infer_from_sample(uid) if declared is None else declared

    def _infer_from_nulls(self, uid: OperatorId, operator: Operator) -> pa.Schema:
        """The output schema of a built-in operator, taken from its output for a row of nulls."""
        window = isinstance(operator, TumblingWindow | SlidingWindow)
        rows = self._pre_aggregate_nulls(uid) if window else [_row_of_nulls(self.schema_of(self._input(uid)), None)]
        if isinstance(operator, RunningAggregate) and operator.retracts:
            rows = [_as_inserts(batch) for batch in rows]
        collector = _BatchList()
        subtask = Subtask(self._facts, uid, 0, 1, operator, None, (), collector)
        for batch in rows:
            subtask.process_sorted_rows(batch)
        subtask.finish()
        return collector.batches[0].schema

    def _pre_aggregate_nulls(self, window: OperatorId) -> list[pa.RecordBatch]:
        edge = next(edge for edge in self._job.edges if edge.pre_aggregation and edge.spec.target == window)
        assert edge.pre_aggregation is not None, "the edge into a window has a pre-aggregation"
        combiner = edge.pre_aggregation.create()
        row = _row_of_nulls(self.schema_of(edge.spec.source), edge.pre_aggregation.time)
        try:
            return [*combiner.add(row), *combiner.flush()]
        except JobRejected as error:
            raise JobRejected(error.code, window, str(error)) from error

    def _infer_from_sample(self, uid: OperatorId) -> pa.Schema:
        rows = self._sample(uid)
        if not rows:
            detail = "its columns are known from its rows only, and the first rows of its sources produced no output"
            raise JobRejected("unknown-columns", uid, f"{detail}: use flat_map or process, which declare a schema")
        return rows[0].schema

    # ------------------------------------------------------------ samples

    def _sample(self, uid: OperatorId) -> list[pa.RecordBatch]:
        if uid not in self._samples:
            source = self._job.sources.get(uid)
            if uid in self._job.sinks:  # only the run itself writes
                self._samples[uid] = self._sample(self._input(uid))
            elif uid in self._frames:
                self._samples[uid] = [self._frames[uid].first_rows(SAMPLE_ROWS)]
            else:
                self._samples[uid] = (
                    self._run_operator(uid) if source is None else list(_first_rows(self._facts, uid, source))
                )
        return self._samples[uid]

    def _run_operator(self, uid: OperatorId) -> list[pa.RecordBatch]:
        """The operator's output for the sample of its inputs; an empty batch if a `map_batches` emits no rows."""
        operator, collector = self._job.operators[uid](), _BatchList()
        edges = [(number, edge) for number, edge in enumerate(self._graph.edges) if edge.target == uid]
        builds = [(edge.input, self._sample(edge.source)) for _, edge in edges if edge.input != 0]
        number, edge = next((number, edge) for number, edge in edges if edge.input == 0)
        rows = self._sample(edge.source)
        folding = self._job.edges[number].pre_aggregation
        if folding is not None:
            combiner = folding.create()
            rows = [part for batch in rows for part in combiner.add(batch)] + combiner.flush()
        subtask = Subtask(self._facts, uid, 0, 1, operator, None, builds, collector)
        for batch in [_sort_by_key_hash(rows, edge.keys)] if edge.keys and rows else rows:
            subtask.process_sorted_rows(batch)
        subtask.finish()
        subtask.close()
        if isinstance(operator, MapBatches) and rows and not collector.batches:
            return [operator.empty_result(rows[0].schema)]
        return collector.batches

    def _input(self, uid: OperatorId, number: int = 0) -> OperatorId:
        return next(edge.source for edge in self._graph.edges if edge.target == uid and edge.input == number)


def _first_rows(job: JobFacts, uid: OperatorId, source: Source) -> Iterator[pa.RecordBatch]:
    """The first rows of a source; an empty batch if it has no rows and declares its columns."""
    if isinstance(source, DirectorySource) and source.on_malformed == "dead_letter":
        source = replace(source, on_malformed="skip", dead_letter_path=None)  # only the run itself writes dead letters
    reader = source.reader()
    try:
        reader.open(context_of(job, uid, 0, 1, wall_clock_ms))
        for _ in range(_MAX_SAMPLE_POLLS):
            batch = reader.poll(SAMPLE_ROWS)
            if batch is not None and batch.num_rows:
                yield batch.slice(0, SAMPLE_ROWS)
                return
            if reader.exhausted:
                break
    finally:
        reader.close()
    declared = source.output_columns() if isinstance(source, DescribesColumns) else None
    if declared is not None:
        yield pa.RecordBatch.from_pylist([], declared)


def _row_of_nulls(schema: pa.Schema, time: str | None) -> pa.RecordBatch:
    """A single row of nulls, except for its event time, which is 0."""
    columns = [pa.array([0 if field.name == time else None], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _as_inserts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a changelog as new rows."""
    place = rows.schema.get_field_index(OP_COLUMN)
    return rows if place < 0 else rows.set_column(place, OP_COLUMN, pa.array([INSERT] * rows.num_rows))


def _sort_by_key_hash(batches: list[pa.RecordBatch], keys: Sequence[str]) -> pa.RecordBatch:
    """The rows in an order in which equal keys are adjacent."""
    rows = pa.concat_batches(batches)
    order = np.argsort(hash_columns([rows.column(key) for key in keys]), kind="stable")
    return rows.take(pa.array(order))


class _BatchList:
    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def emit(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        """Drops the batch: `check_batch` refuses jobs that read a side output."""
