"""Rows in flight: rows that a barrier overtakes become part of its snapshot, and a restore replays them.

The barrier of an aligned checkpoint waits behind the rows of its channel. A barrier that has waited for the alignment
timeout overtakes them (FLIP-76). The machine decides which rows belong to the snapshot. They lie in the queues of the
receiver, or arrive there before the barrier of their channel. So the sender stores none.

Only edges that are partitioned by key are overtaken (`core.subtask.spec.may_overtake`). A row belongs to its key group,
and at any parallelism the owner of the group replays it before its first message. Rows of a key keep their order: all
of a channel lie in the snapshot of one subtask, and senders begin behind the barrier.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.core.job.graph import JobGraph, keyed_inputs
from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId
from runtime.core.job.key_groups import key_group_range
from runtime.core.job.messages import Records
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.manifest import RowsInFlight
from runtime.core.snapshot.proofs import StateProof, add_proofs
from runtime.dataflow.plan import CompiledJob, Edge
from runtime.errors import JobRejected
from runtime.operators.column_difference import column_difference, columns_of
from runtime.operators.windows.pre_aggregation import input_row_count
from runtime.ports import SnapshotStore
from runtime.state.encodings import schema_without_views
from runtime.state.files.segments import read_segment, write_segment
from runtime.state.index.hashing import hash_values, key_groups
from runtime.state.proofs import ProofSums, check_proof
from runtime.task.feedback_log import CapturedSnapshot, concatenate
from runtime.task.output import used_positions

MAX_SEGMENT_BYTES: Final = 64 << 20


@dataclass(slots=True)
class RowRecording:
    """The snapshot whose rows in flight are being recorded. Owned by a task."""

    copied: CapturedSnapshot
    rows: dict[int, list[Records]] = field(default_factory=dict)

    def add(self, channel: ChannelId, records: Records) -> None:
        self.rows.setdefault(channel.edge, []).append(records)


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """Complete recording, ready to be stored by another thread."""

    graph: JobGraph
    edges: Sequence[Edge]  #: of the job, by number
    subtask: SubtaskId
    rows: Mapping[int, Sequence[Records]]  #: by number of the edge

    def write(self, store: SnapshotStore, folder: str) -> tuple[RowsInFlight, ...]:
        groups = _key_groups(self.graph, self.subtask)
        parts, written = list[RowsInFlight](), 0
        for number, records in sorted(self.rows.items()):
            edge, batches = self.graph.edges[number], [each.payload for each in records]
            used = self.edges[number].used_columns
            whole = list(concatenate(batches, MAX_SEGMENT_BYTES))
            segments = tuple(
                write_segment(
                    store, f"{folder}/{written + n:06d}.arrow", [batch], batch.num_rows, (groups.start, groups.stop - 1)
                )
                for n, batch in enumerate(whole, 1)
            )
            written += len(segments)
            proof = _proof_of(batches, edge.keys, self.graph.max_parallelism)
            parts.append(
                RowsInFlight(
                    source=edge.source,
                    output=edge.output,
                    input=edge.input,
                    keys=edge.keys,
                    is_aggregated=_is_aggregated(self.edges[number]),
                    used=None if used is None else tuple(sorted(used)),
                    batches=len(batches),
                    segments=segments,
                    proof=dict(proof),
                )
            )
        return tuple(parts)


def replayed_rows(
    store: SnapshotStore, job: CompiledJob, restored: SubtaskRestore
) -> Iterator[tuple[ChannelId, Records]]:
    """The restored rows in flight of a subtask, by edge and in the order of each key, in batches as they were sent.

    Raises:
        CorruptState: a file is damaged, or the rows differ from their proof.
        JobRejected: this version of the job sends other columns on the edge.
    """
    graph, edges = job.graph, job.edges
    keyed = keyed_inputs(graph.edges, restored.subtask.operator)
    for number, edge in enumerate(graph.edges):
        parts = [part for part in restored.in_flight if edge in keyed and part.is_from(edge)]
        if parts:
            channel = next(each for each in graph.inputs[restored.subtask] if each.edge == number)
            owned = _key_groups(graph, restored.subtask)
            groups = graph.max_parallelism
            batches = [(part, batch) for part in parts for batch in _read_rows(store, part, owned, groups)]
            expected = add_proofs((part.proof for part in parts), owned)
            name = f"operator {str(edge.target)!r}: {_describe(parts)}"
            check_proof(name, expected, _proof_of((batch for _, batch in batches), edge.keys, groups))
            for part, batch in batches:
                _check_aggregated(part, edges[number])
                sent = _sent_columns(part, batch, edges[number], job.columns.get((edge.source, edge.output)))
                rows = input_row_count(sent) if _is_aggregated(edges[number]) else sent.num_rows
                yield channel, Records(sent, rows, sent.nbytes)


def check_rows(store: SnapshotStore, parts: Iterable[RowsInFlight], max_parallelism: int) -> None:
    """Compares stored rows in flight with their proofs. Raises CorruptState."""
    for part in parts:
        batches = _read_rows(store, part, range(max_parallelism), max_parallelism)
        check_proof(_describe([part]), part.proof, _proof_of(batches, part.keys, max_parallelism))


def _describe(parts: Sequence[RowsInFlight]) -> str:
    files = ", ".join(segment.path for part in parts for segment in part.segments)
    return f"{parts[0].name} ({files})"


def _key_groups(graph: JobGraph, subtask: SubtaskId) -> range:
    return key_group_range(subtask.index, graph.max_parallelism, graph.by_uid[OperatorId(subtask.operator)].parallelism)


def _proof_of(batches: Iterable[pa.RecordBatch], keys: Sequence[str], max_parallelism: int) -> StateProof:
    sums = ProofSums()
    for batch in batches:
        groups = key_groups(batch, keys, max_parallelism).astype(np.int32)
        sums.add(groups, hash_values(batch.columns, batch.num_rows))
    return sums.proof()


def _read_rows(
    store: SnapshotStore, part: RowsInFlight, owned: range, max_parallelism: int
) -> Iterator[pa.RecordBatch]:
    """The rows in the key groups `owned`, in batches of the size in which they were sent."""
    rows = max(1, -(-sum(segment.rows for segment in part.segments) // part.batches))
    for segment in part.segments:
        if segment.last_group < owned.start or segment.first_group >= owned.stop:
            continue
        batch = read_segment(store, segment)
        groups = key_groups(batch, part.keys, max_parallelism)
        positions = np.flatnonzero((groups >= owned.start) & (groups < owned.stop))
        if len(positions) < batch.num_rows:
            batch = batch.take(pa.array(positions))
        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _is_aggregated(edge: Edge) -> bool:
    """Whether the edge sends rows that are aggregated per key and pane."""
    return edge.pre_aggregation is not None and not edge.pre_aggregation.in_window


def _check_aggregated(part: RowsInFlight, edge: Edge) -> None:
    if part.is_aggregated != _is_aggregated(edge):
        raise _other_columns(edge, "aggregated per pane" if part.is_aggregated else "not aggregated per pane")


def _sent_columns(part: RowsInFlight, batch: pa.RecordBatch, edge: Edge, declared: pa.Schema | None) -> pa.RecordBatch:
    """The columns of `batch` that this version sends, of those that the sender declares.

    If it declares none, only missing columns are noticed. A used column that the rows lack may be added by a later
    step, if the former version used it too.
    """
    used = edge.used_columns
    if _is_aggregated(edge):
        return batch
    if declared is None and used is not None and (missing := used.difference(batch.schema.names, part.used or ())):
        raise _other_columns(edge, f"without the columns {', '.join(sorted(missing))}")
    schema = batch.schema if declared is None else schema_without_views(declared)
    positions = None if used is None else used_positions(schema, used)
    now = columns_of(schema if positions is None else pa.schema([schema.field(n) for n in positions]))
    before = {name: kind for name, kind in columns_of(batch.schema).items() if name in now}
    if before != now:
        raise _other_columns(edge, f"with other columns ({column_difference(before, now)})")
    return batch.select(list(now))


def _other_columns(edge: Edge, difference: str) -> JobRejected:
    detail = (
        f"the checkpoint holds rows in flight from {edge.spec.source!r}, {difference}, unlike this version: "
        "restore it with the former version, and take a savepoint with alignment_timeout_ms 0"
    )
    return JobRejected("rows-in-flight-changed", edge.spec.target, detail)
