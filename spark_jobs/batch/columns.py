"""The columns that each step emits, inferred in the driver before Spark starts a job.

Sources and row functions declare their columns. Aggregates, windows and joins derive them from their input. A function
over batches reveals its columns only when it runs: the driver calls it with the first rows of its sources, after the
preceding steps. A later batch with other columns is an error that names the step and the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.connectors.sources.directory import DirectorySource
from runtime.core.job.graph import EdgeSpec, Partitioning, Role
from runtime.core.job.ids import OperatorId
from runtime.dataflow.checks import common_columns
from runtime.dataflow.plan import CompiledJob, Edge
from runtime.errors import JobRejected
from runtime.operators.broadcast_join import BUILD_INPUT, BroadcastJoin
from runtime.operators.column_difference import check_distinct_columns
from runtime.operators.expressions import Filter, Project
from runtime.operators.functions.async_map import AsyncMap
from runtime.operators.functions.batch import MapBatches
from runtime.operators.functions.set_aside import Bisect
from runtime.operators.joins.two_streams import FIRST, SECOND, TwoStreamJoin
from runtime.operators.retraction import INSERT, OP_COLUMN
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.union import Union
from runtime.operators.windows.sliding import SlidingWindow
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.ports import DescribesColumns, Operator, Source
from runtime.state.index.hashing import hash_columns
from spark_jobs.batch.failures import call_hook
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
        self._samples: dict[OperatorId, Mapping[str, list[pa.RecordBatch]]] = {}

    def schema_of(self, uid: OperatorId, output: str = "") -> pa.Schema:
        """The schema of an output of step `uid`; "" is its main output.

        Raises:
            JobRejected: the columns cannot be inferred, or two have the same name; the step is named.
        """
        if output:
            return self._job.columns[uid, output]
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
        return self._derive(uid) or self._infer_from_sample(uid)

    def _derive(self, uid: OperatorId) -> pa.Schema | None:
        """The output schema of an operator, as declared or by its inputs; None: known from its rows only."""
        if uid in self._job.sinks:  # it forwards its input
            return self._input_schema(uid)
        operator = _without_policy(self._job.operators[uid]())
        if isinstance(operator, Union):  # the columns of some inputs may not be declared
            inputs = (each.spec for each in self._edges(uid).values())
            return common_columns(uid, [(each.source, self.schema_of(each.source, each.output)) for each in inputs])
        declared = self._job.columns.get((uid, "")) or operator.output_columns()
        if declared is not None:
            return declared
        if isinstance(operator, Filter | Project):
            return operator.columns_after(self._input_schema(uid))
        if isinstance(operator, TwoStreamJoin):
            return operator.joined_columns(self._input_schema(uid, FIRST), self._input_schema(uid, SECOND))
        if isinstance(operator, BroadcastJoin):
            return operator.joined_columns(self._input_schema(uid), self._input_schema(uid, BUILD_INPUT))
        if isinstance(operator, TumblingWindow | SlidingWindow | RunningAggregate):
            return self._infer_from_nulls(uid, operator)
        return None

    def _infer_source(self, uid: OperatorId) -> pa.Schema:
        if uid in self._frames:
            return self._frames[uid].shape.schema
        source = self._job.sources[uid]
        declared = source.output_columns() if isinstance(source, DescribesColumns) else None
        return self._infer_from_sample(uid) if declared is None else declared

    def _infer_from_nulls(
        self, uid: OperatorId, operator: TumblingWindow | SlidingWindow | RunningAggregate
    ) -> pa.Schema:
        """The output schema of a built-in operator, taken from its output for a row of nulls."""
        edge = self._edges(uid)[0]
        pre_aggregation = edge.pre_aggregation
        if pre_aggregation is not None and not pre_aggregation.in_window:
            rows = self._pre_aggregate_nulls(uid)
        else:
            time = None if pre_aggregation is None else pre_aggregation.time
            rows = [_row_of_nulls(self._input_schema(uid), time)]
        if operator.retracts:
            rows = [_as_inserts(batch) for batch in rows]
        collector = _BatchList()
        subtask = Subtask(self._facts, uid, 0, 1, operator, None, (), collector)
        for batch in rows:
            subtask.process_sorted_rows([batch])
        subtask.finish()
        return collector.batches[""][0].schema

    def _pre_aggregate_nulls(self, window: OperatorId) -> list[pa.RecordBatch]:
        edge = self._edges(window)[0]
        assert edge.pre_aggregation is not None, "the edge into a window has a pre-aggregation"
        combiner = edge.pre_aggregation.create()
        row = _row_of_nulls(self._input_schema(window), edge.pre_aggregation.time)
        try:
            return [*combiner.add(row), *combiner.flush()]
        except JobRejected as error:
            raise JobRejected(error.code, window, str(error)) from error

    def _infer_from_sample(self, uid: OperatorId) -> pa.Schema:
        rows = self._sample(uid).get("", [])
        if not rows:
            detail = "its columns are known from its rows only, and the first rows of its sources produced no output"
            raise JobRejected("unknown-columns", uid, f"{detail}: use flat_map or process, which declare a schema")
        return rows[0].schema

    # ------------------------------------------------------------ samples

    def _sample(self, uid: OperatorId) -> Mapping[str, list[pa.RecordBatch]]:
        """The first rows of each output of a step."""
        if uid not in self._samples:
            source = self._job.sources.get(uid)
            if uid in self._job.sinks:  # only the run itself writes
                self._samples[uid] = {"": self._sample_of(self._edges(uid)[0])}
            elif uid in self._frames:
                self._samples[uid] = {"": [call_hook(uid, 0, "poll", self._frames[uid].first_rows, SAMPLE_ROWS)]}
            elif source is not None:
                self._samples[uid] = {"": list(_first_rows(self._facts, uid, source))}
            else:
                self._samples[uid] = self._run_operator(uid)
        return self._samples[uid]

    def _sample_of(self, edge: Edge) -> list[pa.RecordBatch]:
        """The first rows of an edge; an empty batch if there are none, and the columns are known without them."""
        uid, output = edge.spec.source, edge.spec.output
        rows = self._sample(uid).get(output, [])
        if rows or uid in self._job.sources:
            return rows
        schema = self._job.columns[uid, output] if output else self._derive(uid)
        return [] if schema is None else [pa.RecordBatch.from_pylist([], schema)]

    def _run_operator(self, uid: OperatorId) -> Mapping[str, list[pa.RecordBatch]]:
        """The operator's output for the sample of its inputs; an empty batch if a `map_batches` emits no rows."""
        operator, collector = _copy(uid, self._job.operators[uid])(), _BatchList()
        if isinstance(operator, AsyncMap):  # only the run itself makes requests
            return {}
        edges = self._edges(uid)
        builds = [(number, self._sample_of(edge)) for number, edge in edges.items() if is_build(edge.spec)]
        inputs = {number: edge for number, edge in edges.items() if not is_build(edge.spec)}
        subtask = Subtask(self._facts, uid, 0, 1, operator, None, builds, collector, inputs=len(inputs))
        rows: list[pa.RecordBatch] = []
        for number, edge in inputs.items():
            rows = self._sample_of(edge)
            folding = edge.pre_aggregation
            if folding is not None and not folding.in_window:
                combiner = folding.create()
                rows = [part for batch in rows for part in combiner.add(batch)] + combiner.flush()
            if len(inputs) == 1 and edge.spec.keys and rows:
                subtask.process_sorted_rows([_sort_by_key_hash(rows, edge.spec.keys)])
            else:
                for batch in rows:
                    subtask.process(batch, number)
        subtask.finish()
        subtask.close()
        operator = _without_policy(operator)
        if isinstance(operator, MapBatches) and rows and not collector.batches.get(""):
            return {**collector.batches, "": [operator.empty_result(rows[0].schema)]}
        return collector.batches

    def _edges(self, uid: OperatorId) -> Mapping[int, Edge]:
        """The edges into a step, by input."""
        edges = [edge for edge in self._job.edges if edge.spec.target == uid]
        return {edge.spec.input: edge for edge in sorted(edges, key=lambda edge: edge.spec.input)}

    def _input_schema(self, uid: OperatorId, input: int = 0) -> pa.Schema:
        spec = self._edges(uid)[input].spec
        return self.schema_of(spec.source, spec.output)


def _without_policy(operator: Operator) -> Operator:
    """The operator of the author, without its policy for rows that raise."""
    return operator.operator if isinstance(operator, Bisect) else operator


def _copy(uid: OperatorId, make: Callable[[], Operator]) -> Callable[[], Operator]:
    """The code of an operator as a task gets it: what it opens for the sample, such as a connection, cannot travel.

    Raises:
        JobRejected: the code cannot be pickled.
    """
    from pyspark import cloudpickle

    try:
        copy: Callable[[], Operator] = cloudpickle.loads(cloudpickle.dumps(make))  # type: ignore[no-untyped-call]
    except Exception as error:
        detail = f"its code cannot be sent to Spark's tasks, since it holds an object that cannot be pickled: {error}"
        raise JobRejected("not-pickled", uid, detail) from error
    return copy


def _first_rows(job: JobFacts, uid: OperatorId, source: Source) -> Iterator[pa.RecordBatch]:
    """The first rows of a source; an empty batch if it has no rows and declares its columns."""
    if isinstance(source, DirectorySource) and source.on_malformed == "dead_letter":
        source = replace(source, on_malformed="skip", dead_letter_path=None)  # only the run itself writes dead letters
    hook = partial(call_hook, uid, 0)
    reader = hook("reader", source.reader)
    try:
        hook("open", reader.open, context_of(job, uid, 0, 1, wall_clock_ms))
        for _ in range(_MAX_SAMPLE_POLLS):
            batch = hook("poll", reader.poll, SAMPLE_ROWS)
            if batch is not None and batch.num_rows:
                yield batch.slice(0, SAMPLE_ROWS)
                return
            if reader.exhausted:
                break
    finally:
        hook("close", reader.close)
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


def is_build(edge: EdgeSpec) -> bool:
    """Whether the rows of an edge are broadcast, and processed before the rows of other inputs."""
    return edge.partitioning is Partitioning.BROADCAST


def _sort_by_key_hash(batches: list[pa.RecordBatch], keys: Sequence[str]) -> pa.RecordBatch:
    """The rows in an order in which equal keys are adjacent."""
    rows = pa.concat_batches(batches)
    order = np.argsort(hash_columns([rows.column(key) for key in keys]), kind="stable")
    return rows.take(pa.array(order))


class _BatchList:
    def __init__(self) -> None:
        self.batches: dict[str, list[pa.RecordBatch]] = {}  #: by output

    def emit(self, batch: pa.RecordBatch) -> None:
        self.emit_to("", batch)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        self.batches.setdefault(output, []).append(batch)
