"""Several state files made into one, beside the running job: which ones, and how.

Files are merged as a log-structured store does it: those of about one size when there are enough of them, so that a row
is written anew a few times at most, however large the state; and all of them when those behind the first outweigh it.
Of several rows of one key the one written last counts. Rows go through memory a few key groups at a time.

It does not know when merging is due, nor who asks for it.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.core.snapshot.manifest import Segment
from runtime.ports import SnapshotStore
from runtime.state.files.segments import read_segment
from runtime.state.index.factorise import factorise

UNIT_BYTES: Final = 4096  #: files of less than `most` units are of the smallest class
SLICE_BYTES: Final = 1 << 24  #: go through memory at a time, about

_GROUP, _DELETED, _FIRST_KEY = 0, 1, 2  #: columns of a segment, by position


def run_to_merge(sizes: Sequence[int], most: int, whole: bool) -> int | None:
    """Where the run begins, up to the newest file, that should be one file now; None: nowhere.

    Classes of size lie a factor of `most` apart. The newest files of a class and those below it become one when that is
    of a class above, or, in the smallest class, when they are `most`.

    Args:
        sizes: bytes of the files, the oldest first, which holds everything that the others do not change.
        most: at least 2.
        whole: whether the oldest may be among them.
    """
    if whole and sum(sizes[1:]) > sizes[0]:
        return 0
    found = None
    for level in range(1, _class_of(max(sizes[1:], default=0), most) + 2):
        limit = UNIT_BYTES * most**level
        run = list(takewhile(limit.__gt__, reversed(sizes[1:])))
        if len(run) > 1 and (sum(run) >= limit or (level == 1 and len(run) >= most)):
            found = len(sizes) - len(run)
    return found


def _class_of(size: int, most: int) -> int:
    bounds = takewhile(lambda bound: bound <= size, accumulate([UNIT_BYTES] + [most] * 64, lambda a, b: a * b))
    return max(0, len(list(bounds)) - 1)


def merged(
    store: SnapshotStore, segments: Sequence[Segment], groups: range, keys: int, nbytes: int, whole: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of `groups` that count, sorted by key group, some key groups at a time.

    Args:
        segments: the oldest first.
        keys: how many columns make up a key.
        nbytes: about what the rows take in memory: files are compressed.
        whole: nothing lies before these, so nothing needs to be told of what was deleted.

    Raises:
        CorruptState: a file is not what its manifest says.
    """
    schema = read_segment(store, segments[-1], range(0)).schema  # a type may have become wider since the first
    for part in _slices(max(nbytes, sum(segment.nbytes for segment in segments)), groups):
        batches = [rows.cast(schema) for segment in segments if (rows := _rows_in(store, segment, part)) is not None]
        if batches and (batch := _latest(batches, keys, whole)).num_rows:
            yield batch


def _slices(total: int, groups: range) -> Iterator[range]:
    step = max(1, len(groups) * SLICE_BYTES // max(1, total))
    for start in range(groups.start, groups.stop, step):
        yield range(start, min(start + step, groups.stop))


def _rows_in(store: SnapshotStore, segment: Segment, groups: range) -> pa.RecordBatch | None:
    own = range(max(groups.start, segment.first_group), min(groups.stop, segment.last_group + 1))
    if not own:
        return None
    batch = read_segment(store, segment, own)
    start, stop = np.searchsorted(batch.column(_GROUP).to_numpy(), [own.start, own.stop])
    return batch.slice(int(start), int(stop - start))


def _latest(batches: Sequence[pa.RecordBatch], keys: int, whole: bool) -> pa.RecordBatch:
    """The last row of each key, in the order of key groups, and in that of writing within one."""
    rows = pa.concat_batches(batches)
    distinct = factorise(rows.columns[_FIRST_KEY : _FIRST_KEY + keys])
    last = np.empty(len(distinct), dtype=np.intp)
    last[distinct.which] = np.arange(rows.num_rows)  # of several that meet here, the last one wins
    last.sort()
    if whole:
        last = last[~rows.column(_DELETED).to_numpy(zero_copy_only=False)[last]]
    order = np.argsort(rows.column(_GROUP).to_numpy()[last], kind="stable")
    return rows.take(pa.array(last[order]))
