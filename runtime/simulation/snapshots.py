"""Snapshots of the simulator's operators: plain images, written by the segment logs and files of production.

This module computes the changes since the last capture. `runtime.state` decides which files a snapshot names and when
they are compacted.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from runtime.core.snapshot.manifest import Segment, SubtaskSnapshot
from runtime.ports import SnapshotStore
from runtime.simulation.model import MAX_PARALLELISM, OperatorImage, Rows
from runtime.state.backend import StateCapture
from runtime.state.files.compaction import CompactionPolicy
from runtime.state.files.segment_log import PendingSegment, SegmentLog
from runtime.state.files.segments import read_segment
from runtime.state.primary_key import OWN_FIELDS, PrimaryKey
from runtime.state.proofs import LazyProof, ProofOnce, proof_of_rows

KEYED_STATE: Final = "keyed"
TABLE_STATE: Final = "table"
HELD_STATE: Final = "held"
POOLED_STATE: Final = "pooled"
SCHEMA: Final = pa.schema([*OWN_FIELDS, ("name", pa.string()), ("value", pa.int64())])
_KEYS: Final = {KEYED_STATE: PrimaryKey(1), TABLE_STATE: None}
INLINE_BYTES: Final = (0, 2_500, 20_480)  #: bounds of inline segments, of which each subtask has one
ROW_BYTES: Final = 6_000  #: pretended size of a row, so that deltas outweigh a base even with few rows
MAX_COPIED_ROWS: Final = 4  #: a larger state is compacted
Change = tuple[int, str, int | None]  #: key group, name, value; None: the name is deleted


class Snapshots:
    """The captures of an operator subtask in an attempt. `inline_bytes`: bound of the bytes in the manifest."""

    def __init__(self, inline_bytes: int = 0) -> None:
        policy = CompactionPolicy(copied_bytes=MAX_COPIED_ROWS * ROW_BYTES, inline_bytes=inline_bytes)
        groups = range(MAX_PARALLELISM)
        self._logs = {name: SegmentLog(name, groups, key, policy) for name, key in _KEYS.items()}
        self._seen: dict[str, dict[tuple[int, str], int]] = {KEYED_STATE: {}, TABLE_STATE: {}}

    def capture(self, image: OperatorImage, full: bool) -> StateCapture:
        """The changes since the last capture. `full` (savepoints): the whole image, without a new base for deltas."""
        keyed = {(group, name): value for group, rows in image.keyed.items() for name, value in rows.items()}
        table = {(0, key): place for place, key in enumerate(image.table)}
        return StateCapture(
            keyed={KEYED_STATE: self._segments(KEYED_STATE, keyed, full)},
            broadcast={TABLE_STATE: self._segments(TABLE_STATE, table, full)},
            lists={HELD_STATE: image.held},
            unions={} if image.pooled is None else {POOLED_STATE: image.pooled},
            segment_logs=() if full else tuple(self._logs.values()),
        )

    def _segments(self, state: str, now: dict[tuple[int, str], int], full: bool) -> tuple[PendingSegment, ...]:
        everything: list[Change] = [(group, name, value) for (group, name), value in now.items()]
        log, before, proof = self._logs[state], self._seen[state], self._proof(state, everything)
        if full:
            pending = _segment(log, everything, proof, proof, 0)
            return () if pending is None else (pending,)
        if log.needs_base:
            log.start_from(_segment(log, everything, proof, proof, log.base_inline_bytes))
        else:
            changes = _changes(before, now)
            log.append(_segment(log, changes, self._proof(state, changes), proof, log.delta_inline_bytes))
        self._seen[state] = now
        return log.segments()

    def _proof(self, state: str, rows: list[Change]) -> LazyProof:
        return ProofOnce(lambda: proof_of_rows(_KEYS[state], [_batch(rows)] if rows else []))


def _segment(
    log: SegmentLog, rows: list[Change], proof: LazyProof, state: LazyProof, inline_bytes: int
) -> PendingSegment | None:
    if not rows:
        return None
    nbytes = ROW_BYTES * len(rows)
    return log.new_segment(lambda _: [_batch(rows)], proof, state, len(rows), nbytes, inline_bytes=inline_bytes)


def _changes(before: Mapping[tuple[int, str], int], now: Mapping[tuple[int, str], int]) -> list[Change]:
    gone: list[Change] = [(group, name, None) for group, name in before if (group, name) not in now]
    return gone + [(*place, value) for place, value in now.items() if before.get(place) != value]


def _batch(rows: list[Change]) -> pa.RecordBatch:
    laid_out = [(group, value is None, name, value) for group, name, value in sorted(rows, key=lambda row: row[0])]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*laid_out, strict=True), SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def batch_of(rows: Rows) -> pa.RecordBatch:
    """The batch that the feedback log stores for feedback rows."""
    return pa.RecordBatch.from_pydict({"key": [key for key, _ in rows], "time": [time for _, time in rows]})


def rows_of(batch: pa.RecordBatch) -> Rows:
    return list(zip(*batch.to_pydict().values(), strict=True))


# ---------------------------------------------------------------- reading


def read_image(store: SnapshotStore, snapshot: SubtaskSnapshot) -> OperatorImage:
    """The image of a snapshot, from its bases and deltas.

    Raises:
        CorruptState: a file is missing or does not match its snapshot.
    """
    keyed: dict[int, dict[str, int]] = {}
    for (group, name), value in _merge_segments(store, snapshot.keyed.get(KEYED_STATE, ())).items():
        keyed.setdefault(group, {})[name] = value
    return OperatorImage(keyed, tuple(snapshot.lists.get(HELD_STATE, ())), read_table(store, snapshot))


def read_table(store: SnapshotStore, snapshot: SubtaskSnapshot) -> tuple[str, ...]:
    return tuple(name for _, name in _merge_segments(store, snapshot.broadcast.get(TABLE_STATE, ())))


def _merge_segments(store: SnapshotStore, segments: Iterable[Segment]) -> dict[tuple[int, str], int]:
    rows: dict[tuple[int, str], int] = {}
    for segment in segments:
        for group, deleted, name, value in zip(*read_segment(store, segment).to_pydict().values(), strict=True):
            if deleted:
                rows.pop((group, name), None)
            else:
                rows[group, name] = value
    return rows
