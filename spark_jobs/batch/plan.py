"""Plans a compiled job as stages in topological order. Pure: no Spark, no data.

A stage is the work of a Spark task between two exchanges. Its head reads a source or the rows of earlier stages; its
steps are operators in sequence. Its tail partitions rows for a later stage, leaves them in place, or writes to a sink.
Operators that need no exchange are fused into the preceding stage.

The rows of a step with side outputs leave its stage together, each with the number of its output. The stages in front
of a `union` are not merged: each contains the union and the steps behind it, up to the next exchange, which reads all
of them. A step with two streams reads the rows of both in one order (`ReadRows.streams`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Final

import pyarrow as pa

from runtime.core.job.graph import EdgeSpec, JobGraph, Partitioning, Role
from runtime.core.job.ids import OperatorId
from runtime.dataflow.plan import CompiledJob, PreAggregation
from runtime.errors import JobRejected
from runtime.operators.functions.async_map import AsyncMap
from runtime.operators.functions.keyed_process import KeyedProcess
from runtime.operators.functions.process import Process
from runtime.operators.joins.two_streams import TwoStreamJoin
from runtime.operators.paired_keys import check_key_pairs
from runtime.operators.partition import Partitioner
from runtime.operators.union import Union
from runtime.operators.windows.session import SessionWindow
from runtime.ports import Operator, Sink, Source
from spark_jobs.batch.columns import StepColumns, is_build
from spark_jobs.batch.late_rows import LateRule
from spark_jobs.batch.wire import MAX_BRANCHES, FrameSchema, WireSchema
from spark_jobs.sources.frames import FrameShape


@dataclass(frozen=True, kw_only=True)
class Step:
    """An operator. `builds`: its broadcast inputs, as (input number, numbers of the stages that compute the rows)."""

    uid: OperatorId
    parallelism: int
    make: Callable[[], Operator]
    schema: pa.Schema
    keys: tuple[str, ...] = ()  #: key columns of input 0; a keyed operator has a fresh instance per chunk of keys
    builds: tuple[tuple[int, tuple[int, ...]], ...] = ()
    inputs: int = 1  #: number of inputs that are not broadcast
    outputs: Mapping[str, pa.Schema] = field(default_factory=dict)  #: columns of its side outputs


@dataclass(frozen=True, kw_only=True)
class ReadSource:
    """The head of a stage that reads a source. `shape`: columns of a DataFrame, whose partitions are the tasks."""

    uid: OperatorId
    source: Source
    parallelism: int
    shape: FrameShape | None = None


@dataclass(frozen=True, kw_only=True)
class ReadRows:
    """The head of a stage that reads rows of earlier stages.

    Args:
        stages: numbers of the earlier stages.
        streams: by input of the first step, the columns of the rows.
        owners: number of subtasks of this stage, each a task; 0: the partitions of the earlier stage are kept.
        by_key: rows are sorted by key, then event time.
        sort: by key column, the Spark columns that hold it, an alternative for each input.
        markers: each subtask (owner) has a task, even without rows.
    """

    stages: tuple[int, ...]
    streams: tuple[WireSchema, ...]
    owners: int = 0
    by_key: bool = False
    sort: tuple[tuple[str, ...], ...] = ()
    markers: bool = False

    @cached_property
    def frame(self) -> FrameSchema:
        return FrameSchema(self.streams)


class ExchangeKind(StrEnum):
    """How the rows that leave a stage are assigned to an owner (a subtask of the next stage)."""

    KEPT = "kept"  #: the subtask that emitted the row
    HASH = "hash"
    REBALANCE = "rebalance"
    CUSTOM = "custom"


@dataclass(frozen=True, kw_only=True)
class EmitRows:
    """The tail of a stage whose rows are input of later stages.

    Args:
        outputs: the outputs of the last step that are read: name ("": the main output) and columns.
        owners: number of subtasks behind the exchange; 0: there is no exchange.
        late_rule: the rule of the operator behind the exchange.
        target: uid of that operator.
        branch: number of this stage among those that emit the same stream to a union.
    """

    outputs: tuple[tuple[str, WireSchema], ...]
    exchange: ExchangeKind = ExchangeKind.KEPT
    owners: int = 0
    keys: tuple[str, ...] = ()
    max_parallelism: int = 1
    time: str | None = None
    pre_aggregation: PreAggregation | None = None
    partitioner: Partitioner | None = None
    late_rule: LateRule | None = None
    target: str = ""
    branch: int = 0

    @cached_property
    def frame(self) -> FrameSchema:
        return FrameSchema(tuple(stream for _, stream in self.outputs))


@dataclass(frozen=True, kw_only=True)
class WriteSink:
    """The tail of a stage that ends with a sink."""

    uid: OperatorId
    sink: Sink


@dataclass(frozen=True, kw_only=True)
class BatchStage:
    """A stage of the plan. `shared`: several later stages read its rows, so they are persisted."""

    number: int
    head: ReadSource | ReadRows
    steps: tuple[Step, ...]
    tail: EmitRows | WriteSink
    shared: bool = False
    broadcast: bool = False

    @property
    def name(self) -> str:
        """The display name: the uids of the operators."""
        return " → ".join(self.operators)

    @property
    def operators(self) -> tuple[OperatorId, ...]:
        """The uids of the operators, in the order in which rows pass through."""
        first = [self.head.uid] if isinstance(self.head, ReadSource) else []
        last = [self.tail.uid] if isinstance(self.tail, WriteSink) else []
        return (*first, *(step.uid for step in self.steps), *last)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The numbers of the stages whose rows this stage reads."""
        before = self.head.stages if isinstance(self.head, ReadRows) else ()
        return (*before, *(number for step in self.steps for _, numbers in step.builds for number in numbers))


@dataclass
class _OpenStage:
    """A stage to which operators may still be added."""

    head: ReadSource | ReadRows
    steps: list[Step] = field(default_factory=list)


Output = tuple[OperatorId, str]  #: an operator, and the name of its output


def stages_of(
    job: CompiledJob, columns: StepColumns, shapes: Mapping[OperatorId, FrameShape]
) -> tuple[BatchStage, ...]:
    """The stages of `job`, each after the stages that it reads. `shapes`: the columns of each `from_spark` source.

    Raises:
        JobRejected: Spark cannot carry a column between two stages; operator and column are named.
    """
    return _Planner(job, columns, shapes).stages()


class _Planner:
    """Several open stages of an operator are those in front of a union; together they emit the operator's rows."""

    def __init__(self, job: CompiledJob, columns: StepColumns, shapes: Mapping[OperatorId, FrameShape]) -> None:
        self._job, self._graph, self._columns, self._shapes = job, job.graph, columns, shapes
        self._closed_stages: list[BatchStage] = []
        self._open_stages: dict[OperatorId, list[_OpenStage]] = {}  #: by last operator, if it has a single reader
        self._shared_stages: dict[OperatorId, list[int]] = {}  #: operator -> stages that persist its rows for readers
        self._forwarded: dict[OperatorId, Output] = {}  #: write-through step -> the output whose rows it forwards

    def stages(self) -> tuple[BatchStage, ...]:
        for operator in self._graph.operators:
            if operator.role is Role.SOURCE:
                source = self._job.sources[operator.uid]
                shape = self._shapes.get(operator.uid)
                head = ReadSource(uid=operator.uid, source=source, parallelism=operator.parallelism, shape=shape)
                self._add(operator.uid, [_OpenStage(head)])
            else:
                self._add_operator(operator.uid)
        return tuple(self._closed_stages)

    def _add(self, uid: OperatorId, stages: list[_OpenStage]) -> None:
        outputs = [edge.output for edge in self._graph.edges if edge.source == uid]
        self._open_stages[uid] = stages
        if outputs != [""]:
            self._share(uid, outputs)

    def _add_operator(self, uid: OperatorId) -> None:
        spec = self._graph.by_uid[uid]
        inputs = _inputs_of(self._graph, uid)
        edge, _ = inputs[0]
        if spec.role is Role.SINK:
            for stage in self._preceding_stages(edge):
                self._close(stage, WriteSink(uid=uid, sink=self._job.sinks[uid]))
            return
        if uid in self._job.sinks:
            self._write_through(edge)
            return
        build_edges = [other for other in self._graph.edges if other.target == uid and is_build(other)]
        operator = self._job.operators[uid]()
        step = Step(
            uid=uid,
            parallelism=spec.parallelism,
            make=self._job.operators[uid],
            schema=self._columns.schema_of(uid),
            keys=edge.keys if edge.partitioning is Partitioning.HASH else (),
            builds=tuple((build_edge.input, self._build_stages(build_edge)) for build_edge in build_edges),
            inputs=1 if isinstance(operator, Union) else len(inputs),
            outputs={output: schema for output, schema in self._job.columns_of(uid).items() if output},
        )
        if isinstance(operator, Union):
            stages = [stage for each in inputs for stage in self._stages_for([each], step, operator)]
        else:
            stages = self._stages_for(inputs, step, operator)
        for stage in stages:
            stage.steps.append(step)
        self._add(uid, stages)

    def _write_through(self, edge: EdgeSpec) -> None:
        """Adds stages that write the rows of `edge`. Later steps read the same rows, which are persisted."""
        uid = edge.target
        source, output = self._forwarded[uid] = self._source_of(edge)
        if source in self._open_stages:
            self._share(source, [output])
        for stage in self._preceding_stages(edge):
            self._close(stage, WriteSink(uid=uid, sink=self._job.sinks[uid]))

    def _source_of(self, edge: EdgeSpec) -> Output:
        """The output that has the rows of `edge`, in front of any write-through steps."""
        source = edge.source, edge.output
        while source[0] in self._forwarded:
            source = self._forwarded[source[0]]
        return source

    def _stages_for(self, inputs: Sequence[_Input], step: Step, operator: Operator) -> list[_OpenStage]:
        """The stages that the operator joins: the preceding stages, or a new stage after an exchange."""
        edge, _ = inputs[0]
        if step.keys:
            return [self._stage_after_exchange(inputs, step, operator)]
        if not _has_subtask_state(operator) and edge.partitioning is not Partitioning.CUSTOM:
            return self._preceding_stages(edge)
        stages = self._open_stages.get(self._source_of(edge)[0], [])
        runs_everywhere = (
            len(inputs) == len(stages) == 1 and isinstance(stages[0].head, ReadSource) and stages[0].head.shape is None
        )
        if runs_everywhere and edge.partitioning is Partitioning.FORWARD:
            return self._preceding_stages(edge)
        return [self._stage_after_exchange(inputs, step, operator)]

    def _preceding_stages(self, edge: EdgeSpec) -> list[_OpenStage]:
        """The open stages that emit the rows of `edge`, or new stages that read them."""
        source, output = self._source_of(edge)
        if source in self._open_stages:
            return self._open_stages.pop(source)
        heads = []
        for number in self._shared_stages[source]:
            tail = self._closed_stages[number].tail
            assert isinstance(tail, EmitRows), "the rows of a sink have no readers"
            heads.append(ReadRows(stages=(number,), streams=(dict(tail.outputs)[output],)))
        return [_OpenStage(head) for head in heads]

    def _stage_after_exchange(self, inputs: Sequence[_Input], step: Step, operator: Operator) -> _OpenStage:
        by_key = bool(step.keys)
        times = _time_columns(operator) if by_key else ()
        stages: list[int] = []
        streams: list[WireSchema] = []
        for position, (edge, number) in enumerate(inputs):
            folding = self._job.edges[number].pre_aggregation
            late_rule = LateRule.of(operator, folding, position)
            if folding is not None and folding.in_window:
                folding = None
            schema = (
                self._columns.schema_of(edge.source, edge.output)
                if folding is None
                else self._columns.pre_aggregated_schema(step.uid)
            )
            streams.append(WireSchema(edge.source, schema, position))
            emit = EmitRows(
                outputs=(("", streams[-1]),),
                exchange=_EXCHANGES.get(edge.partitioning, ExchangeKind.KEPT),
                owners=step.parallelism,
                keys=edge.keys,
                max_parallelism=self._graph.max_parallelism,
                time=times[position] if times else None,
                pre_aggregation=folding,
                late_rule=late_rule,
                partitioner=self._job.edges[number].partitioner,
                target=step.uid,
            )
            branches = self._preceding_stages(edge)
            if len(branches) > MAX_BRANCHES:
                detail = f"BATCH unites at most {MAX_BRANCHES} streams, not {len(branches)}: run this job in STREAMING"
                raise JobRejected("union-in-batch", step.uid, detail)
            stages += [self._close(before, replace(emit, branch=branch)) for branch, before in enumerate(branches)]
        if by_key and len(inputs) > 1:
            (first, _), (second, _) = inputs
            check_key_pairs(step.uid, first.keys, second.keys, *(stream.schema for stream in streams))
        head = ReadRows(
            stages=tuple(stages),
            streams=tuple(streams),
            owners=step.parallelism,
            by_key=by_key,
            sort=_sort_columns(streams, [edge.keys for edge, _ in inputs]) if by_key else (),
            markers=not by_key,
        )
        return _OpenStage(head)

    def _build_stages(self, edge: EdgeSpec) -> tuple[int, ...]:
        """The numbers of the stages whose rows are broadcast to every task."""
        stream = WireSchema(edge.source, self._columns.schema_of(edge.source, edge.output))
        emit = EmitRows(outputs=(("", stream),))
        return tuple(self._close(stage, emit, broadcast=True) for stage in self._preceding_stages(edge))

    def _share(self, uid: OperatorId, outputs: Sequence[str]) -> None:
        """Closes the open stages of an operator, whose `outputs` may have several readers."""
        streams = tuple(
            (output, WireSchema(uid, self._columns.schema_of(uid, output), number))
            for number, output in enumerate(sorted(set(outputs)))
        )
        self._shared_stages[uid] = [
            self._close(stage, EmitRows(outputs=streams), shared=True) for stage in self._open_stages.pop(uid)
        ]

    def _close(
        self, stage: _OpenStage, tail: EmitRows | WriteSink, *, shared: bool = False, broadcast: bool = False
    ) -> int:
        number = len(self._closed_stages)
        self._closed_stages.append(
            BatchStage(
                number=number, head=stage.head, steps=tuple(stage.steps), tail=tail, shared=shared, broadcast=broadcast
            )
        )
        return number


_Input = tuple[EdgeSpec, int]  #: an edge, and its number in the graph
_EXCHANGES: Final = {
    Partitioning.HASH: ExchangeKind.HASH,
    Partitioning.CUSTOM: ExchangeKind.CUSTOM,
    Partitioning.REBALANCE: ExchangeKind.REBALANCE,
}


def _has_subtask_state(operator: Operator) -> bool:
    """Whether the rows of a subtask must stay together without a key.

    Operators of authors may have state. The capacity of asynchronous requests holds per subtask.
    """
    return isinstance(operator, AsyncMap | Process) or not type(operator).__module__.startswith("runtime.operators.")


def _inputs_of(graph: JobGraph, uid: OperatorId) -> list[_Input]:
    """The edges into operator `uid` by input, without those that are broadcast."""
    edges = ((edge, number) for number, edge in enumerate(graph.edges) if edge.target == uid and not is_build(edge))
    return sorted(edges, key=lambda each: each[0].input)


def _sort_columns(streams: Sequence[WireSchema], keys: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """By key, the Spark columns that hold it in each stream; without columns of nulls if a stream has values."""
    columns = []
    for names in zip(*keys, strict=True):
        pairs = [(stream, stream.schema.names.index(name)) for stream, name in zip(streams, names, strict=True)]
        typed = [pair for pair in pairs if not pa.types.is_null(pair[0].schema.types[pair[1]])] or pairs[:1]
        columns.append(tuple(stream.column(number) for stream, number in typed))
    return tuple(columns)


def _time_columns(operator: Operator) -> tuple[str | None, ...]:
    """By input, the column of event times by which the rows of a key are sorted."""
    if isinstance(operator, KeyedProcess | TwoStreamJoin):
        return operator.times
    return (operator.time,) if isinstance(operator, SessionWindow) else ()
