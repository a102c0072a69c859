"""The checkpoint plan: the subtasks to trigger, to wait for and to notify (FLIP-147).

Flink's `DefaultCheckpointPlanCalculator`: trigger the running subtasks all of whose predecessors have ended, which are
not always the sources. A feedback edge does not make its source a predecessor.
"""

from collections.abc import Set
from dataclasses import dataclass

from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import SubtaskId
from runtime.core.snapshot.manifest import FinishedState


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """The subtasks that take part in a checkpoint."""

    trigger: frozenset[SubtaskId]  #: running, and no predecessor is running
    wait_for: frozenset[SubtaskId]  #: every running subtask must acknowledge
    notify: frozenset[SubtaskId]  #: receive the notification of completion


def plan_checkpoint(graph: JobGraph, ended: Set[SubtaskId]) -> CheckpointPlan:
    """The plan if the subtasks `ended` have ended and all other subtasks run."""
    running = frozenset(graph.subtasks) - ended
    fed = {graph.target(c) for c in graph.channels() if graph.source(c) in running and not graph.is_feedback(c)}
    trigger = running - fed
    return CheckpointPlan(trigger=trigger, wait_for=running, notify=running)


def finished_state(total: int, finished: int) -> FinishedState:
    """The state of an operator with `total` subtasks of which `finished` have finished."""
    if finished == 0:
        return FinishedState.RUNNING
    return FinishedState.FINISHED if finished == total else FinishedState.PARTLY
