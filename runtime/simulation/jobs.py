"""Random jobs of the simulator: a topology, its input, its graph at any parallelism, and its expected output.

The oracle computes the expected output sequentially from the rows that the sources have emitted, without barriers,
channels or failures.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from runtime.core.job.graph import EdgeSpec, JobGraph, OperatorSpec, Partitioning, Role
from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.job.key_groups import key_group_range
from runtime.simulation.model import (
    MAX_PARALLELISM,
    PAIR_MS,
    WINDOW_MS,
    BatchingOperator,
    CountOperator,
    HoldingOperator,
    IntervalJoinOperator,
    JoinOperator,
    ListSourceOperator,
    LoopBackOperator,
    LoopBodyOperator,
    LoopExitOperator,
    ModelOperator,
    PoolingOperator,
    Row,
    SinkOperator,
    SourceOperator,
    Split,
    Target,
    TeeOperator,
    WindowOperator,
)

KEYS = "abcde"
AFTER_PAUSE_MS = 1_000_000  #: first event time after a pause, far above all other event times
Positions = Mapping[OperatorId, Mapping[str, int]]  #: number of rows read, by source and split
Output = Counter[tuple[str, str, int]]  #: sink, key, value

PLAIN_OPERATORS = {
    "map": ModelOperator,
    "batching": BatchingOperator,
    "holding": HoldingOperator,
    "pooling": PoolingOperator,
    "union": ModelOperator,
    "pairs": IntervalJoinOperator,
    "count": CountOperator,
    "window": WindowOperator,
    "loop": ModelOperator,
}
LOOP_OPERATORS = {"hop": LoopBodyOperator, "again": LoopBackOperator, "out": LoopExitOperator}
EVENT_TIME_KINDS = ("window", "pairs")  #: assert that no row is late
COMMITTING_OPERATORS = {"sink": SinkOperator, "tee": TeeOperator}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An operator of a job. All steps of a `lane` have the same parallelism, because forward edges connect them."""

    uid: OperatorId
    kind: str
    lane: int
    bounded: bool = False
    splits: tuple[Split, ...] = ()
    uses_list_state: bool = False  #: the splits of a source are list state instead of keyed state
    max_drift_ms: int | None = None  #: of a source: watermark alignment wherever its rows meet others
    mark: str = ""  #: in a loop: separates the key from its remaining hops


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
    def window_edges(self) -> frozenset[int]:
        return frozenset(n for n, edge in enumerate(self.edges) if self.step(edge.target).kind == "window")

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

    def operator(self, subtask: SubtaskId, parallelism: int, target: Target, prefix: str) -> ModelOperator:
        step = self.step(subtask.operator)
        groups = key_group_range(subtask.index, MAX_PARALLELISM, parallelism)
        if step.kind == "source" and step.uses_list_state:
            return ListSourceOperator(groups, step.splits, step.bounded, subtask.index, parallelism)
        if step.kind == "source":
            return SourceOperator(groups, step.splits, step.bounded)
        if step.kind in COMMITTING_OPERATORS:
            return COMMITTING_OPERATORS[step.kind](groups, target, prefix)
        if step.kind == "join":
            return JoinOperator(groups, self._build_keys(step.uid))
        if step.kind in LOOP_OPERATORS:
            return LOOP_OPERATORS[step.kind](groups, step.mark)
        return PLAIN_OPERATORS[step.kind](groups)

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
            elif step.kind == "pairs":
                streams[step.uid] = _pairs(*(streams[edge.source] for edge in read))
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


def _apply(kind: str, rows: Counter[Row]) -> Counter[Row]:
    if kind == "count":
        totals: Counter[str] = Counter()
        for (key, _), n in rows.items():
            totals[key] += n
        return Counter((key, i) for key, total in totals.items() for i in range(1, total + 1))
    if kind == "window":
        windows: Counter[str] = Counter()
        for (key, time), n in rows.items():
            windows[f"{key}@{time - time % WINDOW_MS}"] += n
        return Counter(windows.items())
    return rows


# ---------------------------------------------------------------- random jobs


def random_job(rng: Random, loops: Random) -> Job:
    """A job of one to three sources, at most one of which pauses, with chains, unions, joins, loops and sinks.

    Loops are drawn only from the random stream `loops`, so that jobs without a loop do not depend on this stream.
    """
    job = Job()
    lanes = rng.randint(1, 3)
    pausing = rng.randrange(2 * lanes)
    streams = [_source(job, rng, lane, pauses=lane == pausing) for lane in range(lanes)]
    while len(streams) > 1 and rng.random() < 0.75:
        left, right = streams.pop(0), streams.pop(0)
        streams.append(_merge(job, rng, left, right))
    if len(streams) > 1 and loops.random() < 0.5:
        streams = [_crossing(job, loops, streams.pop(0), streams.pop(0)), *streams]
    elif loops.random() < 0.35:
        streams = [_loop(job, loops, streams.pop(0)), *streams]
    for stream in streams:
        for _ in range(1 + (rng.random() < 0.35)):
            _add_sink(job, rng, stream)
    return with_steady_splits(job)


def _source(job: Job, rng: Random, lane: int, pauses: bool) -> OperatorId:
    bounded = rng.random() < 0.6
    uid = OperatorId(f"source{len(job.steps)}")
    splits = [_split(rng, f"{uid}.{number}") for number in range(rng.randint(1, 4))]
    if pauses:
        splits[0] = _pausing_split(rng, splits[0])
    job.add_source(lane, bounded, splits)
    # No batching step follows a pausing source: rows that it flushes while the source is idle would be late.
    kinds = ("map",) if pauses else ("map", "batching")
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        uid = job.add(rng.choice(kinds), lane, [(uid, Partitioning.FORWARD)])
    return uid


def _pausing_split(rng: Random, split: Split) -> Split:
    """The split with more rows after a pause, whose event times are above all others of the job."""
    later = tuple((key, AFTER_PAUSE_MS + time) for key, time in split.rows or ((KEYS[0], 0),))
    return Split(split.name, split.rows + later, len(split.rows), rng.choice((300, 1_500, 4_000)))


def _split(rng: Random, name: str) -> Split:
    time, rows = 0, []
    for _ in range(rng.choice((0, 3, 12, 25, 40))):
        time += rng.choice((0, 1, 1, 3, 8))
        rows.append((rng.choice(KEYS), time))
    return Split(name, tuple(rows))


def _merge(job: Job, rng: Random, left: OperatorId, right: OperatorId) -> OperatorId:
    lane = len(job.steps)
    if rng.random() < 0.5:
        if is_bounded(job, right):
            return job.add("join", lane, [(left, Partitioning.REBALANCE), (right, Partitioning.BROADCAST)], build=1)
        if is_bounded(job, left):
            return job.add("join", lane, [(right, Partitioning.REBALANCE), (left, Partitioning.BROADCAST)], build=1)
    return job.add("union", lane, [(left, Partitioning.REBALANCE), (right, Partitioning.HASH)])


def _loop(job: Job, rng: Random, stream: OperatorId, mark: str = "~") -> OperatorId:
    """Adds a loop that each row of `stream` passes a few times; some loops contain an inner loop."""
    lane = len(job.steps)
    head = job.add("loop", lane, [(stream, rng.choice((Partitioning.REBALANCE, Partitioning.HASH)))])
    inside = _loop(job, rng, head, "^") if mark == "~" and rng.random() < 0.2 else head
    again, out = _body(job, rng, inside, mark)
    job.close(again, head, rng.choice((Partitioning.REBALANCE, Partitioning.HASH)))
    return out


def _crossing(job: Job, rng: Random, left: OperatorId, right: OperatorId) -> OperatorId:
    """Adds two loops whose back-edges lead to each other's head."""
    heads = [job.add("loop", len(job.steps), [(stream, Partitioning.REBALANCE)]) for stream in (left, right)]
    (again, out), (again_too, out_too) = (_body(job, rng, head, "~") for head in heads)
    job.close(again, heads[1], Partitioning.REBALANCE)
    job.close(again_too, heads[0], Partitioning.HASH)
    return job.add("union", len(job.steps), [(out, Partitioning.REBALANCE), (out_too, Partitioning.REBALANCE)])


def _body(job: Job, rng: Random, head: OperatorId, mark: str) -> tuple[OperatorId, OperatorId]:
    """Adds the body of a loop. Returns the step with the rows for the back-edge and the step with the output."""
    lane = len(job.steps)
    here = job.add("hop", lane, [(head, Partitioning.HASH)], mark=mark)
    if rng.random() < 0.4:
        # Rows that are flushed before a barrier while the channel is idle would be late: see `_source`.
        kinds = ("holding",) if may_idle(job, head) else ("batching", "holding")
        here = job.add(rng.choice(kinds), lane, [(here, Partitioning.FORWARD)])
    again = job.add("again", lane, [(here, Partitioning.FORWARD)], mark=mark)
    return again, job.add("out", lane, [(here, Partitioning.FORWARD)], mark=mark)


def has_loop(job: Job, uid: OperatorId) -> bool:
    """Whether `uid` is or follows a loop. Records from a loop may be late: the watermark does not wait for them."""
    before = [edge.source for edge in job.edges if edge.target == uid and not edge.feedback]
    return job.step(uid).kind == "loop" or any(has_loop(job, source) for source in before)


def may_idle(job: Job, uid: OperatorId) -> bool:
    """Whether a source upstream of `uid` may be idle: it pauses, or it is unbounded and may have no rows."""
    step = job.step(uid)
    before = [edge.source for edge in job.edges if edge.target == uid and not edge.feedback]
    pauses = any(split.pauses_at is not None for split in step.splits)
    return pauses or (step.kind == "source" and not step.bounded) or any(may_idle(job, source) for source in before)


def is_bounded(job: Job, uid: OperatorId) -> bool:
    before = [edge.source for edge in job.edges if edge.target == uid and not edge.feedback]
    return all(is_bounded(job, source) for source in before) if before else job.step(uid).bounded


def _add_sink(job: Job, rng: Random, stream: OperatorId) -> None:
    kind = "count" if has_loop(job, stream) else rng.choice(("count", "count", "window"))
    if kind == "count" and rng.random() < 0.4:
        stream = job.add("holding", len(job.steps), [(stream, Partitioning.REBALANCE)])
    last = job.add(kind, len(job.steps), [(stream, Partitioning.HASH)])
    if rng.random() < 0.5:
        job.add("sink", job.step(last).lane, [(last, Partitioning.FORWARD)])
    else:
        job.add("sink", len(job.steps), [(last, Partitioning.REBALANCE)])


def with_pairs(job: Job, rng: Random) -> Job:
    """Makes random unions, except of loops, an interval join of their inputs."""
    chosen = {
        step.uid for step in job.steps if step.kind == "union" and not has_loop(job, step.uid) and rng.random() < 0.4
    }
    steps = [replace(step, kind="pairs") if step.uid in chosen else step for step in job.steps]
    edges = [
        replace(edge, partitioning=Partitioning.HASH, keys=("key",)) if edge.target in chosen else edge
        for edge in job.edges
    ]
    return with_steady_splits(Job(steps, edges))


def with_pooling(job: Job, rng: Random) -> Job:
    """Makes random steps hold rows in a union list, except where the held rows would be late for a later step."""
    steps = [
        replace(step, kind="pooling") if _may_pool(job, step) and rng.random() < 0.4 else step for step in job.steps
    ]
    pooling = {step.uid for step in steps if step.kind == "pooling"}
    return Job(steps, [_with_custom_partitioning(edge) if edge.target in pooling else edge for edge in job.edges])


def with_tees(job: Job, rng: Random) -> Job:
    """Makes random map steps commit the rows that they forward; often several consecutive steps."""
    share = rng.choice((0.0, 0.3, 0.9))
    steps = [replace(step, kind="tee") if step.kind == "map" and rng.random() < share else step for step in job.steps]
    return Job(steps, job.edges)


def _with_custom_partitioning(edge: EdgeSpec) -> EdgeSpec:
    """The edge with custom partitioning instead of rebalance: any subtask of a pooling step may get a row."""
    if edge.partitioning is not Partitioning.REBALANCE:
        return edge
    return replace(edge, partitioning=Partitioning.CUSTOM, keys=("key",))


def _may_pool(job: Job, step: Step) -> bool:
    return step.kind == "holding" or (step.kind == "map" and not _feeds_event_time(job, step.uid))


def _feeds_event_time(job: Job, uid: OperatorId) -> bool:
    behind = [edge.target for edge in job.edges if edge.source == uid and not edge.feedback]
    return job.step(uid).kind in EVENT_TIME_KINDS or any(_feeds_event_time(job, target) for target in behind)


def with_drifts(job: Job, rng: Random) -> Job:
    """Aligns random sources with all others, also where their rows do not wait for windows."""
    steps = [
        replace(step, max_drift_ms=rng.choice((1, WINDOW_MS))) if step.kind == "source" and rng.random() < 0.3 else step
        for step in job.steps
    ]
    return Job(steps, job.edges)


def with_list_state(job: Job, rng: Random) -> Job:
    """Makes some sources keep their splits in list state; some of these splits have much later event times."""
    chosen = {step.uid for step in job.sources if rng.random() < 0.3}
    return Job([_use_list_state(step, rng) if step.uid in chosen else step for step in job.steps], job.edges)


def _use_list_state(step: Step, rng: Random) -> Step:
    return replace(
        step, uses_list_state=True, splits=tuple(_shift_times(split, rng.choice((0, 500))) for split in step.splits)
    )


def _shift_times(split: Split, by_ms: int) -> Split:
    if split.pauses_at is not None:
        return split
    return replace(split, rows=tuple((key, time + by_ms) for key, time in split.rows))


def with_steady_splits(job: Job) -> Job:
    """Makes pausing sources `steady` if their rows reach a window or join through several subtasks of an operator.

    After a pause, the subtasks that become active first advance the watermark while their siblings are still idle. Rows
    of idle siblings may then be late, as in Flink, but `EVENT_TIME_KINDS` assert that no row is late.
    """
    steps = [
        replace(step, splits=tuple(replace(split, steady=split.pauses_at is not None) for split in step.splits))
        if _reaches_event_time_by_parts(job, step.uid)
        else step
        for step in job.steps
    ]
    return Job(steps, job.edges)


def _reaches_event_time_by_parts(job: Job, uid: OperatorId, parted: bool = False) -> bool:
    """Whether the rows of a subtask may reach a window or join through several subtasks of the same operator."""
    behind = [edge for edge in job.edges if edge.source == uid and not edge.feedback]
    return any(
        (parted and job.step(edge.target).kind in EVENT_TIME_KINDS)
        or _reaches_event_time_by_parts(job, edge.target, parted or edge.partitioning is not Partitioning.FORWARD)
        for edge in behind
    )


def random_parallelism(rng: Random, job: Job) -> dict[int, int]:
    """A parallelism from 1 to 3 for every lane."""
    return {lane: rng.randint(1, 3) for lane in sorted({step.lane for step in job.steps})}
