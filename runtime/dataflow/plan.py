"""A job as its builder collects it, and the compiled job for a parallelism.

Compilation resolves parallelism and the partitioning of each edge, and keeps the code beside the graph. Compilation
does not depend on the kinds of operators.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from runtime.access.data_roots import is_same_url
from runtime.core.attempt.failover_regions import FailoverRules
from runtime.core.job.graph import EdgeSpec, Guarantee, JobGraph, OperatorSpec, Partitioning, Role
from runtime.core.job.guarantee import ConnectorGuarantee
from runtime.core.job.ids import OperatorId
from runtime.dataflow.used_columns import ColumnUse, UsedColumns
from runtime.errors import JobRejected
from runtime.operators.partition import Partitioner
from runtime.operators.sink import SinkOperator, WriteThrough
from runtime.operators.windows.pre_aggregation import PreAggregator
from runtime.ports import (
    HasIndependentWriters,
    HasParts,
    HasStandingStage,
    HoldsDeadLetters,
    KnowsEventTime,
    LeavesOutColumns,
    ListsInput,
    NumbersRows,
    Operator,
    ReadsAlone,
    Sink,
    Source,
    SourceReader,
    StatesDisorder,
    UsesFolders,
    UsesUrls,
)


@dataclass(frozen=True, slots=True)
class PreAggregation:
    """Pre-aggregation on an edge into a window. `create` makes the pre-aggregator of each subtask."""

    pane_ms: int  #: length of a pane
    create: Callable[[], PreAggregator]
    time: str = ""  #: column of event times
    size_ms: int = 0  #: length of a window
    slide_ms: int = 0  #: distance between the starts of two consecutive windows
    in_window: bool = False  #: the edge carries unaggregated rows, which the window aggregates


@dataclass(frozen=True, kw_only=True)
class Edge:
    """An edge with its code. The last two fields are set by the compilation."""

    spec: EdgeSpec
    partitioner: Partitioner | None = None  #: the author's function of a custom partitioning
    pre_aggregation: PreAggregation | None = None
    drift_ms: int | None = None  #: rows further ahead of the slowest source wait in the step; None: rows do not wait
    use: ColumnUse | None = None  #: the columns that the step reads; None: all
    takes_encoded_texts: bool = False  #: the step reads dictionary-encoded texts (`state.encoded_texts`)
    used_columns: frozenset[str] | None = None  #: the columns that the step and later steps use; None: all
    is_encoded: bool = False  #: the edge carries dictionary-encoded texts, within a slot


@dataclass(frozen=True, kw_only=True)
class Step:
    """An operator with its code. `parallelism` None: the parallelism of the job."""

    uid: OperatorId
    name: str
    role: Role
    parallelism: int | None
    bounded: bool = False
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    durations: Mapping[str, int] = field(default_factory=dict)  #: see `OperatorSpec`
    aggregates: tuple[tuple[str, str], ...] = ()  #: see `OperatorSpec`
    times: tuple[str, ...] = ()  #: see `OperatorSpec`
    code: Any  #: a `Source`, or for other roles a `Callable[[], Operator]`

    def spec(self, parallelism: int) -> OperatorSpec:
        return OperatorSpec(
            uid=self.uid,
            name=self.name,
            role=self.role,
            parallelism=min(self.parallelism or parallelism, parallelism),
            bounded=self.bounded,
            guarantee=self.guarantee,
            durations=tuple(self.durations.items()),
            aggregates=self.aggregates,
            times=self.times,
            exclusive=isinstance(self.code, ReadsAlone) and self.code.exclusive,
        )


@dataclass(frozen=True)
class CompiledJob:
    """A graph, and the code of each operator by uid. Survives cloudpickle, with which Spark sends it to the slots."""

    name: str
    graph: JobGraph
    edges: Sequence[Edge]  #: in the order of the graph
    sources: Mapping[OperatorId, Source]
    operators: Mapping[OperatorId, Callable[[], Operator]]
    sinks: Mapping[OperatorId, Sink]
    columns: Mapping[tuple[OperatorId, str], pa.Schema] = field(default_factory=dict)  #: see `DataflowPlan`
    max_drifts_ms: Mapping[OperatorId, int] = field(default_factory=dict)  #: by source; see `Dataflow.source`
    refuses_late_rows: frozenset[OperatorId] = frozenset()  #: steps that fail the job rather than drop a late row
    is_isolated: bool = False  #: see `Dataflow.isolate`
    passing: frozenset[OperatorId] = frozenset()  #: steps that pass row numbers on; see `FailoverRules`

    def encodes_texts(self, uid: OperatorId) -> bool:
        """Whether a reader of the operator takes dictionary-encoded texts."""
        return any(edge.is_encoded and edge.spec.source == uid for edge in self.edges)

    @property
    def failover_rules(self) -> FailoverRules:
        """The facts that decide which subtasks restart after a failure.

        Joined are sources of two parts, since the master counts the subtasks that have read the first, and sources
        behind a standing stage, whose subtasks share the notes of what they have read. So are sinks whose writers are
        not independent.
        """
        sources = {uid for uid, source in self.sources.items() if isinstance(source, HasParts | HasStandingStage)}
        independent = {
            uid
            for uid, sink in self.sinks.items()
            if isinstance(sink, HasIndependentWriters) and sink.has_independent_writers
        }
        numbered = {
            uid for uid, source in self.sources.items() if isinstance(source, NumbersRows) and source.numbers_rows
        }
        buffered = {n for n, edge in enumerate(self.edges) if (each := edge.pre_aggregation) and not each.in_window}
        return FailoverRules(
            joined=frozenset(sources | (self.sinks.keys() - independent)),
            numbered=frozenset(numbered),
            passing=self.passing,
            buffered=frozenset(buffered),
        )

    def columns_of(self, uid: OperatorId) -> Mapping[str, pa.Schema]:
        """The columns that its outputs must have, by the name of the output."""
        return {output: schema for (owner, output), schema in self.columns.items() if owner == uid}

    def __post_init__(self) -> None:
        """Marks operators with a committer, and sinks of dead letters: restores and the console know the graph only."""
        operators = tuple(
            replace(each, commits=each.uid in self.sinks, dead_letters=_dead_letters(self.sinks.get(each.uid)))
            for each in self.graph.operators
        )
        if operators != self.graph.operators:
            object.__setattr__(self, "graph", replace(self.graph, operators=operators))


@dataclass
class DataflowPlan:
    """Steps and edges in the order of their declaration."""

    steps: list[Step] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    sinks: dict[OperatorId, Sink] = field(default_factory=dict)
    max_drifts_ms: dict[OperatorId, int] = field(default_factory=dict)  #: see `CompiledJob`
    #: Steps that depend on watermarks: the consequence of an input without watermarks.
    needs_event_time: dict[OperatorId, str] = field(default_factory=dict)
    loops: list[OperatorId] = field(default_factory=list)  #: uids of loop heads
    #: Columns that an output must have, by operator and output ("": the main output), where code could emit others.
    columns: dict[tuple[OperatorId, str], pa.Schema] = field(default_factory=dict)
    is_isolated: bool = False
    passing: set[OperatorId] = field(default_factory=set)  #: see `CompiledJob`

    def connectors(self) -> list[ConnectorGuarantee]:
        """The guarantees of sources and sinks, including sinks within a stream."""
        return [
            ConnectorGuarantee(step.name, step.role, step.guarantee)
            for step in self.steps
            if step.role is not Role.OPERATOR or step.uid in self.sinks
        ]

    def isolate(self, sink: Sink) -> None:
        """Replaces every sink by `sink`; see `Dataflow.isolate`."""
        for number, step in enumerate(self.steps):
            if step.uid in self.sinks:
                operator = SinkOperator if step.role is Role.SINK else WriteThrough
                self.steps[number] = replace(step, code=partial(operator, sink), guarantee=Guarantee(sink.guarantee))
                self.sinks[step.uid] = sink
        self.is_isolated = True

    def back_edge_count(self, head: OperatorId) -> int:
        """The number of back-edges into a head."""
        return sum(edge.spec.feedback and edge.spec.target == head for edge in self.edges)

    def compile(self, name: str, parallelism: int, max_parallelism: int) -> CompiledJob:
        """The job for a parallelism. Raises JobRejected, naming the operator at fault."""
        if not 0 < parallelism <= max_parallelism:
            limit = f"must lie between 1 and max_parallelism ({max_parallelism}), not {parallelism}"
            raise JobRejected("bad-parallelism", "parallelism", limit)
        self._check_loops()
        self._check_event_time()
        self._check_folders()
        specs = tuple(step.spec(parallelism) for step in self.steps)
        by_uid = {spec.uid: spec for spec in specs}
        used = UsedColumns([(edge.spec, edge.use) for edge in self.edges])
        # From the last edge on, so that the columns of later steps are known: the recursion stays shallow.
        edges = [compile_edge(self.edges[n], by_uid, used.of_edge(n)) for n in reversed(range(len(self.edges)))][::-1]
        return CompiledJob(
            name=name,
            graph=JobGraph(specs, tuple(edge.spec for edge in edges), max_parallelism),
            edges=edges,
            sources={
                step.uid: _without_unused_columns(step.code, used.of_output(step.uid))
                for step in self.steps
                if step.role is Role.SOURCE
            },
            operators={step.uid: step.code for step in self.steps if step.role is not Role.SOURCE},
            sinks=dict(self.sinks),
            max_drifts_ms=dict(self.max_drifts_ms),
            columns=dict(self.columns),
            refuses_late_rows=frozenset(step.uid for step in self.steps if self._reads_rows_in_order(step.uid)),
            is_isolated=self.is_isolated,
            passing=frozenset(self.passing),
        )

    def _check_loops(self) -> None:
        for uid in self.loops:
            if not self.back_edge_count(uid):
                raise JobRejected("open-loop", uid, "this loop has no back-edge: close it with close_with")

    def _check_event_time(self) -> None:
        """Refuses steps that depend on watermarks behind an unbounded source without watermarks."""
        if not self.needs_event_time:
            return
        silent = {
            step.uid
            for step in self.steps
            if step.role is Role.SOURCE and not step.bounded and not emits_watermarks(step.code)
        }
        for step, consequence in self.needs_event_time.items():
            for uid in sorted(silent & self._upstream_of(step)):
                detail = f"{consequence}: the unbounded source {uid!r} has no event_time"
                raise JobRejected("no-event-time", step, detail)

    def _reads_rows_in_order(self, uid: OperatorId) -> bool:
        """Whether all rows come from bounded sources that state no disorder. Rows of loops may be late in any order."""
        upstream = self._upstream_of(uid)
        if any(edge.spec.feedback and edge.spec.target in upstream for edge in self.edges):
            return False
        sources = [step for step in self.steps if step.role is Role.SOURCE and step.uid in upstream]
        return all(
            step.bounded and isinstance(step.code, StatesDisorder) and step.code.max_disorder_ms is None
            for step in sources
        )

    def _check_folders(self) -> None:
        """Refuses a sink into a folder that a source reads: the job would read its own output without end.

        A bounded source may replay dead letters: its files are listed before the job adds others.
        """
        used = [
            (os.path.normpath(path), step.uid, step.bounded and argument == "path")
            for step in self.steps
            if step.role is Role.SOURCE and isinstance(step.code, UsesFolders)
            for argument, path in step.code.folders().items()
        ]
        for uid, sink in self.sinks.items():
            for path in sink.folders().values() if isinstance(sink, UsesFolders) else ():
                for folder, source, may_replay in used:
                    if folder == os.path.normpath(path) and not (may_replay and isinstance(sink, HoldsDeadLetters)):
                        detail = f"it would write into {path}, which the source {source!r} uses: choose another folder"
                        raise JobRejected("same-folder", uid, detail)
        urls = [(url, step.uid) for step in self.steps if step.role is Role.SOURCE for url in _urls(step.code)]
        for uid, sink in self.sinks.items():
            for url in _urls(sink):
                if reader := next((uid for other, uid in urls if is_same_url(url, other)), None):
                    detail = f"it would write into {url}, which the source {reader!r} uses: choose another prefix"
                    raise JobRejected("same-folder", uid, detail)

    def _upstream_of(self, uid: OperatorId) -> set[OperatorId]:
        """The operators upstream of `uid`, and `uid`."""
        uids, waiting = {uid}, [uid]
        while waiting:
            here = waiting.pop()
            specs = [edge.spec for edge in self.edges]
            feeding = {spec.source for spec in specs if spec.target == here and not spec.feedback}
            waiting += feeding - uids
            uids |= feeding
        return uids


def _urls(connector: object) -> Iterable[str]:
    return connector.urls().values() if isinstance(connector, UsesUrls) else ()


def _dead_letters(sink: Sink | None) -> str:
    return sink.dead_letter_folder if isinstance(sink, HoldsDeadLetters) else ""


def source_with_input(source: Source, listing: bytes | None) -> Source:
    """The source for readers that share `listing` (None: no listing)."""
    return source if listing is None or not isinstance(source, ListsInput) else source.with_input(listing)


def _without_unused_columns(source: Source, used: frozenset[str] | None) -> Source:
    """The source without columns that no step uses, as far as it can leave them out. `used` None: all are used."""
    return source.with_used_columns(used) if used is not None and isinstance(source, LeavesOutColumns) else source


def emits_watermarks(source: Source) -> bool:
    """Whether a source has watermarks. The reader of an author's source has them if it overrides `watermark`."""
    if isinstance(source, KnowsEventTime):
        return source.has_event_time
    return type(source.reader()).watermark is not SourceReader.watermark


def compile_edge(edge: Edge, by_uid: Mapping[OperatorId, OperatorSpec], used: frozenset[str] | None) -> Edge:
    """The edge with its final partitioning: FORWARD between different parallelisms becomes REBALANCE."""
    spec, pre_aggregation = edge.spec, edge.pre_aggregation
    parallelisms = [by_uid[uid].parallelism for uid in (spec.source, spec.target) if uid in by_uid]
    if spec.partitioning is Partitioning.FORWARD and len(set(parallelisms)) > 1:
        spec = replace(spec, partitioning=Partitioning.REBALANCE)
    is_forward = edge.takes_encoded_texts and spec.partitioning is Partitioning.FORWARD
    is_pre_aggregated = pre_aggregation is not None and not pre_aggregation.in_window
    return replace(edge, spec=spec, used_columns=used, is_encoded=is_forward or is_pre_aggregated)
