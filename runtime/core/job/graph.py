"""The job graph as a value: operators, edges, validation, and the expansion into subtasks and channels.

The graph holds no user code. The dataflow keeps user code beside the graph, by operator uid.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol, TypeVar

from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId
from runtime.core.job.key_groups import DEFAULT_MAX_PARALLELISM, MAX_KEY_GROUPS
from runtime.core.job.loops import back_edges, components
from runtime.errors import JobRejected

_UID = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class Role(StrEnum):
    """The role of an operator in the graph."""

    SOURCE = "source"
    OPERATOR = "operator"
    SINK = "sink"


class Partitioning(StrEnum):
    """How an edge distributes batches to the subtasks of its target."""

    FORWARD = "forward"  #: subtask i to subtask i; both ends have the same parallelism
    HASH = "hash"  #: by key group
    BROADCAST = "broadcast"  #: every batch to every subtask
    REBALANCE = "rebalance"  #: batches round-robin
    CUSTOM = "custom"  #: by a user function


class Guarantee(StrEnum):
    """The guarantee of a source or sink for each record under failures. Strongest first."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"  #: no record is lost, some may be repeated
    NONE = "none"  #: records may be lost, for example by a source that cannot rewind


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """An operator with its resolved parallelism."""

    uid: OperatorId
    name: str
    role: Role
    parallelism: int
    bounded: bool = False  #: for sources: the input has an end
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE  #: of sources and committers; the checkpoint mode decides for state
    commits: bool = False  #: the operator has a committer although it is no sink: two-phase commit in mid-stream
    durations: tuple[
        tuple[str, int], ...
    ] = ()  #: (name, ms); its state depends on them, see `core.restore.declarations`
    aggregates: tuple[tuple[str, str], ...] = ()  #: output column and definition, such as "Sum(fare)"; in order
    times: tuple[str, ...] = ()  #: by input, the column of times by which the state is formed
    exclusive: bool = False  #: for sources: a second run must not read the input meanwhile; see `ports.ReadsAlone`
    dead_letters: str = ""  #: of a sink of dead letters: its folder


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSpec:
    """An edge from `source` to input number `input` (from 0) of `target`. `keys`: column names, for HASH and CUSTOM.

    A `build` edge is the build side of a join: it is read to its end before the target's other inputs (`BuildSides`).
    """

    source: OperatorId
    target: OperatorId
    input: int
    partitioning: Partitioning
    keys: tuple[str, ...] = ()
    key_types: tuple[str, ...] = ()  #: Arrow types of `keys`; empty: known from the data only
    value_types: tuple[tuple[str, str], ...] = ()  #: (`state.column`, type) of target state; empty: see `key_types`
    build: bool = False
    feedback: bool = False
    output: str = ""  #: name of the side output of `source` that the edge carries; "": the main output


class InputEdge(Protocol):
    """An edge of a job graph, or of the target of a restore; see `EdgeSpec`."""

    @property
    def source(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def input(self) -> int: ...
    @property
    def partitioning(self) -> Partitioning: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def build(self) -> bool: ...
    @property
    def feedback(self) -> bool: ...
    @property
    def output(self) -> str: ...


AnyEdge = TypeVar("AnyEdge", bound=InputEdge)


def keyed_inputs(edges: Iterable[AnyEdge], uid: str) -> tuple[AnyEdge, ...]:
    """The edges into `uid`, if all are partitioned by key and none is a build side or a back-edge; otherwise none.

    Rows in flight to `uid` then have a key group, and may be replayed before its other rows.
    """
    inputs = tuple(edge for edge in edges if edge.target == uid)
    is_keyed = all(e.partitioning is Partitioning.HASH and not e.build and not e.feedback for e in inputs)
    return inputs if is_keyed else ()


@dataclass(frozen=True)
class JobGraph:
    """A validated job graph; operators stand in the topological order of its regular edges.

    Raises:
        JobRejected: the graph is invalid; `field` names the operator at fault.
    """

    operators: tuple[OperatorSpec, ...]
    edges: tuple[EdgeSpec, ...]
    max_parallelism: int = DEFAULT_MAX_PARALLELISM

    def __post_init__(self) -> None:
        _check_operators(self)
        _check_edges(self)
        _check_loops(self)
        object.__setattr__(self, "operators", _topological_order(self))
        _check_build_sides(self)

    def __getstate__(self) -> dict[str, Any]:
        """The fields. Another thread may add properties to `__dict__` while the graph is pickled."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def by_uid(self) -> Mapping[OperatorId, OperatorSpec]:
        return {operator.uid: operator for operator in self.operators}

    @property
    def parallelism(self) -> int:
        """Slots needed: the largest parallelism of any operator."""
        return max(operator.parallelism for operator in self.operators)

    @cached_property
    def subtasks(self) -> tuple[SubtaskId, ...]:
        """Every subtask, predecessors first."""
        return tuple(SubtaskId(o.uid, i) for o in self.operators for i in range(o.parallelism))

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The name of each operator by uid, as the console shows it."""
        return operator_names((operator.uid, operator.name) for operator in self.operators)

    def label(self, subtask: SubtaskId) -> str:
        """The subtask in texts for people: the name of the operator and the index."""
        return f"{self.names[subtask.operator]}/{subtask.index}"

    def keys_of(self, uid: OperatorId) -> tuple[tuple[str, ...], ...]:
        """By partitioned input of `uid`, the names of the key columns."""
        edges = (edge for edge in self.edges if edge.target == uid and edge.partitioning is Partitioning.HASH)
        return tuple(edge.keys for edge in sorted(edges, key=lambda edge: edge.input))

    def key_types_of(self, uid: OperatorId) -> Mapping[str, str]:
        """The types of the key columns of `uid`, by column, as far as they are known before the first row."""
        edges = (edge for edge in self.edges if edge.target == uid and edge.key_types)
        return {column: kind for edge in edges for column, kind in zip(edge.keys, edge.key_types, strict=True)}

    def value_types_of(self, uid: OperatorId) -> Mapping[str, str]:
        """The types of state columns of `uid`, by `state.column`, as far as they are known before the first row."""
        return {column: kind for edge in self.edges if edge.target == uid for column, kind in edge.value_types}

    def predecessors(self, uid: OperatorId) -> tuple[OperatorId, ...]:
        """The operators with a regular edge to `uid`. Topological order, checkpoint plan and job end depend on them."""
        return tuple(dict.fromkeys(edge.source for edge in self.edges if edge.target == uid and not edge.feedback))

    @cached_property
    def downstream(self) -> Mapping[str, frozenset[str]]:
        """By operator, the operators that its regular edges lead to."""
        targets: dict[str, set[str]] = {operator.uid: set() for operator in self.operators}
        for edge in self.edges:
            if not edge.feedback:
                targets[edge.source].add(edge.target)
        return {uid: frozenset(uids) for uid, uids in targets.items()}

    @cached_property
    def loops(self) -> Mapping[OperatorId, frozenset[OperatorId]]:
        """For each operator on a cycle: all operators of its strongly connected component."""
        components: dict[str, set[OperatorId]] = {}
        for uid, root in _components(self).items():
            components.setdefault(root, set()).add(OperatorId(uid))
        heads = {edge.target for edge in self.edges if edge.feedback}
        return {uid: frozenset(loop) for loop in components.values() if loop & heads for uid in loop}

    @cached_property
    def inputs(self) -> Mapping[SubtaskId, tuple[ChannelId, ...]]:
        """The channels that end in each subtask, by edge, then by source index."""
        by_subtask: dict[SubtaskId, list[ChannelId]] = {subtask: [] for subtask in self.subtasks}
        for channel in self.channels():
            by_subtask[self.target(channel)].append(channel)
        return {subtask: tuple(channels) for subtask, channels in by_subtask.items()}

    @cached_property
    def outputs(self) -> Mapping[SubtaskId, tuple[ChannelId, ...]]:
        """The channels that start in each subtask, by edge, then by target index."""
        by_subtask: dict[SubtaskId, list[ChannelId]] = {subtask: [] for subtask in self.subtasks}
        for channel in self.channels():
            by_subtask[self.source(channel)].append(channel)
        return {subtask: tuple(channels) for subtask, channels in by_subtask.items()}

    def channels(self) -> Iterator[ChannelId]:
        for number, edge in enumerate(self.edges):
            targets = self.by_uid[edge.target].parallelism
            for source in range(self.by_uid[edge.source].parallelism):
                if edge.partitioning is Partitioning.FORWARD:
                    yield ChannelId(number, source, source)
                else:
                    yield from (ChannelId(number, source, target) for target in range(targets))

    def source(self, channel: ChannelId) -> SubtaskId:
        return SubtaskId(self.edges[channel.edge].source, channel.source)

    def target(self, channel: ChannelId) -> SubtaskId:
        return SubtaskId(self.edges[channel.edge].target, channel.target)

    def input_of(self, channel: ChannelId) -> int:
        """The input number of `channel` at its target."""
        return self.edges[channel.edge].input

    def is_feedback(self, channel: ChannelId) -> bool:
        """Whether `channel` leads back into the head of a loop."""
        return self.edges[channel.edge].feedback

    def is_followed_by_sinks(self, uid: OperatorId) -> bool:
        """Whether only sinks read the output of operator `uid`."""
        return all(self.by_uid[edge.target].role is Role.SINK for edge in self.edges if edge.source == uid)

    def to_json(self) -> dict[str, Any]:
        """The graph as the console stores and draws it."""
        return {
            "max_parallelism": self.max_parallelism,
            "parallelism": self.parallelism,
            "operators": [
                {"uid": o.uid, "name": o.name, "role": o.role, "parallelism": o.parallelism, "bounded": o.bounded,
                 "guarantee": o.guarantee, "commits": o.commits or o.role is Role.SINK,
                 "durations": dict(o.durations), "aggregates": [list(pair) for pair in o.aggregates],
                 "times": list(o.times), "exclusive": o.exclusive, "dead_letters": o.dead_letters}
                for o in self.operators
            ],
            "edges": [
                {"source": e.source, "target": e.target, "input": e.input, "partitioning": e.partitioning,
                 "keys": list(e.keys), "key_types": list(e.key_types),
                 "value_types": [list(pair) for pair in e.value_types], "build": e.build, "feedback": e.feedback,
                 "output": e.output}
                for e in self.edges
            ],
        }  # fmt: skip


def operator_names(operators: Iterable[tuple[str, str]]) -> dict[str, str]:
    """By uid: the name of each operator (uid, name), with the uid if another operator has the same name."""
    pairs = tuple(operators)
    counts = Counter(name for _, name in pairs)
    return {uid: name if counts[name] == 1 else f"{name} ({uid})" for uid, name in pairs}


def check_uid(uid: str) -> None:
    """Raises JobRejected if `uid` is no valid uid of an operator."""
    if not _UID.fullmatch(uid):
        raise JobRejected("bad-uid", uid, "a uid is a letter, then letters, digits, '_', '.' or '-', 64 at most")


def _check_operators(graph: JobGraph) -> None:
    if not 0 < graph.max_parallelism <= MAX_KEY_GROUPS:
        raise JobRejected("bad-max-parallelism", "max_parallelism", f"must lie between 1 and {MAX_KEY_GROUPS}")
    uids: set[str] = set()
    for operator in graph.operators:
        check_uid(operator.uid)
        if operator.uid in uids:
            raise JobRejected("duplicate-uid", operator.uid, "two operators have this uid")
        if not 0 < operator.parallelism <= graph.max_parallelism:
            limit = f"must lie between 1 and max_parallelism ({graph.max_parallelism}), not {operator.parallelism}"
            raise JobRejected("bad-parallelism", operator.uid, f"parallelism {limit}")
        uids.add(operator.uid)


def _check_edges(graph: JobGraph) -> None:
    by_uid = {operator.uid: operator for operator in graph.operators}
    sources = {operator for operator in graph.operators if operator.role is Role.SOURCE}
    fed = {edge.target for edge in graph.edges if not edge.feedback or by_uid.get(edge.target) in sources}
    feeding = {edge.source for edge in graph.edges}
    for edge in graph.edges:
        for uid in (edge.source, edge.target):
            if uid not in by_uid:
                raise JobRejected("unknown-operator", uid, "an edge names an operator that does not exist")
        source, target = by_uid[edge.source], by_uid[edge.target]
        if edge.partitioning is Partitioning.FORWARD and source.parallelism != target.parallelism:
            raise JobRejected(
                "bad-forward",
                target.uid,
                f"a forward edge needs the parallelism of {source.uid} ({source.parallelism})",
            )
        if (edge.partitioning in (Partitioning.HASH, Partitioning.CUSTOM)) != bool(edge.keys):
            raise JobRejected("bad-keys", target.uid, "a hash or custom edge names key columns, other edges must not")
    for operator in graph.operators:
        if (operator.role is Role.SOURCE) == (operator.uid in fed):
            raise JobRejected("bad-input", operator.uid, "a source has no input, every other operator has an input")
        if (operator.role is Role.SINK) == (operator.uid in feeding):
            raise JobRejected("dangling-output", operator.uid, "the stream ends here without a sink")
    if not sources:
        raise JobRejected("no-source", "job", "the job has no source")


def _check_loops(graph: JobGraph) -> None:
    """Checks that the graph without feedback edges is acyclic, and that each feedback edge closes a cycle."""
    regular = [edge for edge in graph.edges if not edge.feedback]
    closing = back_edges([o.uid for o in graph.operators], [(edge.source, edge.target) for edge in regular])
    if closing:
        edge = regular[closing[0]]
        detail = f"the edge {edge.source} -> {edge.target} closes a cycle; close it with iterate"
        raise JobRejected("cycle", edge.target, detail)
    loop = _components(graph)
    for edge in graph.edges:
        if edge.feedback and loop[edge.source] != loop[edge.target]:
            way = f"no path leads from {edge.target} to {edge.source}"
            detail = f"the edge {edge.source} -> {edge.target} closes no loop: {way}"
            raise JobRejected("not-a-loop", edge.target, detail)
        if edge.feedback and any(e.target == edge.target and e.input == edge.input for e in regular):
            raise JobRejected("bad-feedback", edge.target, f"input {edge.input} is fed from inside and outside")


def _components(graph: JobGraph) -> Mapping[str, str]:
    return components([o.uid for o in graph.operators], [(edge.source, edge.target) for edge in graph.edges])


def _topological_order(graph: JobGraph) -> tuple[OperatorSpec, ...]:
    """Kahn's algorithm over the regular edges, stable in the order of declaration. The edges must be acyclic."""
    waiting = list(graph.operators)
    order: list[OperatorSpec] = []
    placed: set[OperatorId] = set()
    while waiting:
        ready = next(o for o in waiting if placed.issuperset(graph.predecessors(o.uid)))
        waiting.remove(ready)
        order.append(ready)
        placed.add(ready.uid)
    return tuple(order)


def _check_build_sides(graph: JobGraph) -> None:
    """Checks that every build side ends, and that no source has to end before it is read.

    A source that feeds both sides of a join would fill the unread probe side, run out of credit, and never end the
    build side. Two joins can deadlock two sources in the same way.
    """
    before: dict[OperatorId, set[OperatorId]] = {}  #: source -> sources that must end before it is read
    for build in (edge for edge in graph.edges if edge.build):
        _check_outside_loops(graph, build)
        building = _source_operators(graph, build.source)
        for uid in sorted(building):
            if not graph.by_uid[uid].bounded:
                detail = f"its build side would never end: {uid} is unbounded"
                raise JobRejected("unbounded-build-side", build.target, detail)
        for edge in graph.edges:
            if edge.target == build.target and not edge.build:
                for uid in _source_operators(graph, edge.source, through_builds=False):
                    before.setdefault(uid, set()).update(building)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        cycle = " after ".join(error.args[1])
        detail = f"build sides are read to their end first, so the source would wait for itself: {cycle}"
        raise JobRejected("build-side-deadlock", error.args[1][0], detail) from error


def _check_outside_loops(graph: JobGraph, build: EdgeSpec) -> None:
    """Rejects a build side in a loop: a loop ends after all its inputs, and its head must always read feedback."""
    inside = build.source in graph.loops.get(build.target, ())
    if inside or any(edge.feedback and edge.target == build.target for edge in graph.edges):
        detail = f"its build side {build.source} would have to end before the loop around it goes on"
        raise JobRejected("build-side-deadlock", build.target, detail)


def _source_operators(graph: JobGraph, uid: OperatorId, through_builds: bool = True) -> set[OperatorId]:
    """The sources with a path to `uid`, or `uid` if it is a source. `through_builds`: paths over build edges count."""
    uids, waiting = {uid}, [uid]
    while waiting:
        here = waiting.pop()
        feeding = {edge.source for edge in graph.edges if edge.target == here and (through_builds or not edge.build)}
        waiting += feeding - uids
        uids |= feeding
    return {source for source in uids if graph.by_uid[source].role is Role.SOURCE}
