"""A generated sequence of ids, keys and event times, for benchmarks and experiments without input.

The key and the time of a row are functions of its `id`, so a row is the same in every run. The sequence is distributed
in blocks over as many splits as there are key groups. A subtask always reads the split that lags most, so its event
time never decreases. Positions are keyed state and move with their key groups. Another number of key groups would
assign other ids to the splits, so broadcast state has the number, and a restore with another number is refused.

A rate is divided among the subtasks by their rows (Flink: `RateLimiterStrategy.perSecond`). It limits the rows of each
poll and changes no row. Its budget begins with the first poll of an attempt and never exceeds the rows of a second.
Blocks are small with a rate, so that subtasks stay close to each other in event time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runtime.connectors.sources.split_groups import keys_of_groups
from runtime.errors import JobRejected
from runtime.ports import NumberedRows, OperatorContext, SourceReader
from runtime.state.keyed_table import KeyedTable

KEY_MULTIPLIER: Final = 2_654_435_761  #: Knuth's multiplicative hash: neighbouring ids get distant keys
SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("key", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us"), nullable=False),
    ]
)
_BLOCK_ROWS: Final = 8_192
_PACED_BLOCK_ROWS: Final = 16  #: of a source with a rate
_TABLES: Final = {_BLOCK_ROWS: "positions", _PACED_BLOCK_ROWS: "paced_positions"}  #: names in state, by size of blocks
_KEY_GROUPS: Final = "key_groups"  #: key in the broadcast state
_US_PER_MS: Final = 1_000
_MS_PER_S: Final = 1_000
_UNKNOWN: Final = -1
_HASH_SPACE: Final = 2**32
_INT64_MAX: Final = 2**63 - 1

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SequenceSource:
    """Emits rows of `id`, `key` and `time`.

    Args:
        rows: total number of rows of all subtasks; None: unbounded.
        duration_ms: wall time after the job's first start at which each subtask ends; None: unbounded.
        keys: number of different keys: key = id * 2654435761 mod keys.
        microseconds_per_row: event time between consecutive rows; row 0 has time 0.
        rows_per_second: maximum rate of all subtasks together, in wall time; None: as fast as the job reads. A
            restored job may change a rate, but neither add nor remove it.
        text_keys: whether `key` is text: "key-7" for key 7.
    """

    guarantee: ClassVar[str] = "exactly-once"

    rows: int | None = None
    duration_ms: int | None = None
    keys: int = 1_000
    microseconds_per_row: int = 1
    rows_per_second: float | None = None
    text_keys: bool = False

    @property
    def bounded(self) -> bool:
        return self.rows is not None or self.duration_ms is not None

    @property
    def numbers_rows(self) -> bool:
        """Rows come in the order of their ids. A source that ends by the clock may end before it has repeated them.

        One that emits a row now and then would seem to have lost them.
        """
        return self.duration_ms is None and (self.rows_per_second is None or self.rows_per_second >= 1)

    def output_columns(self) -> pa.Schema:
        return SCHEMA.set(1, SCHEMA.field("key").with_type(pa.string())) if self.text_keys else SCHEMA

    def reader(self) -> "SequenceReader":
        return SequenceReader(self)

    def check(self) -> None:
        for name, value in (("rows", self.rows), ("duration_ms", self.duration_ms)):
            if value is not None and value < 0:
                raise JobRejected("bad-sequence", name, f"must not be negative, but is {value}")
        if not 0 < self.keys < _HASH_SPACE:
            raise JobRejected("bad-sequence", "keys", f"must lie between 1 and {_HASH_SPACE - 1}, not {self.keys}")
        if self.microseconds_per_row < 1:
            raise JobRejected("bad-sequence", "microseconds_per_row", "must be at least 1")
        if self.rows_per_second is not None and not (math.isfinite(self.rows_per_second) and self.rows_per_second > 0):
            raise JobRejected("bad-sequence", "rows_per_second", f"must be above 0, not {self.rows_per_second}")
        if self.rows is not None and self.rows * self.microseconds_per_row > _INT64_MAX:
            raise JobRejected("bad-sequence", "microseconds_per_row", "the times of the last rows do not fit 64 bits")


class SequenceReader(SourceReader):
    """Reads the splits of a subtask's key groups, in order of their ids."""

    def __init__(self, source: SequenceSource) -> None:
        self._source = source
        self._end = _INT64_MAX if source.rows is None else source.rows
        self._schema = source.output_columns()
        self._block_rows = _BLOCK_ROWS if source.rows_per_second is None else _PACED_BLOCK_ROWS
        self._offsets = np.empty(0, dtype=np.int64)
        self._steps = np.empty(0, dtype=np.int64)
        self._emitted = range(0)  #: ids of the last batch

    def open(self, context: OperatorContext) -> None:
        self._now_ms = context.now_ms
        groups = context.max_parallelism
        self._cycle_rows = groups * self._block_rows
        owned = np.asarray(context.key_groups)
        self._next: Numbers = owned * self._block_rows  #: by split, the next id to emit
        self._since_ms = context.now_ms()
        self._rate = (self._source.rows_per_second or 0.0) * self._share(owned, groups) / _MS_PER_S
        self._budget, self._budget_at_ms = 0.0, _UNKNOWN
        if context.restored:
            _check_same_blocks(context, self._block_rows)
        _check_same_key_groups(context)
        name = _TABLES[self._block_rows]
        self._table: KeyedTable = context.state.keyed_table(name, _KEY_SCHEMA, _VALUE_SCHEMA)
        self._row_ids = self._table.find([keys_of_groups(groups, context.key_groups)])
        restored = self._row_ids >= 0
        if restored.any():
            self._next[restored] = self._table.column("next_id")[self._row_ids[restored]]
            self._since_ms = int(self._table.column("since_ms")[self._row_ids[restored]].min())
        self._row_ids = self._table.upsert([keys_of_groups(groups, context.key_groups)])

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if self.exhausted:
            return None
        if self._rate:
            max_rows = min(max_rows, self._affordable_rows())
            if not max_rows:
                return None
        split = int(self._next.argmin())
        first = int(self._next[split])
        count = self._advance(split, first, max_rows) - first
        self._budget -= count
        self._emitted = range(first, first + count)
        return self._rows(first, count)

    @property
    def numbered_rows(self) -> Sequence[NumberedRows]:
        return [NumberedRows("", np.arange(self._emitted.start, self._emitted.stop) + 1)]

    @property
    def exhausted(self) -> bool:
        duration_ms = self._source.duration_ms
        if duration_ms is not None and self._now_ms() - self._since_ms >= duration_ms:
            return True
        return int(self._next.min()) >= self._end

    def watermark(self) -> int | None:
        """The watermark, in ms: 1 ms before the time of the next row of the split that lags most."""
        return min(int(self._next.min()), self._end) * self._source.microseconds_per_row // _US_PER_MS - 1

    def snapshot(self, checkpoint: int) -> None:
        self._table.column("next_id")[self._row_ids] = self._next
        self._table.column("since_ms")[self._row_ids] = self._since_ms
        self._table.touch(self._row_ids)

    def _share(self, owned: Numbers, groups: int) -> float:
        """The share of this subtask in all rows."""
        if not self._source.rows:
            return len(owned) / groups
        cycles, remainder = divmod(self._source.rows, self._cycle_rows)
        in_last_cycle = np.clip(remainder - owned * self._block_rows, 0, self._block_rows).sum()
        return (cycles * len(owned) * self._block_rows + int(in_last_cycle)) / self._source.rows

    def _affordable_rows(self) -> int:
        """The rows that the rate allows now. The budget may be saved for a second: one row at least."""
        now_ms = self._now_ms()
        gained = max(now_ms - self._budget_at_ms, 0) * self._rate if self._budget_at_ms != _UNKNOWN else 0.0
        self._budget = min(self._budget + gained, max(self._rate * _MS_PER_S, 1.0))
        self._budget_at_ms = now_ms
        return int(self._budget)

    def _advance(self, split: int, first: int, max_rows: int) -> int:
        """Advances the splits past at most `max_rows` contiguous ids from `first` on. Returns the next id."""
        at, limit = first, min(self._end, first + max_rows)
        while at < limit and split < len(self._next) and self._next[split] == at:
            block_end = at - at % self._block_rows + self._block_rows
            at = min(block_end, limit)
            self._next[split] = at if at < block_end else block_end - self._block_rows + self._cycle_rows
            split += 1
        return at

    def _rows(self, first: int, count: int) -> pa.RecordBatch:
        if count > len(self._offsets):
            self._offsets = np.arange(count, dtype=np.int64)
            self._steps = self._offsets * (KEY_MULTIPLIER % self._source.keys) % self._source.keys
        ids = self._offsets[:count] + first
        keys = self._even_keys(first, count)
        times = pa.array(ids * self._source.microseconds_per_row).view(SCHEMA.field("time").type)
        key_column = pa.array(keys)
        if self._source.text_keys:
            key_column = pc.binary_join_element_wise("key-", pc.cast(key_column, pa.string()), "")
        return pa.RecordBatch.from_arrays([pa.array(ids), key_column, times], schema=self._schema)

    def _even_keys(self, first: int, count: int) -> Numbers:
        """Keys of `count` consecutive ids, with a single division per batch instead of one per row."""
        keys = self._steps[:count] + first * KEY_MULTIPLIER % self._source.keys
        keys -= (keys >= self._source.keys) * np.int64(self._source.keys)
        return keys


def _check_same_blocks(context: OperatorContext, block_rows: int) -> None:
    """Raises JobRejected if the restored positions belong to blocks of another size."""
    keys = keys_of_groups(context.max_parallelism, context.key_groups)
    for size, name in _TABLES.items():
        if size != block_rows and (context.state.keyed_table(name, _KEY_SCHEMA, _VALUE_SCHEMA).find([keys]) >= 0).any():
            detail = "a restored job may change a rate, but neither add nor remove it: keep it, or start anew"
            raise JobRejected("changed-rate", "rows_per_second", detail)


def _check_same_key_groups(context: OperatorContext) -> None:
    """Records the number of key groups. Raises JobRejected if the restored positions belong to another number."""
    facts, groups = context.state.broadcast_map("splits"), context.max_parallelism
    before = facts.setdefault(_KEY_GROUPS, groups)
    if before != groups:
        detail = f"its ids are split by {before} key groups, and {groups} would repeat and skip ids"
        remedy = "keep the number of key groups, or give the source another uid, which starts it anew"
        raise JobRejected("changed-key-groups", context.uid, f"{detail}: {remedy}")


_KEY_SCHEMA: Final = pa.schema([pa.field("split", pa.int64())])
_VALUE_SCHEMA: Final = pa.schema(
    [pa.field("next_id", pa.int64(), nullable=False), pa.field("since_ms", pa.int64(), nullable=False)]
)
