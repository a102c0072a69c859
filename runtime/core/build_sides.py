"""Which joins hold their build sides whole, so that what leads to their probe sides may begin.

A barrier passes a join while its build side is read, because no records stand before it on the probe side: no source
that leads there is polled, and no timer on the way fires. Each subtask of the join tells the master when its build side
has ended; the master opens the probe side once all have. A restored attempt asks anew. (Flink has no such thing: an
`InputSelectable` operator takes no part in checkpoints.)
"""

from collections.abc import Iterable

from runtime.core.graph import JobGraph
from runtime.core.ids import OperatorId, SubtaskId


class BuildSides:
    """Of one attempt. Mutable, owned by the master."""

    def __init__(self, graph: JobGraph) -> None:
        joins = {edge.target for edge in graph.edges if edge.build}
        self._missing = {join: {s for s in graph.subtasks if s.operator == join} for join in joins}

    def complete(self, subtask: SubtaskId) -> OperatorId | None:
        """Notes that `subtask` holds its build side whole. Returns its join if it was the last."""
        missing = self._missing[subtask.operator]
        missing.discard(subtask)
        return None if missing else subtask.operator


def joins_ahead(graph: JobGraph, uid: OperatorId) -> frozenset[OperatorId]:
    """The joins to whose probe sides a path leads from `uid`. No path leads through a build side: it emits nothing."""
    joins = {edge.target for edge in graph.edges if edge.build}
    ahead: set[OperatorId] = set()
    found, waiting = {uid}, [uid]
    while waiting:
        targets = set(_targets(graph, waiting.pop()))
        ahead |= targets & joins
        waiting += targets - found
        found |= targets
    return frozenset(ahead)


def _targets(graph: JobGraph, uid: OperatorId) -> Iterable[OperatorId]:
    return (edge.target for edge in graph.edges if edge.source == uid and not edge.build)
