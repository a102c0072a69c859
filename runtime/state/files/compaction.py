"""Compaction: which segments of a state become one file, and the rows of that file.

Size-tiered, as in a log-structured merge tree: files of similar size are compacted when there are enough of them. So a
row is rewritten a few times at most. Once the deltas together outweigh the base, all files become one. The newest row
of a key wins. Rows pass through memory a few key groups at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.core.snapshot.manifest import Segment
from runtime.core.snapshot.proofs import StateProof
from runtime.ports import SnapshotStore
from runtime.state.files.segments import read_segment
from runtime.state.index.key_codec import common_key_type, common_value_type
from runtime.state.primary_key import PrimaryKey
from runtime.state.proofs import LazyProof, MergeProof

SMALLEST_CLASS_UNIT_BYTES: Final = 4096  #: files smaller than `most` units form the smallest size class


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """When the files of a state are compacted, and which segments are no files. Sizes in bytes."""

    max_deltas: int = 8  #: number of files of a size class that become one; at least 2
    copied_bytes: int = 1 << 22  #: a state up to this size is copied at a barrier, in a few milliseconds
    base_bytes: int = 1 << 16  #: deltas up to this total size may exceed the base
    slice_bytes: int = 1 << 24  #: approximate size of the rows in memory at a time; as much again for small files
    inline_bytes: int = 20 * 1024  #: of a state's segments together that lie in the manifest; Flink's default


DEFAULT_POLICY: Final = CompactionPolicy()


def compaction_start(sizes: Sequence[int], most: int, with_base: bool) -> int | None:
    """Index of the oldest file of the run to compact, which ends at the newest file; None if no run is due.

    Size classes are a factor of `most` apart. The newest files up to some class are compacted if the result belongs to
    a higher class, or, in the smallest class, if there are `most` of them.

    Args:
        sizes: file sizes in bytes, oldest first; `sizes[0]` is the base.
        most: number of files of a size class that become one; at least 2.
        with_base: whether the run may include the base.
    """
    if with_base and sum(sizes[1:]) > sizes[0]:
        return 0
    start = None
    for level in range(1, _size_class(max(sizes[1:], default=0), most) + 2):
        limit = SMALLEST_CLASS_UNIT_BYTES * most**level
        run = list(takewhile(limit.__gt__, reversed(sizes[1:])))
        if len(run) > 1 and (sum(run) >= limit or (level == 1 and len(run) >= most)):
            start = len(sizes) - len(run)
    return start


def _size_class(size: int, most: int) -> int:
    bounds = takewhile(
        lambda bound: bound <= size, accumulate([SMALLEST_CLASS_UNIT_BYTES] + [most] * 64, lambda a, b: a * b)
    )
    return max(0, len(list(bounds)) - 1)


@dataclass
class Merge:
    """The newest row of each entry in `groups`, sorted by key group, a few key groups per batch.

    Args:
        key: the primary key of the entries.
        segments: oldest first.
        nbytes: approximate size of all rows if they were in memory (files are compressed).
        slice_bytes: approximate size of the rows in memory at a time, and of the small files that stay in memory.
        state: the proof of the state, if the first segment is its base; tombstones are then dropped.
        segment_proofs: otherwise, the proof of each segment.
    """

    key: PrimaryKey
    segments: Sequence[Segment]
    groups: range
    nbytes: int
    slice_bytes: int
    state: LazyProof | None
    segment_proofs: Sequence[LazyProof] = ()

    def __post_init__(self) -> None:
        assert (self.state is None) == (len(self.segment_proofs) == len(self.segments) > 0), "one kind of proof"
        self._merged: MergeProof | None = None

    def batches(self, store: SnapshotStore) -> Iterator[pa.RecordBatch]:
        """The merged rows.

        Raises:
            CorruptState: a file does not match its manifest.
            pa.ArrowTypeError: two types of a column have no common type.
        """
        paths = [segment.path for segment in self.segments]
        expected = list(zip(paths, self.segment_proofs, strict=True)) if self.state is None else []
        merged = self._merged = MergeProof(self.key, expected) if self.state is None else None
        schemas, whole_files = _read_heads(store, self.segments, self.slice_bytes)
        schema = _common_schema(schemas, self.key)
        total = max(self.nbytes, sum(segment.nbytes for segment in self.segments))
        for part in _group_slices(total, self.groups, self.slice_bytes):
            batches = [
                None if rows is None else rows.cast(schema)
                for segment, whole_file in zip(self.segments, whole_files, strict=True)
                for rows in [self._rows_of(store, segment, part, whole_file)]
            ]
            if merged is not None:
                merged.add(batches)
            present = [batch for batch in batches if batch is not None]
            if present and (batch := self._newest_rows(present)).num_rows:
                yield batch

    def proof(self) -> StateProof:
        """The proof of the merged rows; after `batches`.

        Raises:
            CorruptState: a segment has other rows than the table had when the segment was captured.
        """
        if self.state is not None:
            return self.state()
        assert self._merged is not None, "the rows were read"
        return self._merged.proof()

    def _rows_of(
        self, store: SnapshotStore, segment: Segment, groups: range, whole_file: pa.RecordBatch | None
    ) -> pa.RecordBatch | None:
        inside = range(max(groups.start, segment.first_group), min(groups.stop, segment.last_group + 1))
        if not inside:
            return None
        batch = read_segment(store, segment, inside) if whole_file is None else whole_file
        return self.key.in_groups(batch, inside)

    def _newest_rows(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """The newest row of each entry, by key group and then in the order of writing."""
        rows = pa.concat_batches(batches)
        newest = self.key.newest_rows(rows)
        if self.state is not None:
            newest = newest[~self.key.deleted(rows)[newest]]
        order = np.argsort(self.key.groups(rows)[newest], kind="stable")
        return rows.take(pa.array(newest[order]))


def _read_heads(
    store: SnapshotStore, segments: Sequence[Segment], kept_bytes: int
) -> tuple[list[pa.Schema], list[pa.RecordBatch | None]]:
    """The schema of each segment, and its rows if it has a single block: reading the schema reads the whole file.

    The rows that are kept, so that no slice reads the file again, take at most `kept_bytes` together.
    """
    schemas, whole_files = list[pa.Schema](), list[pa.RecordBatch | None]()
    for segment in segments:
        rows = read_segment(store, segment, range(0))
        schemas.append(rows.schema)
        is_kept = not segment.blocks and rows.nbytes <= kept_bytes
        whole_files.append(rows if is_kept else None)
        kept_bytes -= rows.nbytes if is_kept else 0
    return schemas, whole_files


def _common_schema(schemas: Sequence[pa.Schema], key: PrimaryKey) -> pa.Schema:
    """The schema that holds the rows of all segments. After a rescale any of them may have the widest type."""
    fields = list(schemas[-1])
    first_value = len(fields) - len(key.values(fields))
    for schema in schemas[:-1]:
        for position, other in enumerate(schema.types):
            field = fields[position]
            common_type = common_key_type if position < first_value else common_value_type
            if (common := common_type(field.type, other)) is None:
                raise pa.ArrowTypeError(f"column {field.name!r} is {other} and {field.type} in the segments of a state")
            fields[position] = field.with_type(common)
    return pa.schema(fields)


def _group_slices(total: int, groups: range, slice_bytes: int) -> Iterator[range]:
    step = max(1, len(groups) * slice_bytes // max(1, total))
    for start in range(groups.start, groups.stop, step):
        yield range(start, min(start + step, groups.stop))
