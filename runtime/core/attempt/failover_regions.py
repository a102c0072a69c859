"""Failover regions: the subtasks that restart after a failure.

Slot i runs subtask i of every operator. The failed slots restart, and all subtasks upstream of them up to the sources.
A subtask downstream of a restarted one keeps its state if the restarted subtasks repeat rows whose numbers it knows:
they are read from a source that numbers its rows, by steps that pass the numbers on. Otherwise it restarts as well.
(Carbone et al. 2015, section 3.5; Flink without numbers: FLIP-1, `RestartPipelinedRegionFailoverStrategy`.)
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from runtime.core.job.graph import EdgeSpec, JobGraph, Partitioning
from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId


class RestartReason(StrEnum):
    """Why all subtasks of an operator restart with a failed slot."""

    FEEDS_RESTARTED = "feeds-restarted"  #: it exchanges rows with a subtask that restarts: rows in flight are lost
    JOINED = "joined"  #: the operator joins all slots
    BUILD_SIDE = "build-side"  #: the master counts the subtasks that have read their share
    UNNUMBERED_ROWS = "unnumbered-rows"  #: of the source, or behind a step that may not repeat them
    PRE_AGGREGATION = "pre-aggregation"  #: the rows of a batch have no number
    PARTITIONING = "partitioning"  #: a row may reach another subtask when it is repeated
    LOOP = "loop"  #: rows of several rounds meet
    EXCHANGE = "exchange"  #: the slots of both ends open their channels anew


@dataclass(frozen=True, slots=True)
class FailoverRules:
    """The facts about the code of a job that decide what restarts.

    Args:
        joined: operators that join all slots, whatever their edges.
        numbered: sources that number their rows by split.
        passing: steps that pass the numbers of rows on: each output row depends on a batch of one input alone.
        buffered: numbers of the edges whose senders aggregate rows of many batches.
    """

    joined: Collection[OperatorId] = ()
    numbered: Collection[OperatorId] = ()
    passing: Collection[OperatorId] = ()
    buffered: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class RestartCause:
    """The edge, or the operator `source`, by which an operator restarts in all slots."""

    reason: RestartReason
    source: OperatorId
    target: OperatorId | None = None


@dataclass(frozen=True)
class RestartScope:
    """The subtasks that restart: those of the slots `failed`, and all subtasks of the operators `everywhere`."""

    graph: JobGraph
    failed: frozenset[int]
    everywhere: Mapping[OperatorId, RestartCause] = field(default_factory=dict)

    def restarts(self, subtask: SubtaskId) -> bool:
        return subtask.index in self.failed or subtask.operator in self.everywhere

    @property
    def kept_slots(self) -> frozenset[int]:
        """The slots with a subtask that keeps its state."""
        return frozenset(subtask.index for subtask in self.graph.subtasks if not self.restarts(subtask))

    @property
    def untouched_slots(self) -> frozenset[int]:
        """The slots without a subtask that restarts, or whose inputs restart."""
        touched = {
            subtask.index
            for subtask in self.graph.subtasks
            if self.restarts(subtask) or restarted_inputs(self.graph, subtask, self.everywhere)
        }
        return frozenset(range(self.graph.parallelism)) - touched


def restart_scope(graph: JobGraph, rules: FailoverRules, failed: Collection[int]) -> RestartScope:
    """The smallest set of subtasks that contains the failed slots, is closed upstream, and is safe for the others."""
    everywhere: dict[OperatorId, RestartCause] = {}
    numbered = numbered_senders(graph, rules)
    while failed and (step := next(_causes(graph, rules, frozenset(failed), numbered, everywhere), None)) is not None:
        operator, cause = step
        everywhere[operator] = cause
    return RestartScope(graph, frozenset(failed), everywhere)


def numbered_senders(graph: JobGraph, rules: FailoverRules) -> Mapping[OperatorId, OperatorId]:
    """The operators whose rows can have numbers, each with its source: forward edges lead from it to them."""
    sources: dict[OperatorId, OperatorId] = {uid: uid for uid in rules.numbered}
    for operator in graph.operators:  # predecessors first
        inputs = [edge for edge in graph.edges if edge.target == operator.uid]
        if operator.uid not in rules.passing or len(inputs) != 1:
            continue
        (edge,) = inputs
        if edge.source in sources and edge.partitioning is Partitioning.FORWARD and not edge.feedback:
            sources[operator.uid] = sources[edge.source]
    return sources


def numbering_senders(graph: JobGraph, rules: FailoverRules) -> Mapping[OperatorId, OperatorId]:
    """The operators whose rows get numbers, each with its source: some failure leaves a receiver of these rows."""
    sources = numbered_senders(graph, rules)
    # What restarts depends on the lowest failed slot: on the operators that have no subtask there.
    slots = {0, *(operator.parallelism for operator in graph.operators)} & set(range(graph.parallelism))
    scopes = [restart_scope(graph, rules, {slot}).everywhere for slot in slots]
    repeating = {
        sources[edge.source]
        for edge in graph.edges
        for everywhere in scopes
        if edge.source in everywhere and edge.target not in everywhere
    }
    return {uid: source for uid, source in sources.items() if source in repeating}


def restarted_inputs(graph: JobGraph, subtask: SubtaskId, everywhere: Collection[OperatorId]) -> list[ChannelId]:
    """The input channels of a subtask that keeps its state whose senders restart."""
    return [channel for channel in graph.inputs[subtask] if graph.source(channel).operator in everywhere]


@dataclass(frozen=True, slots=True)
class RegionCause:
    """The extent of a failure of slot 0: at least one subtask restarts in each of the first `slots` slots.

    Args:
        source: with `target` the edge that decides it, or the operator; "" with 1 slot.
        kept: the operators whose subtasks in these slots keep their state, unless their own slot failed.
    """

    slots: int
    source: str = ""
    target: str = ""
    reason: str = ""
    kept: tuple[str, ...] = ()


def region_cause(graph: JobGraph, rules: FailoverRules) -> RegionCause:
    everywhere = restart_scope(graph, rules, {0}).everywhere
    slots = max((graph.by_uid[uid].parallelism for uid in everywhere), default=1)
    if slots == 1:
        return RegionCause(1)
    causes = [cause for uid, cause in everywhere.items() if graph.by_uid[uid].parallelism == slots]
    cause = next((each for each in causes if each.reason is not RestartReason.FEEDS_RESTARTED), causes[0])
    kept = tuple(operator.uid for operator in graph.operators if operator.uid not in everywhere)
    return RegionCause(slots, cause.source, cause.target or "", cause.reason, kept)


def _causes(
    graph: JobGraph,
    rules: FailoverRules,
    failed: frozenset[int],
    numbered: Mapping[OperatorId, OperatorId],
    everywhere: Mapping[OperatorId, RestartCause],
) -> Iterator[tuple[OperatorId, RestartCause]]:
    """Operators that restart in all slots, because those of `everywhere` do."""
    joined = [RestartCause(RestartReason.JOINED, uid) for uid in sorted(rules.joined)]
    builds = [RestartCause(RestartReason.BUILD_SIDE, edge.source, edge.target) for edge in graph.edges if edge.build]
    for cause in [*joined, *builds]:
        yield from ((operator.uid, cause) for operator in graph.operators if operator.uid not in everywhere)
    for edge in graph.edges:
        if edge.source not in everywhere and _feeds_restarted(graph, edge, failed, everywhere):
            yield edge.source, RestartCause(RestartReason.FEEDS_RESTARTED, edge.source, edge.target)
    for edge in graph.edges:
        if edge.source in everywhere and edge.target not in everywhere:
            reason = _unsafe_reason(graph, edge, rules, numbered)
            if reason is not None:
                yield edge.target, RestartCause(reason, edge.source, edge.target)
    for edge in graph.edges if everywhere else ():
        if edge.partitioning is not Partitioning.FORWARD and not {edge.source, edge.target} & everywhere.keys():
            yield edge.source, RestartCause(RestartReason.EXCHANGE, edge.source, edge.target)


def _feeds_restarted(
    graph: JobGraph, edge: EdgeSpec, failed: frozenset[int], everywhere: Mapping[OperatorId, RestartCause]
) -> bool:
    """Whether a channel of the edge leads to a subtask that restarts, or from one to other slots."""
    if edge.target in everywhere:
        return True
    slots = max(graph.by_uid[uid].parallelism for uid in (edge.source, edge.target))
    return edge.partitioning is not Partitioning.FORWARD and min(failed) < slots


def _unsafe_reason(
    graph: JobGraph, edge: EdgeSpec, rules: FailoverRules, numbered: Mapping[OperatorId, OperatorId]
) -> RestartReason | None:
    """Why receivers cannot keep their state while all senders restart; None: they can."""
    if edge.target in graph.loops:
        return RestartReason.LOOP
    if edge.source not in numbered:
        return RestartReason.UNNUMBERED_ROWS
    if edge.partitioning in (Partitioning.REBALANCE, Partitioning.BROADCAST, Partitioning.CUSTOM):
        return RestartReason.PARTITIONING
    if graph.edges.index(edge) in rules.buffered:
        return RestartReason.PRE_AGGREGATION
    return None
