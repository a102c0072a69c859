"""Which segments make up a state: a base and the deltas after it, and when to begin a new base.

A link is written once, by whichever capture's write comes to it first. A link whose write failed stays unwritten, and
the write of the next capture tries again; so no change is ever lost, and none is written twice. A write that is
overtaken by the next capture's write (its checkpoint expired) is safe too: each link has a lock.

Segments are written for one checkpoint and used by later ones: a file may only be deleted when no retained manifest and
no checkpoint under way names it.
"""

import threading
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from runtime.core.checkpoint import Segment
from runtime.ports import SnapshotStore
from runtime.state.segments import write_segment

MOST_DELTAS: Final = 8
SMALLEST_BASE_BYTES: Final = 1 << 16  #: below this size deltas may exceed the base


class Link:
    """Captured rows on their way to a segment.

    Args:
        name: file name, unique within a subtask's attempt.
        make: encodes the rows; called in the background, again after a failed write.
        nbytes: their size in memory.
        groups: first and last key group that may occur.
        by_group: the rows are sorted by key group, which is their first column.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], pa.RecordBatch],
        nbytes: int,
        groups: tuple[int, int],
        by_group: bool = False,
    ) -> None:
        self.nbytes = nbytes
        self._by_group = by_group
        self._name = name
        self._make: Callable[[], pa.RecordBatch] | None = make
        self._groups = groups
        self._segment: Segment | None = None
        self._lock = threading.Lock()

    def write(self, store: SnapshotStore, prefix: str) -> tuple[Segment, int]:
        """The segment, written under `prefix` unless it was before, and the bytes that this took."""
        with self._lock:
            if self._segment is not None:
                return self._segment, 0
            assert self._make is not None, "rows are kept until they are written"
            segment = write_segment(store, f"{prefix}/{self._name}", self._make(), self._groups, self._by_group)
            self._segment, self._make = segment, None
            return segment, segment.nbytes


class Chain:
    """The links of one state."""

    def __init__(self) -> None:
        self._links: list[Link] = []
        self._base_bytes = 0
        self._based = False

    @property
    def wants_base(self) -> bool:
        """Whether the next capture should copy everything: at first, and when deltas outweigh the base."""
        if not self._based:
            return True
        deltas = self._links[1:] if self._base_bytes else self._links
        limit = max(self._base_bytes, SMALLEST_BASE_BYTES)
        return len(deltas) >= MOST_DELTAS or sum(link.nbytes for link in deltas) > limit

    def rebase(self, base: Link | None) -> None:
        """Starts again from a base (None: the state is empty)."""
        self._links = [] if base is None else [base]
        self._base_bytes = 0 if base is None else base.nbytes
        self._based = True

    def append(self, delta: Link | None) -> None:
        if delta is not None:
            self._links.append(delta)

    def links(self) -> tuple[Link, ...]:
        """What a snapshot taken now consists of."""
        return tuple(self._links)
