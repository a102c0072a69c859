"""Sources with two parts, a history and a live part: no subtask begins the live part before all have read the history.

1. A subtask that has read its share of the history reports `HistoryRead`. It emits no rows until the live part opens,
   and is not idle: its watermark bounds the rows of the live part. It follows the watermark of its siblings.
2. The master sends `LiveOpened` after the last report. A restored attempt waits for all reports again, unless its
   checkpoint holds the switch: then no subtask has a history.

The control connection of a slot keeps the order of its messages, and a barrier that a source delays precedes its next
message. Each checkpoint therefore has the switch in all subtasks of the source, or in none. (Flink: `HybridSource`,
whose enumerator sends `SwitchSourceEvent` after a `SourceReaderFinishedEvent` of every reader.)
"""

from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import OperatorId, SubtaskId


class Histories:
    """The histories of an attempt that are not read to their end. Mutable, owned by the master."""

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._missing: dict[OperatorId, set[SubtaskId]] = {}

    def complete(self, subtask: SubtaskId) -> OperatorId | None:
        """`subtask` has read its share. Returns its source if it was the last subtask."""
        source = subtask.operator
        if source not in self._missing:
            self._missing[source] = {each for each in self._graph.subtasks if each.operator == source}
        self._missing[source].discard(subtask)
        return None if self._missing[source] else source
