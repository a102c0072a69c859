"""Feedback log of an iteration's head: records in flight in the loop, stored with the state and replayed on restore.

ABS for cyclic graphs (Carbone et al. 2015, algorithm 2). The machine decides which records belong to which checkpoint.
Another thread reads a complete log. The log of a stop or drain is kept open, since a retry inherits it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from runtime.core.job.ids import CheckpointId
from runtime.core.job.messages import Barrier, Records
from runtime.core.snapshot.manifest import Segment, SnapshotTimings, SubtaskSnapshot
from runtime.io.spool import Spool
from runtime.ports import Capture, SnapshotStore
from runtime.state.files.segments import read_segment, write_segment

MAX_SEGMENT_BYTES: Final = 64 * 1024 * 1024
MAX_REPLAY_ROWS: Final = 65_536  #: maximum rows replayed per step


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedSnapshot:
    """Snapshot that was captured at a barrier and is not stored yet."""

    barrier: Barrier
    capture: Capture
    rest: SubtaskSnapshot
    timings: SnapshotTimings


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackLog:
    """Complete log, ready to be stored. Writing closes `spool`, which is None if a retried stop may inherit the log."""

    batches: Iterator[pa.RecordBatch]
    spool: Spool | None
    max_segment_bytes: int = MAX_SEGMENT_BYTES

    def write(self, store: SnapshotStore, folder: str, max_parallelism: int) -> tuple[Segment, ...]:
        groups = (0, max_parallelism - 1)  # a head's input is not partitioned by key
        whole = enumerate(concatenate(self.batches, self.max_segment_bytes), 1)
        try:
            return tuple(
                write_segment(store, f"{folder}/{n:06d}.arrow", [batch], batch.num_rows, groups) for n, batch in whole
            )
        finally:
            if self.spool is not None:
                self.spool.close()


NO_FEEDBACK_LOG: Final = FeedbackLog(batches=iter(()), spool=None)


class FeedbackLogs:
    """Open logs of a single head; owned by its task."""

    def __init__(self, max_segment_bytes: int = MAX_SEGMENT_BYTES) -> None:
        self._max_segment_bytes = max_segment_bytes
        self._snapshots: dict[CheckpointId, CapturedSnapshot] = {}
        self._spools: dict[CheckpointId, Spool] = {}

    def begin(self, copied: CapturedSnapshot, inherits: CheckpointId | None) -> None:
        checkpoint = copied.barrier.checkpoint
        self._snapshots[checkpoint] = copied
        if inherits is None:
            self._spools[checkpoint] = Spool()
        else:
            self._snapshots.pop(inherits, None)
            self._spools[checkpoint] = self._spools.pop(inherits)

    def add(self, checkpoints: Iterable[CheckpointId], records: Records) -> None:
        for checkpoint in checkpoints:
            self._spools[checkpoint].append(records)

    def complete(self, checkpoint: CheckpointId) -> tuple[CapturedSnapshot, FeedbackLog]:
        copied = self._snapshots.pop(checkpoint)
        spool, is_inherited = self._spools[checkpoint], copied.barrier.kind.ends_job
        if not is_inherited:
            del self._spools[checkpoint]
        log = FeedbackLog(
            batches=spool.batches(),
            spool=None if is_inherited else spool,
            max_segment_bytes=self._max_segment_bytes,
        )
        return copied, log

    def drop(self, checkpoint: CheckpointId) -> None:
        del self._snapshots[checkpoint]
        self._spools.pop(checkpoint).close()

    def close(self) -> None:
        for spool in self._spools.values():
            spool.close()
        self._spools.clear()


def replay_records(store: SnapshotStore, log: Iterable[Segment], max_rows: int = MAX_REPLAY_ROWS) -> Iterator[Records]:
    """Records of a restored log, in batches of at most `max_rows` rows.

    Raises:
        CorruptState: a segment differs from its manifest entry.
    """
    for segment in log:
        batch = read_segment(store, segment)
        for start in range(0, batch.num_rows, max_rows):
            part = batch.slice(start, max_rows)
            yield Records(part, part.num_rows, part.nbytes)


def concatenate(batches: Iterable[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Concatenates batches of equal schema until they reach `max_bytes`."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        full = sum(each.nbytes for each in waiting) >= max_bytes
        if waiting and (full or not waiting[0].schema.equals(batch.schema)):
            yield pa.concat_batches(waiting)
            waiting = []
        waiting.append(batch)
    if waiting:
        yield pa.concat_batches(waiting)
