"""From a manifest to the next attempt: who gets which state.

Pure functions of what was read. They do not know files: a `Segment` is a name here. State is dealt by operator uid
and key group, never by slot; union lists whole to everyone; broadcast state from any subtask that has it; an operator
flagged finished is skipped, its pending commits never are (`commit.owed`).

Lists stay where they are while the parallelism stays. They are redistributed in contiguous chunks at a rescale, and
after some subtasks had finished (Flink: `StateAssignmentOperation`, `RoundRobinOperatorStateRepartitioner`).

A restored watermark never lies above that of an old subtask whose splits or rows the new subtask may hold. Otherwise
the rows behind it would be late. The bound holds for all that the subtask feeds without a shuffle by key, too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runtime.core.job.graph import JobGraph, OperatorSpec, Partitioning, Role
from runtime.core.job.ids import ChannelId, SubtaskId
from runtime.core.job.key_groups import range_of
from runtime.core.snapshot.manifest import FinishedState, Manifest, OperatorSnapshot, Segment, SubtaskSnapshot


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
    for subtask in graph.subtasks:  # predecessors first
        operator = graph.by_uid[subtask.operator]
        old = manifest.operators.get(operator.uid)
        restored = Restored(subtask=subtask) if old is None else _restored(subtask, operator, old, graph)
        feeding = [dealt[graph.source(channel)] for channel in graph.inputs[subtask] if _keeps_rows(graph, channel)]
        dealt[subtask] = replace(restored, watermark=_bounded(restored.watermark, feeding))
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
    return Restored(
        subtask=subtask,
        snapshots=overlapping,
        lists=_lists(old, subtask.index, operator.parallelism),
        unions=_united(old),
        broadcast=_broadcast(old),
        feedback=_deal_feedback(old, subtask.index, operator.parallelism) if operator.uid in heads else (),
        watermark=_watermark(old.subtasks.values() if _is_shared(old, operator) else overlapping),
    )


def _keeps_rows(graph: JobGraph, channel: ChannelId) -> bool:
    """Whether rows of the sending subtask itself come by `channel`, so that its event time bounds the receiver's.

    Behind a shuffle by key every sender was counted when the receiver's watermark was captured.
    """
    return not graph.is_feedback(channel) and graph.edges[channel.edge].partitioning is not Partitioning.HASH


def _bounded(watermark: int | None, feeding: Iterable[Restored]) -> int | None:
    """`watermark`, but none above those of the subtasks `feeding`. None: event time is not known yet."""
    times = [watermark, *(restored.watermark for restored in feeding if not restored.finished)]
    known = [time for time in times if time is not None]
    return min(known) if len(known) == len(times) else None


def _watermark(snapshots: Iterable[SubtaskSnapshot]) -> int | None:
    """The least of the running ones."""
    times = (snapshot.watermark for snapshot in snapshots if not snapshot.finished)
    return min((time for time in times if time is not None), default=None)


def _is_shared(old: OperatorSnapshot, operator: OperatorSpec) -> bool:
    """Whether a new subtask may hold splits or rows of any old one, not only of those that overlap its key groups.

    So it is with entries of a union list, with lists that are redistributed, and with a source at another parallelism
    whose splits are no keyed state: the source alone knows which subtask reads what.
    """
    snapshots = old.subtasks.values()
    if any(entries for snapshot in snapshots for entries in snapshot.unions.values()):
        return True
    if _stays(old, operator.parallelism):
        return False
    has_lists = any(entries for snapshot in snapshots for entries in snapshot.lists.values())
    return has_lists or (operator.role is Role.SOURCE and not any(snapshot.keyed for snapshot in snapshots))


def _stays(old: OperatorSnapshot, parallelism: int) -> bool:
    """Whether every subtask goes on with its own lists."""
    return old.parallelism == parallelism and old.finished is FinishedState.RUNNING


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


def _lists(old: OperatorSnapshot, index: int, parallelism: int) -> dict[str, tuple[Any, ...]]:
    """The lists of one new subtask: its own, or a contiguous chunk of all entries of a name, old subtasks in order.

    A subtask that has finished has no work left: only the running ones contribute.
    """
    if _stays(old, parallelism):
        return dict(old.subtasks[index].lists) if index in old.subtasks else {}
    running = [snapshot for _, snapshot in sorted(old.subtasks.items()) if not snapshot.finished]
    chunks = {}
    for name in sorted({name for snapshot in running for name in snapshot.lists}):
        entries = [entry for snapshot in running for entry in snapshot.lists.get(name, ())]
        size, more = divmod(len(entries), parallelism)
        start = index * size + min(index, more)
        chunks[name] = tuple(entries[start : start + size + (index < more)])
    return chunks
