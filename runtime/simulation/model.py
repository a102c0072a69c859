"""Model operators of the simulator, in plain Python, with production's state.

A record is a name and an event time; its key is the name in lower case. State is declared in the constructor, in
production's `SubtaskState`: keyed state, list state that a rescale redistributes, union lists, and a broadcast table.
`RowOperator` gives a model the hooks of `ports.Operator`. `operators` runs production's operators. The operators assert
the guarantees of the runtime: no record after `finish`, no second `close`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from random import Random
from typing import Any, ClassVar, Final, Protocol
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa

from runtime.connectors.sources.hybrid import HybridReader, HybridSource
from runtime.core.job.key_groups import key_group_of
from runtime.core.snapshot.commit import CommitPermit
from runtime.ports import (
    Clock,
    Collector,
    ListState,
    NumberedRows,
    Operator,
    OperatorContext,
    SinkCommitter,
    SinkWriter,
    SourceReader,
)
from runtime.state.index.hashing import hash_column
from runtime.state.object_table import ObjectTable

Row = tuple[str, int]
Rows = list[Row]

MAX_PARALLELISM: Final = 8
WINDOW_MS: Final = 10
PAIR_MS: Final = 5
SLIDE_MS: Final = 5
GAP_MS: Final = 3
MAX_HOPS: Final = 3
LOOK_MS: Final = 20  #: between looks of a source for new rows
MAX_ANSWER_MS: Final = 300  #: until the answer of a request
MAX_REQUESTS: Final = 5  #: in flight; beyond that the input waits
LATE: Final = "late "  #: begins the key of a row that a window emits for a late record
POSITIONS: Final = "positions"  #: name of the state of sources

SCHEMA: Final = pa.schema([("key", pa.string()), ("name", pa.string()), ("time", pa.int64())])

OnSnapshot = Callable[[OperatorContext, int], None]  #: called when the state of a checkpoint is about to be captured

_encode: Final = msgspec.msgpack.encode
_decode: Final[Callable[[Any], Any]] = msgspec.msgpack.decode


def batch_of(rows: Rows) -> pa.RecordBatch:
    return _batch_of(tuple(rows))


@lru_cache(maxsize=10_000)  # steps pass the same rows on
def _batch_of(rows: tuple[Row, ...]) -> pa.RecordBatch:
    names = [name for name, _ in rows]
    texts = (pa.array(each, pa.string()) for each in ([name.lower() for name in names], names))
    return pa.RecordBatch.from_arrays([*texts, pa.array([time for _, time in rows], pa.int64())], schema=SCHEMA)


def rows_of(batch: pa.RecordBatch) -> Rows:
    return list(zip(batch.column("name").to_pylist(), batch.column("time").to_pylist(), strict=True))


@cache
def group_of(name: str) -> int:
    """The key group of a name or key, as in production. A straggler is in the group of the other rows of its key."""
    return key_group_of(int(hash_column(pa.array([name.lower()]))[0]), MAX_PARALLELISM)


def route(name: str, targets: int) -> int:
    """Index of the target subtask for custom partitioning, unrelated to key groups."""
    return crc32(name.encode()) // 3 % targets


def route_rows(batch: pa.RecordBatch, targets: int) -> list[int]:
    """A `Partitioner`."""
    return [route(key, targets) for key in batch.column("key").to_pylist()]


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a source's input.

    A row follows rows whose event times are later by `disorder_ms` at most. Exempt are *stragglers*, which may be late
    at a window. Their key in lower case is that of their window. Without disorder, event times ascend.

    A split may pause: row `pauses_at` and all later rows exist from simulated time `resumes_ms` on. Each subtask
    discovers them by a look. The source is idle until then, so these rows must have later event times than all other
    rows of the job.
    """

    name: str
    rows: tuple[Row, ...]
    pauses_at: int | None = None
    resumes_ms: int = 0
    disorder_ms: int = 0

    def watermark_before(self, position: int) -> int:
        """The watermark of a reader whose next row is row `position`: just below all later rows but stragglers."""
        if not self.disorder_ms:
            return self.rows[position][1] - 1
        return max(time for _, time in self.rows[: max(1, position)]) - self.disorder_ms - 1

    def available_rows(self, looked_at: int) -> int:
        return len(self.rows) if self.pauses_at is None or looked_at >= self.resumes_ms else self.pauses_at


class KeyedNumbers:
    """Keyed state of integers by name; an absent name has the number 0."""

    def __init__(self, table: ObjectTable) -> None:
        self._table = table

    def get(self, name: str) -> int:
        number = self._table.value_of(group_of(name), _encode(name))
        return 0 if number is None else int(_decode(number))

    def put(self, name: str, number: int) -> None:
        self._table.put((group_of(name), _encode(name), None), _encode(number))

    def items(self) -> Iterable[tuple[str, int]]:
        for (_, name, _), number in self._table.items():
            yield _decode(name), _decode(number)


class ModelOperator:
    """Forwards records. Base class of all operators."""

    def __init__(self, context: OperatorContext) -> None:
        self.context = context
        self.finished = False
        self.closed = False
        self.inputs_ended: set[int] = set()

    def process(self, input: int, rows: Rows) -> Rows:
        return rows

    def advance(self, time: int) -> Rows:
        return []

    def prepare(self, checkpoint: int) -> Rows:
        return []

    def watermark_hold(self) -> int | None:
        """The largest watermark that overtakes no held row; None: no row is held."""
        return None

    def is_ready(self, finishing: bool) -> bool:
        return True

    @property
    def due_at(self) -> int | None:
        """The time of the next call of `on_time`."""
        return None

    def on_time(self, now: int) -> Rows:
        return []

    def settle(self) -> Rows:
        """Emits the held rows when a loop terminates."""
        return []

    def end_input(self, input: int) -> Rows:
        assert input not in self.inputs_ended, "end_input came twice"
        self.inputs_ended.add(input)
        return []

    def finish(self) -> Rows:
        assert not self.finished, "finish came twice"
        self.finished = True
        return []

    def snapshot(self, checkpoint: int) -> None:
        """Puts the rows in memory into the state, before a capture."""

    def close(self) -> None:
        assert not self.closed, "close came twice"
        self.closed = True


class RowOperator(Operator):
    """Runs a model operator on the rows of batches."""

    def __init__(self, make: Callable[[OperatorContext], ModelOperator], on_snapshot: OnSnapshot) -> None:
        self._make, self._on_snapshot = make, on_snapshot

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self.model = self._make(context)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._emit(self.model.process(input, rows_of(batch)), out)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._emit(self.model.advance(watermark), out)

    def watermark_hold(self) -> int | None:
        return self.model.watermark_hold()

    def next_processing_timer(self) -> int | None:
        return self.model.due_at

    def on_processing_time(self, now_ms: int, out: Collector) -> None:
        self._emit(self.model.on_time(now_ms), out)

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: Collector) -> None:
        self._emit(self.model.prepare(checkpoint), out)

    def settle(self, out: Collector) -> None:
        self._emit(self.model.settle(), out)

    def snapshot(self, checkpoint: int) -> None:
        self.model.snapshot(checkpoint)
        self._on_snapshot(self._context, checkpoint)

    def end_input(self, input: int, out: Collector) -> None:
        self._emit(self.model.end_input(input), out)

    def finish(self, out: Collector) -> None:
        self._emit(self.model.finish(), out)

    def close(self) -> None:
        self.model.close()

    def _emit(self, rows: Rows, out: Collector) -> None:
        if rows:
            out.emit(batch_of(rows))


class AskingRowOperator(RowOperator):
    """Runs a model operator that does not take rows at any time."""

    def ready(self, finishing: bool) -> bool:
        return self.model.is_ready(finishing)


class ModelReader(SourceReader):
    """Reads the splits that hash to its key groups; the position in each split is keyed state."""

    def __init__(self, source: "ModelSource") -> None:
        self._source = source
        self.bounded = source.bounded
        self.looked_at = -1  #: time of the last look for new rows
        self._discoveries = 0
        self._has_looked = True
        self._rests_until = 0
        self._last_rows = NumberedRows("", np.empty(0, np.int64))
        self._is_open = False
        self.splits: list[Split] = []  #: to read
        self.polled: Rows = []  #: all rows so far

    def open(self, context: OperatorContext) -> None:
        self.context = context
        self._is_open, self.splits = True, self._declare(self._source.splits)

    @property
    def discoveries(self) -> int:
        return self._discoveries

    @property
    def has_looked(self) -> bool:
        return self._has_looked

    def look_for_splits(self) -> None:
        self._has_looked = False

    def snapshot(self, checkpoint: int) -> None:
        """Puts the positions into the state."""
        self._source.on_snapshot(self.context, checkpoint)

    def _look(self, now: int) -> None:
        if self._has_looked and 0 <= self.looked_at > now - LOOK_MS:
            return
        before = [split.available_rows(self.looked_at) for split in self.splits] if self.looked_at >= 0 else []
        self.looked_at, self._has_looked = now, True
        self._discoveries += before != [split.available_rows(now) for split in self.splits]

    def _declare(self, splits: Sequence[Split]) -> list[Split]:
        """Declares the state. Returns the splits to read."""
        self._positions = KeyedNumbers(self.context.state.object_table(POSITIONS))
        return [split for split in splits if group_of(split.name) in self.context.key_groups]

    def position(self, split: Split) -> int:
        return self._positions.get(split.name)

    def move(self, split: Split, position: int) -> None:
        """Sets the next row of `split`."""
        self._positions.put(split.name, position)

    @property
    def max_disorder_ms(self) -> int:
        return max((split.disorder_ms for split in self.splits), default=0)

    @property
    def has_emitted_all(self) -> bool:
        return self._is_open and all(self.position(split) == len(split.rows) for split in self.splits)

    @property
    def exhausted(self) -> bool:
        return self.bounded and self.has_emitted_all

    @property
    def idle(self) -> bool:
        """Whether no row is available and no bound of later event times is known: no splits, or a split pauses."""
        waiting = [split for split in self.splits if self.position(split) < len(split.rows)]
        nothing_now = all(self.position(split) == split.available_rows(self.looked_at) for split in self.splits)
        return (not self.bounded and not self.splits) or (nothing_now and bool(waiting))

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """Up to three rows of a random split, after a random pause."""
        source, now = self._source, self._source.clock.now_ms()
        if now < self._rests_until:
            return None
        self._look(now)
        unread = [split for split in self.splits if self.position(split) < split.available_rows(self.looked_at)]
        if not unread:
            return None
        split = source.rng.choice(unread)
        start = self.position(split)
        count = min(max_rows, source.rng.randint(1, 3))
        rows = list(split.rows[start : min(start + count, split.available_rows(self.looked_at))])
        self.move(split, start + len(rows))
        self._last_rows = NumberedRows(split.name, np.arange(start, start + len(rows)) + 1)
        self.polled += rows
        self._rests_until = now + source.rng.randint(0, source.pace_ms)
        return _encoded_texts(batch_of(rows)) if source.is_encoded else batch_of(rows)

    @property
    def numbered_rows(self) -> Sequence[NumberedRows]:
        return [self._last_rows]

    def watermark(self) -> int | None:
        """A time just below all unread rows but stragglers. A fully read unbounded split counts with its last time."""
        times = []
        for split in self.splits:
            position = self.position(split)
            if position == split.pauses_at:
                times.append(split.rows[position - 1][1] if position else 0)
            elif position < len(split.rows):
                times.append(split.watermark_before(position))
            elif not self.bounded:
                times.append(max((time for _, time in split.rows), default=0))
        return min(times, default=None)


def _encoded_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [column.dictionary_encode() if column.type == pa.string() else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class ListModelReader(ModelReader):
    """Keeps its splits in list state, an entry (name, position) per split, which a restore redistributes."""

    def _declare(self, splits: Sequence[Split]) -> list[Split]:
        self._stored = self.context.state.list_state(POSITIONS)
        self._by_name: dict[str, int] = dict(self._stored.get())
        if self.context.restored:
            return [split for name in self._by_name for split in splits if split.name == name]
        return [split for split in splits if route(split.name, self.context.parallelism) == self.context.index]

    def position(self, split: Split) -> int:
        return self._by_name.get(split.name, 0)

    def move(self, split: Split, position: int) -> None:
        self._by_name[split.name] = position

    def snapshot(self, checkpoint: int) -> None:
        self._stored.replace([split.name, self.position(split)] for split in self.splits)
        super().snapshot(checkpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Implements `ports.Source`. `rng` chooses the rows of each poll; a poll follows another in up to `pace_ms`."""

    guarantee: ClassVar[str] = "exactly-once"

    splits: Sequence[Split]
    bounded: bool
    uses_list_state: bool
    clock: Clock
    rng: Random
    pace_ms: int
    on_snapshot: OnSnapshot
    is_encoded: bool = False  #: texts are dictionary-encoded
    numbers_rows: ClassVar[bool] = True

    def with_encoded_texts(self) -> "ModelSource":
        return replace(self, is_encoded=True)

    def output_columns(self) -> pa.Schema:
        return SCHEMA

    def reader(self) -> SourceReader:
        return ListModelReader(self) if self.uses_list_state else ModelReader(self)

    def check(self) -> None:
        """Accepts all settings."""


@dataclass(frozen=True)
class ModelHybridSource(HybridSource):
    """Production's source of two parts, over two model sources."""

    on_snapshot: OnSnapshot = field(kw_only=True)

    def with_encoded_texts(self) -> "ModelHybridSource":
        return self

    def reader(self) -> "ModelHybridReader":
        return ModelHybridReader(self, self.on_snapshot)


class ModelHybridReader(HybridReader):
    def __init__(self, source: HybridSource, on_snapshot: OnSnapshot) -> None:
        super().__init__(source)
        self._on_snapshot = on_snapshot

    def snapshot(self, checkpoint: int) -> None:
        super().snapshot(checkpoint)
        self._on_snapshot(self._context, checkpoint)

    @property
    def polled(self) -> Rows:
        """All rows so far."""
        return [row for reader in self._open_readers if isinstance(reader, ModelReader) for row in reader.polled]

    @property
    def has_emitted_all(self) -> bool:
        return isinstance(self._live, ModelReader) and self._reads_live and self._live.has_emitted_all


class BatchingOperator(ModelOperator):
    """Collects a few rows and forwards them together. Flushes before each barrier, so that its state has no rows."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self.batch: Rows = []

    def process(self, input: int, rows: Rows) -> Rows:
        self.batch += rows
        return self._flush() if len(self.batch) > 3 else []

    def advance(self, time: int) -> Rows:
        return self._flush()

    def prepare(self, checkpoint: int) -> Rows:
        return self._flush()

    def settle(self) -> Rows:
        return self._flush()

    def finish(self) -> Rows:
        super().finish()
        return self._flush()

    def _flush(self) -> Rows:
        rows, self.batch = self.batch, []
        return rows

    def snapshot(self, checkpoint: int) -> None:
        assert not self.batch, "rows were not flushed before the barrier"


class HoldingOperator(ModelOperator):
    """Keeps up to three rows in list state, like asynchronous look-ups in flight; `end_input` emits them."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._stored = self._declare()
        self.held = self._restored_rows()

    def _declare(self) -> ListState:
        return self.context.state.list_state("held")

    def _restored_rows(self) -> Rows:
        return [(key, time) for key, time in self._stored.get()]

    def snapshot(self, checkpoint: int) -> None:
        self._stored.replace([key, time] for key, time in self.held)

    def process(self, input: int, rows: Rows) -> Rows:
        self.held += rows
        ready, self.held = self.held[:-3], self.held[-3:]
        return ready

    def end_input(self, input: int) -> Rows:
        super().end_input(input)
        return self.settle()

    def watermark_hold(self) -> int | None:
        return min((time for _, time in self.held)) - 1 if self.held else None

    def settle(self) -> Rows:
        rows, self.held = self.held, []
        return rows


class AskingOperator(HoldingOperator):
    """Makes a request per row, as `AsyncMap` does. Barriers pass the end of the input, which waits for all answers."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._due = [self._answer_at(row) for row in self.held]

    def process(self, input: int, rows: Rows) -> Rows:
        self.held += rows
        self._due += [self._answer_at(row) for row in rows]
        return []

    def is_ready(self, finishing: bool) -> bool:
        return len(self.held) < (1 if finishing else MAX_REQUESTS)

    @property
    def due_at(self) -> int | None:
        return self._due[0] if self._due else None

    def on_time(self, now: int) -> Rows:
        """Emits the rows that are answered, in their order."""
        count = next((number for number, due in enumerate(self._due) if due > now), len(self._due))
        rows, self.held = self.held[:count], self.held[count:]
        self._due = self._due[count:]
        return rows

    def settle(self) -> Rows:
        assert not self.held, "a marker of a loop overtook open requests"
        return []

    def _answer_at(self, row: Row) -> int:
        return self.context.now_ms() + crc32(f"{row}".encode()) % MAX_ANSWER_MS


class PoolingOperator(HoldingOperator):
    """Holds rows in a union list: each restored subtask gets all rows and keeps the rows of its own key groups."""

    def _declare(self) -> ListState:
        return self.context.state.union_list_state("pooled")

    def _restored_rows(self) -> Rows:
        return [row for row in super()._restored_rows() if group_of(row[0]) in self.context.key_groups]


class LoopBodyOperator(ModelOperator):
    """Counts down the remaining iterations of each row, which the row's key holds behind a mark.

    It also counts rows by key in keyed state, so that the loop body has state.
    """

    def __init__(self, context: OperatorContext, mark: str) -> None:
        super().__init__(context)
        self.mark = mark
        self._counts = KeyedNumbers(context.state.object_table("counts"))

    def process(self, input: int, rows: Rows) -> Rows:
        return [(self._next_key(key, time), time) for key, time in rows]

    def _next_key(self, key: str, time: int) -> str:
        self._counts.put(key, self._counts.get(key) + 1)
        plain, mark, left = key.partition(self.mark)
        if not mark:
            return f"{key}{self.mark}{crc32(f'{key}@{time}'.encode()) % MAX_HOPS}"
        return f"{plain}{self.mark}{int(left) - 1}"


class LoopBackOperator(ModelOperator):
    """Forwards the rows with remaining iterations."""

    def __init__(self, context: OperatorContext, mark: str) -> None:
        super().__init__(context)
        self.mark = mark

    def process(self, input: int, rows: Rows) -> Rows:
        return [row for row in rows if not row[0].endswith(f"{self.mark}0")]


class LoopExitOperator(LoopBackOperator):
    """Emits the rows without remaining iterations, with their original keys."""

    def process(self, input: int, rows: Rows) -> Rows:
        return [(key.partition(self.mark)[0], time) for key, time in rows if key.endswith(f"{self.mark}0")]


class JoinOperator(ModelOperator):
    """Keeps the rows of input 0 whose key occurs on the build side, input 1.

    The table has a row per row of the build side, so that a lost or duplicate row is detected at the end of input 1.
    """

    def __init__(self, context: OperatorContext, build: Counter[str]) -> None:
        super().__init__(context)
        self.build = build  #: keys of all rows of the build side
        self.table = context.state.broadcast_table("build")
        self._keys = Counter(key for batch in self.table.batches for key in batch.column("key").to_pylist())

    def process(self, input: int, rows: Rows) -> Rows:
        if input == 0:
            assert self._keys == self.build, "a row of the probe side arrived before the build side was complete"
            return [row for row in rows if row[0] in self.build]
        keys = [key for key, _ in rows]
        self.table.append(pa.RecordBatch.from_pydict({"key": keys}))
        self._keys.update(keys)
        return []

    def end_input(self, input: int) -> Rows:
        if input == 1:
            assert self._keys == self.build, "a row of the build side is missing or duplicate"
        return super().end_input(input)


class Target(Protocol):
    """The external system behind a sink."""

    def prepare(self, name: str, rows: Sequence[Row]) -> None: ...
    def commit(self, permit: CommitPermit, names: Sequence[str]) -> None: ...


class ModelWriter(SinkWriter):
    """Prepares the rows between two barriers under a name of their own."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._rows: Rows = []

    def open(self, context: OperatorContext) -> None:
        self._prefix = f"{context.token}-{context.uid}-{context.index}"

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += rows_of(batch)

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        if not self._rows:
            return ()
        name = f"{self._prefix}-{checkpoint}"
        self._target.prepare(name, self._rows)
        self._rows = []
        return (name,)


class ModelCommitter(SinkCommitter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        self._target.commit(permit, committables)
        return len(committables)


@dataclass(frozen=True, slots=True)
class ModelSink:
    """Implements `ports.Sink`: two-phase commit, by production's operators."""

    guarantee: ClassVar[str] = "exactly-once"
    has_independent_writers: ClassVar[bool] = True

    target: Target

    def writer(self) -> SinkWriter:
        return ModelWriter(self.target)

    def committer(self) -> SinkCommitter:
        return ModelCommitter(self.target)

    def check(self) -> None:
        """Accepts all settings."""
