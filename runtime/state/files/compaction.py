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
from runtime.ports import SnapshotStore
from runtime.state.files.segments import read_segment
from runtime.state.index.factorise import factorise
from runtime.state.index.key_codec import common_key_type, common_value_type

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
_GROUP_COLUMN, _DELETED_COLUMN, _FIRST_KEY_COLUMN = 0, 1, 2  #: columns of a segment, by position


def compaction_start(sizes: Sequence[int], most: int, whole: bool) -> int | None:
    """Index of the oldest file of the run to compact, which ends at the newest file; None if no run is due.

    Size classes are a factor of `most` apart. The newest files up to some class are compacted if the result belongs to
    a higher class, or, in the smallest class, if there are `most` of them.

    Args:
        sizes: file sizes in bytes, oldest first; `sizes[0]` is the base.
        most: number of files of a size class that become one; at least 2.
        whole: whether the run may include the base.
    """
    if whole and sum(sizes[1:]) > sizes[0]:
        return 0
    found = None
    for level in range(1, _size_class(max(sizes[1:], default=0), most) + 2):
        limit = SMALLEST_CLASS_UNIT_BYTES * most**level
        run = list(takewhile(limit.__gt__, reversed(sizes[1:])))
        if len(run) > 1 and (sum(run) >= limit or (level == 1 and len(run) >= most)):
            found = len(sizes) - len(run)
    return found


def _size_class(size: int, most: int) -> int:
    bounds = takewhile(
        lambda bound: bound <= size, accumulate([SMALLEST_CLASS_UNIT_BYTES] + [most] * 64, lambda a, b: a * b)
    )
    return max(0, len(list(bounds)) - 1)


def compacted_batches(
    store: SnapshotStore,
    segments: Sequence[Segment],
    groups: range,
    keys: int,
    nbytes: int,
    whole: bool,
    slice_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """The newest row of each key in `groups`, sorted by key group, a few key groups per batch.

    Args:
        segments: oldest first.
        keys: number of key columns.
        nbytes: approximate size of all rows if they were in memory (files are compressed).
        whole: whether the first segment is the base; tombstones are then dropped.
        slice_bytes: approximate size of the rows in memory at a time, and of the small files that stay in memory.

    Raises:
        CorruptState: a file does not match its manifest.
        pa.ArrowTypeError: two types of a column have no common type.
    """
    schemas, kept = _read_heads(store, segments, slice_bytes)
    schema = _common_schema(schemas, keys)
    for part in _group_slices(max(nbytes, sum(segment.nbytes for segment in segments)), groups, slice_bytes):
        batches = [
            rows.cast(schema)
            for segment, whole_file in zip(segments, kept, strict=True)
            if (rows := _segment_rows(store, segment, part, whole_file)) is not None
        ]
        if batches and (batch := _newest_rows(batches, keys, whole)).num_rows:
            yield batch


def _read_heads(
    store: SnapshotStore, segments: Sequence[Segment], kept_bytes: int
) -> tuple[list[pa.Schema], list[pa.RecordBatch | None]]:
    """The schema of each segment, and its rows if it has a single block: reading the schema reads the whole file.

    The rows that are kept, so that no slice reads the file again, take at most `kept_bytes` together.
    """
    schemas, kept = list[pa.Schema](), list[pa.RecordBatch | None]()
    for segment in segments:
        rows = read_segment(store, segment, range(0))
        schemas.append(rows.schema)
        is_kept = not segment.blocks and rows.nbytes <= kept_bytes
        kept.append(rows if is_kept else None)
        kept_bytes -= rows.nbytes if is_kept else 0
    return schemas, kept


def _common_schema(schemas: Sequence[pa.Schema], keys: int) -> pa.Schema:
    """The schema that holds the rows of all segments. After a rescale any of them may have the widest type."""
    fields = list(schemas[-1])
    for schema in schemas[:-1]:
        for position, other in enumerate(schema.types):
            field = fields[position]
            common_type = common_key_type if position < _FIRST_KEY_COLUMN + keys else common_value_type
            if (common := common_type(field.type, other)) is None:
                raise pa.ArrowTypeError(f"column {field.name!r} is {other} and {field.type} in the segments of a state")
            fields[position] = field.with_type(common)
    return pa.schema(fields)


def _group_slices(total: int, groups: range, slice_bytes: int) -> Iterator[range]:
    step = max(1, len(groups) * slice_bytes // max(1, total))
    for start in range(groups.start, groups.stop, step):
        yield range(start, min(start + step, groups.stop))


def _segment_rows(
    store: SnapshotStore, segment: Segment, groups: range, whole_file: pa.RecordBatch | None
) -> pa.RecordBatch | None:
    own = range(max(groups.start, segment.first_group), min(groups.stop, segment.last_group + 1))
    if not own:
        return None
    batch = read_segment(store, segment, own) if whole_file is None else whole_file
    start, stop = np.searchsorted(batch.column(_GROUP_COLUMN).to_numpy(), [own.start, own.stop])
    return batch.slice(int(start), int(stop - start))


def _newest_rows(batches: Sequence[pa.RecordBatch], keys: int, whole: bool) -> pa.RecordBatch:
    """The newest row of each primary key (key group, key columns), by key group and then in the order of writing.

    State per key group, such as the rows of a join, has the same key columns in every key group.
    """
    rows = pa.concat_batches(batches)
    distinct = factorise([rows.column(_GROUP_COLUMN), *rows.columns[_FIRST_KEY_COLUMN : _FIRST_KEY_COLUMN + keys]])
    last = np.empty(len(distinct), dtype=np.intp)
    last[distinct.key_numbers] = np.arange(rows.num_rows)  # numpy keeps the last of repeated assignments
    last.sort()
    if whole:
        last = last[~rows.column(_DELETED_COLUMN).to_numpy(zero_copy_only=False)[last]]
    order = np.argsort(rows.column(_GROUP_COLUMN).to_numpy()[last], kind="stable")
    return rows.take(pa.array(last[order]))
