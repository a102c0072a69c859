"""Random graphs over random rows, and the rows that each of their sinks must hold.

Every stream has the columns `k` (key), `t` (event time, ms) and `v`, so that any step may follow any other. A step is
described twice: by the calls that add it to a `weir.Dataflow`, and by plain Python over multisets of rows. No row of a
source is later than its disorder permits, so the expected rows depend only on the rows that the sources have read.
"""

import json
from collections import Counter as Multiset
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import weir
from runtime.operators.aggregates import Aggregate
from runtime.ports import Collector, Operator, OperatorContext, Sink
from tests.jobs.numbers import committed
from tests.shared import Shared

SPLITS: Final = 4
MAX_ROWS: Final = 2_000  #: of a stream: a step that would emit more is not added
Row = tuple[Any, ...]
Rows = Multiset[Row]


@dataclass(frozen=True, eq=False)
class Read:
    """What the sources have read: by source, the number of rows of each split."""

    counts: Mapping[str, Sequence[int]]


def milliseconds(number: int) -> timedelta:
    return timedelta(milliseconds=number)


# ---------------------------------------------------------------- sources


@dataclass(eq=False)
class Feed(Shared):
    """Numbered rows in each split. Slots read as far as `offered`; a bounded feed ends with its last row.

    Args:
        rows: by split; no time is more than `disorder_ms` below the largest time before it.
        read: by token of an attempt, how many rows of each split its readers have emitted, restored rows included.
    """

    uid: str
    rows: Sequence[pa.RecordBatch]
    disorder_ms: int
    batch: int
    bounded: bool
    offered: list[int] = field(default_factory=lambda: [0] * SPLITS)
    read: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    guarantee = "exactly-once"

    @property
    def totals(self) -> list[int]:
        return [batch.num_rows for batch in self.rows]

    @property
    def is_offered(self) -> bool:
        return self.offered == self.totals

    def reader(self) -> "FeedReader":
        return FeedReader(self)

    def check(self) -> None:
        return None

    def output_columns(self) -> pa.Schema:
        return self.rows[0].schema

    def offer(self, counts: Sequence[int]) -> None:
        new = zip(self.totals, self.offered, counts, strict=True)
        self.offered = [min(total, old + count) for total, old, count in new]

    def offer_all(self) -> None:
        self.offered = self.totals

    def rows_read(self, token: int) -> list[int]:
        """By split, at the end of an attempt.

        A reader that survived a restart in part has the token of an older attempt. So has one that reached the end of
        its splits, if the attempt restored that end.
        """
        return [self._read_until(token, split) for split in range(SPLITS)]

    def _read_until(self, token: int, split: int) -> int:
        newest = max(attempt for attempt, counts in self.read.items() if attempt <= token and split in counts)
        return self.read[newest][split]


class FeedReader(weir.spi.SourceReader):
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def open(self, context: OperatorContext) -> None:
        self._table = context.state.keyed_table(
            "positions",
            pa.schema([("split", pa.int64())]),
            pa.schema([pa.field("next", pa.int64(), nullable=False)]),
        )
        numbers = pa.record_batch({"split": pa.array(range(SPLITS), pa.int64())})
        groups = weir.spi.key_groups(numbers, ["split"], context.max_parallelism)
        self._splits = [split for split, group in enumerate(groups) if int(group) in context.key_groups]
        self._slots = self._table.upsert([pa.array(self._splits, pa.int64())]) if self._splits else []
        self._newest = [np.maximum.accumulate(batch.column("t").to_numpy()) for batch in self._feed.rows]
        self._turn, self._token = 0, int(context.token)
        for number, split in enumerate(self._splits):
            self._feed.read[self._token][split] = self._position(number)

    def _position(self, number: int) -> int:
        return int(self._table.column("next")[self._slots[number]])

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        for _ in self._splits:
            self._turn = (self._turn + 1) % len(self._splits)
            split, start = self._splits[self._turn], self._position(self._turn)
            stop = min(start + self._feed.batch, self._feed.offered[split])
            if start < stop:
                slot = self._slots[self._turn : self._turn + 1]
                self._table.column("next")[slot] = stop
                self._table.touch(slot)
                self._feed.read[self._token][split] = stop
                return self._feed.rows[split].slice(start, stop - start)
        return None

    @property
    def exhausted(self) -> bool:
        totals = self._feed.totals
        return self._feed.bounded and all(self._position(n) == totals[split] for n, split in enumerate(self._splits))

    @property
    def idle(self) -> bool:
        return not self._splits

    @property
    def max_disorder_ms(self) -> int:
        return self._feed.disorder_ms

    def watermark(self) -> int | None:
        positions = [self._position(number) for number in range(len(self._splits))]
        if not positions or not all(positions):  # a split without rows is of a table
            return None
        newest = min(self._newest[split][position - 1] for split, position in zip(self._splits, positions, strict=True))
        return int(newest) - self._feed.disorder_ms - 1


def random_feed(rng: Random, uid: str, columns: pa.Schema, keys: Sequence[Any]) -> Feed:
    disorder, total = rng.choice([0, 5, 20]), rng.randint(15, 50)
    batches = []
    for split in range(SPLITS):
        now, rows = rng.randrange(5), list[Row]()
        for number in range(total):
            now += rng.choice([0, 1, 1, 2, 3, 3, 14])
            rows.append((rng.choice(keys), now - rng.randint(0, disorder), 100 * split + number))
        arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), columns.types, strict=True)]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=columns))
    return Feed(uid, batches, disorder, rng.choice([2, 6, 20]), bounded=rng.random() < 0.5)


def table_feed(uid: str, columns: pa.Schema, keys: Sequence[Any]) -> Feed:
    """A row with the number of each key."""
    schema = pa.schema([columns.field("k"), columns.field("t"), ("w", pa.int64())])
    rows = [
        pa.RecordBatch.from_pylist(
            [{"k": key, "t": 0, "w": number} for number, key in enumerate(keys) if number % SPLITS == split], schema
        )
        for split in range(SPLITS)
    ]
    feed = Feed(uid, rows, 0, 3, bounded=True)
    feed.offer_all()
    return feed


# ---------------------------------------------------------------- functions of the graphs


class Parts(weir.KeyedProcessFunction):
    """The sum of `v` per key and part of event time, by a timer at the end of the part."""

    def __init__(self, size_ms: int) -> None:
        self._size_ms = size_ms

    def open(self, context: weir.ProcessContext) -> None:
        self._sums = context.map_state("sums")

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        end = end_of_part(row["t"], self._size_ms)
        self._sums[str(end)] = self._sums.get(str(end), 0) + row["v"]
        context.register_event_timer(end)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        out.emit({"k": context.current_key, "t": timestamp_ms, "v": self._sums[str(timestamp_ms)]})
        del self._sums[str(timestamp_ms)]


class PairedParts(weir.KeyedCoProcessFunction):
    """As `Parts`, of two streams."""

    def __init__(self, size_ms: int) -> None:
        self._size_ms = size_ms

    def open(self, context: weir.ProcessContext) -> None:
        self._seen = context.list_state("seen")

    def process1(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._add(row, row["v"], context)

    def process2(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._add(row, 3 * row["v"], context)

    def _add(self, row: dict[str, Any], value: int, context: weir.ProcessContext) -> None:
        end = end_of_part(row["t"], self._size_ms)
        self._seen.add([end, value])
        context.register_event_timer(end)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        entries = list(self._seen.get())
        out.emit(
            {"k": context.current_key, "t": timestamp_ms, "v": sum(v for end, v in entries if end == timestamp_ms)}
        )
        self._seen.replace([entry for entry in entries if entry[0] != timestamp_ms])


class Numbered(weir.KeyedProcessFunction):
    """Numbers the rows of a key; `t` and `v` of a row are not passed on, since the order of rows is not defined."""

    def open(self, context: weir.ProcessContext) -> None:
        self._count = context.value_state("count")

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        number = (self._count.get() or 0) + 1
        self._count.update(number)
        out.emit({"k": context.current_key, "t": 0, "v": number})


class SortsOut(weir.ProcessFunction):
    """Odd values go to a side output."""

    def __init__(self, tag: weir.OutputTag) -> None:
        self._tag = tag

    def process(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        if row["v"] % 2:
            out.emit_to(self._tag, row)
        else:
            out.emit(row)


class Held(Operator):
    """Holds rows in memory until the next barrier, watermark or end."""

    def open(self, context: OperatorContext) -> None:
        self._held: list[pa.RecordBatch] = []

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._held.append(batch)

    def _emit(self, out: Collector) -> None:
        for batch in self._held:
            out.emit(batch)
        self._held = []

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._emit(out)

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: Collector) -> None:
        self._emit(out)

    def finish(self, out: Collector) -> None:
        self._emit(out)


class Listed(Operator):
    """Emits each batch when the next one comes. Keeps it in a list state, as rows."""

    def open(self, context: OperatorContext) -> None:
        self._list = context.state.list_state("waiting")
        self._waiting: list[dict[str, Any]] = list(self._list.get())
        self._schema: pa.Schema | None = None

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._schema = batch.schema
        if self._waiting:
            out.emit(pa.RecordBatch.from_pylist(self._waiting, schema=batch.schema))
        self._waiting = batch.to_pylist()

    def snapshot(self, checkpoint: int) -> None:
        self._list.replace(self._waiting)

    def finish(self, out: Collector) -> None:
        if self._waiting:
            out.emit(pa.RecordBatch.from_pylist(self._waiting))
        self._waiting = []


def identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def repeated(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number in range(row["v"] % 3):
        yield {**row, "v": row["v"] + 7 * number}


def end_of_part(time: int, size_ms: int) -> int:
    return (time // size_ms + 1) * size_ms


def windows_of(time: int, size_ms: int, slide_ms: int) -> range:
    """The starts of all windows of a row."""
    return range((time - size_ms) // slide_ms * slide_ms + slide_ms, time + 1, slide_ms)


# ---------------------------------------------------------------- steps


@dataclass(frozen=True)
class Node:
    """A stream and its expected rows; `make` adds its step to a flow, after its inputs."""

    name: str
    rows: Callable[[Read], Rows]
    stream: weir.Stream


@dataclass(frozen=True)
class Output:
    """What a sink holds. `problem` compares the committed rows with the expected ones; "" if they agree."""

    uid: str
    expected: Callable[[Read], Rows]
    problem: Callable[[Rows, Rows], str]

    def check(self, folder: Path, read: Read) -> str:
        rows = Multiset(tuple(row.values()) for row in visible_rows(folder / self.uid))
        problem = self.problem(self.expected(read), rows)
        return problem and f"{self.uid}: {problem}"


def visible_rows(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Of Parquet files and of JSON lines."""
    yield from committed(folder)
    for path in folder.glob("part-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def difference(expected: Rows, actual: Rows) -> str:
    missing, surplus = expected - actual, actual - expected
    if not missing and not surplus:
        return ""
    lines = [f"{sign}{row}" for sign, rows in (("-", missing), ("+", surplus)) for row in sorted(rows, key=str)[:4]]
    counts = f"{missing.total()} of {expected.total()} rows missing, {surplus.total()} more"
    return f"{counts}: {' '.join(lines)}"


def updates_problem(expected: Rows, actual: Rows) -> str:
    """Of running counts and sums: each update of a key comes once, and the last one is right."""
    repeated = [row for row, times in Multiset((key, n) for key, n, _ in actual.elements()).items() if times > 1]
    if repeated:
        return f"updates written twice: {repeated[:4]}"
    newest = dict[Any, Row]()
    for row in actual:
        newest[row[0]] = max(row, newest.get(row[0], row), key=lambda row: int(row[1]))
    return difference(expected, Multiset(newest.values()))


def latest_problem(expected: Rows, actual: Rows) -> str:
    """Of the latest rows by key: none is foreign or repeated, and the latest time of each key is there."""
    if foreign := actual - expected:
        return f"rows too many: {[*foreign][:4]}"
    ends = [{row[0]: row[1] for row in sorted(rows, key=lambda row: int(row[1]))} for rows in (expected, actual)]
    return "" if ends[0] == ends[1] else f"latest times are {ends[1]}, not {ends[0]}"


AGGREGATES: Final[Mapping[str, Aggregate]] = {"n": weir.Count(), "total": weir.Sum("v")}
FOLDED: Final = pc.field("total") * 2 + pc.field("n")
WINDOW_END: Final = pc.field("window_end").cast(pa.int64())


class Graph:
    """A random dataflow. `failing` is a step behind each source, at which faults of an author's function happen.

    Args:
        sink: makes the sink with a uid.
    """

    def __init__(
        self,
        rng: Random,
        failing: Callable[[pa.RecordBatch], pa.RecordBatch],
        sink: Callable[[str], Sink],
    ) -> None:
        self._rng, self._make_sink = rng, sink
        self.flow = weir.Dataflow("fuzzed")
        key_type, keys = rng.choice([(pa.int64(), range(1, 40)), (pa.string(), [f"key {n}" for n in range(1, 40)])])
        self._keys: Sequence[Any] = keys[: rng.choice([1, 2, 3, 12, 39])]
        self.columns = pa.schema([("k", key_type), ("t", pa.int64()), ("v", pa.int64())])
        self._texts: list[str] = []
        self._outputs: list[Output] = []
        self._used: set[str] = set()
        self._number = 0
        self.feeds = [
            random_feed(rng, f"feed{n}", self.columns, self._keys) for n in range(rng.choice([1, 1, 2, 2, 3]))
        ]
        self._all = Read({feed.uid: feed.totals for feed in self.feeds})
        self._nodes: list[Node] = []
        for feed in self.feeds:
            stream = self.flow.source(feed.uid, feed)
            stream = stream.map_batches(f"failing_{feed.uid}", failing)
            stream = stream.select(f"columns_{feed.uid}", "k", "t", "v")
            self._add(feed.uid, partial(_rows_of_feed, feed), stream.with_declared_columns(self.columns))
        for _ in range(rng.choice([1, 2, 3, 3, 4, 6])):
            rng.choice(STEPS)(self)
        for node in self._nodes:
            if node.name not in self._used or rng.random() < 0.1:
                rng.choice([*[Graph._end_in_sink] * 6, *ENDS])(self, node)

    @property
    def outputs(self) -> Sequence[Output]:
        return self._outputs

    def __str__(self) -> str:
        feeds = [
            f"{f.uid}: {f.totals[0]} rows x {SPLITS}, disorder {f.disorder_ms}{', bounded' * f.bounded}"
            for f in self.feeds
        ]
        return "; ".join([f"{len(self._keys)} keys of {self.columns.field('k').type}", *feeds, *self._texts])

    def _uid(self, kind: str) -> str:
        self._number += 1
        return f"{kind}{self._number}"

    def _parallelism(self) -> int | None:
        """Of a step: that of the job, or a single subtask."""
        return self._rng.choice([None, None, None, 1])

    def _add(self, uid: str, rows: Callable[[Read], Rows], stream: weir.Stream) -> None:
        self._nodes.append(Node(uid, cache(rows), stream))

    def _input(self) -> Node:
        """A random stream, more often a recent one."""
        index = max(self._rng.randrange(len(self._nodes)) for _ in range(2))
        return self._nodes[index]

    def _step(
        self,
        kind: str,
        inputs: Sequence[Node],
        text: str,
        rows: Callable[..., Rows],
        make: Callable[[str], weir.Stream | Sequence[tuple[weir.Stream, Callable[..., Rows]]]],
    ) -> None:
        """Adds a step unless it would emit too many rows. `rows` gets the rows of the inputs."""

        def expected(of: Callable[..., Rows], read: Read) -> Rows:
            return of(*(node.rows(read) for node in inputs))

        if expected(rows, self._all).total() > MAX_ROWS:
            return
        uid = self._uid(kind)
        self._used.update(node.name for node in inputs)
        self._texts.append(f"{uid} = {kind}({', '.join([*(node.name for node in inputs), text])})")
        result = make(uid)
        outputs = [(result, rows)] if isinstance(result, weir.Stream) else result
        for number, (stream, of) in enumerate(outputs):
            self._add(f"{uid}{'.side' * number}", partial(expected, of), stream)

    def _normal(self, stream: weir.Stream, uid: str, time: pc.Expression, value: pc.Expression) -> weir.Stream:
        """The columns that every stream has."""
        columns = {"t": time, "v": value.cast(pa.int64())}
        return stream.select(f"{uid}_columns", "k", **columns).with_declared_columns(self.columns)

    # ------------------------------------------------------------ stateless steps

    def filter(self) -> None:
        node, mask, parallelism = self._input(), self._rng.choice([1, 2, 3]), self._parallelism()
        is_in = pc.bit_wise_and(pc.field("v"), pc.scalar(mask)) != 0
        self._step(
            "filter",
            [node],
            f"v & {mask}",
            lambda rows: _multiset((row, n) for row, n in rows.items() if row[2] & mask),
            lambda uid: node.stream.filter(uid, is_in, parallelism=parallelism),
        )

    def shift(self) -> None:
        node, shift = self._input(), self._rng.choice([0, 7, 40])
        self._step(
            "shift",
            [node],
            f"{shift} ms",
            lambda rows: _multiset(((k, t + shift, 2 * v + 1), n) for (k, t, v), n in rows.items()),
            lambda uid: node.stream.with_columns(uid, t=pc.field("t") + shift, v=pc.field("v") * 2 + 1),
        )

    def repeat(self) -> None:
        node = self._input()
        self._step(
            "repeat",
            [node],
            "v % 3",
            lambda rows: _multiset(((k, t, v + 7 * i), n) for (k, t, v), n in rows.items() for i in range(v % 3)),
            lambda uid: node.stream.flat_map(uid, repeated, self.columns),
        )

    def pass_on(self) -> None:
        node, is_written = self._input(), self._rng.random() < 0.5

        def make(uid: str) -> weir.Stream:
            if is_written:
                self._outputs.append(Output(uid, node.rows, difference))
                return node.stream.write_through(uid, self._make_sink(uid))
            return node.stream.transform(uid, Held, self.columns)

        self._step("written" if is_written else "held", [node], "", identity_rows, make)

    def look_up(self) -> None:
        node = self._input()
        numbers = {key: number for number, key in enumerate(self._keys)}

        def make(uid: str) -> weir.Stream:
            table = self.flow.source(f"{uid}_table", table_feed(f"{uid}_table", self.columns, self._keys))
            stream = node.stream.join_broadcast(uid, table, on=["k"], take=["w"])
            return self._normal(stream, uid, pc.field("t"), pc.field("v") + pc.field("w"))

        self._step(
            "look_up",
            [node],
            "",
            lambda rows: _multiset(((k, t, v + numbers[k]), n) for (k, t, v), n in rows.items()),
            make,
        )

    def union(self) -> None:
        nodes = [self._input(), self._input()]
        self._step(
            "union",
            nodes,
            "",
            lambda rows, other: rows + other,
            lambda uid: nodes[0].stream.union(uid, nodes[1].stream),
        )

    def sort_out(self) -> None:
        node = self._input()
        tag = weir.OutputTag("odd", self.columns)

        def even(rows: Rows) -> Rows:
            return _multiset((row, n) for row, n in rows.items() if row[2] % 2 == 0)

        def make(uid: str) -> Sequence[tuple[weir.Stream, Callable[..., Rows]]]:
            stream = node.stream.process(uid, partial(SortsOut, tag), self.columns, side_outputs=[tag])
            return [(stream, even), (stream.side_output(tag), lambda rows: rows - even(rows))]

        self._step("sort_out", [node], "odd values", even, make)

    # ------------------------------------------------------------ steps with keys

    def window(self) -> None:
        node, rng = self._input(), self._rng
        size, slide = rng.choice([(20, 20), (50, 50), (60, 20), (45, 30), (200, 200)])
        late = weir.OutputTag("late", self.columns) if rng.random() < 0.3 else None
        parallelism = self._parallelism()

        def rows(rows: Rows) -> Rows:
            sums = defaultdict[tuple[Any, int], int](int)
            for (k, t, v), n in rows.items():
                for start in windows_of(t, size, slide):
                    sums[k, start + size] += n * (2 * v + 1)
            return Multiset((k, end, total) for (k, end), total in sums.items())

        def make(uid: str) -> weir.Stream:
            stream = node.stream.key_by("k").window(
                uid,
                milliseconds(size),
                "t",
                AGGREGATES,
                slide=milliseconds(slide),
                late_to=late,
                parallelism=parallelism,
            )
            if late is not None:
                self._sink(f"{uid}_late", stream.side_output(late), lambda read: Multiset(), difference)
            return self._normal(stream, uid, WINDOW_END, FOLDED)

        self._step("window", [node], f"{size}/{slide} ms{', late' if late else ''}", rows, make)

    def session(self) -> None:
        node, gap, parallelism = self._input(), self._rng.choice([2, 6, 25]), self._parallelism()

        def rows(rows: Rows) -> Rows:
            by_key, sessions = defaultdict[Any, list[tuple[int, int]]](list), Multiset[Row]()
            for (k, t, v), n in rows.items():
                by_key[k].append((t, n * (2 * v + 1)))
            for k, entries in by_key.items():
                last = total = None
                for t, value in sorted(entries):
                    if last is not None and t - last > gap:
                        sessions[k, last + gap, total] += 1
                        total = None
                    last, total = t, (total or 0) + value
                if last is not None:
                    sessions[k, last + gap, total] += 1
            return sessions

        def make(uid: str) -> weir.Stream:
            keyed, length = node.stream.key_by("k"), milliseconds(gap)
            stream = keyed.session_window(uid, length, "t", AGGREGATES, parallelism=parallelism)
            return self._normal(stream, uid, WINDOW_END, FOLDED)

        self._step(
            "session",
            [node],
            f"gap {gap} ms",
            rows,
            make,
        )

    def deduplicate(self) -> None:
        node, within = self._input(), self._rng.choice([30, 400])

        def make(uid: str) -> weir.Stream:
            twice = node.stream.union(f"{uid}_twice", node.stream)
            return twice.key_by("k", "t", "v").deduplicate(uid, milliseconds(within), "t")

        self._step("deduplicate", [node], f"{within} ms", lambda rows: Multiset([*rows]), make)

    def interval_join(self) -> None:
        nodes, rng = [self._input(), self._input()], self._rng
        lower, upper = rng.choice([(-6, 3), (0, 12), (-40, -2), (-100, 100)])
        parallelism = self._parallelism()

        def rows(left: Rows, right: Rows) -> Rows:
            pairs = Multiset[Row]()
            for (k, t, v), n, (_, at, w), m in _pairs(left, right):
                if lower <= at - t <= upper:
                    pairs[k, max(t, at), 2 * v + w] += n * m
            return pairs

        def make(uid: str) -> weir.Stream:
            keyed = [node.stream.key_by("k") for node in nodes]
            stream = (
                keyed[0]
                .interval_join(keyed[1])
                .between(
                    uid,
                    milliseconds(lower),
                    milliseconds(upper),
                    time=("t", "t"),
                    suffixes=("", "_2"),
                    result_time="when",
                    parallelism=parallelism,
                )
            )
            when = pc.field("when").cast(pa.int64())
            return self._normal(stream, uid, when, pc.field("v") * 2 + pc.field("v_2"))

        self._step("interval_join", nodes, f"{lower} to {upper} ms", rows, make)

    def window_join(self) -> None:
        nodes = [self._input(), self._input()]
        size, slide = self._rng.choice([(15, 15), (60, 60), (40, 20), (300, 300)])

        def rows(left: Rows, right: Rows) -> Rows:
            pairs = Multiset[Row]()
            for (k, t, v), n, (_, at, w), m in _pairs(left, right):
                for start in {*windows_of(t, size, slide)} & {*windows_of(at, size, slide)}:
                    pairs[k, start + size, 2 * v + w] += n * m
            return pairs

        def make(uid: str) -> weir.Stream:
            joined = nodes[0].stream.key_by("k").join(nodes[1].stream.key_by("k"))
            slides = milliseconds(slide)
            stream = joined.window(uid, milliseconds(size), time=("t", "t"), slide=slides, suffixes=("", "_2"))
            return self._normal(stream, uid, WINDOW_END, pc.field("v") * 2 + pc.field("v_2"))

        self._step("window_join", nodes, f"{size}/{slide} ms", rows, make)

    def parts(self) -> None:
        node, size, parallelism = self._input(), self._rng.choice([15, 70]), self._parallelism()

        def rows(rows: Rows) -> Rows:
            return _part_sums(size, rows)

        self._step(
            "parts",
            [node],
            f"{size} ms",
            rows,
            lambda uid: node.stream.key_by("k").process(
                uid, partial(Parts, size), self.columns, time="t", parallelism=parallelism
            ),
        )

    def paired_parts(self) -> None:
        nodes, size = [self._input(), self._input()], self._rng.choice([15, 70])

        def rows(left: Rows, right: Rows) -> Rows:
            return _part_sums(size, left, right)

        def make(uid: str) -> weir.Stream:
            connected = nodes[0].stream.key_by("k").connect(nodes[1].stream.key_by("k"))
            return connected.process(uid, partial(PairedParts, size), self.columns, time=("t", "t"))

        self._step("paired_parts", nodes, f"{size} ms", rows, make)

    def batches(self) -> None:
        node, most = self._input(), self._rng.choice([2, 9])
        flush = self._rng.random() < 0.3
        self._step(
            "batches",
            [node],
            f"{most} rows{', flushed' if flush else ''}",
            identity_rows,
            lambda uid: (
                node.stream.key_by("k")
                .batches(uid, identity, max_rows=most, max_wait_ms=50, flush_on_barrier=flush)
                .with_declared_columns(self.columns)
            ),
        )

    # ------------------------------------------------------------ ends

    def _sink(
        self,
        name: str,
        stream: weir.Stream,
        expected: Callable[[Read], Rows],
        problem: Callable[[Rows, Rows], str],
    ) -> None:
        uid = self._uid("out")
        self._texts.append(f"{uid}({name})")
        stream.sink(uid, self._make_sink(uid), parallelism=self._parallelism())
        self._outputs.append(Output(uid, expected, problem))

    def _end_in_sink(self, node: Node) -> None:
        self._sink(node.name, node.stream, node.rows, difference)

    def _end_in_updates(self, node: Node) -> None:
        def expected(read: Read) -> Rows:
            counts, totals = Multiset[Any](), Multiset[Any]()
            for (k, _, v), n in node.rows(read).items():
                counts[k] += n
                totals[k] += n * v
            return Multiset((k, n, totals[k]) for k, n in counts.items())

        uid = self._uid("aggregate")
        stream = node.stream.key_by("k").aggregate(uid, AGGREGATES)
        self._sink(f"{uid} of {node.name}", stream, expected, updates_problem)

    def _end_in_latest(self, node: Node) -> None:
        uid = self._uid("latest")
        self._sink(f"{uid} of {node.name}", node.stream.key_by("k").latest(uid, "t"), node.rows, latest_problem)

    def _end_in_numbers(self, node: Node) -> None:
        def expected(read: Read) -> Rows:
            counts = Multiset[Any]()
            for (k, _, _), n in node.rows(read).items():
                counts[k] += n
            return Multiset((k, 0, number) for k, n in counts.items() for number in range(1, n + 1))

        uid = self._uid("numbered")
        stream = node.stream.key_by("k").process(uid, Numbered, self.columns)
        self._sink(f"{uid} of {node.name}", stream, expected, difference)

    def _end_in_list(self, node: Node) -> None:
        """No other step may follow: it holds rows over watermarks."""
        uid = self._uid("listed")
        self._sink(f"{uid} of {node.name}", node.stream.transform(uid, Listed, self.columns), node.rows, difference)


STATELESS: Final = (
    Graph.filter,
    Graph.shift,
    Graph.repeat,
    Graph.pass_on,
    Graph.look_up,
    Graph.union,
    Graph.sort_out,
)
KEYED: Final = (
    Graph.window,
    Graph.session,
    Graph.deduplicate,
    Graph.interval_join,
    Graph.window_join,
    Graph.parts,
    Graph.paired_parts,
    Graph.batches,
)
STEPS: Final = (*STATELESS, *KEYED, *KEYED)
ENDS: Final = (Graph._end_in_updates, Graph._end_in_latest, Graph._end_in_numbers, Graph._end_in_list)


def identity_rows(rows: Rows) -> Rows:
    return rows


def _multiset(entries: Iterable[tuple[Row, int]]) -> Rows:
    rows = Multiset[Row]()
    for row, n in entries:
        rows[row] += n
    return rows


def _rows_of_feed(feed: Feed, read: Read) -> Rows:
    rows = Multiset[Row]()
    for batch, count in zip(feed.rows, read.counts[feed.uid], strict=True):
        rows.update(tuple(row.values()) for row in batch.slice(0, count).to_pylist())
    return rows


def _pairs(left: Rows, right: Rows) -> Iterator[tuple[Row, int, Row, int]]:
    """Rows with equal keys, with their multiplicities."""
    by_key = defaultdict[Any, list[tuple[Row, int]]](list)
    for row, n in right.items():
        by_key[row[0]].append((row, n))
    for row, n in left.items():
        for second, m in by_key[row[0]]:
            yield row, n, second, m


def _part_sums(size_ms: int, *streams: Rows) -> Rows:
    """The rows of `Parts`; values of the second stream count three times."""
    sums = defaultdict[tuple[Any, int], int](int)
    for factor, rows in zip((1, 3), streams, strict=False):
        for (k, t, v), n in rows.items():
            sums[k, end_of_part(t, size_ms)] += factor * n * v
    return Multiset((k, end, total) for (k, end), total in sums.items())
