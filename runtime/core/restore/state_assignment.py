"""State assignment: distributes the state in a manifest to the subtasks of the next attempt.

(Flink's `StateAssignmentOperation`, `RoundRobinOperatorStateRepartitioner`.)

- Keyed state is assigned by operator uid and key group, never by slot.
- Lists stay with their subtask at equal parallelism. A rescale redistributes them in contiguous chunks, and so does a
  restore after some subtasks had finished.
- Rows in flight are assigned by key group, as keyed state is.
- Every subtask receives all entries of a union list, and broadcast state from any subtask that has it.
- A finished operator is skipped, but its pending committables are not (`pending_committables`).
- A restored watermark is at most that of every old subtask whose splits or rows the new subtask may hold; otherwise
  these rows would be late. The bound also applies to every subtask downstream that is not behind a shuffle by key. A
  subtask that holds only what finished subtasks held, and gets no further rows, bounds no watermark.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from runtime.core.job.graph import EdgeSpec, JobGraph, OperatorSpec, Partitioning, Role
from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId
from runtime.core.job.key_groups import key_group_range
from runtime.core.snapshot.manifest import (
    FinishedState,
    Manifest,
    OperatorSnapshot,
    RowsInFlight,
    Segment,
    SubtaskSnapshot,
)
from runtime.core.snapshot.proofs import StateProof, add_proofs


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskRestore:
    """The state that a subtask restores."""

    subtask: SubtaskId
    snapshots: tuple[SubtaskSnapshot, ...] = ()  #: every old snapshot that overlaps its key groups
    lists: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  #: the list entries assigned to the subtask
    unions: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  #: the entries of all old subtasks
    broadcast: SubtaskSnapshot | None = None  #: the snapshot with the broadcast state to restore
    proofs: Mapping[str, StateProof] = field(default_factory=dict)  #: of keyed states, in its key groups
    feedback: tuple[Segment, ...] = ()  #: its share of the logged feedback records, to be replayed
    in_flight: tuple[RowsInFlight, ...] = ()  #: with rows in its key groups, which are its share; the proof is of these
    watermark: int | None = None
    finished: bool = False  #: skip the operator


def assign_state(manifest: Manifest, graph: JobGraph) -> Mapping[SubtaskId, SubtaskRestore]:
    """Assigns the state in `manifest` to every subtask of `graph`."""
    assigned: dict[SubtaskId, SubtaskRestore] = {}
    moved = _operators_with_moved_rows(manifest, graph)
    ended: set[SubtaskId] = set()  #: subtasks that emit no further rows
    for subtask in graph.subtasks:  # predecessors first
        operator = graph.by_uid[subtask.operator]
        old = manifest.operators.get(operator.uid)
        held = () if old is None else _held_snapshots(subtask, operator, old, graph, is_moved=operator.uid in moved)
        restored = SubtaskRestore(subtask=subtask) if old is None else _restore_subtask(subtask, operator, old, graph)
        feeding = {graph.source(channel) for channel in graph.inputs[subtask] if _keeps_rows(graph, channel)} - ended
        bounds = [assigned[sender].watermark for sender in feeding]
        if old is None or not all(snapshot.finished for snapshot in held):
            bounds.append(_min_watermark(held))
        if restored.finished or not bounds:
            ended.add(subtask)
        else:
            restored = replace(restored, watermark=_min_if_known(bounds))
        assigned[subtask] = restored
    return assigned


def restores_apart(manifest: Manifest | None, graph: JobGraph) -> bool:
    """Whether a restore assigns to each subtask its own state only, so that its siblings may run on.

    Otherwise a sibling may still hold entries of a union list, or of a list that is redistributed. Restarted senders do
    not repeat rows in flight, which a sibling may not have processed.
    """
    return manifest is None or all(
        not has_rows_in_flight(manifest.operators[operator.uid])
        and _keeps_lists(manifest.operators[operator.uid], operator.parallelism)
        and not any(any(snapshot.unions.values()) for snapshot in manifest.operators[operator.uid].subtasks.values())
        for operator in graph.operators
        if operator.uid in manifest.operators
    )


def has_rows_in_flight(operator: OperatorSnapshot) -> bool:
    return any(snapshot.in_flight for snapshot in operator.subtasks.values())


def _operators_with_moved_rows(manifest: Manifest, graph: JobGraph) -> set[OperatorId]:
    """The operators whose subtasks may get rows that another subtask had, or was to get.

    A step that holds rows back restores the watermark that it has received. The captured watermarks of its receivers
    are those that it has sent.
    """
    moved: set[OperatorId] = set()
    for operator in graph.operators:  # predecessors first
        stored = manifest.operators.get(operator.uid)
        edges = (edge for edge in graph.edges if edge.target == operator.uid and _edge_keeps_rows(edge))
        if (stored is not None and _is_shared(stored, operator)) or any(edge.source in moved for edge in edges):
            moved.add(operator.uid)
    return moved


def _restore_subtask(
    subtask: SubtaskId, operator: OperatorSpec, old: OperatorSnapshot, graph: JobGraph
) -> SubtaskRestore:
    if old.finished is FinishedState.FINISHED:
        return SubtaskRestore(subtask=subtask, finished=True)
    heads = {edge.target for edge in graph.edges if edge.feedback}
    return SubtaskRestore(
        subtask=subtask,
        snapshots=_overlapping(subtask, operator, old, graph),
        lists=_redistribute_lists(old, subtask.index, operator.parallelism),
        unions=_union_lists(old),
        broadcast=_broadcast_snapshot(old),
        proofs=keyed_proofs(old.subtasks.values(), _key_groups(subtask, operator, graph)),
        feedback=_redistribute_feedback(old, subtask.index, operator.parallelism) if operator.uid in heads else (),
        in_flight=tuple(_rows_in_flight(old, _key_groups(subtask, operator, graph))),
    )


def _rows_in_flight(old: OperatorSnapshot, groups: range) -> Iterator[RowsInFlight]:
    """The rows in flight of old subtasks with rows in `groups`, and their proof there."""
    for _, snapshot in sorted(old.subtasks.items()):
        for rows in snapshot.in_flight:
            if proof := {group: part for group, part in rows.proof.items() if group in groups}:
                yield msgspec.structs.replace(rows, proof=proof)


def _overlapping(
    subtask: SubtaskId, operator: OperatorSpec, old: OperatorSnapshot, graph: JobGraph
) -> tuple[SubtaskSnapshot, ...]:
    """The snapshots of old subtasks that had some of the subtask's key groups."""
    key_groups = _key_groups(subtask, operator, graph)
    return tuple(
        snapshot
        for index, snapshot in sorted(old.subtasks.items())
        if _ranges_overlap(key_groups, key_group_range(index, graph.max_parallelism, old.parallelism))
    )


def _key_groups(subtask: SubtaskId, operator: OperatorSpec, graph: JobGraph) -> range:
    return key_group_range(subtask.index, graph.max_parallelism, operator.parallelism)


def keyed_proofs(snapshots: Collection[SubtaskSnapshot], groups: range) -> dict[str, StateProof]:
    """The proof of each keyed state in `groups`.

    `snapshots`: those of all old subtasks of the operator. So a share of the state that is assigned to none is noticed.
    """
    broadcast = {name for snapshot in snapshots for name in snapshot.broadcast}
    names = {name for snapshot in snapshots for name in (*snapshot.keyed, *snapshot.proofs)} - broadcast
    return {
        name: add_proofs((snapshot.proofs.get(name, {}) for snapshot in snapshots), groups) for name in sorted(names)
    }


def _held_snapshots(
    subtask: SubtaskId, operator: OperatorSpec, old: OperatorSnapshot, graph: JobGraph, *, is_moved: bool
) -> tuple[SubtaskSnapshot, ...]:
    """The snapshots of old subtasks whose splits or rows the subtask may hold, or get from its senders."""
    if is_moved:
        return tuple(old.subtasks.values())
    return _overlapping(subtask, operator, old, graph)


def _keeps_rows(graph: JobGraph, channel: ChannelId) -> bool:
    """Whether the sender's restored watermark bounds the receiver's.

    Not behind a shuffle by key: the captured watermark of the receiver already is the minimum over all senders.
    """
    return _edge_keeps_rows(graph.edges[channel.edge])


def _edge_keeps_rows(edge: EdgeSpec) -> bool:
    return not edge.feedback and edge.partitioning is not Partitioning.HASH


def _min_if_known(bounds: Collection[int | None]) -> int | None:
    """The minimum of `bounds`. None: one of them is not known yet."""
    times = [time for time in bounds if time is not None]
    return min(times) if len(times) == len(bounds) else None


def _min_watermark(snapshots: Iterable[SubtaskSnapshot]) -> int | None:
    """The minimum watermark of the subtasks that had not finished; None if none is known."""
    times = (snapshot.watermark for snapshot in snapshots if not snapshot.finished)
    return min((time for time in times if time is not None), default=None)


def _is_shared(old: OperatorSnapshot, operator: OperatorSpec) -> bool:
    """Whether a new subtask may hold splits or rows of every old subtask, not only of those with its key groups.

    True for union lists, for redistributed lists, and for a source at another parallelism whose splits are not keyed
    state: only the source knows which subtask reads which split.
    """
    snapshots = old.subtasks.values()
    if any(entries for snapshot in snapshots for entries in snapshot.unions.values()):
        return True
    if _keeps_lists(old, operator.parallelism):
        return False
    has_lists = any(entries for snapshot in snapshots for entries in snapshot.lists.values())
    return has_lists or (operator.role is Role.SOURCE and not any(snapshot.keyed for snapshot in snapshots))


def _keeps_lists(old: OperatorSnapshot, parallelism: int) -> bool:
    """Whether every subtask keeps its own lists."""
    return old.parallelism == parallelism and old.finished is FinishedState.RUNNING


def _ranges_overlap(left: range, right: range) -> bool:
    return left.start < right.stop and right.start < left.stop


def _broadcast_snapshot(old: OperatorSnapshot) -> SubtaskSnapshot | None:
    """The snapshot to restore broadcast state from, preferably of a running subtask: a finished one may be older."""
    holders = [snapshot for _, snapshot in sorted(old.subtasks.items()) if snapshot.broadcast]
    return min(holders, key=lambda snapshot: snapshot.finished, default=None)


def _union_lists(old: OperatorSnapshot) -> dict[str, tuple[Any, ...]]:
    """All entries of each union list, old subtasks in order. No subtask has finished (`partly_finished_union`)."""
    unions: dict[str, tuple[Any, ...]] = {}
    for _, snapshot in sorted(old.subtasks.items()):
        for name, entries in snapshot.unions.items():
            unions[name] = (*unions.get(name, ()), *entries)
    return unions


def _redistribute_feedback(old: OperatorSnapshot, index: int, parallelism: int) -> tuple[Segment, ...]:
    """The logs for subtask `index`: whole logs, round-robin. The edges behind the head partition the records again."""
    snapshots = (snapshot for number, snapshot in sorted(old.subtasks.items()) if number % parallelism == index)
    return tuple(segment for snapshot in snapshots for segment in snapshot.feedback)


def _redistribute_lists(old: OperatorSnapshot, index: int, parallelism: int) -> dict[str, tuple[Any, ...]]:
    """The lists of a new subtask: its own, or a contiguous chunk of all entries, old subtasks in order.

    Only subtasks that had not finished contribute: finished subtasks have no work left.
    """
    if _keeps_lists(old, parallelism):
        return dict(old.subtasks[index].lists) if index in old.subtasks else {}
    running = [snapshot for _, snapshot in sorted(old.subtasks.items()) if not snapshot.finished]
    chunks = {}
    for name in sorted({name for snapshot in running for name in snapshot.lists}):
        entries = [entry for snapshot in running for entry in snapshot.lists.get(name, ())]
        size, remainder = divmod(len(entries), parallelism)
        start = index * size + min(index, remainder)
        chunks[name] = tuple(entries[start : start + size + (index < remainder)])
    return chunks
