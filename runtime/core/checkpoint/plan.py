"""Whom a checkpoint concerns: which subtasks to trigger, to wait for and to notify, when some have already ended.

A pure function of one consistent view of subtask states (FLIP-147; Flink's `DefaultCheckpointPlanCalculator`). The
subtasks to trigger are the running ones all of whose predecessors have ended, not always the sources. What comes back
into the head of a loop does not precede it.
"""

from collections.abc import Set

from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import SubtaskId
from runtime.core.snapshot.manifest import FinishedState, Plan


def plan(graph: JobGraph, ended: Set[SubtaskId]) -> Plan:
    """The plan when `ended` have ended and all others run."""
    running = frozenset(graph.subtasks) - ended
    fed = {graph.target(c) for c in graph.channels() if graph.source(c) in running and not graph.is_feedback(c)}
    trigger = running - fed
    return Plan(trigger=trigger, wait_for=running, notify=running)


def finished_state(total: int, finished: int) -> FinishedState:
    """How far an operator of `total` subtasks is when `finished` of them are done."""
    if finished == 0:
        return FinishedState.RUNNING
    return FinishedState.FINISHED if finished == total else FinishedState.PARTLY
