"""The segments of a keyed or broadcast state: a base, the deltas after it, and their compaction.

- A pending segment is written once, by the first capture whose write reaches it. If the write fails, the next capture
  writes it again, so no change is lost or stored twice.
- The write of an expired checkpoint may overlap the write of the next one: each pending segment has a lock. If the
  earlier write finds the file in the folder of a newer checkpoint, it copies the file: a manifest never names a file in
  the folder of a newer checkpoint (`master.retention` relies on this rule).
- A small state gets a new base at a barrier, by a copy. The files of a larger state are compacted in the background
  (`compact`), so that a barrier costs as much as the changes, independent of the size of the state. Later captures name
  the compacted file.
- A file may be deleted only if no retained manifest and no pending checkpoint names it. A segment that has left the log
  never returns to it.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from runtime.core.snapshot.checksums import verified_chunks
from runtime.core.snapshot.manifest import Segment, parse_folder
from runtime.errors import CorruptState, EnvironmentFailure
from runtime.ports import SnapshotStore
from runtime.state.files.compaction import CompactionPolicy, Merge, compaction_start
from runtime.state.files.segments import write_segment
from runtime.state.primary_key import PrimaryKey
from runtime.state.proofs import LazyProof, ProofOnce, RowProofs, check_proof

COPY_CHUNK_BYTES: Final = 1 << 22

#: Errors of files that cannot be compacted: damaged, or with types that have no common type.
_UNREADABLE_ERRORS: Final = (CorruptState, pa.ArrowException)

BatchFactory = Callable[[SnapshotStore], Iterable[pa.RecordBatch]]


class PendingSegment:
    """Captured rows that are, or will be, stored as a segment.

    Args:
        name: file name, unique within a subtask's attempt.
        make: encodes the rows; called in the background, again after a failed write.
        proof: the proof of the rows; read after `make`.
        state: the proof of the state after these rows.
        key: the primary key of the rows; None: broadcast rows, which have no keys.
        rows: upper bound of the row count.
        nbytes: approximate size in memory.
        groups: first and last key group that may occur; None: the rows are sorted by key group, their first column.
        inline_bytes: maximum size of an inline segment.
    """

    def __init__(
        self,
        name: str,
        make: BatchFactory,
        proof: LazyProof,
        state: LazyProof,
        key: PrimaryKey | None,
        rows: int,
        nbytes: int,
        groups: tuple[int, int] | None = None,
        inline_bytes: int = 0,
    ) -> None:
        self.proof = proof
        self.state = state
        self.rows = rows
        self.nbytes = nbytes
        self.is_damaged = False  #: whether source files are damaged: the segment can never be written
        self.is_referenced = False  #: whether a snapshot may name the segment
        self.segments: tuple[Segment, ...] | None = None  #: at most one, none without rows; None: not written yet
        self._name = name
        self._make: BatchFactory | None = make
        self._key = key
        self._groups = groups
        self._inline_bytes = inline_bytes
        self._lock = threading.Lock()

    @property
    def max_inline_bytes(self) -> int:
        """Upper bound of the bytes that the segment adds to a manifest."""
        if self.segments is None:
            return self._inline_bytes
        return sum(len(segment.content) for segment in self.segments)

    def write(self, store: SnapshotStore, prefix: str) -> tuple[tuple[Segment, ...], int]:
        """Writes the segment for a snapshot in folder `prefix`, unless written.

        Returns the segments, and the bytes that this call has put into files.
        """
        with self._lock:
            if self.segments is not None and not _belongs_to_newer_checkpoint(self.segments, prefix):
                return self.segments, 0
            if self.segments is not None:
                copies = tuple(_copy_segment(store, segment, f"{prefix}/{self._name}") for segment in self.segments)
                return copies, sum(segment.nbytes for segment in copies)
            self.segments = self._write_new(store, f"{prefix}/{self._name}")
            self._make = None
            return self.segments, sum(segment.nbytes for segment in self.segments if not segment.is_inline)

    def _write_new(self, store: SnapshotStore, path: str) -> tuple[Segment, ...]:
        assert self._make is not None, "rows are kept until they are written"
        written, proof = tuple[Segment, ...](), RowProofs(self._key)
        try:
            batches = proof.counted(self._make(store))
            if (first := next(batches, None)) is not None:
                chain = itertools.chain([first], batches)
                written = (write_segment(store, path, chain, self.rows, self._groups, self._inline_bytes),)
            check_proof(path, self.proof(), proof.proof())
        except _UNREADABLE_ERRORS:
            self.is_damaged = True
            store.delete([segment.path for segment in written if not segment.is_inline])
            raise
        return written


def _belongs_to_newer_checkpoint(segments: tuple[Segment, ...], prefix: str) -> bool:
    checkpoint = parse_folder(prefix.split("/", 1)[0])
    checkpoints = [parse_folder(segment.path.split("/", 1)[0]) for segment in segments if not segment.is_inline]
    return checkpoint is not None and any(other is not None and other > checkpoint for other in checkpoints)


def _copy_segment(store: SnapshotStore, segment: Segment, path: str) -> Segment:
    offsets = range(0, segment.nbytes, COPY_CHUNK_BYTES)
    chunks = (store.get_range(segment.path, offset, COPY_CHUNK_BYTES) for offset in offsets)
    store.put(path, verified_chunks(segment, chunks))
    return msgspec.structs.replace(segment, path=path)


class _CompactionStopped(EnvironmentFailure):
    """`SegmentLog.stop` was called during a compaction."""


class SegmentLog:
    """The segments of a single state of a subtask. Captures call it on the slot's loop, `compact` runs on a compaction
    thread.

    Args:
        name: name of the state; files are named after it.
        groups: the key groups of the subtask.
        key: the primary key of the rows; None: rows without keys, which are copied and never compacted.
        policy: when files are compacted.
    """

    def __init__(self, name: str, groups: range, key: PrimaryKey | None, policy: CompactionPolicy) -> None:
        self._name = name
        self._groups = groups
        self._key = key
        self._policy = policy
        self._segments: tuple[PendingSegment, ...] = ()
        self._log_lock = threading.Lock()
        self._compaction_lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._base_required = False
        self._stopped = False
        self._compacted_bytes = 0

    # ------------------------------------------------------------ on the slot's loop

    @property
    def needs_base(self) -> bool:
        """Whether the next capture should copy the whole state."""
        if self._base_required or any(pending.is_damaged for pending in self._segments):
            return True
        base, deltas = sum(pending.nbytes for pending in self._segments[:1]), self._segments[1:]
        growth = sum(pending.nbytes for pending in deltas)
        policy = self._policy
        many, heavy = len(deltas) >= policy.max_deltas, growth > max(base, policy.base_bytes)
        if self._key is None:
            return many or heavy
        if sum(pending.nbytes for pending in deltas if pending.segments is None) > max(base, policy.copied_bytes):
            return True  # storage is unavailable: the unwritten deltas take more memory than a copy
        return (heavy and base + growth <= policy.copied_bytes) or (many and base + growth <= policy.base_bytes)

    @property
    def base_inline_bytes(self) -> int:
        """Maximum size of an inline base."""
        return self._policy.inline_bytes

    @property
    def delta_inline_bytes(self) -> int:
        """Maximum size of the next inline delta. All inline segments of the log share the bound."""
        return max(0, self._policy.inline_bytes - sum(pending.max_inline_bytes for pending in self._segments))

    def new_segment(
        self,
        make: BatchFactory,
        proof: LazyProof,
        state: LazyProof,
        rows: int,
        nbytes: int,
        groups: tuple[int, int] | None = None,
        inline_bytes: int = 0,
    ) -> PendingSegment:
        """A new pending segment, not yet part of the log. For the arguments see `PendingSegment`."""
        name = f"{self._name}-{next(self._numbers):06d}.arrow"
        return PendingSegment(name, make, proof, state, self._key, rows, nbytes, groups, inline_bytes)

    def start_from(self, base: PendingSegment | None) -> None:
        """Starts a new log from `base`; None: the state is empty."""
        with self._log_lock:
            self._segments = () if base is None else (base,)
            self._base_required = False

    def append(self, delta: PendingSegment | None) -> None:
        if delta is not None:
            with self._log_lock:
                self._segments = (*self._segments, delta)

    def restore(self, segments: Iterable[Segment], state: LazyProof, rows: int, nbytes: int) -> None:
        """Starts from the restored segments of another lineage: the first capture writes the state anew.

        A small state is copied at that capture. A larger state is compacted from the restored files: no barrier waits.
        """
        if nbytes <= self._policy.copied_bytes:
            self._base_required = True
        else:
            self.start_from(self._merged_segment(tuple(segments), state, (), rows, nbytes))

    def segments(self) -> tuple[PendingSegment, ...]:
        """The segments for a snapshot taken now; marks them as referenced."""
        with self._log_lock:
            for pending in self._segments:
                pending.is_referenced = True
            return self._segments

    def stop(self) -> None:
        """Stops compaction soon, permanently. Callable from any thread."""
        self._stopped = True

    # ------------------------------------------------------------ on a compaction thread

    def compact(self, store: SnapshotStore, prefix: str) -> None:
        """Compacts segments into files in `prefix` until none is due. After a failure the next capture tries again.

        Raises:
            CorruptState: a file is damaged, or the merged rows differ from the state. The next capture writes a base.
        """
        with self._compaction_lock:
            while not self._stopped and (run := self._due_run())[0]:
                pending = self._compaction_of(*run)
                try:
                    _, nbytes = pending.write(store, prefix)
                except _CompactionStopped:
                    return
                except _UNREADABLE_ERRORS:
                    self._require_base(run[0])
                    raise
                with self._log_lock:
                    self._compacted_bytes += nbytes
                replaced = [segment for entry in self._replace_run(run[0], pending) for segment in entry.segments or ()]
                store.delete([segment.path for segment in replaced if not segment.is_inline])

    def take_compacted_bytes(self) -> int:
        """Bytes written by compaction since the last call."""
        with self._log_lock:
            nbytes, self._compacted_bytes = self._compacted_bytes, 0
            return nbytes

    def _due_run(self) -> tuple[tuple[PendingSegment, ...], bool]:
        """The segments to compact, and whether they begin with the base."""
        if self._key is None:
            return (), False
        segments = self._segments
        written = tuple(itertools.takewhile(lambda pending: pending.segments is not None, segments))
        sizes = [sum(segment.nbytes for segment in pending.segments or ()) for pending in written]
        is_large = sum(pending.nbytes for pending in segments) > self._policy.copied_bytes
        start = compaction_start(sizes, self._policy.max_deltas, is_large) if written else None
        return ((), False) if start is None else (written[start:], start == 0)

    def _compaction_of(self, run: tuple[PendingSegment, ...], with_base: bool) -> PendingSegment:
        segments = [segment for pending in run for segment in pending.segments or ()]
        rows, nbytes = sum(pending.rows for pending in run), sum(pending.nbytes for pending in run)
        deltas = () if with_base else tuple(pending.proof for pending in run for _ in pending.segments or ())
        return self._merged_segment(segments, run[-1].state, deltas, rows, nbytes)

    def _merged_segment(
        self, segments: Sequence[Segment], state: LazyProof, deltas: Sequence[LazyProof], rows: int, nbytes: int
    ) -> PendingSegment:
        """The merge of `segments` into one; `deltas`: their proofs if they do not begin with the base."""
        assert self._key is not None, "rows without keys are not compacted"
        merge = Merge(
            key=self._key,
            segments=segments,
            groups=self._groups,
            nbytes=nbytes,
            slice_bytes=self._policy.slice_bytes,
            state=None if deltas else state,
            segment_proofs=deltas,
        )
        return self.new_segment(
            lambda store: self._check_stop(merge.batches(store)), ProofOnce(merge.proof), state, rows, nbytes
        )

    def _check_stop(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self._stopped:
                raise _CompactionStopped("the subtask has ended")
            yield batch

    def _replace_run(self, run: tuple[PendingSegment, ...], pending: PendingSegment) -> list[PendingSegment]:
        """Replaces the compacted run by `pending`. During the compaction, the log may have grown or started anew.

        Returns the segments that no snapshot names or will name.
        """
        left = sum(segment.rows for segment in pending.segments or ())
        pending.nbytes, pending.rows = pending.nbytes * left // max(1, pending.rows), left
        with self._log_lock:
            if run[0] not in self._segments:
                return [pending]
            at = self._segments.index(run[0])
            self._segments = (*self._segments[:at], *((pending,) if left else ()), *self._segments[at + len(run) :])
            return [entry for entry in run if not entry.is_referenced]

    def _require_base(self, run: tuple[PendingSegment, ...]) -> None:
        """Requests a full copy at the next capture, because a file is damaged or missing. No-op after a new base."""
        with self._log_lock:
            self._base_required = self._base_required or run[0] in self._segments
