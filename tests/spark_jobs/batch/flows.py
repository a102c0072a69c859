"""Small bounded jobs over the same files, for STREAMING and BATCH."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import weir

EVENTS = pa.schema([("key", pa.string()), ("at", pa.timestamp("ms")), ("value", pa.int64())])
NAMES = pa.schema([("key", pa.string()), ("name", pa.string())])
FILES, ROWS_PER_FILE, KEYS = 4, 500, 23
DISORDER_MS = 5_000
STEP_MS = 400
GAP_MS = 20_000
START = datetime.fromisoformat("2024-02-28T23:50")


def write_inputs(root: Path) -> None:
    """Event files in rough order of time, and names of most keys."""
    random = np.random.default_rng(7)
    events, names = root / "events", root / "names"
    events.mkdir(parents=True)
    names.mkdir()
    for file in range(FILES):
        numbers = np.arange(ROWS_PER_FILE) + file * ROWS_PER_FILE
        offsets = numbers * STEP_MS + random.integers(0, DISORDER_MS, ROWS_PER_FILE)
        rows = {
            "key": [f"k{key}" for key in random.integers(0, KEYS, ROWS_PER_FILE)],
            "at": [START + timedelta(milliseconds=int(offset)) for offset in offsets],
            "value": random.integers(-50, 1_000, ROWS_PER_FILE),
        }
        pacsv.write_csv(pa.table(rows, EVENTS), events / f"{file:02}.csv")
    keys = [f"k{key}" for key in range(KEYS - 3)]
    pq.write_table(pa.table({"key": keys, "name": [key.upper() for key in keys]}, NAMES), names / "names.parquet")


def events(flow: weir.Dataflow, root: Path, uid: str = "events", parallelism: int | None = None) -> weir.Stream:
    folder = str(root / "events")
    return flow.source(
        uid,
        weir.DirectorySource(
            folder, weir.CsvFormat(EVENTS), event_time="at", max_disorder_ms=2 * DISORDER_MS, bounded=True
        ),
        parallelism=parallelism,
    )


def even(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keeps rows whose value is even; adds a column whose type only the data tells."""
    values = batch["value"].to_numpy()
    rows = batch.filter(pa.array(values % 2 == 0))
    return rows.append_column("half", pa.array(rows["value"].to_numpy() // 2))


def halves(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": row["key"], "part": part, "value": row["value"]} for part in range(abs(row["value"]) % 3)]


HALVES = pa.schema([("key", pa.string()), ("part", pa.int32()), ("value", pa.int64())])
SESSIONS = pa.schema([("key", pa.string()), ("first", pa.int64()), ("last", pa.int64()), ("rows", pa.int32())])
MATCHED = pa.schema([("key", pa.string()), ("end", pa.int64()), ("first", pa.int64()), ("second", pa.int64())])
ALONE = weir.OutputTag("alone", MATCHED)
NUMBERED = pa.schema([("key", pa.string()), ("at", pa.timestamp("ms")), ("value", pa.int64())])


class Sessions(weir.KeyedProcessFunction):
    """Rows of a key between two pauses, wherever the watermark falls between them."""

    def open(self, context: weir.ProcessContext) -> None:
        self._open = context.value_state("open")

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        at = context.timestamp
        assert at is not None, "the step names a time column"
        sessions = self._open.get() or []
        near = [session for session in sessions if session[0] - GAP_MS <= at <= session[1] + GAP_MS]
        first, last = min([at, *(session[0] for session in near)]), max([at, *(session[1] for session in near)])
        self._open.update(
            [
                *(session for session in sessions if session not in near),
                [first, last, 1 + sum(session[2] for session in near)],
            ]
        )
        context.register_event_timer(last + GAP_MS)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        sessions = self._open.get() or []
        for first, last, rows in sessions:
            if last + GAP_MS == timestamp_ms:
                out.emit({"key": context.current_key, "first": first, "last": last, "rows": rows})
        self._open.update([session for session in sessions if session[1] + GAP_MS != timestamp_ms])


class Positive(weir.ProcessFunction):
    """Rows above zero, and at the end of each subtask how many there were."""

    def open(self, context: weir.SubtaskContext) -> None:
        self._count = 0

    def process(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        if row["value"] > 0:
            self._count += 1
            out.emit(row)

    def finish(self, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        out.emit({"key": f"subtask {context.index} of {context.parallelism}", "value": self._count})


class Rated(weir.KeyedBroadcastProcessFunction):
    """The sum of a key by its rate, once all rates are known: timers fire behind the end of both inputs."""

    def open(self, context: weir.ProcessContext) -> None:
        self._total = context.reducing_state("total", lambda total, other: total + other)
        self._rates = context.broadcast_map("rates")

    def process_broadcast(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._rates[row["key"]] = len(row["name"])

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._total.add(row["value"])
        context.register_event_timer(1 << 60)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        rate = self._rates.get(context.current_key, 1_000)
        out.emit({"key": context.current_key, "value": self._total.get() * rate})


class Matched(weir.KeyedCoProcessFunction):
    """By key and minute, the rows of both streams; minutes without rows of the second stream are a side output."""

    def open(self, context: weir.ProcessContext) -> None:
        self._minutes = context.value_state("minutes")

    def process1(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._count(0, context)

    def process2(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._count(1, context)

    def _count(self, number: int, context: weir.ProcessContext) -> None:
        assert context.timestamp is not None, "the step names the time columns"
        end = context.timestamp // 60_000 * 60_000 + 59_999
        minutes = dict(self._minutes.get() or [])
        counts = minutes.setdefault(end, [0, 0])
        counts[number] += 1
        self._minutes.update([[each, numbers] for each, numbers in minutes.items()])
        context.register_event_timer(end)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        minutes = dict(self._minutes.get())
        first, second = minutes.pop(timestamp_ms)
        row = {"key": context.current_key, "end": timestamp_ms, "first": first, "second": second}
        if second:
            out.emit(row)
        else:
            out.emit_to(ALONE, row)
        self._minutes.update([[each, numbers] for each, numbers in minutes.items()])


class Merged(weir.CoProcessFunction):
    """Rows of both streams, and at the end of each subtask their numbers."""

    def open(self, context: weir.SubtaskContext) -> None:
        self._counts = [0, 0]
        self._ended: list[int] = []

    def process1(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._counts[0] += 1
        out.emit({"key": row["key"], "value": row["value"]})

    def process2(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._counts[1] += 1
        out.emit({"key": row["name"], "value": -row["worth"]})

    def end_input(self, input: int, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._ended.append(input)

    def finish(self, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        assert sorted(self._ended) == [0, 1], "both inputs have ended"
        for number, count in enumerate(self._counts):
            out.emit({"key": f"subtask {context.index} of {context.parallelism}, input {number}", "value": count})


class Totals(weir.spi.Operator):
    """The sum of the values of each subtask, at its end."""

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._index, self._total = context.index, 0

    def process(self, input: int, batch: pa.RecordBatch, out: weir.spi.Collector) -> None:
        self._total += pc.sum(batch["value"]).as_py()

    def finish(self, out: weir.spi.Collector) -> None:
        out.emit(pa.record_batch({"subtask": [self._index], "total": [self._total]}))


def by_value(rows: pa.RecordBatch, subtasks: int) -> Any:
    return np.abs(rows["value"].to_numpy()) % 3 % subtasks


def by_worth(rows: pa.RecordBatch, subtasks: int) -> Any:
    return np.abs(rows["worth"].to_numpy()) % 7 % subtasks


ALL = {
    "rows": weir.Count(),
    "total": weir.Sum("value"),
    "least": weir.Min("value"),
    "most": weir.Max("value"),
    "mean": weir.Mean("value"),
}
MINUTE = timedelta(minutes=1)


def sums(stream: weir.Stream, root: Path) -> weir.Stream:
    return stream.key_by("key").aggregate("sums", ALL)


def changelog(stream: weir.Stream, root: Path) -> weir.Stream:
    return stream.key_by("key").aggregate("sums", ALL, changelog=True)


def changelog_of_changelog(stream: weir.Stream, root: Path) -> weir.Stream:
    """Keys by their number of rows, which changes with every row in STREAMING."""
    groups = {"keys": weir.Count(), "sum": weir.Sum("total"), "low": weir.Min("least"), "high": weir.Max("mean")}
    return changelog(stream, root).key_by("rows").aggregate("groups", groups, changelog=True)


def changes_of_minutes(stream: weir.Stream) -> weir.Stream:
    """The rows of each key and minute, by their number, which changes with every row in STREAMING."""
    minute = pc.ceil_temporal(pc.field("at"), unit="minute", ceil_is_strictly_greater=True)
    rows = stream.with_columns("minutes", minute=minute)
    return rows.key_by("key", "minute").aggregate("sums", ALL, changelog=True)


OF_MINUTES = {"keys": weir.Count(), "sum": weir.Sum("total"), "low": weir.Min("least"), "high": weir.Max("mean")}


def windows_of_changes(stream: weir.Stream, root: Path) -> weir.Stream:
    return changes_of_minutes(stream).key_by("rows").window("groups", MINUTE, "minute", OF_MINUTES)


def sliding_windows_of_changes(stream: weir.Stream, root: Path) -> weir.Stream:
    return changes_of_minutes(stream).key_by("rows").window("groups", 3 * MINUTE, "minute", OF_MINUTES, slide=MINUTE)


def sessions_of_changes(stream: weir.Stream, root: Path) -> weir.Stream:
    """Minutes in which a key has an equal number of rows, in a row."""
    return changes_of_minutes(stream).key_by("key", "rows").session_window("groups", 2 * MINUTE, "minute", OF_MINUTES)


def tumbling(stream: weir.Stream, root: Path) -> weir.Stream:
    return stream.map_batches("even", even).key_by("key").window("minutes", MINUTE, "at", ALL)


def sliding(stream: weir.Stream, root: Path) -> weir.Stream:
    return stream.key_by("key").window("minutes", MINUTE, "at", ALL, slide=timedelta(seconds=15))


def windows_of_windows(stream: weir.Stream, root: Path) -> weir.Stream:
    first = stream.key_by("key").window("seconds", timedelta(seconds=10), "at", {"rows": weir.Count()})
    return first.key_by("rows").window("minutes", MINUTE, "window_start", {"windows": weir.Count()})


def sessions(stream: weir.Stream, root: Path) -> weir.Stream:
    return stream.key_by("key").process("sessions", Sessions, SESSIONS, time="at")


def session_windows(stream: weir.Stream, root: Path) -> weir.Stream:
    return stream.key_by("key").session_window("visits", timedelta(seconds=5), "at", ALL)


def joined(stream: weir.Stream, root: Path) -> weir.Stream:
    names = stream.flow.source("names", weir.ParquetSource(str(root / "names")), parallelism=1)
    return stream.join_broadcast("joined", names, on=["key"], take=["name"], how="left").map_batches("even", even)


def inner_join_of_sums(stream: weir.Stream, root: Path) -> weir.Stream:
    names = stream.flow.source("names", weir.ParquetSource(str(root / "names")), parallelism=1)
    lengths = names.key_by("key").aggregate("copies", {"copies": weir.Count()})
    return stream.join_broadcast("joined", lengths, on=["key"], take=["copies"], how="inner")


def rated(stream: weir.Stream, root: Path) -> weir.Stream:
    rates = stream.flow.source("names", weir.ParquetSource(str(root / "names")))
    return stream.key_by("key").connect_broadcast("rated", rates, Rated, NUMBERED, time="at")


def flat(stream: weir.Stream, root: Path) -> weir.Stream:
    return stream.flat_map("halves", halves, HALVES)


def batched(stream: weir.Stream, root: Path) -> weir.Stream:
    return stream.key_by("key").batches("bulk", even, max_rows=64)


def per_subtask(stream: weir.Stream, root: Path) -> weir.Stream:
    dealt = stream.partition_custom(by_value, "value")
    return dealt.process("positive", Positive, NUMBERED)


def expressions(stream: weir.Stream, root: Path) -> weir.Stream:
    positive = stream.filter("positive", pc.field("value") > 0)
    halved = positive.with_columns("halved", half=pc.divide(pc.field("value"), 2)).select("few", "key", "half")
    return halved.map("named", lambda row: {"key": row["key"], "name": str(row["half"])}, NAMES)


def transformed(stream: weir.Stream, root: Path) -> weir.Stream:
    return stream.partition_custom(by_value, "value").transform("totals", Totals)


def union(stream: weir.Stream, root: Path) -> weir.Stream:
    """Two branches of a source and a source of its own, into a sink."""
    positive, others = stream.filter("positive", pc.field("value") > 0), stream.filter("others", pc.field("value") <= 0)
    return others.union("all", positive, events(stream.flow, root, "more", parallelism=1)).map_batches("even", even)


def union_in_windows(stream: weir.Stream, root: Path) -> weir.Stream:
    """Rows of a union of a union, shuffled once."""
    more = events(stream.flow, root, "more", parallelism=1)
    odd = stream.filter("odd", pc.bit_wise_and(pc.field("value"), 1) == 1)
    both = more.filter("small", pc.field("value") < 100).union("both", odd)
    return stream.union("all", both).key_by("key").window("minutes", MINUTE, "at", ALL, slide=timedelta(seconds=20))


def union_with_several_readers(stream: weir.Stream, root: Path) -> weir.Stream:
    """Both readers are joined again: a diamond behind a union."""
    rows = stream.union("all", events(stream.flow, root, "more", parallelism=1))
    small, large = rows.filter("small", pc.field("value") < 500), rows.filter("large", pc.field("value") >= 500)
    return large.union("again", small).key_by("key").process("sessions", Sessions, SESSIONS, time="at")


def union_as_build_side(stream: weir.Stream, root: Path) -> weir.Stream:
    names = stream.flow.source("names", weir.ParquetSource(str(root / "names")), parallelism=1)
    first, second = names.filter("first", pc.field("key") < "k2"), names.filter("second", pc.field("key") >= "k2")
    return stream.join_broadcast("joined", first.union("names_again", second), on=["key"], take=["name"])


def union_per_subtask(stream: weir.Stream, root: Path) -> weir.Stream:
    """The rows of a subtask, from both inputs, stay together through the union and a step without state."""
    more = events(stream.flow, root, "more", parallelism=1)
    dealt = (each.partition_custom(by_value, "value") for each in (stream, more))
    both = next(dealt).union("both", *dealt).map_batches("even", even)
    return both.process("positive", Positive, NUMBERED.append(pa.field("half", pa.int64())))


def others(stream: weir.Stream, root: Path) -> weir.Stream:
    """The large values of a second source, with other names."""
    large = events(stream.flow, root, "others", parallelism=1).filter("large", pc.field("value") > 700)
    return large.select("renamed", name=pc.field("key"), then=pc.field("at"), worth=pc.field("value"))


def connected(stream: weir.Stream, root: Path) -> weir.Stream:
    """Both outputs of a function with two streams."""
    both = stream.key_by("key").connect(others(stream, root).key_by("name"))
    matched = both.process("matched", Matched, MATCHED, time=("at", "then"), side_outputs=[ALONE])
    return matched.union("again", matched.side_output(ALONE))


def interval_join(stream: weir.Stream, root: Path) -> weir.Stream:
    pairs = stream.key_by("key").interval_join(others(stream, root).key_by("name"))
    return pairs.between(
        "pairs", timedelta(seconds=-4), timedelta(seconds=9), time=("at", "then"), result_time="pair_at"
    )


def windows_of_pairs(stream: weir.Stream, root: Path) -> weir.Stream:
    """A stream with itself; nulls in the key match no row."""
    keyed = stream.with_columns("nulls", key=pc.if_else(pc.field("value") < 0, None, pc.field("key"))).key_by("key")
    pairs = keyed.interval_join(stream.key_by("key")).between(
        "pairs", timedelta(0), timedelta(seconds=5), time=("at", "at"), suffixes=("", "_second"), result_time="pair_at"
    )
    return pairs.key_by("key").window("minutes", MINUTE, "pair_at", ALL)


def window_join(stream: weir.Stream, root: Path) -> weir.Stream:
    pairs = stream.key_by("key").join(others(stream, root).key_by("name"))
    return pairs.window("met", timedelta(seconds=20), time=("at", "then"))


def sliding_window_join(stream: weir.Stream, root: Path) -> weir.Stream:
    pairs = others(stream, root).key_by("name").join(stream.key_by("key"))
    return pairs.window("met", timedelta(seconds=20), time=("then", "at"), slide=timedelta(seconds=10))


def join_of_unions(stream: weir.Stream, root: Path) -> weir.Stream:
    """Each input of the join is of several stages."""
    small, rest = stream.filter("small", pc.field("value") < 100), stream.filter("rest", pc.field("value") >= 400)
    return interval_join(rest.union("both", small), root)


def connected_without_keys(stream: weir.Stream, root: Path) -> weir.Stream:
    dealt = stream.partition_custom(by_value, "value")
    second = others(stream, root).partition_custom(by_worth, "worth")
    return dealt.connect(second).process("merged", Merged, NUMBERED)


async def looked_up(row: dict[str, Any]) -> list[dict[str, Any]]:
    """No row, one or two, after a time that is not that of the row before."""
    await asyncio.sleep((row["value"] * 7 % 11) / 10_000)
    return [{"key": row["key"], "part": part, "value": row["value"]} for part in range(abs(row["value"]) % 3)]


async def slow_at_times(row: dict[str, Any]) -> list[dict[str, Any]]:
    await asyncio.sleep(60.0 if row["value"] % 97 == 0 else 0.0)
    return [{"key": row["key"], "part": 0, "value": row["value"]}]


def not_in_time(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": row["key"], "part": -1, "value": row["value"]}]


def asynchronous(stream: weir.Stream, root: Path) -> weir.Stream:
    """In completion order in STREAMING, by a single subtask, and then by functions of batches."""
    parts = stream.async_map("requests", looked_up, HALVES, capacity=20, ordered=False, parallelism=1)
    return parts.map_batches("even", even)


def asynchronous_with_timeout(stream: weir.Stream, root: Path) -> weir.Stream:
    rows = stream.filter("positive", pc.field("value") > 0)
    return rows.async_map("requests", slow_at_times, HALVES, capacity=1_000, timeout_ms=1_500, on_timeout=not_in_time)


FAMILY: Mapping[str, Callable[[weir.Stream, Path], weir.Stream]] = {
    "sums": sums,
    "changelog": changelog,
    "changelog of a changelog": changelog_of_changelog,
    "windows of changes": windows_of_changes,
    "sliding windows of changes": sliding_windows_of_changes,
    "sessions of changes": sessions_of_changes,
    "tumbling": tumbling,
    "sliding": sliding,
    "windows of windows": windows_of_windows,
    "sessions": sessions,
    "session windows": session_windows,
    "join": joined,
    "inner join": inner_join_of_sums,
    "connect_broadcast": rated,
    "flat_map": flat,
    "batches": batched,
    "process": per_subtask,
    "expressions": expressions,
    "transform": transformed,
    "union": union,
    "union in windows": union_in_windows,
    "union with several readers": union_with_several_readers,
    "union as build side": union_as_build_side,
    "union per subtask": union_per_subtask,
    "connect": connected,
    "interval join": interval_join,
    "windows of pairs": windows_of_pairs,
    "window join": window_join,
    "sliding window join": sliding_window_join,
    "join of unions": join_of_unions,
    "connect without keys": connected_without_keys,
    "async_map": asynchronous,
    "async_map with timeout": asynchronous_with_timeout,
}


def flow_of(name: str, root: Path, output: Path) -> weir.Dataflow:
    flow = weir.Dataflow("family")
    FAMILY[name](events(flow, root), root).sink("out", weir.ParquetSink(str(output)))
    return flow


def every_type() -> pa.Table:
    """A row per key of every type that Spark has no type for, or another one, and a row of nulls."""
    day = datetime.fromisoformat("1969-12-31T23:59:59.123")
    columns: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
        "key": (pa.string(), ["a", "b", None]),
        "Key": (pa.string(), ["case", "matters", None]),
        "a.b `c`": (pa.int32(), [1, -1, None]),
        "ms": (pa.timestamp("ms"), [day, day, None]),
        "s": (pa.timestamp("s"), [0, -1, None]),
        "ns": (pa.timestamp("ns"), [2**62 + 1, -1, None]),
        "zoned": (pa.timestamp("us", "America/New_York"), [2**52 + 1, -1, None]),
        "time32": (pa.time32("ms"), [1, 86_399_999, None]),
        "time64": (pa.time64("ns"), [1, 2, None]),
        "duration": (pa.duration("ms"), [-5, 5, None]),
        "uint8": (pa.uint8(), [0, 255, None]),
        "uint64": (pa.uint64(), [0, 2**64 - 1, None]),
        "half": (pa.float16(), [np.float16(0.1), np.float16(-1), None]),
        "fixed": (pa.binary(3), [b"abc", b"\0\0\0", None]),
        "large": (pa.large_string(), ["ä", "", None]),
        "decimal": (pa.decimal128(20, 3), [None, 1, None]),
        "date": (pa.date32(), [-1, 20_000, None]),
        "word": (pa.dictionary(pa.int16(), pa.string()), ["x", "y", None]),
        "list": (pa.list_(pa.timestamp("ms")), [[0, None], [], None]),
        "struct": (pa.struct([("x", pa.uint32()), ("y", pa.large_binary())]), [{"x": 1, "y": b"z"}, {}, None]),
        "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], None]),
        "none": (pa.null(), [None, None, None]),
    }
    return pa.table([pa.array(values, kind) for kind, values in columns.values()], names=list(columns))


def through_a_shuffle(root: Path, output: Path) -> weir.Dataflow:
    """Rows of `every_type`, dealt by key and written."""
    flow = weir.Dataflow("types")
    source = weir.DirectorySource(str(root), weir.ParquetFormat(every_type().schema), bounded=True)
    keyed = flow.source("rows", source).key_by("key")
    keyed.batches("same", _same, max_rows=10).sink("out", weir.ParquetSink(str(output)))
    return flow


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def rows_in(folder: Path) -> list[str]:
    """Committed rows, whatever their order."""
    return sorted(repr(row) for path in _files(folder) for row in pq.read_table(path).to_pylist())


def schema_in(folder: Path) -> pa.Schema:
    (schema,) = {pq.read_schema(path).remove_metadata() for path in _files(folder)}
    return schema


def last_in(folder: Path, keys: Sequence[str]) -> list[str]:
    """The last row of each key of a running aggregate: the one that counts most rows."""
    last: dict[Any, dict[str, Any]] = {}
    for path in _files(folder):
        for row in pq.read_table(path).to_pylist():
            key = tuple(row[name] for name in keys)
            if key not in last or row["rows"] >= last[key]["rows"]:
                last[key] = row
    return sorted(map(repr, last.values()))


def table_in(folder: Path) -> list[str]:
    """A changelog folded to the table that it describes, whatever the order of its rows."""
    table: Counter[str] = Counter()
    for row in (row for path in _files(folder) for row in pq.read_table(path).to_pylist()):
        sign = 1 if row.pop("op") in ("insert", "update_after") else -1
        table[repr(row)] += sign
    assert min(table.values()) >= 0, "a row was taken back that had not come"
    return sorted(table.elements())


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.parquet") if path.name[0] not in "._")
