"""Plan a compiled job as stages in topological order. Pure: no Spark, no data.

A stage is the work of a Spark task between two exchanges. Its head reads a source or the rows of an earlier stage; its
steps are operators in sequence; its tail partitions rows for the next stage, keeps them, or writes them to a sink.
Operators that need no exchange are fused into the preceding stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import pyarrow as pa

from runtime.core.job.graph import EdgeSpec, JobGraph, Partitioning, Role
from runtime.core.job.ids import OperatorId
from runtime.dataflow.plan import CompiledJob, Folding
from runtime.operators.functions.keyed_process import KeyedProcess
from runtime.operators.functions.process import Process
from runtime.operators.partition import Partitioner
from runtime.ports import Operator, Sink, Source
from spark_jobs.batch.columns import Columns
from spark_jobs.batch.wire import Wire
from spark_jobs.sources.frames import Shape


@dataclass(frozen=True, kw_only=True)
class Step:
    """An operator. `builds`: its broadcast inputs, as (input number, number of the stage that computes the rows)."""

    uid: OperatorId
    parallelism: int
    make: Callable[[], Operator]
    schema: pa.Schema
    keys: tuple[str, ...] = ()  #: key columns of a keyed operator, which has a fresh instance per chunk of whole keys
    builds: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Read:
    """The head of a stage that reads a source. `shape`: only for a DataFrame, whose partitions are the tasks."""

    uid: OperatorId
    source: Source
    parallelism: int
    shape: Shape | None = None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The head of a stage that reads rows of an earlier stage.

    Args:
        stage: number of the earlier stage.
        wire: the columns of the rows.
        owners: number of tasks; 0: the partitions of the earlier stage are kept.
        by_key: rows are sorted by key, then event time.
        sort: Spark columns of the keys.
        markers: each owner has a task, even without rows.
    """

    stage: int
    wire: Wire
    owners: int = 0
    by_key: bool = False
    sort: tuple[str, ...] = ()
    markers: bool = False


class Deal(StrEnum):
    """How the rows that leave a stage are assigned to an owner (a subtask of the next stage)."""

    KEPT = "kept"  #: the subtask that emitted the row
    HASH = "hash"
    REBALANCE = "rebalance"
    CUSTOM = "custom"


@dataclass(frozen=True, kw_only=True)
class Emit:
    """The tail of a stage whose rows are input of later stages."""

    wire: Wire
    deal: Deal = Deal.KEPT
    owners: int = 1
    keys: tuple[str, ...] = ()
    max_parallelism: int = 1
    time: str | None = None
    folding: Folding | None = None
    partitioner: Partitioner | None = None
    target: str = ""


@dataclass(frozen=True, kw_only=True)
class Write:
    """The tail of a stage that ends with a sink."""

    uid: OperatorId
    sink: Sink


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of the plan. `shared`: several later stages read its rows, so they are persisted."""

    number: int
    head: Read | Rows
    steps: tuple[Step, ...]
    tail: Emit | Write
    shared: bool = False
    broadcast: bool = False

    @property
    def name(self) -> str:
        """The display name: the uids of the operators."""
        return " → ".join(self.operators)

    @property
    def operators(self) -> tuple[OperatorId, ...]:
        """The uids of the operators, in the order in which rows pass through."""
        first = [self.head.uid] if isinstance(self.head, Read) else []
        last = [self.tail.uid] if isinstance(self.tail, Write) else []
        return (*first, *(step.uid for step in self.steps), *last)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The numbers of the stages whose rows this stage reads."""
        before = [self.head.stage] if isinstance(self.head, Rows) else []
        return (*before, *(number for step in self.steps for _, number in step.builds))


@dataclass
class _Open:
    """A stage to which operators may still be added."""

    head: Read | Rows
    uid: OperatorId
    parallelism: int
    steps: list[Step] = field(default_factory=list)


def stages_of(job: CompiledJob, columns: Columns, shapes: Mapping[OperatorId, Shape]) -> tuple[Stage, ...]:
    """The stages, each after the stages that it reads. `shapes`: of the sources that are DataFrames.

    Raises:
        JobRejected: Spark cannot carry a column between two stages; operator and column are named.
    """
    return _Planner(job, columns, shapes).stages()


class _Planner:
    def __init__(self, job: CompiledJob, columns: Columns, shapes: Mapping[OperatorId, Shape]) -> None:
        self._job, self._graph, self._columns, self._shapes = job, job.graph, columns, shapes
        self._done: list[Stage] = []
        self._open: dict[OperatorId, _Open] = {}  #: by last operator, if it has a single consumer
        self._kept: dict[OperatorId, int] = {}  #: number of the stage that persists rows for several consumers
        self._build_stages: dict[OperatorId, int] = {}

    def stages(self) -> tuple[Stage, ...]:
        for operator in self._graph.operators:
            if operator.role is Role.SOURCE:
                source = self._job.sources[operator.uid]
                shape = self._shapes.get(operator.uid)
                head = Read(uid=operator.uid, source=source, parallelism=operator.parallelism, shape=shape)
                self._add(_Open(head, operator.uid, operator.parallelism))
            else:
                self._add_behind(operator.uid)
        return tuple(self._done)

    def _add(self, stage: _Open) -> None:
        readers = [edge for edge in self._graph.edges if edge.source == stage.uid]
        if len(readers) == 1:
            self._open[stage.uid] = stage
        else:
            self._kept[stage.uid] = self._close(stage, self._emit(stage), shared=True)

    def _add_behind(self, uid: OperatorId) -> None:
        spec = self._graph.by_uid[uid]
        edge, number = _main_edge(self._graph, uid)
        if spec.role is Role.SINK:
            self._close(self._before(edge), Write(uid=uid, sink=self._job.sinks[uid]))
            return
        builds = tuple(
            (one.input, self._build_stage(one.source)) for one in self._graph.edges if one.target == uid and one != edge
        )
        step = Step(
            uid=uid,
            parallelism=spec.parallelism,
            make=self._job.operators[uid],
            schema=self._columns.of(uid),
            keys=edge.keys if edge.partitioning is Partitioning.HASH else (),
            builds=builds,
        )
        before = self._dealt(edge, number, step)
        before.steps.append(step)
        before.uid, before.parallelism = uid, spec.parallelism if step.keys else before.parallelism
        self._add(before)

    def _dealt(self, edge: EdgeSpec, number: int, step: Step) -> _Open:
        """The stage that the operator joins: the preceding stage, or a new stage after an exchange."""
        operator = step.make()
        if step.keys:
            return self._behind_exchange(edge, number, step, Deal.HASH, operator)
        if not isinstance(operator, Process):
            return self._before(edge)
        stage = self._open.get(edge.source)
        runs_everywhere = stage is not None and isinstance(stage.head, Read) and stage.head.shape is None
        if runs_everywhere and edge.partitioning is Partitioning.FORWARD:
            return self._before(edge)
        deals = {Partitioning.CUSTOM: Deal.CUSTOM, Partitioning.REBALANCE: Deal.REBALANCE}
        return self._behind_exchange(edge, number, step, deals.get(edge.partitioning, Deal.KEPT), operator)

    def _before(self, edge: EdgeSpec) -> _Open:
        """The open stage that emits the rows of `edge`, or a new stage that reads them."""
        stage = self._open.pop(edge.source, None)
        if stage is not None:
            return stage
        kept = self._kept[edge.source]
        head = Rows(stage=kept, wire=self._wire(edge.source))
        return _Open(head, edge.source, self._graph.by_uid[edge.source].parallelism)

    def _behind_exchange(self, edge: EdgeSpec, number: int, step: Step, deal: Deal, operator: Operator) -> _Open:
        before = self._before(edge)
        folding = self._job.foldings.get(number)
        schema = self._columns.of(edge.source) if folding is None else self._columns.parts(step.uid)
        emit = Emit(
            wire=Wire(edge.source, schema),
            deal=deal,
            owners=step.parallelism,
            keys=edge.keys,
            max_parallelism=self._graph.max_parallelism,
            time=operator.time if isinstance(operator, KeyedProcess) else None,
            folding=folding,
            partitioner=self._job.partitioners.get(number),
            target=step.uid,
        )
        by_key = deal is Deal.HASH
        head = Rows(
            stage=self._close(before, emit),
            wire=emit.wire,
            owners=step.parallelism,
            by_key=by_key,
            sort=tuple(emit.wire.column(schema.names.index(key)) for key in edge.keys) if by_key else (),
            markers=not by_key,
        )
        return _Open(head, edge.source, step.parallelism)

    def _build_stage(self, source: OperatorId) -> int:
        """The number of the stage whose rows are broadcast to every task."""
        if source in self._kept:
            self._done[self._kept[source]] = replace(self._done[self._kept[source]], broadcast=True)
            return self._kept[source]
        stage = self._open.pop(source)
        return self._close(stage, self._emit(stage), broadcast=True)

    def _emit(self, stage: _Open) -> Emit:
        return Emit(wire=self._wire(stage.uid), owners=stage.parallelism)

    def _wire(self, uid: OperatorId) -> Wire:
        return Wire(uid, self._columns.of(uid))

    def _close(self, stage: _Open, tail: Emit | Write, *, shared: bool = False, broadcast: bool = False) -> int:
        number = len(self._done)
        self._done.append(
            Stage(
                number=number, head=stage.head, steps=tuple(stage.steps), tail=tail, shared=shared, broadcast=broadcast
            )
        )
        return number


def _main_edge(graph: JobGraph, uid: OperatorId) -> tuple[EdgeSpec, int]:
    """The edge of input 0, and its number. All other inputs are broadcast."""
    return next((edge, number) for number, edge in enumerate(graph.edges) if edge.target == uid and edge.input == 0)


def build_sources(graph: JobGraph, uid: OperatorId) -> Mapping[int, OperatorId]:
    """By input number, the operators whose rows are broadcast to every subtask of `uid`."""
    return {edge.input: edge.source for edge in graph.edges if edge.target == uid and edge.input != 0}
