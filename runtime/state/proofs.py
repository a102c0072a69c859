"""Proofs of operator state (`core.snapshot.proofs`): sums of entry hashes by key group, kept beside a live table.

The hash of an entry is that of its key columns and then its value columns (`index.hashing`): equal in every encoding of
the same values, and in every type to which a column is widened. A live table hashes what it holds; `RowProofs` hashes
the rows of segments. So a rewrite that loses, doubles or changes an entry differs from the proof.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.snapshot.proofs import GroupProof, StateProof, proof_difference
from runtime.errors import CorruptState
from runtime.state.index.factorise import distinct_codes
from runtime.state.index.hashing import Hashes, hash_values
from runtime.state.primary_key import BROADCAST_GROUP, Groups, PrimaryKey

HASHED_ROWS: Final = 1 << 16  #: rows that are copied to be hashed at a time

LazyProof = Callable[[], StateProof]  #: a proof that is computed at its first use; callable from any thread


class ProofOnce:
    """A `LazyProof` that drops `make`, and the rows that it refers to, once it has been computed."""

    def __init__(self, make: LazyProof) -> None:
        self._make: LazyProof | None = make
        self._proof: StateProof = {}
        self._lock = threading.Lock()

    def __call__(self) -> StateProof:
        with self._lock:
            if self._make is not None:
                self._proof, self._make = self._make(), None
            return self._proof


class ProofSums:
    """Number of entries and sum of their hashes, by key group."""

    def __init__(self) -> None:
        self._entries = np.zeros(0, dtype=np.int64)
        self._hashes = np.zeros(0, dtype=np.uint64)

    def add(self, groups: Groups, hashes: Hashes) -> None:
        """Adds entries with the key groups `groups`."""
        self._reserve(groups)
        np.add.at(self._entries, groups, 1)
        np.add.at(self._hashes, groups, hashes)

    def remove(self, groups: Groups, hashes: Hashes) -> None:
        """Removes entries with the key groups `groups`."""
        self._reserve(groups)
        np.subtract.at(self._entries, groups, 1)
        np.subtract.at(self._hashes, groups, hashes)

    def copy(self) -> "ProofSums":
        twin = ProofSums()
        twin._entries, twin._hashes = self._entries.copy(), self._hashes.copy()
        return twin

    def proof(self) -> StateProof:
        groups = np.flatnonzero((self._entries != 0) | (self._hashes != 0))
        sums = zip(groups.tolist(), self._entries[groups].tolist(), self._hashes[groups].tolist(), strict=True)
        return {group: GroupProof(entries, hash_sum) for group, entries, hash_sum in sums}

    def _reserve(self, groups: Groups) -> None:
        missing = int(groups.max(initial=-1)) + 1 - len(self._entries)
        if missing > 0:
            self._entries = np.append(self._entries, np.zeros(missing, dtype=np.int64))
            self._hashes = np.append(self._hashes, np.zeros(missing, dtype=np.uint64))


class RowProofs:
    """The proof of rows of segments, batch by batch. `key`: None for broadcast rows, which have no keys."""

    def __init__(self, key: PrimaryKey | None) -> None:
        self._key = key
        self._sums = ProofSums()

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Passes batches on, and adds their rows."""
        for batch in batches:
            if self._key is None:
                add_broadcast_rows(self._sums, batch)
            else:
                self._sums.add(self._key.groups(batch), self._key.row_hashes(batch)[1])
            yield batch

    def proof(self) -> StateProof:
        return self._sums.proof()


def proof_of_rows(key: PrimaryKey | None, batches: Iterable[pa.RecordBatch]) -> StateProof:
    """The proof of rows of segments."""
    proof = RowProofs(key)
    for _ in proof.counted(batches):
        pass
    return proof.proof()


class MergeProof:
    """The proof of a merge of deltas, for which no table has a proof: of the newest row of each entry, and tombstones.

    The segments are compared with their own proofs first. Entries are then compared by the hashes of their keys.

    Args:
        expected: the path of each segment, and its proof from the capture of the table.
    """

    def __init__(self, key: PrimaryKey, expected: Sequence[tuple[str, LazyProof]]) -> None:
        self._key = key
        self._expected = expected
        self._segments = [ProofSums() for _ in expected]
        self._merged = ProofSums()

    def add(self, batches: Sequence[pa.RecordBatch | None]) -> None:
        """Adds rows of the same key groups from each segment, oldest segment first."""
        parts = list[tuple[npt.NDArray[np.int64], Hashes, Hashes]]()
        for batch, sums in zip(batches, self._segments, strict=True):
            if batch is not None:
                groups = self._key.groups(batch)
                keys, rows = self._key.row_hashes(batch)
                sums.add(groups, rows)
                parts.append((groups.astype(np.int64), keys, rows))
        if not parts:
            return
        groups, keys, rows = (np.concatenate(each) for each in zip(*parts, strict=True))
        numbers = distinct_codes(np.stack([groups, keys.view(np.int64)])).key_numbers
        newest = np.empty(int(numbers.max(initial=-1)) + 1, dtype=np.intp)
        newest[numbers] = np.arange(len(numbers))
        self._merged.add(groups[newest], rows[newest])

    def proof(self) -> StateProof:
        """The proof of the merged rows.

        Raises:
            CorruptState: a segment has other rows than the table had when the segment was captured.
        """
        for (path, proof), sums in zip(self._expected, self._segments, strict=True):
            check_proof(path, proof(), sums.proof())
        return self._merged.proof()


def complete_proof(state: str, proof: LazyProof, count: int) -> LazyProof:
    """The proof of a table with `count` entries. It raises CorruptState if it lacks a change of the table."""

    def complete() -> StateProof:
        counted = proof()
        entries = sum(group.entries for group in counted.values())
        if entries != count:
            raise CorruptState(f"state {state!r}", f"it has {count} entries, and {entries} in its proof")
        return counted

    return complete


def check_proof(name: str, expected: StateProof, actual: StateProof) -> None:
    """Compares the rows of a state with its proof.

    Args:
        name: the file or the state, for the error.

    Raises:
        CorruptState: the proofs differ; the error names `name` and the first key group.
    """
    if difference := proof_difference(expected, actual):
        raise CorruptState(name, f"it differs from the state of the operator: {difference}")


def add_broadcast_rows(sums: ProofSums, batch: pa.RecordBatch) -> None:
    """Adds rows of broadcast state, which are all in one key group. The hash leaves out columns of nested types."""
    groups = np.full(batch.num_rows, BROADCAST_GROUP, dtype=np.int32)
    sums.add(groups, hash_values(batch.columns, batch.num_rows))


class ProofHistory:
    """The proof of a table at its captures, computed at its first use from the changes between captures.

    So a barrier does not wait for the hashes of entries. `advance` runs on the slot's loop, proofs are read anywhere.
    """

    def __init__(self, sums: ProofSums) -> None:
        self._newest = _Point(sums, threading.Lock())

    @property
    def newest(self) -> LazyProof:
        """The proof at the last capture."""
        return self._newest.proof

    def advance(self, change: "Change") -> None:
        """Adds a capture. `change` removes and adds the entries that changed since the last one."""
        self._newest = self._newest.then(change)

    def preview(self, change: "Change") -> LazyProof:
        """The proof after `change`, which the next capture contains, too."""
        return self._newest.then(change).proof


Change = Callable[[ProofSums], None]


class _Point:
    """The sums at a capture: known, or those of the previous point and a change."""

    def __init__(self, sums: ProofSums | None, lock: threading.Lock) -> None:
        self._sums = sums
        self._lock = lock
        self._previous: _Point | None = None
        self._change: Change | None = None

    def then(self, change: Change) -> "_Point":
        following = _Point(None, self._lock)
        following._previous, following._change = self, change
        return following

    def proof(self) -> StateProof:
        with self._lock:
            return self._resolve().proof()

    def _resolve(self) -> ProofSums:
        """The sums. Computes those of earlier points first, without recursion: many captures may have failed."""
        waiting: list[_Point] = []
        point = self
        while point._sums is None:
            assert point._previous is not None, "the first point has sums"
            waiting.append(point)
            point = point._previous
        sums = point._sums
        for point in reversed(waiting):
            assert point._change is not None, "a point without sums has a change"
            sums = sums.copy()
            point._change(sums)
            point._sums, point._previous, point._change = sums, None, None
        return sums
