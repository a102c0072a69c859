"""From a manifest to the next attempt: who gets which state.

Pure functions of what was read. They do not know files: a `Segment` is a name here. State is dealt by operator uid
and key group, never by slot; list state in contiguous chunks, union lists whole to everyone; broadcast state from any
subtask that has it; an operator flagged finished is skipped, its pending commits never are (`commit.owed`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.core.checkpoint import FinishedState, Manifest, OperatorSnapshot, Segment, SubtaskSnapshot
from runtime.core.graph import JobGraph, OperatorSpec
from runtime.core.ids import SubtaskId
from runtime.core.keygroups import range_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What one subtask is given on restore."""

    subtask: SubtaskId
    snapshots: tuple[SubtaskSnapshot, ...] = ()  #: every old snapshot that overlaps its key groups
    lists: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  #: already dealt
    unions: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  #: the entries of all old subtasks
    broadcast: SubtaskSnapshot | None = None  #: whose broadcast state to take
    feedback: tuple[Segment, ...] = ()  #: a share of what was on its way round the loop, to be replayed
    watermark: int | None = None
    finished: bool = False  #: skip the operator


def assign(manifest: Manifest, graph: JobGraph) -> Mapping[SubtaskId, Restored]:
    """Deals the state in `manifest` to every subtask of `graph`."""
    dealt: dict[SubtaskId, Restored] = {}
    for operator in graph.operators:
        old = manifest.operators.get(operator.uid)
        for index in range(operator.parallelism):
            subtask = SubtaskId(operator.uid, index)
            dealt[subtask] = Restored(subtask=subtask) if old is None else _restored(subtask, operator, old, graph)
    return dealt


def _restored(subtask: SubtaskId, operator: OperatorSpec, old: OperatorSnapshot, graph: JobGraph) -> Restored:
    if old.finished is FinishedState.FINISHED:
        return Restored(subtask=subtask, finished=True)
    mine = range_of(subtask.index, graph.max_parallelism, operator.parallelism)
    overlapping = tuple(
        snapshot
        for index, snapshot in sorted(old.subtasks.items())
        if _overlap(mine, range_of(index, graph.max_parallelism, old.parallelism))
    )
    heads = {edge.target for edge in graph.edges if edge.feedback}
    running = [snapshot.watermark for snapshot in overlapping if not snapshot.finished]
    return Restored(
        subtask=subtask,
        snapshots=overlapping,
        lists=_deal_lists(old, subtask.index, operator.parallelism),
        unions=_united(old),
        broadcast=_broadcast(old),
        feedback=_deal_feedback(old, subtask.index, operator.parallelism) if operator.uid in heads else (),
        watermark=min((w for w in running if w is not None), default=None),
    )


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _broadcast(old: OperatorSnapshot) -> SubtaskSnapshot | None:
    """Whose broadcast state to take: a running one's, since that of a subtask that ended early may be older."""
    holders = [snapshot for _, snapshot in sorted(old.subtasks.items()) if snapshot.broadcast]
    return min(holders, key=lambda snapshot: snapshot.finished, default=None)


def _united(old: OperatorSnapshot) -> dict[str, tuple[Any, ...]]:
    """All entries of a name, old subtasks in order, for everyone. None has finished: no such checkpoint completes."""
    united: dict[str, tuple[Any, ...]] = {}
    for _, snapshot in sorted(old.subtasks.items()):
        for name, entries in snapshot.unions.items():
            united[name] = (*united.get(name, ()), *entries)
    return united


def _deal_feedback(old: OperatorSnapshot, index: int, parallelism: int) -> tuple[Segment, ...]:
    """Whole logs in turn: a head passes records on, and where they belong is decided behind it."""
    mine = (snapshot for number, snapshot in sorted(old.subtasks.items()) if number % parallelism == index)
    return tuple(segment for snapshot in mine for segment in snapshot.feedback)


def _deal_lists(old: OperatorSnapshot, index: int, parallelism: int) -> dict[str, tuple[Any, ...]]:
    """All entries of a name, old subtasks in order, cut into contiguous chunks (Flink's SPLIT_DISTRIBUTE).

    A subtask that has finished has no work left to deal: only the running ones contribute.
    """
    running = [snapshot for _, snapshot in sorted(old.subtasks.items()) if not snapshot.finished]
    dealt = {}
    for name in sorted({name for snapshot in running for name in snapshot.lists}):
        entries = [entry for snapshot in running for entry in snapshot.lists.get(name, ())]
        size, more = divmod(len(entries), parallelism)
        start = index * size + min(index, more)
        dealt[name] = tuple(entries[start : start + size + (index < more)])
    return dealt
