"""Aggregates of changelogs, and chains of them, against DuckDB, with restores at another parallelism in between."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from math import gcd
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core.job.messages import MAX_WATERMARK
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import CorruptState, DataRejected, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.aggregates import Aggregate, Count, CountIf, Max, Mean, Min, Sum
from runtime.operators.output_tag import OutputTag
from runtime.operators.partition import partition_by_key_group
from runtime.operators.retraction import DELETE, INSERT, UNMATCHED_COUNTER, UPDATE_AFTER, UPDATE_BEFORE
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.windows.retracting_session import RetractingSessionWindow
from runtime.operators.windows.sliding import SlidingWindow
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.operators.windows.window import RowInput
from runtime.ports import Operator
from tests.example_counts import examples
from tests.operators.harness import Harness

MAX_PARALLELISM = 16
DAY = datetime.fromisoformat("2026-03-01")
Row = dict[str, Any]

ALL: dict[str, Aggregate] = {
    "rows": Count(),
    "marked": CountIf("b"),
    "total": Sum("v"),
    "mean": Mean("v"),
    "low": Min("v"),
    "high": Max("v"),
}
ALL_SQL = (
    "count(*) AS rows, count(*) FILTER (b) AS marked, sum(v) AS total, avg(v) AS mean, min(v) AS low, max(v) AS high"
)
EXACT = {name: aggregate for name, aggregate in ALL.items() if name in ("rows", "total", "mean")}
TIMES = {name: aggregate for name, aggregate in ALL.items() if name in ("rows", "low", "high")}

#: By type: values, the aggregates that take them.
TYPES: Mapping[str, tuple[Any, list[Any], Mapping[str, Aggregate]]] = {
    "int64": (pa.int64(), [None, -(2**63), 2**62, -2, -1, 0, 1, 2, 3], {k: v for k, v in ALL.items() if k != "total"}),
    "int8": (pa.int8(), [None, -128, -1, 0, 1, 127], ALL),
    "uint64": (pa.uint64(), [None, 0, 1, 2**63, 2**64 - 1], {k: v for k, v in ALL.items() if k != "total"}),
    "double": (pa.float64(), [None, -0.25, 0.0, 0.5, 1e6], ALL),
    "decimal": (pa.decimal128(12, 2), [None, Decimal("-3.50"), Decimal("0.01"), Decimal("9999999999.99")], EXACT),
    "timestamp": (pa.timestamp("us"), [None, DAY, DAY - timedelta(days=20_600), DAY + timedelta(hours=1)], TIMES),
}


class Stage:
    """The subtasks of a step, with the rows that all of them have emitted."""

    def __init__(self, keys: Sequence[str], make: Callable[[], Operator], parallelism: int) -> None:
        self._keys, self._make, self._store = keys, make, MemorySnapshotStore()
        self.counters: Counter[str] = Counter()  #: of subtasks that were replaced by a restore
        self.subtasks = [self._subtask(index, parallelism, []) for index in range(parallelism)]
        self._number = 0

    def _subtask(self, index: int, parallelism: int, snapshots: Sequence[Any]) -> Harness:
        return Harness(
            self._make(), store=self._store, snapshots=snapshots, index=index, parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
        )  # fmt: skip

    def process(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        parts = partition_by_key_group(batch, list(self._keys), MAX_PARALLELISM, len(self.subtasks))
        outputs = []
        for subtask, part in zip(self.subtasks, parts, strict=True):
            if part is not None:
                before = len(subtask.out.batches)
                subtask.process(part)
                outputs += subtask.out.batches[before:]
        return outputs

    def watermark(self, time: int) -> list[Row]:
        """The rows of the windows that fire."""
        return [row for subtask in self.subtasks for row in subtask.watermark(time)]

    def count(self, name: str) -> int:
        """A counter of all subtasks, since the start."""
        return self.counters[name] + sum(subtask.context.counters.get(name, 0) for subtask in self.subtasks)

    def snapshot(self, *, full: bool = False) -> list[SubtaskSnapshot]:
        """A complete state, or the changes since the last snapshot: tombstones too."""
        self._number += 1
        return [subtask.snapshot(f"chk-{self._number}", full=full) for subtask in self.subtasks]

    def restore(self, parallelism: int, *, full: bool) -> None:
        """Continues at another parallelism. Each restore compares the state with its proofs."""
        snapshots = self.snapshot(full=full)
        for subtask in self.subtasks:
            self.counters.update(subtask.context.counters)
        self.subtasks = [self._subtask(index, parallelism, snapshots) for index in range(parallelism)]


def changelog(rows: Sequence[Row], kind: Any) -> pa.RecordBatch:
    columns = [("k", pa.string()), ("b", pa.bool_()), ("v", kind), ("t", pa.int64()), ("op", pa.string())]
    schema = pa.schema(columns)
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def fold(table: dict[Any, Row], batches: Sequence[pa.RecordBatch], key: str) -> None:
    """Applies changes as strictly as a database would: what is withdrawn must stand there, what is new must not."""
    for change in (row for batch in batches for row in batch.to_pylist()):
        row = {name: value for name, value in change.items() if name != "op"}
        if change["op"] in (INSERT, UPDATE_AFTER):
            assert row[key] not in table, f"{row} is given out beside {table[row[key]]}"
            table[row[key]] = row
        else:
            assert table.pop(row[key], None) == row
            assert change["op"] in (UPDATE_BEFORE, DELETE)


DATABASE = duckdb.connect()


def queried(rows: pa.Table, query: str) -> list[Row]:
    DATABASE.register("rows", rows)
    result = DATABASE.execute(query)
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, values, strict=True)) for values in result.fetchall()]


def comparable(rows: Sequence[Row]) -> list[str]:
    """Rows in an order of their own. Means may differ in their last digits: DuckDB adds in another order."""

    def plain(name: str, value: Any) -> Any:
        if value is None or isinstance(value, datetime):
            return value
        if "mean" in name:
            return "nan" if math.isnan(value) else f"{float(value):.9e}"
        return Decimal(value).normalize() + 0

    return sorted(
        repr({name: value if name == "k" else plain(name, value) for name, value in row.items()}) for row in rows
    )


# ---------------------------------------------------------------- one aggregate


@st.composite
def changes(draw: st.DrawFn, values: Sequence[Any]) -> list[list[Row]]:
    """Batches of a changelog: rows come, are replaced and go; none goes that is not there. `t`: an event time."""
    present: list[Row] = []
    batches = []
    for _ in range(draw(st.integers(1, 5))):
        batch: list[Row] = []
        for _ in range(draw(st.integers(0, 8))):
            row = {"k": draw(st.sampled_from(["a", "b", None])), "b": draw(st.sampled_from([True, False, None])),
                   "v": draw(st.sampled_from(values)), "t": draw(st.integers(-20, 60))}  # fmt: skip
            action = draw(st.sampled_from(["insert", "insert", "update", "delete", "delete"]))
            if action != "insert" and present:
                old = present.pop(draw(st.integers(0, len(present) - 1)))
                batch.append({**old, "op": UPDATE_BEFORE if action == "update" else DELETE})
            if action != "delete":
                present.append(row)
                batch.append({**row, "op": UPDATE_AFTER if action == "update" else INSERT})
        batches.append(batch)
    return batches


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_a_changelog_aggregates_to_what_its_rows_leave(name: str, data: st.DataObject) -> None:
    """S0-07, S3-20: after every batch, also where a key has lost all rows, and after every restore."""
    kind, values, aggregates = TYPES[name]
    stage = Stage(["k"], lambda: RunningAggregate(["k"], aggregates, changelog=True, retracts=True), 2)
    table: dict[Any, Row] = {}
    present: Counter[tuple[Any, ...]] = Counter()
    for rows in data.draw(changes(values)):
        fold(table, stage.process(changelog(rows, kind)), "k")
        for row in rows:
            present[row["k"], row["b"], row["v"]] += 1 if row["op"] in (INSERT, UPDATE_AFTER) else -1
        left = changelog([{"k": k, "b": b, "v": v} for k, b, v in present.elements()], kind)
        columns = ", ".join(part for part in ALL_SQL.split(", ") if part.split(" AS ")[1] in aggregates)
        expected = queried(pa.Table.from_batches([left]), f"SELECT k, {columns} FROM rows GROUP BY k")
        assert comparable(list(table.values())) == comparable(expected)
        entries = sum(len(each.state.tables["aggregates"]) for each in stage.subtasks)
        assert entries == len(expected), "the state of a key without rows is freed"
        if data.draw(st.booleans()):
            stage.snapshot()
        else:
            stage.restore(data.draw(st.integers(1, 3)), full=data.draw(st.booleans()))
    assert not any(subtask.context.counters for subtask in stage.subtasks)


# ---------------------------------------------------------------- windows


WINDOWS: Mapping[str, tuple[int, int]] = {"tumbling": (20, 20), "sliding": (20, 5), "uneven": (25, 10)}


def window(size: int, slide: int, aggregates: Mapping[str, Aggregate], key: str = "k", time: str = "t") -> Operator:
    rows = RowInput(time, gcd(size, slide), None, None)
    if size == slide:
        return TumblingWindow([key], size, aggregates, rows)
    return SlidingWindow([key], size, slide, aggregates, rows)


def starts_of(time: int, size: int, slide: int) -> list[int]:
    """The starts of the windows that contain `time`."""
    first = (time - size) // slide * slide + slide
    return list(range(first, time + 1, slide))


class Windows:
    """Rows by window. A row is late once its last window has fired; others count for the windows that are open."""

    def __init__(self, size: int, slide: int) -> None:
        self.size, self.slide = size, slide
        self.watermark = -(1 << 40)
        self.late = 0
        self._rows: dict[int, Counter[tuple[tuple[str, Any], ...]]] = {}

    def add(self, row: Row, time: str = "t") -> None:
        starts = [s for s in starts_of(row[time], self.size, self.slide) if s + self.size - 1 > self.watermark]
        self.late += not starts
        values = tuple((name, value) for name, value in row.items() if name != "op")
        for start in starts:
            self._rows.setdefault(start, Counter())[values] += 1 if row["op"] in (INSERT, UPDATE_AFTER) else -1

    def fire(self, watermark: int) -> list[Row]:
        """The rows of the windows that fire, each with the start of its window."""
        self.watermark = max(self.watermark, watermark)
        due = sorted(start for start in self._rows if start + self.size - 1 <= self.watermark)
        return [{**dict(values), "start": start} for start in due for values in self._rows.pop(start).elements()]


def comparable_windows(fired: Sequence[Row], size: int | None = None) -> list[str]:
    """As `comparable`, with the start of each window as an integer; and its end, unless windows have a size."""
    epoch = datetime.fromisoformat("1970-01-01")
    plain = []
    for row in fired:
        start, end = ((row[name] - epoch) // timedelta(milliseconds=1) for name in ("window_start", "window_end"))
        assert size in (None, end - start)
        values = {name: value for name, value in row.items() if name not in ("window_start", "window_end")}
        plain.append({**values, "start": start} | ({"end": end} if size is None else {}))
    return comparable([dict(sorted(row.items())) for row in plain])


@pytest.mark.parametrize("kind_of_windows", WINDOWS)
@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_windows_of_a_changelog_hold_what_its_rows_leave(name: str, kind_of_windows: str, data: st.DataObject) -> None:
    """S0-07, S3-20: also windows that have lost all rows, rows taken back too late, and after every restore."""
    kind, values, aggregates = TYPES[name]
    size, slide = WINDOWS[kind_of_windows]
    stage = Stage(["k"], lambda: window(size, slide, aggregates), 2)
    oracle = Windows(size, slide)
    columns = ", ".join(part for part in ALL_SQL.split(", ") if part.split(" AS ")[1] in aggregates)
    schema = pa.schema([("k", pa.string()), ("b", pa.bool_()), ("v", kind), ("t", pa.int64()), ("start", pa.int64())])
    for rows in data.draw(changes(values)):
        stage.process(changelog(rows, kind))
        for row in rows:
            oracle.add(row)
        if data.draw(st.booleans()):
            stage.snapshot()
        else:
            stage.restore(data.draw(st.integers(1, 3)), full=data.draw(st.booleans()))
        watermark = data.draw(st.integers(-20, 100))
        fired, left = stage.watermark(watermark), pa.Table.from_pylist(oracle.fire(watermark), schema=schema)
        expected = queried(left, f"SELECT k, start, {columns} FROM rows GROUP BY k, start")
        assert comparable_windows(fired, size) == comparable([dict(sorted(row.items())) for row in expected])
        assert stage.count("late_records") == oracle.late
    stage.watermark(MAX_WATERMARK)
    tables = [(state, table) for each in stage.subtasks for state, table in each.state.tables.items()]
    assert not [state for state, table in tables if state != "fired" and len(table)]
    assert stage.count(UNMATCHED_COUNTER) == 0


GAP, SESSIONS = 10, "sessions"


def fire_sessions(rows: list[Row], watermark: int) -> list[Row]:
    """Removes the rows of sessions that have ended, and returns them with the bounds of their session."""
    fired: list[Row] = []
    sessions: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: (str(row["k"]), row["t"])):
        before = sessions[-1][-1] if sessions else None
        if before is not None and before["k"] == row["k"] and row["t"] - before["t"] <= GAP:
            sessions[-1].append(row)
        else:
            sessions.append([row])
    for session in sessions:
        start, end = session[0]["t"], session[-1]["t"] + GAP
        if end <= watermark:
            fired += [{**row, "start": start, "end": end} for row in session]
            for row in session:
                rows.remove(row)
    return fired


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_sessions_of_a_changelog_are_those_of_the_rows_that_are_left(name: str, data: st.DataObject) -> None:
    """S0-07, S3-20: also sessions that were split, shortened, or lost all rows, and after every restore."""
    kind, values, aggregates = TYPES[name]
    stage = Stage(["k"], lambda: RetractingSessionWindow(["k"], GAP, "t", aggregates), 2)
    columns = ", ".join(part for part in ALL_SQL.split(", ") if part.split(" AS ")[1] in aggregates)
    names = [("k", pa.string()), ("b", pa.bool_()), ("v", kind), ("start", pa.int64()), ("end", pa.int64())]
    left: list[Row] = []
    watermark = -100
    for last in [*[False] * data.draw(st.integers(1, 5)), True]:
        batch: list[Row] = []
        for _ in range(data.draw(st.integers(0, 8))):
            row = {"k": data.draw(st.sampled_from(["a", None])), "b": data.draw(st.sampled_from([True, False, None])),
                   "v": data.draw(st.sampled_from(values)),
                   "t": watermark - GAP + 1 + data.draw(st.integers(0, 50))}  # fmt: skip
            action = data.draw(st.sampled_from(["insert", "insert", "update", "delete", "delete"]))
            if action != "insert" and left:
                old = left.pop(data.draw(st.integers(0, len(left) - 1)))
                batch.append({**old, "op": UPDATE_BEFORE if action == "update" else DELETE})
            if action != "delete":
                left.append(row)
                batch.append({**row, "op": UPDATE_AFTER if action == "update" else INSERT})
        stage.process(changelog(batch, kind))
        if data.draw(st.booleans()):
            stage.snapshot()
        else:
            stage.restore(data.draw(st.integers(1, 3)), full=data.draw(st.booleans()))
        watermark = MAX_WATERMARK if last else watermark + data.draw(st.integers(0, 30))
        fired = stage.watermark(watermark)
        ended = pa.Table.from_pylist(fire_sessions(left, watermark), schema=pa.schema(names))
        query = f'SELECT k, start, "end", {columns} FROM rows GROUP BY k, start, "end"'
        expected = [dict(sorted(row.items())) for row in queried(ended, query)]
        assert comparable_windows(fired) == comparable(expected)
    tables = [(state, table) for each in stage.subtasks for state, table in each.state.tables.items()]
    assert not [state for state, table in tables if state != "fired" and len(table)]
    assert not any(stage.count(counter) for counter in ("late_records", UNMATCHED_COUNTER))


def sessions() -> Harness:
    return Harness(RetractingSessionWindow(["k"], GAP, "t", {"rows": Count(), "low": Min("v")}))


def times(*changes: tuple[int, str]) -> pa.RecordBatch:
    """Rows of a key whose values are their times."""
    return changelog([{"k": "a", "v": t, "t": t, "op": op} for t, op in changes], pa.int64())


def test_a_row_that_is_taken_back_splits_a_session_and_may_end_it() -> None:
    harness = sessions()
    harness.process(times((1, INSERT), (8, INSERT), (15, INSERT)))
    harness.process(times((8, DELETE)))
    (row,) = harness.watermark(11)
    assert (row["window_end"] - row["window_start"], row["rows"], row["low"]) == (timedelta(milliseconds=GAP), 1, 1)
    harness.process(times((15, DELETE)))
    assert harness.watermark(100) == []
    assert not harness.context.counters
    assert {len(table) for name, table in harness.state.tables.items() if name != "fired"} == {0}


def test_a_session_that_a_row_ended_by_leaving_is_emitted_at_the_next_watermark() -> None:
    harness = sessions()
    harness.process(times((5, INSERT), (15, INSERT)))
    assert harness.watermark(20) == []
    harness.process(times((15, DELETE)))
    assert [row["low"] for row in harness.watermark(21)] == [5]


def test_rows_of_ended_sessions_are_late_whether_they_come_or_are_taken_back() -> None:
    harness = sessions()
    harness.process(times((1, INSERT)))
    assert [row["rows"] for row in harness.watermark(20)] == [1]
    harness.process(times((5, INSERT), (1, DELETE)))
    assert harness.context.counters == {"late_records": 2}
    harness.process(times((5, INSERT), (14, INSERT), (5, DELETE)))
    assert harness.context.counters == {"late_records": 2}, "a row in an open session is not late, nor its retraction"
    assert [(row["rows"], row["low"]) for row in harness.watermark(100)] == [(1, 14)]


def test_a_row_that_is_taken_back_before_it_arrives_is_counted_when_its_time_has_passed() -> None:
    harness = sessions()
    harness.process(times((5, DELETE), (6, INSERT)))
    assert [(row["rows"], row["low"]) for row in harness.watermark(16)] == [(1, 6)]
    assert harness.context.counters == {UNMATCHED_COUNTER: 1}


@pytest.mark.parametrize("slide", [10, 5])
def test_rows_of_a_window_that_were_taken_back_before_they_arrive_are_counted_as_it_fires(slide: int) -> None:
    """A window whose rows were all taken back is no result, and one that awaits rows is counted."""
    harness = Harness(window(10, slide, {"rows": Count(), "low": Min("v"), "total": Sum("v")}))
    kept, gone, awaited = (("a", 5, 1), ("b", 6, 2), ("c", 7, 3))
    events = [(kept, INSERT), (gone, INSERT), (awaited, DELETE), (gone, DELETE), (kept, DELETE), (kept, INSERT)]
    batch = changelog([{"k": k, "v": v, "t": t, "op": op} for (k, v, t), op in events], pa.int64())
    assert harness.process(batch) == []
    fired = harness.watermark(100)
    assert {(row["k"], row["rows"], row["low"], row["total"]) for row in fired} == {("a", 1, 5, 5)}
    assert len(fired) == 10 // slide
    assert harness.context.counters == {UNMATCHED_COUNTER: 1}
    assert {name: len(table) for name, table in harness.state.tables.items() if name != "fired"} == {
        "windows" if slide == 10 else "panes": 0,
        "values.0": 0,
    }


@pytest.mark.parametrize("slide", [10, 5])
@pytest.mark.parametrize("name", ["window_start", "pane_5_ms", "value"])
def test_a_window_of_a_changelog_may_read_a_column_of_any_name(name: str, slide: int) -> None:
    harness = Harness(window(10, slide, {"low": Min(name), "high": Max(name)}, time=name))
    columns = {"k": ["a", "a", "b", "b"], name: [1, 4, 3, 3], "op": [INSERT, INSERT, INSERT, DELETE]}
    harness.process(pa.record_batch(columns))
    harness.process(pa.record_batch({"k": ["a"], name: [4], "op": [DELETE]}))
    fired = harness.watermark(100)
    assert {(row["k"], row["low"], row["high"]) for row in fired} == {("a", 1, 1)}


def test_late_rows_of_a_changelog_keep_their_kind() -> None:
    late = OutputTag("late", pa.schema([("k", pa.string()), ("t", pa.int64()), ("op", pa.string())]))
    harness = Harness(TumblingWindow(["k"], 10, {"rows": Count()}, RowInput("t", 10, late, None)))
    harness.process(pa.record_batch({"k": ["a", "a"], "t": [1, 11], "op": [INSERT] * 2}))
    assert [row["rows"] for row in harness.watermark(9)] == [1]
    harness.process(pa.record_batch({"k": ["a", "a"], "t": [1, 11], "op": [UPDATE_BEFORE] * 2}))
    ((tag, rows),) = harness.out.side
    assert (tag, rows.to_pylist()) == ("late", [{"k": "a", "t": 1, "op": UPDATE_BEFORE}])
    assert harness.watermark(100) == []


# ---------------------------------------------------------------- chains


FIRST: Mapping[str, Aggregate] = {"n": Count(), "total": Sum("v"), "low": Min("v"), "high": Max("v"), "mean": Mean("v")}
SECOND: Mapping[str, Aggregate] = {
    "keys": Count(),
    "sum": Sum("total"),
    "least": Min("low"),
    "most": Max("high"),
    "mean_of_totals": Mean("total"),
    "largest_mean": Max("mean"),
}
THIRD: Mapping[str, Aggregate] = {"groups": Count(), "sum": Sum("sum"), "least": Min("least"), "most": Max("most")}
GROUPS = ("n", "low", "total")  #: columns of the first aggregate that the second is grouped by


def chain_query(group: str) -> str:
    first = (
        "SELECT k, count(*) AS n, sum(v)::BIGINT AS total, min(v) AS low, max(v) AS high, avg(v) AS mean "
        "FROM rows GROUP BY k"
    )
    second = (
        f"SELECT {group}, count(*) AS keys, sum(total)::BIGINT AS sum, min(low) AS least, max(high) AS most, "
        f"avg(total) AS mean_of_totals, max(mean) AS largest_mean FROM ({first}) GROUP BY {group}"
    )
    return (
        f"SELECT keys, count(*) AS groups, sum(sum)::BIGINT AS sum, min(least) AS least, max(most) AS most "
        f"FROM ({second}) GROUP BY keys"
    )


@settings(max_examples=examples(80), deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(-3, 3)), max_size=12), min_size=1, max_size=5
    ),
    group=st.sampled_from(GROUPS),
    restores=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.booleans()), min_size=5, max_size=5),
)
def test_a_chain_of_aggregates_folds_to_the_query(
    batches: list[list[tuple[int, int | None]]], group: str, restores: list[tuple[int, int, bool]]
) -> None:
    """S0-07, S3-20: rows become a changelog, this one of groups, that one of groups of groups."""
    stages = [
        Stage(["k"], lambda: RunningAggregate(["k"], FIRST, changelog=True), 2),
        Stage([group], lambda: RunningAggregate([group], SECOND, changelog=True, retracts=True), 2),
        Stage(["keys"], lambda: RunningAggregate(["keys"], THIRD, changelog=True, retracts=True), 1),
    ]
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table: dict[Any, Row] = {}
    rows: list[Row] = []
    for batch, (number, parallelism, full) in zip(batches, restores, strict=False):
        new = [{"k": k, "v": v} for k, v in batch]
        rows += new
        flowing = [pa.RecordBatch.from_pylist(new, schema=schema)]
        for stage in stages:
            flowing = [output for each in flowing for output in stage.process(each)]
        fold(table, flowing, "keys")
        expected = queried(pa.Table.from_pylist(rows, schema=schema), chain_query(group))
        assert comparable(list(table.values())) == comparable(expected)
        stages[number].restore(parallelism, full=full)
        stages[number - 1].snapshot()


def windows_query(group: str, kind_of_windows: str) -> str:
    first = (
        "SELECT k, count(*) AS n, sum(v)::BIGINT AS total, min(v) AS low, max(v) AS high, max(t) AS seen "
        "FROM rows GROUP BY k"
    )
    second = (
        f"SELECT {group}, count(*) AS keys, sum(total)::BIGINT AS sum, min(low) AS least, max(high) AS most, "
        f"max(seen) AS seen FROM ({first}) GROUP BY {group}"
    )
    third = "count(*) AS groups, sum(sum)::BIGINT AS sum, min(least) AS least, max(most) AS most"
    if kind_of_windows == SESSIONS:
        over = "OVER (PARTITION BY keys ORDER BY seen)"
        marked = f"SELECT *, seen - lag(seen) {over} <= {GAP} AS goes_on FROM ({second})"
        numbered = f"SELECT *, count(*) FILTER (goes_on IS NOT TRUE) {over} AS session FROM ({marked})"
        bounds = f'min(seen) AS start, max(seen) + {GAP} AS "end"'
        return f"SELECT keys, {bounds}, {third} FROM ({numbered}) GROUP BY keys, session"
    size, slide = WINDOWS[kind_of_windows]
    starts = f"SELECT unnest(range({-20 * slide}, {20 * slide}, {slide})) AS start"
    return (
        f'SELECT keys, start, start + {size} AS "end", {third} FROM ({second}), ({starts}) '
        f"WHERE seen >= start AND seen < start + {size} GROUP BY keys, start"
    )


@settings(max_examples=examples(80), deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(-3, 3), st.integers(-20, 60)), max_size=12),
        min_size=1,
        max_size=5,
    ),
    group=st.sampled_from(GROUPS),
    kind_of_windows=st.sampled_from([*WINDOWS, SESSIONS]),
    restores=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.booleans()), min_size=5, max_size=5),
)
def test_windows_at_the_end_of_a_chain_are_those_of_the_query(
    batches: list[list[tuple[int, int | None, int]]],
    group: str,
    kind_of_windows: str,
    restores: list[tuple[int, int, bool]],
) -> None:
    """S0-07, S3-20: rows of groups move to later windows, and come back where a group loses its latest row."""

    def windows() -> Operator:
        if kind_of_windows == SESSIONS:
            return RetractingSessionWindow(["keys"], GAP, "seen", THIRD)
        return window(*WINDOWS[kind_of_windows], THIRD, "keys", "seen")

    of_keys = {name: each for name, each in FIRST.items() if name != "mean"} | {"seen": Max("t")}
    of_groups = {name: SECOND[name] for name in ("keys", "sum", "least", "most")} | {"seen": Max("seen")}
    stages = [
        Stage(["k"], lambda: RunningAggregate(["k"], of_keys, changelog=True), 2),
        Stage([group], lambda: RunningAggregate([group], of_groups, changelog=True, retracts=True), 2),
        Stage(["keys"], windows, 2),
    ]
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.int64())])
    rows: list[Row] = []
    for batch, (number, parallelism, full) in zip(batches, restores, strict=False):
        new = [{"k": k, "v": v, "t": t} for k, v, t in batch]
        rows += new
        flowing = [pa.RecordBatch.from_pylist(new, schema=schema)]
        for stage in stages:
            flowing = [output for each in flowing for output in stage.process(each)]
        assert not flowing
        stages[number].restore(parallelism, full=full)
        stages[number - 1].snapshot()
    expected = queried(pa.Table.from_pylist(rows, schema=schema), windows_query(group, kind_of_windows))
    fired = stages[-1].watermark(MAX_WATERMARK)
    assert comparable_windows(fired) == comparable([dict(sorted(row.items())) for row in expected])
    assert not any(stage.count(name) for stage in stages for name in ("late_records", UNMATCHED_COUNTER))


def test_the_state_of_a_chain_is_that_of_its_present_groups() -> None:
    """Values that were taken back leave no entries, so the state does not grow with the number of updates."""
    first = Stage(["k"], lambda: RunningAggregate(["k"], FIRST, changelog=True), 1)
    second = Stage(["n"], lambda: RunningAggregate(["n"], SECOND, changelog=True, retracts=True), 1)
    for value in range(200):
        for changed in first.process(pa.record_batch({"k": np.arange(10), "v": np.arange(10) + value})):
            second.process(changed)
    sizes = {name: len(table) for name, table in second.subtasks[0].state.tables.items()}
    assert sizes == {"aggregates": 1, "values.0": 10, "values.1": 10, "values.2": 10}


# ---------------------------------------------------------------- rows out of order, and rows that do not fit


def retracting(aggregates: Mapping[str, Aggregate]) -> Harness:
    return Harness(RunningAggregate(["k"], aggregates, changelog=True, retracts=True))


def rows(*changes: tuple[str, Any, str], kind: Any = None) -> pa.RecordBatch:
    return changelog([{"k": k, "v": v, "op": op} for k, v, op in changes], kind or pa.int64())


def test_a_row_that_is_taken_back_before_it_arrives_is_counted_once() -> None:
    """Behind a rebalance. The state is kept until the row has arrived, and the counter shows it."""
    harness = retracting({"total": Sum("v"), "low": Min("v")})
    assert harness.process(rows(("a", 5, DELETE))) == []
    assert harness.context.counters == {UNMATCHED_COUNTER: 1}
    (row,) = harness.process(rows(("a", 7, INSERT), ("a", 9, INSERT), ("a", 5, INSERT), ("a", 9, DELETE)))
    assert row == {"k": "a", "total": 7, "low": 7, "op": INSERT}
    assert [row["op"] for row in harness.process(rows(("a", 7, DELETE)))] == [DELETE]
    assert {len(table) for table in harness.state.tables.values()} == {0}


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64()])
def test_rows_that_cancel_out_leave_a_key_that_waits(kind: pa.DataType) -> None:
    """Two rows, two others taken back: no row is left, but the sum shows that two are awaited."""
    harness = retracting({"total": Sum("v")})
    assert harness.process(rows(("a", 7, INSERT), ("a", 5, DELETE), kind=kind)) == []
    assert harness.context.counters == {UNMATCHED_COUNTER: 1}
    (row,) = harness.process(rows(("a", 5, INSERT), kind=kind))
    assert row == {"k": "a", "total": 7, "op": INSERT}


def test_a_row_that_is_taken_back_too_early_is_no_rounding_beside_a_long_history() -> None:
    harness = retracting({"total": Sum("v")})
    history = [("a", 1e6, op) for op in (INSERT, DELETE)] * 1_000
    harness.process(rows(("a", 1.0, INSERT), *history, kind=pa.float64()))
    harness.process(rows(("a", 0.5, DELETE), kind=pa.float64()))
    (row,) = harness.process(rows(("a", 0.5, INSERT), kind=pa.float64()))
    assert row == {"k": "a", "total": 1.0, "op": INSERT}


def test_a_sum_of_floats_without_end_is_refused() -> None:
    """Nothing could be taken back from infinity."""
    harness = retracting({"total": Sum("v")})
    harness.process(rows(("a", 1.5e308, INSERT), kind=pa.float64()))
    with pytest.raises(DataRejected, match="the sum 'total' exceeds the range of float64"):
        harness.process(rows(("a", 1.5e308, INSERT), kind=pa.float64()))


def test_the_rounding_of_floats_goes_with_their_last_value() -> None:
    harness = retracting({"rows": Count(), "total": Sum("v"), "mean": Mean("v")})
    floats = [("a", 0.1, INSERT), ("a", 0.2, INSERT), ("a", None, INSERT), ("a", 0.1, DELETE), ("a", 0.2, DELETE)]
    (row,) = harness.process(rows(*floats, kind=pa.float64()))
    assert row == {"k": "a", "rows": 1, "total": None, "mean": None, "op": INSERT}
    (_, row) = harness.process(rows(("a", 0.5, INSERT), kind=pa.float64()))
    assert (row["total"], row["mean"]) == (0.5, 0.5)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_sum_refuses_floats_that_it_could_not_take_back(value: float) -> None:
    with pytest.raises(DataRejected, match=r"sum 'total' of a changelog .* NaN or infinity"):
        retracting({"total": Sum("v")}).process(rows(("a", value, INSERT), kind=pa.float64()))


def test_extremes_take_nan_back() -> None:
    """NaN is larger than every number, as without a changelog."""
    harness = retracting({"low": Min("v"), "high": Max("v")})
    (row,) = harness.process(rows(("a", 1.0, INSERT), ("a", math.nan, INSERT), kind=pa.float64()))
    assert (row["low"], math.isnan(row["high"])) == (1.0, True)
    (_, row) = harness.process(rows(("a", math.nan, DELETE), kind=pa.float64()))
    assert (row["low"], row["high"]) == (1.0, 1.0)


def test_a_lost_extreme_is_replaced_by_the_next_value_of_the_state_or_of_the_batch() -> None:
    harness = retracting({"low": Min("v"), "high": Max("v")})
    harness.process(rows(("a", 1, INSERT), ("a", 3, INSERT), ("b", 2, INSERT), ("a", 9, INSERT), ("a", 8, INSERT)))
    (_, row) = harness.process(rows(("a", 1, DELETE), ("a", 5, INSERT), ("a", 9, DELETE)))
    assert (row["low"], row["high"]) == (3, 8)
    (_, row) = harness.process(
        rows(("a", 3, DELETE), ("a", 2, INSERT), ("a", 8, UPDATE_BEFORE), ("a", 8, UPDATE_AFTER))
    )
    assert (row["low"], row["high"]) == (2, 8)
    (_, row) = harness.process(rows(("a", 2, DELETE), ("a", None, INSERT), ("a", 0, INSERT), ("a", 0, INSERT)))
    assert (row["low"], row["high"]) == (0, 8)
    assert harness.process(rows(("a", 0, DELETE))) == [], "another row has the value"


@pytest.mark.parametrize("key", ["value", "rows", "value_", "op:count"])
def test_a_key_may_have_any_name(key: str) -> None:
    """Its state has columns of its own for the values and their numbers of rows."""
    stage = Stage([key], lambda: RunningAggregate([key], {"low": Min("v")}, changelog=True, retracts=True), 2)
    changed = pa.record_batch({key: ["a", "b", "a"], "v": [1, 2, 3], "op": [INSERT] * 3})
    stage.process(changed)
    stage.restore(3, full=False)
    back = pa.record_batch({key: ["a", "b"], "v": [1, 2], "op": [DELETE] * 2})
    output = sorted((row for batch in stage.process(back) for row in batch.to_pylist()), key=repr)
    assert [(row[key], row["low"], row["op"]) for row in output] == [
        ("a", 1, UPDATE_BEFORE), ("a", 3, UPDATE_AFTER), ("b", 2, DELETE)
    ]  # fmt: skip


def test_extremes_of_half_floats_are_refused_by_name() -> None:
    with pytest.raises(JobRejected, match="32 bits or more") as error:
        retracting({"low": Min("v")}).process(rows(("a", np.float16(1), INSERT), kind=pa.float16()))
    assert error.value.field == "v"


def test_a_sum_beyond_64_bits_is_refused_and_changes_nothing() -> None:
    harness = retracting({"rows": Count(), "total": Sum("v")})
    harness.process(rows(("a", 2**62, INSERT)))
    with pytest.raises(DataRejected, match="64-bit"):
        harness.process(rows(("a", 2**62, INSERT), ("a", 2**62, INSERT)))
    (_, row) = harness.process(rows(("a", 2**62, INSERT), ("a", 2**62, DELETE), ("a", 1, INSERT)))
    assert (row["rows"], row["total"]) == (2, 2**62 + 1)


def test_rows_without_a_kind_are_refused() -> None:
    harness = retracting({"rows": Count()})
    with pytest.raises(JobRejected, match="changelog need this column") as error:
        harness.process(pa.record_batch({"k": ["a"]}))
    assert error.value.field == "op"
    for op in ("upsert", None):
        with pytest.raises(DataRejected, match=r"'op' holds .*no row kind"):
            harness.process(rows(("a", 1, op)))  # type: ignore[arg-type]


def test_an_aggregate_that_cannot_take_rows_back_is_named() -> None:
    class Product(Sum):
        """Of an author."""

    with pytest.raises(JobRejected, match="Product cannot take rows of a changelog back") as error:
        retracting({"product": Product("v")})
    assert error.value.field == "product"


def test_a_number_of_rows_that_changed_unmarked_is_noticed() -> None:
    """The entries of values are state with a proof of their own: a forgotten `touch` fails the next base."""
    stage = Stage(["k"], lambda: RunningAggregate(["k"], {"low": Min("v")}, changelog=True, retracts=True), 1)
    stage.process(rows(("a", 1, INSERT), ("a", 2, INSERT), ("b", 3, INSERT)))
    stage.restore(1, full=False)
    stage.process(rows(("a", 1, INSERT)))
    stage.subtasks[0].state.tables["values.0"]._dirty.data[:] = False  # type: ignore[union-attr]
    with pytest.raises(CorruptState, match=r"values\.0"):
        stage.restore(1, full=True)
