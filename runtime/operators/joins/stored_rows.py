"""The kept rows of a stream as keyed state: an entry per key group and part, so rows move with their key groups.

A snapshot adds the rows since the last snapshot as a *part*: rows of one bucket of event time, an Arrow stream per key
group. Parts of a bucket are merged in tiers, so that their number stays small however often snapshots are taken. A part
is deleted when none of its rows can match any more. Rows that come and go between two snapshots are never stored.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.operators.event_time import Times
from runtime.state.object_table import Entry, ObjectTable

_NO_KEY: Final = msgspec.msgpack.encode(None)
_PARTS_PER_TIER: Final = 8

Groups = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part in the state: its place, its bucket, the latest time in it, the number of merges, and its key groups."""

    place: int
    bucket: int
    latest_ms: int
    tier: int
    groups: tuple[int, ...]

    @property
    def entries(self) -> list[Entry]:
        return [(group, _NO_KEY, msgspec.msgpack.encode(self.place)) for group in self.groups]


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows that no snapshot holds yet."""

    rows: pa.RecordBatch
    times: Times
    groups: Groups  #: key groups


class StoredRows:
    """The parts of a stream.

    Args:
        bucket_ms: length of a bucket of event time.
    """

    def __init__(self, table: ObjectTable, bucket_ms: int) -> None:
        self._table = table
        self._bucket_ms = bucket_ms
        self._parts: list[_Part] = []
        self._new: list[NewRows] = []
        self._next_place = 0

    def restored(self) -> Iterable[tuple[int, int, pa.RecordBatch]]:
        """The restored entries: key group, place and rows."""
        for (group, _, place), data in self._table.items():
            assert isinstance(place, bytes), "places are encoded"
            assert isinstance(data, bytes), "an entry holds an Arrow stream"
            yield group, msgspec.msgpack.decode(place), _decode(data)

    def adopt(self, place: int, groups: Iterable[int], times: Times) -> None:
        """Registers a restored part with its key groups and the times of its rows."""
        latest = int(times.max())
        self._parts.append(_Part(place, latest // self._bucket_ms, latest, 0, tuple(groups)))
        self._next_place = max(self._next_place, place + 1)

    def add(self, new: NewRows) -> None:
        """Adds rows, which the next snapshot stores unless they are gone by then."""
        self._new.append(new)

    def drop_new_before(self, oldest_ms: int) -> None:
        """Drops the new rows of batches whose times are all before `oldest_ms`: a job may take no snapshots."""
        self._new = [new for new in self._new if int(new.times.max()) >= oldest_ms]

    def store(self, oldest_ms: int) -> None:
        """Stores the new rows from time `oldest_ms` on, and deletes the parts with earlier rows only."""
        for part in self._parts:
            if part.latest_ms < oldest_ms:
                self._delete(part)
        self._parts = [part for part in self._parts if part.latest_ms >= oldest_ms]
        new, self._new = self._new, []
        self._store_new(new, oldest_ms)
        self._merge_tiers()

    def _store_new(self, new: Sequence[NewRows], oldest_ms: int) -> None:
        if not new:
            return
        times, groups = np.concatenate([each.times for each in new]), np.concatenate([each.groups for each in new])
        buckets = times // self._bucket_ms
        order = np.lexsort((groups, buckets))
        order = order[times[order] >= oldest_ms]
        if not len(order):
            return
        rows = _concat([each.rows for each in new]).take(pa.array(order))
        times, groups, buckets = times[order], groups[order], buckets[order]
        borders = [0, *(np.flatnonzero(np.diff(buckets)) + 1).tolist(), len(order)]
        for start, stop in pairwise(borders):
            latest, part = int(times[start:stop].max()), rows.slice(start, stop - start)
            self._put(int(buckets[start]), latest, 0, part, groups[start:stop])

    def _put(self, bucket: int, latest_ms: int, tier: int, rows: pa.RecordBatch, groups: Groups) -> None:
        """Adds a part. `groups`: the key group of each row, ascending."""
        place, self._next_place = self._next_place, self._next_place + 1
        key_groups, starts = np.unique(groups, return_index=True)
        part = _Part(place, bucket, latest_ms, tier, tuple(key_groups.tolist()))
        self._parts.append(part)
        stops = [*starts[1:].tolist(), len(groups)]
        for entry, start, stop in zip(part.entries, starts.tolist(), stops, strict=True):
            self._table.put(entry, _encode(rows.slice(start, stop - start)))

    def _merge_tiers(self) -> None:
        """Merges the parts of a bucket and tier once there are many."""
        by_tier: dict[tuple[int, int], list[_Part]] = {}
        for part in self._parts:
            by_tier.setdefault((part.bucket, part.tier), []).append(part)
        for (bucket, tier), parts in by_tier.items():
            if len(parts) >= _PARTS_PER_TIER:
                self._merge(bucket, tier, parts)

    def _merge(self, bucket: int, tier: int, parts: Sequence[_Part]) -> None:
        pieces: list[tuple[int, pa.RecordBatch]] = []
        for part in parts:
            for entry in part.entries:
                data = self._table.entries_of(entry[0], _NO_KEY)[entry[2]]
                assert isinstance(data, bytes), "an entry holds an Arrow stream"
                pieces.append((entry[0], _decode(data)))
            self._delete(part)
        pieces.sort(key=lambda piece: piece[0])
        groups = np.concatenate([np.full(len(rows), group, np.int32) for group, rows in pieces])
        self._parts = [part for part in self._parts if part not in parts]
        latest = max(part.latest_ms for part in parts)
        self._put(bucket, latest, tier + 1, _concat([rows for _, rows in pieces]), groups)

    def _delete(self, part: _Part) -> None:
        for entry in part.entries:
            self._table.delete(entry)


def _encode(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _decode(data: bytes) -> pa.RecordBatch:
    return pa.ipc.open_stream(data).read_next_batch()


def _concat(rows: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows in a single batch. Parts that an older version of the job stored may have narrower types."""
    if len(rows) == 1:
        return rows[0]
    table = pa.concat_tables([pa.Table.from_batches([each]) for each in rows], promote_options="permissive")
    (batch,) = table.combine_chunks().to_batches()
    return batch
