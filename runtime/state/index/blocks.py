"""Row ids of integer keys that lie close together: arrays indexed by the key itself.

A key is a row of codes. Keys that agree in all codes but the first (such as the keys of a window) share a block: an
array of row ids by first code. A look-up is a single array access, where a hash table needs several. Keys too far apart
are refused: `KeyIndex` then moves the keys to a hash table.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.kernels.loading import native
from runtime.state.index.buckets import NOT_FOUND, CodeMatrix, CodeRows, RowIds
from runtime.state.index.growing import GrowingArray

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLimits:
    """When keys are too far apart for blocks. An entry takes 4 bytes."""

    max_blocks: int = 128
    min_entries: int = 1 << 18  #: entries that are always allowed
    max_entries: int = 1 << 24
    new_entries_per_key: int = 8  #: limit for new blocks: a hash table takes as much memory
    kept_entries_per_key: int = 16  #: limit for present blocks

    def entry_limit(self, keys: int, per_key: int) -> int:
        return max(self.min_entries, min(self.max_entries, per_key * keys))


class IdBlock:
    """Row ids of keys with the same tail, by first code, from `low` on."""

    def __init__(self, tail: CodeRows, low: int, high: int) -> None:
        self.tail = tail  #: the codes after the first, shape (columns, 1)
        self.tail_bytes = tail.tobytes()
        self.low = low
        self.count = 0
        self._row_ids = GrowingArray(np.int32, high - low + 1)

    @property
    def row_ids(self) -> npt.NDArray[np.int32]:
        """By first code minus `low`: row id + 1; 0: no key."""
        return self._row_ids.data

    @property
    def entries(self) -> int:
        return len(self._row_ids)

    def find(self, firsts: Codes) -> RowIds:
        offsets, row_ids = firsts - self.low, self.row_ids
        outside = offsets.view(np.uint64) >= len(row_ids)  # also when the difference wrapped round
        if not outside.any():
            return row_ids[offsets].astype(np.intp) - 1
        offsets[outside] = 0
        ids = row_ids[offsets].astype(np.intp) - 1
        ids[outside] = NOT_FOUND
        return ids

    def bounds_including(self, firsts: Codes, room: int) -> tuple[int, int]:
        """Bounds that include `firsts`, with spare room where the block grows, so that it grows seldom."""
        low, high = _bounds(firsts)
        spare = min(self.entries // 2, room)
        last = self.low + self.entries - 1
        return (
            self.low if low >= self.low else max(min(low, self.low - spare), _MIN_INT64),
            last if high <= last else min(max(high, last + spare), _MAX_INT64),
        )

    def extend(self, low: int, high: int) -> None:
        if low < self.low:
            longer = GrowingArray(np.int32, high - low + 1)
            longer.data[self.low - low :][: self.entries] = self.row_ids
            self.low, self._row_ids = low, longer
        self._row_ids.grow(high - low + 1)


_NO_BLOCK: Final = IdBlock(np.empty((0, 1), dtype=np.int64), 0, 0)  #: has no key
_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1
_NO_ROWS: Final = np.empty(0, dtype=np.intp)
TailRows = tuple[CodeRows, RowIds]  #: a tail (codes after the first), and the rows with it
_ALL_ROWS: Final = slice(None)
_SAMPLE_ROWS: Final = 1024  #: rows that are looked at before all, since each tail costs a pass over the rows


class BlockIndex:
    """A key index of blocks. Same methods as `BucketIndex`."""

    def __init__(self, limits: BlockLimits) -> None:
        self._limits = limits
        self._blocks: list[IdBlock] = []  #: newest first: most rows belong to the newest window

    @classmethod
    def spanning(cls, pieces: Iterable[CodeRows], count: int, limits: BlockLimits) -> "BlockIndex | None":
        """Empty blocks for `count` keys, whose codes come in `pieces`; None if blocks would be too sparse."""
        spans = dict[bytes, tuple[CodeRows, int, int]]()
        for codes in pieces:
            tails = _tails(codes, np.arange(codes.shape[1]), limits.max_blocks)
            for tail, rows in tails or ():
                low, high = _bounds(codes[0, rows])
                _, least, greatest = spans.get(tail.tobytes(), (tail, low, high))
                spans[tail.tobytes()] = tail, min(low, least), max(high, greatest)
            entries = sum(high - low + 1 for _, low, high in spans.values())
            limit = limits.entry_limit(count, limits.new_entries_per_key)
            if tails is None or len(spans) > limits.max_blocks or entries > limit:
                return None
        index = cls(limits)
        index._blocks = [IdBlock(*span) for span in spans.values()]
        return index

    def free_keys(self, keys: int) -> int:
        """Upper bound of the keys that may still be added to an index of `keys` keys."""
        return self._limits.max_entries - keys

    def reserve(self, codes: CodeRows, keys: int) -> bool:
        """Makes room for new keys; the index then has `keys` keys. Returns False if blocks would be too sparse."""
        limits = self._limits
        parts, remainder = self._split(codes)
        tails = _tails(codes, remainder, limits.max_blocks)
        if tails is None or len(self._blocks) + len(tails) > limits.max_blocks:
            return False
        spans = [(tail, *_bounds(codes[0, rows])) for tail, rows in tails]
        room = limits.entry_limit(keys, limits.kept_entries_per_key)
        room -= self._entries() + sum(high - low + 1 for _, low, high in spans)
        spare = max(0, room) // max(1, len(parts))
        bounds = [(block, *block.bounds_including(codes[0, rows], spare)) for block, rows in parts]
        if sum(high - low + 1 - block.entries for block, low, high in bounds) > room:
            return False
        for block, low, high in bounds:
            block.extend(low, high)
        self._blocks = [*(IdBlock(*span) for span in reversed(spans)), *self._blocks]
        return True

    def find(self, keys: CodeRows, codes: CodeMatrix) -> RowIds:
        """The row id of each key, or `NOT_FOUND`."""
        if (row_ids := self._find_in_one_block(keys)) is not None:
            return row_ids
        row_ids = np.full(keys.shape[1], NOT_FOUND, dtype=np.intp)
        for block, rows in self._split(keys)[0]:
            row_ids[rows] = block.find(keys[0, rows])
        return row_ids

    def _find_in_one_block(self, keys: CodeRows) -> RowIds | None:
        """As `find` by a kernel, if all keys have the same tail: most batches belong to a single window. Else None."""
        if not keys.shape[1]:
            return None
        keys = np.ascontiguousarray(keys)
        tail, name = keys[1:, 0], keys[1:, 0].tobytes()
        block = next((block for block in self._blocks if block.tail_bytes == name), _NO_BLOCK)
        row_ids = np.empty(keys.shape[1], dtype=np.intp)
        alike = native().blocks.find(keys, np.ascontiguousarray(tail), block.low, block.row_ids, row_ids)
        return row_ids if alike else None

    def insert(self, row_ids: RowIds, codes: CodeRows) -> None:
        """Adds keys, which must be absent; `reserve` has made room."""
        for block, rows in self._split(codes)[0]:
            here = row_ids[rows]
            block.row_ids[codes[0, rows] - block.low] = here + 1
            block.count += len(here)

    def remove(self, row_ids: RowIds, codes: CodeRows, following: bool) -> None:
        """Removes keys. Empty blocks are dropped too, unless more keys of the old form follow (`following`)."""
        for block, rows in self._split(codes)[0]:
            firsts = codes[0, rows]
            block.row_ids[firsts - block.low] = 0
            block.count -= len(firsts)
        if not following:
            self._blocks = [block for block in self._blocks if block.count]

    def _entries(self) -> int:
        return sum(block.entries for block in self._blocks)

    def _split(self, codes: CodeRows) -> tuple[list[tuple[IdBlock, RowIds | slice]], RowIds]:
        """Each block with the positions of its keys in `codes`, and the positions of keys without a block."""
        if not codes.shape[1]:
            return [], _NO_ROWS
        if (codes[1:] == codes[1:, :1]).all():  # most batches belong to a single window
            name = codes[1:, :1].tobytes()
            same = [block for block in self._blocks if block.tail_bytes == name]
            return [(block, _ALL_ROWS) for block in same], _NO_ROWS if same else np.arange(codes.shape[1])
        return self._split_apart(codes)

    def _split_apart(self, codes: CodeRows) -> tuple[list[tuple[IdBlock, RowIds | slice]], RowIds]:
        parts, rows = list[tuple[IdBlock, RowIds | slice]](), np.arange(codes.shape[1])
        for block in self._blocks:
            if not len(rows):
                break
            tails = codes[1:] if len(rows) == codes.shape[1] else codes[1:, rows]
            same = (tails == block.tail).all(axis=0)
            if same.any():
                parts.append((block, rows[same]))
                rows = rows[~same]
        return parts, rows


def _tails(codes: CodeRows, rows: RowIds, limit: int) -> Sequence[TailRows] | None:
    """The tails that occur in `rows`, each with its rows; None if there are more than `limit` tails."""
    step = len(rows) // _SAMPLE_ROWS
    if step > 1 and _tails(codes, rows[::step], limit) is None:
        return None
    parts = list(islice(_iter_tails(codes, rows), limit + 1))
    return parts if len(parts) <= limit else None


def _iter_tails(codes: CodeRows, rows: RowIds) -> Iterator[TailRows]:
    if len(rows) == codes.shape[1] > 0 and (codes[1:] == codes[1:, :1]).all():
        yield codes[1:, :1], rows
        return
    while len(rows):
        tail = codes[1:, rows[:1]]
        same = (codes[1:, rows] == tail).all(axis=0)
        yield tail, rows[same]
        rows = rows[~same]


def _bounds(firsts: Codes) -> tuple[int, int]:
    return int(firsts.min()), int(firsts.max())
