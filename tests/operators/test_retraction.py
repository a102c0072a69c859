"""Aggregates of changelogs, and chains of them, against DuckDB, with restores at another parallelism in between."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import CorruptState, DataRejected, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.aggregates import Aggregate, Count, CountIf, Max, Mean, Min, Sum
from runtime.operators.partition import partition_by_key_group
from runtime.operators.retraction import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE
from runtime.operators.running_aggregate import UNMATCHED_COUNTER, RunningAggregate
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

    def __init__(self, keys: Sequence[str], make: Callable[[], RunningAggregate], parallelism: int) -> None:
        self._keys, self._make, self._store = keys, make, MemorySnapshotStore()
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

    def snapshot(self, *, full: bool = False) -> list[SubtaskSnapshot]:
        """A complete state, or the changes since the last snapshot: tombstones too."""
        self._number += 1
        return [subtask.snapshot(f"chk-{self._number}", full=full) for subtask in self.subtasks]

    def restore(self, parallelism: int, *, full: bool) -> None:
        """Continues at another parallelism. Each restore compares the state with its proofs."""
        snapshots = self.snapshot(full=full)
        self.subtasks = [self._subtask(index, parallelism, snapshots) for index in range(parallelism)]


def changelog(rows: Sequence[Row], kind: Any) -> pa.RecordBatch:
    schema = pa.schema([("k", pa.string()), ("b", pa.bool_()), ("v", kind), ("op", pa.string())])
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
    """Batches of a changelog: rows come, are replaced and go; none goes that is not there."""
    present: list[Row] = []
    batches = []
    for _ in range(draw(st.integers(1, 5))):
        batch: list[Row] = []
        for _ in range(draw(st.integers(0, 8))):
            row = {"k": draw(st.sampled_from(["a", "b", None])), "b": draw(st.sampled_from([True, False, None])),
                   "v": draw(st.sampled_from(values))}  # fmt: skip
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
@settings(max_examples=40, deadline=None)
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


@settings(max_examples=80, deadline=None)
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
