"""Jobs of the simulator: a topology, its input, its graph at any parallelism, and its expected output.

The oracle computes the expected output sequentially from the rows that the sources have emitted, without barriers,
channels or failures.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from runtime.core.job.graph import EdgeSpec, JobGraph, OperatorSpec, Partitioning, Role
from runtime.core.job.ids import OperatorId
from runtime.dataflow.plan import CompiledJob, Edge, compile_edge
from runtime.operators.sink import SinkOperator, WriteThrough
from runtime.ports import Operator, OperatorContext
from runtime.simulation.model import (
    GAP_MS,
    LATE,
    MAX_PARALLELISM,
    PAIR_MS,
    SLIDE_MS,
    WINDOW_MS,
    AskingOperator,
    AskingRowOperator,
    BatchingOperator,
    HoldingOperator,
    JoinOperator,
    LoopBackOperator,
    LoopBodyOperator,
    LoopExitOperator,
    ModelHybridSource,
    ModelOperator,
    ModelSink,
    ModelSource,
    OnSnapshot,
    PoolingOperator,
    Row,
    RowOperator,
    Split,
    route_rows,
)
from runtime.simulation.operators import KINDS, PRE_AGGREGATIONS, ProductionOperator, window_name
from runtime.simulation.world import JOB, World

Positions = Mapping[OperatorId, Mapping[str, int]]  #: number of rows read, by source and split
Output = Counter[tuple[str, str, int]]  #: sink, key, value

PLAIN_OPERATORS = {
    "map": ModelOperator,
    "batching": BatchingOperator,
    "holding": HoldingOperator,
    "asking": AskingOperator,
    "pooling": PoolingOperator,
    "union": ModelOperator,
    "loop": ModelOperator,
}
LOOP_OPERATORS = {"hop": LoopBodyOperator, "again": LoopBackOperator, "out": LoopExitOperator}
WINDOW_KINDS = ("window", "straggler_window")
STREAM_JOINS = ("pairs", "window_pairs")
EVENT_TIME_KINDS = (*WINDOW_KINDS, *STREAM_JOINS, "session", "distinct")  #: assert that no row is late
COMMITTING_OPERATORS = {"sink": SinkOperator, "tee": WriteThrough}
#: Of a source before rows that wait: shorter than a window, or short inputs would never pause.
WAITING_DRIFT_MS = WINDOW_MS // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An operator of a job. All steps of a `lane` have the same parallelism, because forward edges connect them."""

    uid: OperatorId
    kind: str
    lane: int
    bounded: bool = False
    splits: tuple[Split, ...] = ()
    history: int = 0  #: so many of the first splits of a source are read before the others; 0: it has a single part
    uses_list_state: bool = False  #: the splits of a source are list state instead of keyed state
    max_drift_ms: int | None = None  #: of a source: watermark alignment wherever its rows meet others
    mark: str = ""  #: in a loop: separates the key from its remaining hops


def _ignore_snapshot(context: OperatorContext, checkpoint: int) -> None:
    """The parts of a source are captured together."""


@dataclass(slots=True)
class Job:
    """A topology with its input, for any parallelism."""

    steps: list[Step] = field(default_factory=list)
    edges: list[EdgeSpec] = field(default_factory=list)
    _keys_of_joins: dict[OperatorId, Counter[str]] = field(default_factory=dict)

    def step(self, uid: OperatorId) -> Step:
        return next(step for step in self.steps if step.uid == uid)

    def add(
        self,
        kind: str,
        lane: int,
        inputs: Sequence[tuple[OperatorId, Partitioning]],
        build: int | None = None,
        mark: str = "",
    ) -> OperatorId:
        """Adds a step with the given inputs; `build` is the index in `inputs` of the build side, if any."""
        uid = OperatorId(f"{kind}{len(self.steps)}")
        self.steps.append(Step(uid=uid, kind=kind, lane=lane, mark=mark))
        for number, (source, partitioning) in enumerate(inputs):
            keys = ("key",) if partitioning is Partitioning.HASH else ()
            self.edges.append(
                EdgeSpec(
                    source=source, target=uid, input=number, partitioning=partitioning, keys=keys, build=number == build
                )
            )
        return uid

    def close(self, source: OperatorId, head: OperatorId, partitioning: Partitioning) -> None:
        """Adds a back-edge from `source` to the loop head `head`."""
        keys = ("key",) if partitioning is Partitioning.HASH else ()
        number = 1 + sum(edge.target == head and edge.feedback for edge in self.edges)
        self.edges.append(
            EdgeSpec(source=source, target=head, input=number, partitioning=partitioning, keys=keys, feedback=True)
        )

    def add_source(self, lane: int, bounded: bool, splits: Sequence[Split], lists_splits: bool = False) -> OperatorId:
        uid = OperatorId(f"source{len(self.steps)}")
        step = Step(
            uid=uid, kind="source", lane=lane, bounded=bounded, splits=tuple(splits), uses_list_state=lists_splits
        )
        self.steps.append(step)
        return uid

    @property
    def sources(self) -> list[Step]:
        return [step for step in self.steps if step.kind == "source"]

    @property
    def has_loops(self) -> bool:
        return any(edge.feedback for edge in self.edges)

    @property
    def is_bounded(self) -> bool:
        return all(source.bounded for source in self.sources)

    def graph(self, parallelism: Mapping[int, int]) -> JobGraph:
        """The graph at the given parallelism of each lane (default 1)."""
        roles = {"source": Role.SOURCE, "sink": Role.SINK}
        operators = tuple(
            OperatorSpec(
                uid=step.uid,
                name=step.uid,
                role=roles.get(step.kind, Role.OPERATOR),
                parallelism=parallelism.get(step.lane, 1),
                bounded=step.bounded,
                commits=step.kind in COMMITTING_OPERATORS,
            )
            for step in self.steps
        )
        return JobGraph(operators, tuple(self.edges), MAX_PARALLELISM)

    def compiled(self, graph: JobGraph, world: World, on_snapshot: OnSnapshot) -> CompiledJob:
        """The job as production deploys it."""
        sink = ModelSink(world.target)
        return CompiledJob(
            name=JOB,
            graph=graph,
            edges=[compile_edge(self._edge(spec), graph.by_uid, None) for spec in graph.edges],
            sources={step.uid: self._source(step, world, on_snapshot) for step in self.sources},
            operators={
                step.uid: partial(self._operator, step, sink, on_snapshot)
                for step in self.steps
                if step.kind != "source"
            },
            sinks={step.uid: sink for step in self.steps if step.kind in COMMITTING_OPERATORS},
            passing=frozenset(step.uid for step in self.steps if step.kind == "map"),
            max_drifts_ms={step.uid: step.max_drift_ms for step in self.sources if step.max_drift_ms is not None},
        )

    def _edge(self, spec: EdgeSpec) -> Edge:
        kind = self.step(spec.target).kind
        return Edge(
            spec=spec,
            partitioner=route_rows if spec.partitioning is Partitioning.CUSTOM else None,
            pre_aggregation=PRE_AGGREGATIONS.get(kind),
            drift_ms=WAITING_DRIFT_MS if kind in EVENT_TIME_KINDS else None,
        )

    def _source(self, step: Step, world: World, on_snapshot: OnSnapshot) -> ModelSource | ModelHybridSource:
        if not step.history:
            return self._part(step, step.splits, world, on_snapshot, bounded=step.bounded)
        history = self._part(step, step.splits[: step.history], world, _ignore_snapshot, bounded=True)
        live = self._part(step, step.splits[step.history :], world, _ignore_snapshot, bounded=step.bounded)
        return ModelHybridSource(history, live, on_snapshot=on_snapshot)

    @staticmethod
    def _part(
        step: Step, splits: Sequence[Split], world: World, on_snapshot: OnSnapshot, *, bounded: bool
    ) -> ModelSource:
        return ModelSource(
            splits=splits,
            bounded=bounded,
            uses_list_state=step.uses_list_state,
            clock=world,
            rng=world.rng,
            pace_ms=world.pace_ms,
            on_snapshot=on_snapshot,
        )

    def _operator(self, step: Step, sink: ModelSink, on_snapshot: OnSnapshot) -> Operator:
        if step.kind in COMMITTING_OPERATORS:
            return COMMITTING_OPERATORS[step.kind](sink)
        if step.kind in KINDS:
            return ProductionOperator(KINDS[step.kind], step.kind == "straggler_window", on_snapshot)
        runs = AskingRowOperator if step.kind == "asking" else RowOperator
        return runs(partial(self._model, step), on_snapshot)

    def _model(self, step: Step, context: OperatorContext) -> ModelOperator:
        if step.kind == "join":
            return JoinOperator(context, self._build_keys(step.uid))
        if step.kind in LOOP_OPERATORS:
            return LOOP_OPERATORS[step.kind](context, step.mark)
        return PLAIN_OPERATORS[step.kind](context)

    # ------------------------------------------------------------ the oracle

    def expected_output(self, positions: Positions) -> Output:
        """The committed output of a job whose sources read up to `positions` and then ended."""
        streams = self._streams(positions)
        ends = [step.uid for step in self.steps if step.kind in COMMITTING_OPERATORS]
        return Counter({(uid, key, value): n for uid in ends for (key, value), n in streams[uid].items()})

    def _build_keys(self, join: OperatorId) -> Counter[str]:
        """The keys of all rows of the build side, which is always read to its end."""
        if join not in self._keys_of_joins:
            whole = {step.uid: {split.name: len(split.rows) for split in step.splits} for step in self.sources}
            build = next(edge.source for edge in self.edges if edge.target == join and edge.build)
            keys: Counter[str] = Counter()
            for (key, _), n in self._streams(whole)[build].items():
                keys[key] += n
            self._keys_of_joins[join] = keys
        return self._keys_of_joins[join]

    def _streams(self, positions: Positions) -> dict[OperatorId, Counter[Row]]:
        """The output of each step of a job whose sources read up to `positions` and then ended."""
        streams: dict[OperatorId, Counter[Row]] = {}
        for step in self.steps:
            read = [edge for edge in self.edges if edge.target == step.uid and not edge.feedback]
            if step.kind == "source":
                streams[step.uid] = _read(step, positions.get(step.uid, {}))
            elif step.kind == "join":
                keys = {key for edge in read if edge.build for key, _ in streams[edge.source]}
                streams[step.uid] = Counter({row: n for row, n in streams[read[0].source].items() if row[0] in keys})
            elif step.kind in STREAM_JOINS:
                pairs = _pairs if step.kind == "pairs" else _window_pairs
                streams[step.uid] = pairs(*(streams[edge.source] for edge in read))
            else:
                streams[step.uid] = _apply(step.kind, sum((streams[edge.source] for edge in read), Counter()))
        return streams


def _read(source: Step, positions: Mapping[str, int]) -> Counter[Row]:
    return Counter(row for split in source.splits for row in split.rows[: positions.get(split.name, 0)])


def _pairs(first: Counter[Row], second: Counter[Row]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for (key, time), n in first.items():
        for other in range(time - PAIR_MS, time + PAIR_MS + 1):
            found[key, max(time, other)] += n * second[key, other]
    return +found


def _window_pairs(first: Counter[Row], second: Counter[Row]) -> Counter[Row]:
    """The pairs in each window, with the last time of the window."""
    pairs: Counter[Row] = Counter()
    for (key, time), n in first.items():
        for (other_key, other), m in second.items():
            oldest = (max(time, other) - WINDOW_MS) // SLIDE_MS * SLIDE_MS + SLIDE_MS
            for start in range(oldest, min(time, other) + 1, SLIDE_MS) if key == other_key else ():
                pairs[key, start + WINDOW_MS - 1] += n * m
    return pairs


def _apply(kind: str, rows: Counter[Row]) -> Counter[Row]:
    if kind == "count":
        totals: Counter[str] = Counter()
        for (key, _), n in rows.items():
            totals[key.lower()] += n
        return Counter((key, i) for key, total in totals.items() for i in range(1, total + 1))
    if kind in WINDOW_KINDS:
        windows: Counter[str] = Counter()
        for (key, time), n in rows.items():
            windows[window_name(key, time)] += n
        return Counter(windows.items())
    if kind == "distinct":
        return Counter({(window_name(key, time), 1) for key, time in rows})
    return _sessions(rows) if kind == "session" else rows


def _sessions(rows: Counter[Row]) -> Counter[Row]:
    sessions: Counter[Row] = Counter()
    previous, name, count = ("", 0), "", 0
    for (key, time), n in sorted(rows.items()):
        if key != previous[0] or time - previous[1] > GAP_MS:
            sessions[name, count] += 1
            name, count = f"{key}@{time}", 0
        previous, count = (key, time), count + n
    sessions[name, count] += 1
    del sessions["", 0]
    return sessions


def count_late_rows(output: Output) -> Output:
    """The output with the late rows counted in their windows, as the oracle counts them.

    A window that fired twice remains as two rows.
    """
    late: Counter[tuple[str, str]] = Counter()
    for (sink, key, _), n in output.items():
        if key.startswith(LATE):
            late[sink, key.removeprefix(LATE)] += n
    counted: Output = Counter()
    for (sink, key, value), n in output.items():
        if not key.startswith(LATE):
            counted[sink, key, value + late.pop((sink, key), 0)] += n
    return counted + Counter({(sink, key, n): 1 for (sink, key), n in late.items()})
