"""Plans a compiled job as stages in topological order. Pure: no Spark, no data.

A stage is the work of a Spark task between two exchanges. Its head reads a source or the rows of an earlier stage; its
steps are operators in sequence. Its tail partitions rows for a later stage, leaves them in place, or writes to a sink.
Operators that need no exchange are fused into the preceding stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import pyarrow as pa

from runtime.core.job.graph import EdgeSpec, JobGraph, Partitioning, Role
from runtime.core.job.ids import OperatorId
from runtime.dataflow.plan import CompiledJob, PreAggregation
from runtime.operators.functions.keyed_process import KeyedProcess
from runtime.operators.functions.process import Process
from runtime.operators.partition import Partitioner
from runtime.operators.windows.session import SessionWindow
from runtime.ports import Operator, Sink, Source
from spark_jobs.batch.columns import StepColumns
from spark_jobs.batch.late_rows import LateRule
from spark_jobs.batch.wire import WireSchema
from spark_jobs.sources.frames import FrameShape


@dataclass(frozen=True, kw_only=True)
class Step:
    """An operator. `builds`: its broadcast inputs, as (input number, number of the stage that computes the rows)."""

    uid: OperatorId
    parallelism: int
    make: Callable[[], Operator]
    schema: pa.Schema
    keys: tuple[str, ...] = ()  #: key columns; a keyed operator has a fresh instance per chunk of keys
    builds: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReadSource:
    """The head of a stage that reads a source. `shape`: columns of a DataFrame, whose partitions are the tasks."""

    uid: OperatorId
    source: Source
    parallelism: int
    shape: FrameShape | None = None


@dataclass(frozen=True, kw_only=True)
class ReadRows:
    """The head of a stage that reads rows of an earlier stage.

    Args:
        stage: number of the earlier stage.
        wire: the columns of the rows.
        owners: number of subtasks of this stage, each a task; 0: the partitions of the earlier stage are kept.
        by_key: rows are sorted by key, then event time.
        sort: Spark columns of the keys.
        markers: each subtask (owner) has a task, even without rows.
    """

    stage: int
    wire: WireSchema
    owners: int = 0
    by_key: bool = False
    sort: tuple[str, ...] = ()
    markers: bool = False


class ExchangeKind(StrEnum):
    """How the rows that leave a stage are assigned to an owner (a subtask of the next stage)."""

    KEPT = "kept"  #: the subtask that emitted the row
    HASH = "hash"
    REBALANCE = "rebalance"
    CUSTOM = "custom"


@dataclass(frozen=True, kw_only=True)
class EmitRows:
    """The tail of a stage whose rows are input of later stages. `late_rule`: of the operator behind the exchange."""

    wire: WireSchema
    exchange: ExchangeKind = ExchangeKind.KEPT
    owners: int = 1
    keys: tuple[str, ...] = ()
    max_parallelism: int = 1
    time: str | None = None
    pre_aggregation: PreAggregation | None = None
    partitioner: Partitioner | None = None
    late_rule: LateRule | None = None
    target: str = ""


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
        before = [self.head.stage] if isinstance(self.head, ReadRows) else []
        return (*before, *(number for step in self.steps for _, number in step.builds))


@dataclass
class _OpenStage:
    """A stage to which operators may still be added."""

    head: ReadSource | ReadRows
    uid: OperatorId
    parallelism: int
    steps: list[Step] = field(default_factory=list)


def stages_of(
    job: CompiledJob, columns: StepColumns, shapes: Mapping[OperatorId, FrameShape]
) -> tuple[BatchStage, ...]:
    """The stages of `job`, each after the stages that it reads. `shapes`: the columns of each `from_spark` source.

    Raises:
        JobRejected: Spark cannot carry a column between two stages; operator and column are named.
    """
    return _Planner(job, columns, shapes).stages()


class _Planner:
    def __init__(self, job: CompiledJob, columns: StepColumns, shapes: Mapping[OperatorId, FrameShape]) -> None:
        self._job, self._graph, self._columns, self._shapes = job, job.graph, columns, shapes
        self._closed_stages: list[BatchStage] = []
        self._open_stages: dict[OperatorId, _OpenStage] = {}  #: by last operator, if it has a single consumer
        self._shared_stages: dict[OperatorId, int] = {}  #: operator -> stage that persists its rows for several readers
        self._build_stages: dict[OperatorId, int] = {}
        self._forwarded: dict[OperatorId, OperatorId] = {}  #: write-through step -> the step whose rows it forwards

    def stages(self) -> tuple[BatchStage, ...]:
        for operator in self._graph.operators:
            if operator.role is Role.SOURCE:
                source = self._job.sources[operator.uid]
                shape = self._shapes.get(operator.uid)
                head = ReadSource(uid=operator.uid, source=source, parallelism=operator.parallelism, shape=shape)
                self._add(_OpenStage(head, operator.uid, operator.parallelism))
            else:
                self._add_operator(operator.uid)
        return tuple(self._closed_stages)

    def _add(self, stage: _OpenStage) -> None:
        readers = [edge for edge in self._graph.edges if edge.source == stage.uid]
        if len(readers) == 1:
            self._open_stages[stage.uid] = stage
        else:
            self._shared_stages[stage.uid] = self._close(stage, self._emit(stage), shared=True)

    def _add_operator(self, uid: OperatorId) -> None:
        spec = self._graph.by_uid[uid]
        edge, number = _main_edge(self._graph, uid)
        if spec.role is Role.SINK:
            self._close(self._preceding_stage(edge), WriteSink(uid=uid, sink=self._job.sinks[uid]))
            return
        if uid in self._job.sinks:
            self._write_through(edge)
            return
        build_edges = [other for other in self._graph.edges if other.target == uid and other != edge]
        builds = tuple((build_edge.input, self._build_stage(self._source_of(build_edge))) for build_edge in build_edges)
        step = Step(
            uid=uid,
            parallelism=spec.parallelism,
            make=self._job.operators[uid],
            schema=self._columns.schema_of(uid),
            keys=edge.keys if edge.partitioning is Partitioning.HASH else (),
            builds=builds,
        )
        before = self._stage_for(edge, number, step)
        before.steps.append(step)
        before.uid, before.parallelism = uid, spec.parallelism if step.keys else before.parallelism
        self._add(before)

    def _write_through(self, edge: EdgeSpec) -> None:
        """Adds a stage that writes the rows of `edge`. Later steps read the same rows, which are persisted."""
        uid, source = edge.target, self._source_of(edge)
        stage = self._open_stages.pop(source, None)
        if stage is not None:
            self._shared_stages[source] = self._close(stage, self._emit(stage), shared=True)
        self._forwarded[uid] = source
        self._close(self._preceding_stage(edge), WriteSink(uid=uid, sink=self._job.sinks[uid]))

    def _source_of(self, edge: EdgeSpec) -> OperatorId:
        """The operator that makes the rows of `edge`, in front of any write-through steps."""
        source = edge.source
        while source in self._forwarded:
            source = self._forwarded[source]
        return source

    def _stage_for(self, edge: EdgeSpec, number: int, step: Step) -> _OpenStage:
        """The stage that the operator joins: the preceding stage, or a new stage after an exchange."""
        operator = step.make()
        if step.keys:
            return self._stage_after_exchange(edge, number, step, ExchangeKind.HASH, operator)
        if not _has_subtask_state(operator):
            return self._preceding_stage(edge)
        stage = self._open_stages.get(self._source_of(edge))
        runs_everywhere = stage is not None and isinstance(stage.head, ReadSource) and stage.head.shape is None
        if runs_everywhere and edge.partitioning is Partitioning.FORWARD:
            return self._preceding_stage(edge)
        kinds = {Partitioning.CUSTOM: ExchangeKind.CUSTOM, Partitioning.REBALANCE: ExchangeKind.REBALANCE}
        return self._stage_after_exchange(edge, number, step, kinds.get(edge.partitioning, ExchangeKind.KEPT), operator)

    def _preceding_stage(self, edge: EdgeSpec) -> _OpenStage:
        """The open stage that emits the rows of `edge`, or a new stage that reads them."""
        source = self._source_of(edge)
        stage = self._open_stages.pop(source, None)
        if stage is not None:
            return stage
        head = ReadRows(stage=self._shared_stages[source], wire=self._wire(source))
        return _OpenStage(head, source, self._graph.by_uid[source].parallelism)

    def _stage_after_exchange(
        self, edge: EdgeSpec, number: int, step: Step, exchange: ExchangeKind, operator: Operator
    ) -> _OpenStage:
        before = self._preceding_stage(edge)
        folding = self._job.edges[number].pre_aggregation
        schema = (
            self._columns.schema_of(edge.source) if folding is None else self._columns.pre_aggregated_schema(step.uid)
        )
        emit = EmitRows(
            wire=WireSchema(edge.source, schema),
            exchange=exchange,
            owners=step.parallelism,
            keys=edge.keys,
            max_parallelism=self._graph.max_parallelism,
            time=operator.time if isinstance(operator, KeyedProcess | SessionWindow) else None,
            pre_aggregation=folding,
            late_rule=LateRule.of(operator, folding),
            partitioner=self._job.edges[number].partitioner,
            target=step.uid,
        )
        by_key = exchange is ExchangeKind.HASH
        head = ReadRows(
            stage=self._close(before, emit),
            wire=emit.wire,
            owners=step.parallelism,
            by_key=by_key,
            sort=tuple(emit.wire.column(schema.names.index(key)) for key in edge.keys) if by_key else (),
            markers=not by_key,
        )
        return _OpenStage(head, edge.source, step.parallelism)

    def _build_stage(self, source: OperatorId) -> int:
        """The number of the stage whose rows are broadcast to every task."""
        if source in self._shared_stages:
            self._closed_stages[self._shared_stages[source]] = replace(
                self._closed_stages[self._shared_stages[source]], broadcast=True
            )
            return self._shared_stages[source]
        stage = self._open_stages.pop(source)
        return self._close(stage, self._emit(stage), broadcast=True)

    def _emit(self, stage: _OpenStage) -> EmitRows:
        return EmitRows(wire=self._wire(stage.uid), owners=stage.parallelism)

    def _wire(self, uid: OperatorId) -> WireSchema:
        return WireSchema(uid, self._columns.schema_of(uid))

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


def _has_subtask_state(operator: Operator) -> bool:
    """Whether the rows of a subtask must stay together without a key. Operators of authors may have state."""
    return isinstance(operator, Process) or not type(operator).__module__.startswith("runtime.operators.")


def _main_edge(graph: JobGraph, uid: OperatorId) -> tuple[EdgeSpec, int]:
    """The edge into input 0 of operator `uid`, and the edge's number. All other inputs are broadcast."""
    return next((edge, number) for number, edge in enumerate(graph.edges) if edge.target == uid and edge.input == 0)
