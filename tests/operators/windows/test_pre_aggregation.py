"""Rows folded before the shuffle: every form of keys, what must go when, and that nothing is lost or told twice."""

import tracemalloc
from collections import Counter
from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.messages import MAX_WATERMARK
from runtime.errors import DataRejected, JobRejected
from runtime.operators.aggregates import Aggregate, Count, CountIf, Max, Mean, Min, Sum
from runtime.operators.late_rows import LATE_RECORDS_COUNTER
from runtime.operators.windows import dense
from runtime.operators.windows.pre_aggregation import WindowPreAggregator, input_row_count
from runtime.operators.windows.tumbling import TumblingWindow
from tests.operators.combined import Combined
from tests.operators.harness import Harness

PANE_MS = 10
PANE, ROWS = ":pane", ":count"
AGGREGATES: dict[str, Aggregate] = {"total": Sum("v"), "low": Min("v"), "high": Max("v"), "mean": Mean("v")}
FORMS: dict[str, Callable[[int], Any]] = {
    "close": lambda number: number,
    "small": lambda number: number,
    "far": lambda number: number * 2**58,
    "text": lambda number: f"key {number}",
    "nulls": lambda number: number or None,
    "floats": lambda number: number / 2,
}
KINDS = {"small": pa.int8(), "text": pa.string(), "floats": pa.float64()}

Row = tuple[int, int, int | None]
ROWS_ = st.lists(st.tuples(st.integers(-9, 9), st.integers(-60, 90), st.none() | st.integers(-99, 99)), max_size=20)


def batch(form: str, rows: list[Row]) -> pa.RecordBatch:
    keys, times, values = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [pa.array(map(FORMS[form], keys), KINDS.get(form, pa.int64())), pa.array(times, pa.timestamp("ms"))]
    return pa.RecordBatch.from_arrays([*columns, pa.array(values, pa.int64())], names=["k", "t", "v"])


def combiner(
    aggregates: dict[str, Aggregate] = AGGREGATES, keys: tuple[str, ...] = ("k",), **tuning: int
) -> WindowPreAggregator:
    return WindowPreAggregator(keys, "t", PANE_MS, aggregates, **tuning)


def counted(parts: list[pa.RecordBatch]) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for row in (row for part in parts for row in part.to_pylist()):
        counts[row["k"], row[PANE]] += row[ROWS]
    return counts


def totals(parts: list[pa.RecordBatch]) -> dict[Any, Any]:
    """By key and pane: the sum, the extremes, and the sum and the number of what is not null."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in (row for part in parts for row in part.to_pylist()):
        groups.setdefault((row["k"], row[PANE]), []).append(row)
    return {where: (*_joined(rows), sum(row[ROWS] for row in rows)) for where, rows in groups.items()}


def _joined(rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    def present(name: str) -> list[Any]:
        return [row[name] for row in rows if row[name] is not None]

    if not present("total:sum"):
        return (None, None, None, 0)
    counts = sum(row["mean:count"] for row in rows)
    return sum(present("total:sum")), min(present("low:min")), max(present("high:max")), counts


def expected(form: str, rows: list[Row]) -> dict[Any, Any]:
    groups: dict[Any, list[int | None]] = {}
    for key, time, value in rows:
        groups.setdefault((FORMS[form](key), time // PANE_MS * PANE_MS), []).append(value)
    return {where: _folded(values) for where, values in groups.items()}


def _folded(values: list[int | None]) -> tuple[Any, ...]:
    numbers = [value for value in values if value is not None]
    return (
        (sum(numbers), min(numbers), max(numbers), len(numbers), len(values))
        if numbers
        else (None,) * 3 + (0, len(values))
    )


@pytest.mark.parametrize("form", FORMS)
@given(steps=st.lists(ROWS_ | st.integers(-70, 100) | st.none(), max_size=15))
def test_what_comes_out_is_what_went_in(form: str, steps: list[Any]) -> None:
    """S0-65: a number is a watermark, None a barrier. What a watermark has passed is not held behind it."""
    aggregator, rows, out, watermark = combiner(), list[Row](), list[pa.RecordBatch](), -(2**63)
    for step in [*steps, None]:
        if isinstance(step, list):
            rows += step
            out += aggregator.add(batch(form, step))
        elif step is None:
            out += aggregator.flush()
            assert totals(out) == expected(form, rows)
        else:
            out += aggregator.advance(step)
            watermark = max(watermark, step)
        assert _passed(totals(out), watermark) == _passed(expected(form, rows), watermark)
    assert len({part.schema for part in out}) <= 1


def _passed(entries: dict[Any, Any], watermark: int) -> dict[Any, Any]:
    return {where: value for where, value in entries.items() if where[1] + PANE_MS - 1 <= watermark}


def entries(disorder_ms: int, barrier_at: int | None) -> int:
    """The entries sent for ten keys in six panes, with a barrier before the row of time `barrier_at`."""
    aggregator, out = combiner(), list[pa.RecordBatch]()
    for time in range(6 * PANE_MS):
        if time == barrier_at:
            out += aggregator.flush()
        out += aggregator.add(batch("close", [(key, time, 1) for key in range(10)]))
        out += aggregator.advance(time - disorder_ms - 1)
    return sum(part.num_rows for part in [*out, *aggregator.flush()])


@pytest.mark.parametrize("disorder_ms", [0, PANE_MS, PANE_MS + 5])
def test_a_barrier_at_any_pane_end_of_the_newest_rows_sends_no_entry_twice(disorder_ms: int) -> None:
    """So sources whose barriers are a pane apart send no more entries than sources that agree."""
    without = entries(disorder_ms, None)
    assert without == 60
    assert [entries(disorder_ms, barrier_at) for barrier_at in (2 * PANE_MS, 3 * PANE_MS)] == [without, without]
    assert entries(disorder_ms, 2 * PANE_MS + 5) == without + 10


def test_a_pane_goes_when_its_end_is_reached_and_not_before() -> None:
    aggregator = combiner()
    assert aggregator.add(batch("close", [(1, 0, 1), (1, 9, 1), (2, 10, 1)])) == []
    assert aggregator.advance(8) == []
    assert counted(aggregator.advance(9)) == {(1, 0): 2}
    assert aggregator.advance(10) == []
    assert counted(aggregator.flush()) == {(2, 10): 1}
    assert aggregator.flush() == []


@pytest.mark.parametrize("form", FORMS)
def test_what_comes_after_its_pane_goes_on_at_once(form: str) -> None:
    """Whoever judges lateness must see it, and with it the number of rows."""
    aggregator = combiner()
    aggregator.advance(19)
    assert sum(map(input_row_count, aggregator.add(batch(form, [(1, 3, 1), (1, 5, 1), (1, 25, 1)])))) == 2
    assert sum(map(input_row_count, aggregator.advance(MAX_WATERMARK))) == 1


@pytest.mark.parametrize(
    ("key", "kind", "code"),
    [
        ("j", pa.int64(), "unknown-column"),
        ("k", pa.null(), "bad-key-type"),
        ("k", pa.float16(), "bad-key-type"),
        ("k", pa.decimal256(50, 2), "bad-key-type"),
        ("k", pa.month_day_nano_interval(), "bad-key-type"),
        ("k", pa.list_(pa.int64()), "bad-key-type"),
        ("k", pa.dictionary(pa.int8(), pa.float16()), "bad-key-type"),
    ],
)
def test_a_column_that_cannot_be_a_key_is_refused_by_name(key: str, kind: Any, code: str) -> None:
    rows = pa.RecordBatch.from_arrays([pa.nulls(1, kind), pa.array([0])], names=["k", "t"])
    with pytest.raises(JobRejected) as error:
        combiner({"n": Count()}, (key,)).add(rows)
    assert (error.value.code, error.value.field) == (code, key)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_keys_that_are_views_of_text(kind: Any) -> None:
    """Other libraries make such; Arrow can neither take nor sort them."""
    names = pa.array(["a", "b" * 40, None, "a"], kind)
    rows = pa.record_batch({"k": names, "t": pa.array([1, 2, 3, 4])})
    aggregator = combiner({"n": Count()})
    aggregator.add(rows)
    plain = [name if kind == pa.string_view() or name is None else name.encode() for name in ("a", "b" * 40, None)]
    assert counted(aggregator.flush()) == dict(zip([(name, 0) for name in plain], [2, 1, 1], strict=True))


def test_several_key_columns_are_told_apart() -> None:
    aggregator, rows = combiner({"n": Count()}, ("k", "j")), batch("close", [(1, 0, 1), (1, 1, 1), (2, 1, 1)])
    aggregator.add(rows.append_column("j", pa.array(["a", "b", "a"]).dictionary_encode()))
    (output,) = aggregator.flush()
    assert sorted(output.select(["k", "j", "n:count"]).to_pylist(), key=str) == [
        {"k": 1, "j": "a", "n:count": 1}, {"k": 1, "j": "b", "n:count": 1}, {"k": 2, "j": "a", "n:count": 1},
    ]  # fmt: skip


@pytest.mark.parametrize("step", [1, 2**40])
def test_where_most_keys_differ_rows_are_passed_on_and_it_is_tried_again(step: int) -> None:
    aggregator = combiner({"n": Count(), "low": Min("v")}, bypass_rows=100_000)
    keys, fewer = np.arange(50_000) * step, np.arange(50_000) % 5 * step
    first = aggregator.add(rows_at(0, keys)) + aggregator.advance(9)
    assert sum(part.num_rows for part in first) == 50_000
    passed = aggregator.add(rows_at(10, fewer))
    assert (passed[0].num_rows, passed[0].schema) == (50_000, first[0].schema)
    assert aggregator.add(rows_at(10, fewer))[0].num_rows == 50_000
    assert aggregator.add(rows_at(10, fewer)) == aggregator.add(rows_at(10, fewer)) == []
    assert counted(aggregator.flush()) == {(key, 10): 20_000 for key in fewer[:5].tolist()}


def test_the_table_does_not_grow_without_end() -> None:
    aggregator = combiner({"n": Count()}, max_keys=10_000)
    keys = [np.tile(np.arange(first, first + 4_000) * 2**40, 4) for first in range(0, 16_000, 4_000)]
    assert [sum(map(input_row_count, aggregator.add(rows_at(0, some)))) for some in keys] == [0, 0, 48_000, 0]


def test_more_keys_than_cells_are_evaluated_and_forgotten() -> None:
    """A pane with a million keys, each of them once: aggregation stops early, and is tried again later."""
    aggregator, step = combiner({"n": Count()}, bypass_rows=10_000), 1 << 17
    parts = [aggregator.add(rows_at(0, np.arange(first, first + step) * 2**40)) for first in range(0, 9 * step, step)]
    assert [sum(map(input_row_count, some)) for some in parts] == [*[0] * 8, 9 * step]
    assert len(aggregator._numbered) == 0
    few = rows_at(0, np.arange(10_000) % 5 * 2**40)
    assert [len(aggregator.add(few)), len(aggregator.add(few)), len(aggregator.add(few))] == [1, 0, 0]


def test_keys_of_too_many_panes_are_forgotten() -> None:
    """Rows of 128 panes at a time are forwarded as they are: keys that come only once do not pile up meanwhile."""
    aggregator = combiner({"n": Count()})
    times = pa.array(np.arange(2_000) % 128 * PANE_MS)
    for number in range(5):
        sessions = pa.array([f"session {number} {row}" for row in range(2_000)])
        forwarded = aggregator.add(pa.record_batch({"k": sessions, "t": times}))
        assert sum(map(input_row_count, forwarded)) == 2_000
        assert len(aggregator._numbered) == 0


def test_arrays_are_no_larger_than_what_is_in_them_is_worth() -> None:
    """Keys that lie far apart are numbered, those of before stay where they are. Rows of panes far apart pass."""
    aggregator = combiner({"n": Count()})
    assert aggregator.add(batch("close", [(1, 0, 1), (2, 0, 1)])) == []
    assert aggregator.add(batch("close", [(1, 0, 1), (10**7, 0, 1)])) == []
    passed = aggregator.add(batch("close", [(1, 0, 1), (1, 10**9, 1)]))
    assert counted(passed) == {(1, 0): 3, (2, 0): 1, (10**7, 0): 1, (1, 10**9): 1}
    assert aggregator.flush() == []


@pytest.mark.parametrize("low", [-(2**63), 2**63 - 5])
def test_keys_at_the_ends_of_their_range(low: int) -> None:
    aggregator, keys = combiner({"n": Count()}), np.arange(5) + low
    aggregator.add(rows_at(0, keys))
    assert counted(aggregator.flush()) == {(key, 0): 1 for key in keys.tolist()}


def test_dense_panes_keep_what_they_hold_when_they_move() -> None:
    """More panes at a time, and keys above and below."""
    dense_panes = dense.DensePanes([pa.field("n", pa.int64(), nullable=False)], "n")
    steps: list[tuple[list[int], Any]] = [([5, 6], 3), ([5, 900], 4), ([-900, 6], np.array([3, 9]))]
    for numbers, pane in steps:
        at = dense_panes.positions(np.array(numbers), pane)
        assert at is not None
        np.add.at(dense_panes.cells.column("n"), at, 1)
    keys, panes, slots = dense_panes.entries(dense_panes.panes)
    counts = dense_panes.cells.column("n")[slots]
    assert dict(zip(zip(keys.tolist(), panes.tolist(), strict=True), counts.tolist(), strict=True)) == {
        (5, 3): 1, (6, 3): 1, (5, 4): 1, (900, 4): 1, (-900, 3): 1, (6, 9): 1,
    }  # fmt: skip


def rows_at(time: int, keys: Any) -> pa.RecordBatch:
    columns = [pa.array(keys, pa.int64()), pa.array([time] * len(keys), pa.timestamp("ms"))]
    return pa.RecordBatch.from_arrays([*columns, pa.array(range(len(keys)))], names=["k", "t", "v"])


def test_keys_that_lie_apart_do_not_keep_others_out_of_the_arrays() -> None:
    aggregator = combiner({"n": Count()})
    assert aggregator.add(rows_at(0, np.arange(2_000))) == []
    assert aggregator.add(rows_at(0, np.arange(2_000) * 2**40)) == []
    assert aggregator.add(rows_at(0, np.arange(2_000))) == []
    assert [part.num_rows for part in aggregator.flush()] == [2_000, 2_000]


def test_barriers_do_not_make_it_give_up_what_pays() -> None:
    """One that comes when a pane has hardly begun finds an entry for nearly each row: that says nothing of the pane."""
    aggregator, keys = combiner({"total": Sum("v")}), np.arange(20_000)
    for time in range(0, 5 * PANE_MS, PANE_MS):
        assert aggregator.add(rows_at(time, keys)) == []
        assert sum(map(input_row_count, aggregator.flush())) == 20_000
        assert aggregator.add(rows_at(time + 1, keys)) == aggregator.add(rows_at(time + 2, keys)) == []
        (parts,) = aggregator.advance(time + PANE_MS - 1)
        assert (parts.num_rows, input_row_count(parts)) == (20_000, 40_000)


def test_thousands_of_panes_at_a_time_cost_no_more_than_few() -> None:
    """Windows of a millisecond: a batch took seconds, since each pane was looked for among all."""

    def spent(panes: int) -> float:
        aggregator, times = combiner({"n": Count()}), np.arange(40_000) % panes * PANE_MS
        rows = pa.record_batch({"k": np.zeros(40_000, dtype=np.int64), "t": times[::-1]})
        began = process_time()
        assert aggregator.add(rows) == aggregator.add(rows) == []
        assert sum(map(input_row_count, aggregator.advance(PANE_MS - 1))) == 2 * (40_000 // panes)
        assert sum(map(input_row_count, aggregator.flush())) == 2 * (40_000 - 40_000 // panes)
        return process_time() - began

    assert spent(40_000) < 100 * max(spent(4), 0.001)


@given(
    st.lists(st.tuples(st.lists(st.tuples(st.integers(0, 5), st.integers(-40, 40)), min_size=1), st.integers(-60, 60)))
)
def test_dense_panes_hold_what_was_put_there_and_forget_what_has_gone(steps: list[Any]) -> None:
    """Panes go in order, others come before and behind, rows of the array are used in turn."""
    dense_panes, model = dense.DensePanes([pa.field("n", pa.int64(), nullable=False)], "n"), Counter[tuple[int, int]]()
    for rows, before in steps:
        keys, panes = zip(*rows, strict=True)
        at = dense_panes.positions(np.array(keys), np.array(panes))
        assert at is not None
        np.add.at(dense_panes.cells.column("n"), at, 1)
        model.update(rows)
        due = range(dense_panes.panes.start, min(dense_panes.panes.stop, before))
        if due:
            found_keys, found_panes, slots = dense_panes.entries(due)
            pairs = zip(found_keys.tolist(), found_panes.tolist(), strict=True)
            counts = dense_panes.cells.column("n")[slots].tolist()
            removals = {row: model.pop(row) for row in [*model] if row[1] < before}
            assert dict(zip(pairs, counts, strict=True)) == removals
            dense_panes.clear(due)
    assert int(dense_panes.cells.column("n").sum()) == model.total()


def test_texts_of_keys_that_are_gone_are_forgotten() -> None:
    """Sessions, say: each has a few rows and never comes again."""
    aggregator = combiner({"n": Count()})

    def after(first: int, last: int) -> int:
        for number in range(first, last):
            sessions = pa.array([f"session {number} {row % 100}" for row in range(300)])
            times = pa.array([number * PANE_MS] * 300, pa.timestamp("ms"))
            aggregator.add(pa.RecordBatch.from_arrays([sessions, times], names=["k", "t"]))
            assert sum(map(input_row_count, aggregator.advance((number + 1) * PANE_MS - 1))) == 300
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = after(0, 20)
        assert after(20, 100) < 2 * few
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- sums that leave 64 bits

HUGE = 2**62
LIMITED: dict[str, Aggregate] = {
    "n": Count(), "true": CountIf("even"), "high": Max("v"), "small": Sum("w"), "mean": Mean("v"), "total": Sum("v"),
}  # fmt: skip


def window(keys: tuple[str, ...] = ("k",)) -> Harness:
    return Harness(Combined(combiner(LIMITED, keys), TumblingWindow(keys, PANE_MS, LIMITED)))


def huge(form: str, rows: list[Row]) -> pa.RecordBatch:
    result = batch(form, rows)
    small = pa.array([1] * len(rows))
    return result.append_column("w", small).append_column("even", pa.array([True] * len(rows)))


@pytest.mark.parametrize("form", FORMS)
def test_a_sum_of_rows_that_are_late_may_be_as_large_as_it_likes(form: str) -> None:
    """They are dropped, as if they had come one by one. What is held keeps the rows that it has, each of them once."""
    harness = window()
    harness.process(huge(form, [(1, 20, 5), (2, 20, None)]))
    harness.watermark(19)
    harness.process(huge(form, [(3, 5, HUGE), (1, 21, 6), (3, 6, HUGE), (2, 20, None)]))
    sums = {row["k"]: [row[name] for name in LIMITED] for row in harness.watermark(MAX_WATERMARK)}
    assert sums == {FORMS[form](1): [2, 2, 6, 2, 5.5, 11], FORMS[form](2): [2, 2, None, 2, None, None]}
    assert harness.context.counters == {LATE_RECORDS_COUNTER: 2}


@pytest.mark.parametrize("form", FORMS)
def test_a_sum_that_leaves_64_bits_in_time_is_refused_where_windows_are(form: str) -> None:
    rows: list[Row] = [(3, 5, HUGE), (3, 6, HUGE)]
    aggregator = combiner(LIMITED)
    assert aggregator.add(huge(form, rows[:1])) == []
    assert sum(map(input_row_count, aggregator.add(huge(form, rows[1:])))) == 2
    assert aggregator.flush() == []
    with pytest.raises(DataRejected, match="the sum 'total' exceeds the range"):
        window().process(huge(form, rows))
