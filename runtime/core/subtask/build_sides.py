"""Build sides of joins: the probe side opens once every subtask of the join has read its build side.

Until then, sources that lead to the probe side are not polled and operators on the way fire no timers. A barrier can
therefore pass the join while the build side is read: no records queue before it on the probe side. Each subtask of the
join reports the end of its build side to the master, which opens the probe side after the last report. A restored
attempt waits for all reports again. (Flink has no counterpart: its `InputSelectable` operators exclude checkpoints.)
"""

from collections.abc import Iterable

from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import OperatorId, SubtaskId


class BuildSides:
    """The open build sides of an attempt. Mutable, owned by the master."""

    def __init__(self, graph: JobGraph) -> None:
        joins = {edge.target for edge in graph.edges if edge.build}
        self._missing = {join: {s for s in graph.subtasks if s.operator == join} for join in joins}

    def complete(self, subtask: SubtaskId) -> OperatorId | None:
        """`subtask` has read its build side. Returns its join if it was the last subtask."""
        missing = self._missing[subtask.operator]
        missing.discard(subtask)
        return None if missing else subtask.operator


def joins_ahead(graph: JobGraph, uid: OperatorId) -> frozenset[OperatorId]:
    """The joins whose probe side `uid` leads to. Paths through a build input do not count: its rows are not emitted."""
    joins = {edge.target for edge in graph.edges if edge.build}
    ahead: set[OperatorId] = set()
    operators, waiting = {uid}, [uid]
    while waiting:
        targets = set(_targets(graph, waiting.pop()))
        ahead |= targets & joins
        waiting += targets - operators
        operators |= targets
    return frozenset(ahead)


def _targets(graph: JobGraph, uid: OperatorId) -> Iterable[OperatorId]:
    return (edge.target for edge in graph.edges if edge.source == uid and not edge.build)
