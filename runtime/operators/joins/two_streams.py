"""Base of the joins of two streams: late rows, the rows that are kept per key, their state, and the joined rows.

Both streams share a key index, which numbers the keys of kept rows. The kept rows are sorted by these numbers and by
time (`sorted_rows`), so a batch finds its matches by binary search, without a loop over rows or keys.
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runtime.core.job.messages import MIN_WATERMARK
from runtime.errors import JobRejected
from runtime.operators.column_difference import column_difference, columns_of
from runtime.operators.event_time import Times, event_times_ms
from runtime.operators.group_watermarks import GroupWatermarks
from runtime.operators.joins.columns import JoinColumns, plain_rows, plain_schema
from runtime.operators.joins.kept_rows import KeptRows
from runtime.operators.joins.sorted_rows import TIME_BITS, Rows, Run, pairs
from runtime.operators.joins.stored_rows import NewRows, StoredRows
from runtime.operators.late_rows import count_late_rows, late_columns_error
from runtime.operators.output_tag import OutputTag
from runtime.operators.paired_keys import check_key_pairs
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.index.hashing import key_groups
from runtime.state.index.key_codec import common_value_type
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import OPEN_TYPE, TableSchema

MAX_ROWS_PER_BATCH: Final = 65_536
FIRST, SECOND = 0, 1
_STATES: Final = ("first", "second")  #: names of the states, and of the row counts in the key index, by input
_WATERMARKS: Final = msgspec.msgpack.encode(None)
_MIN_TIME_MS, _MAX_TIME_MS = -(1 << 62), 1 << 62  #: beyond all event times

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class JoinSide:
    """A stream of a join.

    Args:
        keys: key columns.
        time: column of event times.
        late_to: side output for late rows, with the columns of the stream; None: they are dropped.
        columns: the declared columns of the stream. Restored rows are widened to their types at once. Otherwise a
            subtask without new rows would emit other types than its siblings. None: the columns are unknown.
    """

    keys: tuple[str, ...]
    time: str
    late_to: OutputTag | None = None
    columns: pa.Schema | None = None


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows sorted by the number of their key, then by time."""

    key_numbers: Rows
    times: Times
    rows: pa.RecordBatch

    def filter(self, mask: Mask) -> "KeyedRows":
        if mask.all():
            return self
        return KeyedRows(self.key_numbers[mask], self.times[mask], self.rows.filter(pa.array(mask)))

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class Match:
    """Rows of a run that match rows of a batch.

    Args:
        start_ms: start of the bucket of the run.
        first, counts: by row of the batch, the first matching row of the run and their number.
    """

    start_ms: int
    run: Run
    first: Rows
    counts: Rows


class _Side:
    """A stream of a join in a subtask: its columns, its kept rows, and their state."""

    def __init__(self, side: JoinSide, name: str, bucket_ms: int, context: OperatorContext) -> None:
        self.keys, self.time, self.late_to, self.declared = side.keys, side.time, side.late_to, side.columns
        self.name = name
        self.schema: pa.Schema | None = None  #: columns of the kept rows; None: no row has arrived
        self.kept = KeptRows(bucket_ms)
        self.stored = StoredRows(context.state.object_table(name), bucket_ms)
        self._uid = context.uid
        self._seen: pa.Schema | None = None  #: columns of the last batch

    def bind(self, schema: pa.Schema) -> bool:
        """Takes over the columns of a batch. Returns whether they are new.

        Raises:
            JobRejected: the kept rows have other columns, or the side output for late rows has.
        """
        if schema is self._seen:
            return False
        if self.late_to is not None and (error := late_columns_error(self.late_to, schema)) is not None:
            raise error
        self.bind_kept(schema)
        self._seen = schema
        return True

    def bind_kept(self, schema: pa.Schema) -> None:
        """Takes over the columns of rows to keep. Raises JobRejected: the kept rows have other columns."""
        now = plain_schema(schema)
        common = now if self.schema is None else _common_schema(self._uid, self.schema, now)
        if self.schema is not None and common != self.schema:
            self.kept.cast(common)
        self.schema = common


def _common_schema(uid: str, before: pa.Schema, now: pa.Schema) -> pa.Schema:
    """The columns that hold kept rows and new rows. Raises JobRejected: a name differs, or two types do not fit."""
    types = (
        {}
        if before.names != now.names
        else {name: common_value_type(before.field(name).type, now.field(name).type) for name in now.names}
    )
    if not types or None in types.values():
        detail = column_difference(columns_of(before), columns_of(now))
        raise JobRejected("state-columns-changed", uid, f"the columns of the kept rows differ from new rows: {detail}")
    return pa.schema(list(types.items()))


class TwoStreamJoin(Operator):
    """Base of joins of two streams.

    Args:
        sides: the first and second stream.
        columns: names the columns of joined rows.
        bucket_ms: length of the buckets in which kept rows are freed.
    """

    def __init__(self, sides: tuple[JoinSide, JoinSide], columns: JoinColumns, bucket_ms: int) -> None:
        self._join_sides = sides
        self._columns = columns
        self._bucket_ms = bucket_ms

    def joined_columns(self, first: pa.Schema, second: pa.Schema) -> pa.Schema:
        """The output columns for the columns of both streams. Raises JobRejected: two have the same name."""
        return self._columns.schema(first, second)

    @property
    def times(self) -> tuple[str, ...]:
        """By input, the column of event times."""
        return tuple(side.time for side in self._join_sides)

    @property
    def late_outputs(self) -> tuple[OutputTag, ...]:
        """The side outputs for late rows."""
        return tuple(side.late_to for side in self._join_sides if side.late_to is not None)

    # ------------------------------------------------------------ for the kinds of joins

    @abstractmethod
    def _late(self, times: Times, watermarks: Times) -> Mask:
        """By row, whether the row is late at its watermark."""

    @abstractmethod
    def _oldest_kept(self, input: int, watermark: int) -> int:
        """The earliest time (ms) of rows of an input that may still match rows to come."""

    def _on_rows(self, input: int, rows: KeyedRows, out: Collector) -> None:
        """Called with new rows before they are kept."""

    @abstractmethod
    def _added_columns(self, times: tuple[Times, Times]) -> list[pa.Array]:
        """The columns that the join adds, for pairs of rows with these times."""

    # ------------------------------------------------------------ hooks

    def open(self, context: OperatorContext) -> None:
        self._context = context
        first, second = (
            _Side(side, name, self._bucket_ms, context) for side, name in zip(self._join_sides, _STATES, strict=True)
        )
        self._sides = first, second
        keys = pa.schema([pa.field(str(number), OPEN_TYPE) for number in range(len(first.keys))])
        counts = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in _STATES])
        self._index = KeyedTable(TableSchema("keys", keys, counts), context.max_parallelism)
        self._groups = GroupWatermarks(context, context.state.object_table("watermarks"), _WATERMARKS)
        self._watermark = self._groups.min_watermark
        for side in self._sides:
            self._restore(side)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        if not batch.num_rows:
            return
        side = self._sides[input]
        if side.bind(batch.schema):
            self._check_columns()
        times = event_times_ms(batch, side.time)
        rows, times = self._split_late(side, batch, times, out)
        rows, times = _without_null_keys(rows, times, side.keys)
        if not rows.num_rows:
            return
        assert side.schema is not None, "the columns are bound"
        keyed_rows = self._number_keys(side, plain_rows(rows, side.schema), times)
        self._on_rows(input, keyed_rows, out)
        live_rows = keyed_rows.filter(keyed_rows.times >= _clip(self._oldest_kept(input, self._watermark)))
        self._keep(side, live_rows)
        self._forget_keys(keyed_rows.key_numbers)
        if len(live_rows):
            side.stored.add(NewRows(live_rows.rows, live_rows.times, self._index.key_groups(live_rows.key_numbers)))

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._watermark = max(self._watermark, watermark)
        self._drop_rows()

    def snapshot(self, checkpoint: int) -> None:
        for number, side in enumerate(self._sides):
            side.stored.store(_clip(self._oldest_kept(number, self._watermark)))
        self._groups.store(self._watermark)

    # ------------------------------------------------------------ rows

    def _split_late(
        self, side: _Side, batch: pa.RecordBatch, times: Times, out: Collector
    ) -> tuple[pa.RecordBatch, Times]:
        """The rows that are not late, with their times. Late rows are counted, and dropped or emitted."""
        ahead = max(self._watermark, self._groups.max_watermark)
        if ahead == MIN_WATERMARK or not self._late(times, np.array(_clip(ahead))).any():
            return batch, times
        watermarks = np.maximum(self._groups.restored_watermarks(batch, side.keys), self._watermark)
        late = self._late(times, np.clip(watermarks, _MIN_TIME_MS, _MAX_TIME_MS))
        if not late.any():
            return batch, times
        mask = pa.array(late)
        count_late_rows(self._context, int(np.count_nonzero(late)), has_output=side.late_to is not None)
        if side.late_to is not None:
            out.emit_to(side.late_to.name, batch.filter(mask))
        return batch.filter(pc.invert(mask)), times[~late]

    def _number_keys(self, side: _Side, rows: pa.RecordBatch, times: Times) -> KeyedRows:
        """The rows with the numbers of their keys, sorted. New keys get a number."""
        keys = [rows.column(name) for name in side.keys]
        self._index.bind_types([key.type for key in keys], self._index.schema.values.types)
        key_numbers = self._index.upsert(keys)
        first = int(times.min())
        if int(times.max()) - first < 1 << TIME_BITS:
            order = np.argsort((key_numbers.astype(np.int64) << TIME_BITS) | (times - first))
        else:
            order = np.lexsort((times, key_numbers))
        return KeyedRows(key_numbers[order], times[order], rows.take(pa.array(order)))

    def _keep(self, side: _Side, rows: KeyedRows) -> None:
        if len(rows):
            side.kept.add(rows.key_numbers, rows.times, rows.rows)
            numbers, counts = _count_sorted(rows.key_numbers)
            self._index.column(side.name)[numbers] += counts

    def _drop_rows(self) -> None:
        """Drops the kept rows that can match no row to come."""
        for number, side in enumerate(self._sides):
            oldest = _clip(self._oldest_kept(number, self._watermark))
            key_numbers = side.kept.drop_before(oldest)
            if len(key_numbers):
                side.stored.drop_new_before(oldest)
                numbers, counts = _count_sorted(np.sort(key_numbers))
                self._index.column(side.name)[numbers] -= counts
                self._forget_keys(numbers)

    def _forget_keys(self, numbers: Rows) -> None:
        """Frees the numbers of keys without kept rows."""
        first, second = (self._index.column(name) for name in _STATES)
        empty = np.unique(numbers[(first[numbers] == 0) & (second[numbers] == 0)])
        if len(empty):
            self._index.delete(empty)

    def _check_columns(self) -> None:
        """Checks the columns of both streams once they are known. Raises JobRejected: they do not fit each other."""
        first, second = self._sides
        if first.schema is not None and second.schema is not None:
            check_key_pairs(self._context.uid, first.keys, second.keys, first.schema, second.schema)
            self._names = self._columns.names(first.schema, second.schema)
            self._taken = self._columns.second_columns(second.schema)

    # ------------------------------------------------------------ joined rows

    def _emit_pairs(self, input: int, rows: KeyedRows, matches: Iterable[Match], out: Collector) -> None:
        """Emits the pairs of rows of an input with matching rows of the other input."""
        row_numbers: list[Rows] = []
        batches: list[pa.RecordBatch] = []
        times: list[Times] = []
        count = 0
        for match in matches:
            for numbers, partners in pairs(match.first, match.counts, MAX_ROWS_PER_BATCH):
                row_numbers.append(numbers)
                batches.append(match.run.rows.take(pa.array(partners)))
                times.append(match.start_ms + match.run.times(partners))
                count += len(numbers)
                if count >= MAX_ROWS_PER_BATCH:
                    self._emit(input, rows, row_numbers, batches, times, out)
                    row_numbers, batches, times, count = [], [], [], 0
        if count:
            self._emit(input, rows, row_numbers, batches, times, out)

    def _emit(
        self,
        input: int,
        rows: KeyedRows,
        row_numbers: list[Rows],
        batches: list[pa.RecordBatch],
        times: list[Times],
        out: Collector,
    ) -> None:
        numbers = np.concatenate(row_numbers)
        pair = (rows.rows.take(pa.array(numbers)), pa.concat_batches(batches))
        pair_times = (rows.times[numbers], np.concatenate(times))
        if input == SECOND:
            pair, pair_times = pair[::-1], pair_times[::-1]
        first, second = pair
        columns = [*first.columns, *(second.column(name) for name in self._taken), *self._added_columns(pair_times)]
        out.emit(pa.RecordBatch.from_arrays(columns, names=self._names))

    # ------------------------------------------------------------ restore

    def _restore(self, side: _Side) -> None:
        entries = list(side.stored.restored())
        if not entries:
            return
        for group, _, rows in entries:
            self._check_kept(side, group, rows)
            side.bind_kept(rows.schema)
        if side.declared is not None:
            side.bind_kept(side.declared)
        self._check_columns()
        schema = side.schema
        assert schema is not None, "the columns are bound"
        by_place: dict[int, dict[int, pa.RecordBatch]] = {}
        for group, place, rows in entries:
            by_place.setdefault(place, {})[group] = plain_rows(rows, schema)
        for place, parts in by_place.items():  # all rows at once might exceed the 2 GiB that a text column holds
            rows = pa.concat_batches(parts.values())
            times = event_times_ms(rows, side.time)
            side.stored.adopt(place, parts, times)
            self._keep(side, self._number_keys(side, rows, times))

    def _check_kept(self, side: _Side, group: int, rows: pa.RecordBatch) -> None:
        """Raises JobRejected: restored rows of a key group lack a column of the join, or were kept by other keys."""
        uid = self._context.uid
        if missing := {*side.keys, side.time} - {*rows.schema.names}:
            detail = (
                f"the kept rows lack the columns {', '.join(sorted(missing))}; they have {', '.join(rows.schema.names)}"
            )
            raise JobRejected("state-columns-changed", uid, detail)
        if (key_groups(rows, side.keys, self._context.max_parallelism) != group).any():
            detail = f"the rows of the {side.name} stream were kept by other keys than {', '.join(side.keys)}"
            raise JobRejected("state-keys-changed", uid, detail)


def _count_sorted(numbers: Rows) -> tuple[Rows, Rows]:
    """The distinct values of sorted `numbers`, and how often each occurs."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    return numbers[starts], np.diff(starts, append=len(numbers))


def _without_null_keys(rows: pa.RecordBatch, times: Times, keys: Iterable[str]) -> tuple[pa.RecordBatch, Times]:
    """The rows without a null in their key: as in SQL, they match no row."""
    columns = [column for name in keys if (column := rows.column(name)).null_count]
    if not columns:
        return rows, times
    valid = reduce(pc.and_, (column.is_valid() for column in columns))
    return rows.filter(valid), times[valid.to_numpy(zero_copy_only=False)]


def _clip(time: int) -> int:
    return min(max(time, _MIN_TIME_MS), _MAX_TIME_MS)
