"""Snapshots of the simulator's operators: plain images as input for production's chains, captures and state files.

This module computes the changes since the last capture. `runtime.state` decides which files a snapshot names and when
they are compacted.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from runtime.core.snapshot.manifest import Segment, SubtaskSnapshot
from runtime.ports import SnapshotStore
from runtime.simulation.model import MAX_PARALLELISM, Image, Rows
from runtime.state.backend import StateCapture
from runtime.state.files.segment_log import Chain, Link
from runtime.state.files.segments import read_segment

KEYED: Final = "keyed"
TABLE: Final = "table"
HELD: Final = "held"
POOLED: Final = "pooled"
SCHEMA: Final = pa.schema(
    [("group", pa.int32()), ("deleted", pa.bool_()), ("name", pa.string()), ("value", pa.int64())]
)
KEYS: Final = 1  #: number of key columns
ROW_BYTES: Final = 6_000  #: pretended size of a row, so that deltas outweigh a base even with few rows
COPIED_ROWS: Final = 4  #: a larger state is compacted
Change = tuple[int, str, int | None]  #: key group, name, value; None: the name is deleted


class Snapshots:
    """The captures of an operator subtask in an attempt."""

    def __init__(self) -> None:
        groups = range(MAX_PARALLELISM)
        self._chains = {KEYED: Chain(KEYED, groups, KEYS, COPIED_ROWS * ROW_BYTES), TABLE: Chain(TABLE, groups)}
        self._seen: dict[str, dict[tuple[int, str], int]] = {KEYED: {}, TABLE: {}}

    def capture(self, image: Image, full: bool) -> StateCapture:
        """The changes since the last capture. `full` (savepoints): the whole image, and no new base of deltas."""
        keyed = {(group, name): value for group, rows in image.keyed.items() for name, value in rows.items()}
        table = {(0, key): place for place, key in enumerate(image.table)}
        return StateCapture(
            keyed={KEYED: self._links(KEYED, keyed, full)},
            broadcast={TABLE: self._links(TABLE, table, full)},
            lists={HELD: image.held},
            unions={} if image.pooled is None else {POOLED: image.pooled},
            chains=() if full else tuple(self._chains.values()),
        )

    def _links(self, state: str, now: dict[tuple[int, str], int], full: bool) -> tuple[Link, ...]:
        everything: list[Change] = [(group, name, value) for (group, name), value in now.items()]
        chain, before = self._chains[state], self._seen[state]
        if full:
            link = _link(chain, everything)
            return () if link is None else (link,)
        if chain.wants_base:
            chain.rebase(_link(chain, everything))
        else:
            chain.append(_link(chain, _changes(before, now)))
        self._seen[state] = now
        return chain.links()


def _link(chain: Chain, rows: list[Change]) -> Link | None:
    return chain.link(lambda _: [_batch(rows)], len(rows), ROW_BYTES * len(rows)) if rows else None


def _changes(before: Mapping[tuple[int, str], int], now: Mapping[tuple[int, str], int]) -> list[Change]:
    gone: list[Change] = [(group, name, None) for group, name in before if (group, name) not in now]
    return gone + [(*place, value) for place, value in now.items() if before.get(place) != value]


def _batch(rows: list[Change]) -> pa.RecordBatch:
    laid_out = [(group, value is None, name, value) for group, name, value in sorted(rows, key=lambda row: row[0])]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*laid_out, strict=True), SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def batch_of(rows: Rows) -> pa.RecordBatch:
    """Feedback rows in the form in which they are logged."""
    return pa.RecordBatch.from_pydict({"key": [key for key, _ in rows], "time": [time for _, time in rows]})


def rows_of(batch: pa.RecordBatch) -> Rows:
    return list(zip(*batch.to_pydict().values(), strict=True))


# ---------------------------------------------------------------- reading


def read_image(store: SnapshotStore, snapshot: SubtaskSnapshot) -> Image:
    """The image of a snapshot, from its bases and deltas.

    Raises:
        CorruptState: a file is missing or does not match its snapshot.
    """
    keyed: dict[int, dict[str, int]] = {}
    for (group, name), value in _merged(store, snapshot.keyed.get(KEYED, ())).items():
        keyed.setdefault(group, {})[name] = value
    return Image(keyed, tuple(snapshot.lists.get(HELD, ())), read_table(store, snapshot))


def read_table(store: SnapshotStore, snapshot: SubtaskSnapshot) -> tuple[str, ...]:
    return tuple(name for _, name in _merged(store, snapshot.broadcast.get(TABLE, ())))


def _merged(store: SnapshotStore, segments: Iterable[Segment]) -> dict[tuple[int, str], int]:
    rows: dict[tuple[int, str], int] = {}
    for segment in segments:
        for group, deleted, name, value in zip(*read_segment(store, segment).to_pydict().values(), strict=True):
            if deleted:
                rows.pop((group, name), None)
            else:
                rows[group, name] = value
    return rows
