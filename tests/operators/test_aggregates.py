"""Aggregates against plain Python, batch by batch, with nulls, extremes and overflow."""

import datetime as dt
import math
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import DataRejected, JobRejected
from runtime.operators.aggregates import Aggregate, AggregateSet, Count, CountIf, Max, Mean, Min, Sum
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.windows.cells import AggregateCells
from tests.operators.harness import Harness

ALL: dict[str, Aggregate] = {
    "rows": Count(), "true": CountIf("flag"), "total": Sum("v"), "low": Min("v"), "high": Max("v"), "mean": Mean("v"),
}  # fmt: skip
ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(-(2**40), 2**40), st.none() | st.booleans()),
    max_size=20,
)


def batch(keys: list[Any], values: pa.Array, flags: list[Any] | None = None) -> pa.RecordBatch:
    columns = [pa.array(keys, pa.string()), values, pa.array(flags or [None] * len(keys), pa.bool_())]
    return pa.RecordBatch.from_arrays(columns, names=["k", "v", "flag"])


def expected(rows: list[tuple[Any, Any, Any]]) -> dict[str, Any]:
    values = [value for _, value, _ in rows if value is not None]
    return {
        "rows": len(rows),
        "true": sum(flag is True for _, _, flag in rows),
        "total": sum(values) if values else None,
        "low": min(values, default=None),
        "high": max(values, default=None),
        "mean": sum(values) / len(values) if values else None,
    }


@given(st.lists(ROWS, max_size=6), st.sampled_from([pa.int64(), pa.float64()]))
def test_they_are_what_plain_python_computes(batches: list[list[tuple[Any, Any, Any]]], kind: Any) -> None:
    harness, by_key = Harness(RunningAggregate(["k"], ALL)), defaultdict[Any, list[tuple[Any, Any, Any]]](list)
    for rows in batches:
        keys, values, flags = zip(*rows, strict=True) if rows else ((), (), ())
        for row in rows:
            by_key[row[0]].append(row)
        output = harness.process(batch(list(keys), pa.array(values, kind), list(flags)))
        touched = list(dict.fromkeys(keys))
        assert [row.pop("k") for row in output] == touched
        assert output == [expected(by_key[key]) for key in touched]


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([3, 1, 2, 1], pa.int8()),
        pa.array([2**64 - 1, 5, 2**63, 5], pa.uint64()),
        pa.array([10**18, -(10**18), None, 7, None]),
        pa.array([(n % 5) * 10**15 for n in range(40, 0, -1)]),
        pa.array(["b", "a", "b"]).dictionary_encode(),
    ],
    ids=["few", "more than 63 bits", "nulls", "far apart, and often", "codes"],
)
def test_keys_come_out_in_the_order_of_their_first_rows(keys: pa.Array) -> None:
    """Known keys too, whose row ids have another order."""
    first_keys = keys.take(pa.array([1, 0]))
    plain, changes = (Harness(RunningAggregate(["k"], {"n": Count()}, changelog)) for changelog in (False, True))
    for harness in (plain, changes):
        harness.process(pa.record_batch({"k": first_keys}))
    new_values, changed = (harness.process(pa.record_batch({"k": keys})) for harness in (plain, changes))
    values, before = keys.to_pylist(), set(first_keys.to_pylist())
    expected = [(key, values.count(key) + (key in before)) for key in dict.fromkeys(values)]
    assert [(row["k"], row["n"]) for row in new_values] == expected
    assert [(row["k"], row["n"], row["op"]) for row in changed] == [
        row
        for key, n in expected
        for row in ([(key, 1, "update_before"), (key, n, "update_after")] if key in before else [(key, n, "insert")])
    ]


def one(aggregate: Aggregate, values: pa.Array) -> Any:
    return Harness(RunningAggregate(["k"], {"x": aggregate})).process(batch(["a"] * len(values), values))[0]["x"]


def test_extremes_keep_the_type_of_the_column() -> None:
    for kind in (pa.int8(), pa.uint64(), pa.float32(), pa.date32(), pa.timestamp("us", "UTC"), pa.duration("s")):
        values = pa.array([3, 1, 2]).cast(pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
        harness = Harness(RunningAggregate(["k"], {"low": Min("v"), "high": Max("v")}))
        harness.process(batch(["a"] * 3, values))
        (out,) = harness.out.batches
        assert out["low"].equals(values.slice(1, 1)), kind
        assert out["high"].equals(values.slice(0, 1)), kind


def test_dates_before_the_epoch_have_their_order() -> None:
    days = pa.array([dt.date(1969, 5, 1), None, dt.date(1970, 1, 2)])
    assert (one(Min("v"), days), one(Max("v"), days)) == (dt.date(1969, 5, 1), dt.date(1970, 1, 2))


def test_nan_is_larger_than_every_number() -> None:
    values = pa.array([1.0, math.nan, -2.0])
    assert one(Min("v"), values) == -2.0
    assert math.isnan(one(Max("v"), values))
    assert math.isnan(one(Min("v"), pa.array([math.nan])))
    harness = Harness(RunningAggregate(["k"], {"x": Min("v")}))
    harness.process(batch(["a"], pa.array([math.nan])))
    assert harness.process(batch(["a"], pa.array([5.0])))[0]["x"] == 5.0


def test_a_sum_of_small_integers_is_kept_in_64_bits() -> None:
    assert one(Sum("v"), pa.array([127, 127], pa.int8())) == 254
    assert one(Sum("v"), pa.array([2**62, 2**62, -(2**62)])) == 2**62
    assert one(Sum("v"), pa.array([2**63 - 1, 0], pa.uint64())) == 2**63 - 1
    assert one(Sum("v"), pa.array([0.5, 0.25], pa.float32())) == 0.75


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=12))
def test_a_sum_of_large_integers_is_exact_or_refused(rows: list[tuple[str, int]]) -> None:
    harness = Harness(RunningAggregate(["k"], {"total": Sum("v")}))
    sums = {key: sum(value for name, value in rows if name == key) for key in sorted({key for key, _ in rows})}
    values = batch([key for key, _ in rows], pa.array([value for _, value in rows], pa.int64()))
    if all(-(2**63) <= total < 2**63 for total in sums.values()):
        assert {row["k"]: row["total"] for row in harness.process(values)} == sums
    else:
        with pytest.raises(DataRejected):
            harness.process(values)


@pytest.mark.parametrize(
    "batches", [[[2**62, 2**62]], [[2**63 - 1], [1]], [[-(2**63)], [-1]], [[2**62], [2**62 - 1], [1]]]
)
def test_a_sum_never_wraps_around(batches: list[list[int]]) -> None:
    harness = Harness(RunningAggregate(["k"], {"total": Sum("v")}))
    *before, last = (batch(["a"] * len(values), pa.array(values, pa.int64())) for values in batches)
    for fitting in before:
        harness.process(fitting)
    with pytest.raises(DataRejected, match="'total' exceeds the range"):
        harness.process(last)


LARGE = st.one_of(
    *(st.integers(at - 2, at + 2) for at in (-(2**63) + 2, -(2**62), 0, 2**62, 2**63 - 3)),
    st.integers(-(2**63), 2**63 - 1),
)


@given(st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.none() | LARGE), max_size=9), min_size=1, max_size=6))
def test_a_mean_of_integers_has_no_limit_of_its_sum(batches: list[list[tuple[str, int | None]]]) -> None:
    """Sums beyond 64 bits, both ways and back, over several batches."""
    harness, history = Harness(RunningAggregate(["k"], {"mean": Mean("v")})), defaultdict[str, list[int]](list)
    for rows in batches:
        for key, value in rows:
            history[key] += [] if value is None else [value]
        values = pa.array([value for _, value in rows], pa.int64())
        for row in harness.process(batch([key for key, _ in rows], values)):
            numbers = history[row["k"]]
            assert row["mean"] == (_is_close(sum(numbers), len(numbers)) if numbers else None)


def _is_close(total: int, count: int) -> Any:
    return pytest.approx(float(Fraction(total, count)), rel=4e-16)


def test_a_mean_of_unsigned_integers_has_no_limit_of_its_sum() -> None:
    assert one(Mean("v"), pa.array([2**64 - 1, 2**64 - 3], pa.uint64())) == _is_close(2**65 - 4, 2)
    assert one(Mean("v"), pa.array([2**63], pa.uint64())) == 2.0**63


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), LARGE, st.none()), max_size=8), min_size=1, max_size=5))
def test_a_mean_of_parts_is_the_mean_of_the_whole(parts: list[list[Any]]) -> None:
    aggregates = AggregateSet({"mean": Mean("v")})
    names = aggregates.fields().names
    reference, merged = cells(aggregates, pa.int64(), [*chain(*parts)]), cells(aggregates, pa.int64(), [])
    for part in parts:
        part_cells = cells(aggregates, pa.int64(), part)
        state = pa.RecordBatch.from_arrays([part_cells.value_column(name, EVERY) for name in names], names=names)
        aggregates.merge(merged, state, EVERY)
    assert [reference.value_column(name, EVERY) for name in names] == [
        merged.value_column(name, EVERY) for name in names
    ]
    assert aggregates.results(reference, EVERY) == aggregates.results(merged, EVERY)


MONEY = pa.decimal128(12, 2)
AMOUNTS = st.none() | st.decimals(-(10**9), 10**9, places=2)


@given(st.lists(st.lists(st.tuples(st.sampled_from("ab"), AMOUNTS), max_size=8), min_size=1, max_size=5))
def test_sums_and_means_of_decimals_are_exact(batches: list[list[tuple[str, Decimal | None]]]) -> None:
    harness, history = Harness(RunningAggregate(["k"], DECIMALS)), defaultdict[str, list[Decimal]](list)
    for rows in batches:
        for key, value in rows:
            history[key] += [] if value is None else [value]
        values = pa.array([value for _, value in rows], MONEY)
        for row in harness.process(batch([key for key, _ in rows], values)):
            numbers = history[row["k"]]
            assert row["total"] == (sum(numbers) if numbers else None)
            assert row["mean"] == (pytest.approx(float(sum(numbers) / len(numbers))) if numbers else None)


DECIMALS: dict[str, Aggregate] = {"total": Sum("v"), "mean": Mean("v")}
HUGE = st.integers(-(10**38) + 1, 10**38 - 1)


@given(st.lists(st.tuples(st.sampled_from("ab"), HUGE), min_size=1, max_size=9))
def test_a_sum_of_large_decimals_is_exact_or_refused(rows: list[tuple[str, int]]) -> None:
    harness = Harness(RunningAggregate(["k"], {"total": Sum("v")}))
    totals = {key: sum(value for name, value in rows if name == key) for key in sorted({key for key, _ in rows})}
    column = pa.array([Decimal(value) for _, value in rows], pa.decimal128(38, 0))
    values = batch([key for key, _ in rows], column)
    if all(abs(total) < 10**38 for total in totals.values()):
        assert {row["k"]: row["total"] for row in harness.process(values)} == totals
    else:
        with pytest.raises(DataRejected, match="the sum 'total' exceeds 38 digits"):
            harness.process(values)


@pytest.mark.parametrize("kind", [pa.decimal128(5, 2), pa.decimal128(30, 2), pa.decimal64(12, 2), pa.decimal32(7, 2)])
def test_decimals_of_another_precision_go_on(kind: pa.DataType) -> None:
    first = Harness(RunningAggregate(["k"], DECIMALS))
    first.process(batch(["a", "b"], pa.array([Decimal("1.10"), None], MONEY)))
    successor = Harness(RunningAggregate(["k"], DECIMALS), store=first.store, snapshots=[first.snapshot("chk-1")])
    output = successor.process(batch(["a", "b"], pa.array([Decimal("2.20"), Decimal("-0.50")], kind)))
    assert [(row["total"], row["mean"]) for row in output] == [(Decimal("3.30"), 1.65), (Decimal("-0.50"), -0.5)]
    with pytest.raises(JobRejected, match=r"decimal128\(38, 2\) in the state and decimal128\(38, 3\) in the data"):
        successor.process(batch(["a"], pa.array([Decimal("1.000")], pa.decimal128(9, 3))))


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), AMOUNTS, st.none()), max_size=8), min_size=1, max_size=5))
def test_a_sum_of_parts_of_decimals_is_the_sum_of_the_whole(parts: list[list[Any]]) -> None:
    aggregates = AggregateSet(DECIMALS)
    names = aggregates.fields().names
    reference, merged = cells(aggregates, MONEY, [*chain(*parts)]), cells(aggregates, MONEY, [])
    for part in parts:
        part_cells = cells(aggregates, MONEY, part)
        state = pa.RecordBatch.from_arrays([part_cells.value_column(name, EVERY) for name in names], names=names)
        aggregates.merge(merged, state, EVERY)
    assert aggregates.results(reference, EVERY) == aggregates.results(merged, EVERY)


def test_decimals_of_more_than_38_digits_are_refused_by_column() -> None:
    with pytest.raises(JobRejected, match=r"v: a sum or mean needs .*not decimal256"):
        one(Sum("v"), pa.array([Decimal(1)], pa.decimal256(50, 2)))


@pytest.mark.parametrize("aggregate", [Min("v"), Max("v")])
@pytest.mark.parametrize(
    ("state_type", "data_type"), [(pa.uint64(), pa.int64()), (pa.int64(), pa.uint64()), (pa.int64(), pa.float64())]
)
def test_an_extreme_of_a_type_that_its_state_cannot_hold_is_refused(
    aggregate: Aggregate, state_type: pa.DataType, data_type: pa.DataType
) -> None:
    harness = Harness(RunningAggregate(["k"], {"x": aggregate}))
    harness.process(batch(["a"], pa.array([5], state_type)))
    with pytest.raises(JobRejected, match=f"{state_type} in the state and {data_type} in the data"):
        harness.process(batch(["a"], pa.array([7], data_type)))


@pytest.mark.parametrize(
    ("old_values", "new_values"),
    [
        (pa.array([5], pa.int32()), pa.array([2**32 + 1], pa.int64())),
        (pa.array([5], pa.uint32()), pa.array([-1], pa.int32())),
        (pa.array([5], pa.float32()), pa.array([1e300], pa.float64())),
    ],
)
def test_an_extreme_becomes_as_wide_as_its_column(old_values: pa.Array, new_values: pa.Array) -> None:
    """A job's column may have become wider than it was when the state began: values were cut off."""
    harness = Harness(RunningAggregate(["k"], {"least": Min("v"), "most": Max("v")}))
    harness.process(batch(["a"], old_values))
    extremes = [old_values[0].as_py(), new_values[0].as_py()]
    (row,) = harness.process(batch(["a"], new_values))
    assert (row["least"], row["most"]) == (min(extremes), max(extremes))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint16()])
def test_a_column_may_become_narrower_than_its_sum_is_large(kind: pa.DataType) -> None:
    harness = Harness(RunningAggregate(["k"], {"total": Sum("v")}))
    harness.process(batch(["a"], pa.array([2**63 - 9], pa.int64())))
    assert harness.process(batch(["a"], pa.array([8], kind)))[0]["total"] == 2**63 - 1
    with pytest.raises(DataRejected, match="'total' exceeds the range"):
        harness.process(batch(["a"], pa.array([1], kind)))


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (Sum("k"), "k: a sum or mean needs a numeric column, not string"),
        (Mean("flag"), "flag: a sum or mean needs a numeric column, not bool"),
        (Max("k"), "k: min and max need a number or a time, not string"),
        (CountIf("v"), "v: count_if needs a boolean column, not int64"),
        (Sum("w"), "w: there is no such column; there are k, v, flag"),
    ],
)
def test_a_column_that_cannot_be_aggregated_is_named(aggregate: Aggregate, message: str) -> None:
    with pytest.raises(JobRejected, match=message):
        one(aggregate, pa.array([1]))


def test_months_have_no_order() -> None:
    with pytest.raises(JobRejected, match="v: min and max need a number or a time, not month_day_nano_interval"):
        one(Min("v"), pa.nulls(1, pa.month_day_nano_interval()))


FLOATS = st.none() | st.sampled_from([math.nan, math.inf, -0.5, 0.0, 2.0**40]) | st.integers(-99, 99).map(float)
NUMBERS = st.none() | st.integers(-(2**40), 2**40)


@given(st.data(), st.sampled_from([(NUMBERS, pa.int64()), (NUMBERS, pa.timestamp("us")), (FLOATS, pa.float64())]))
def test_parts_that_are_merged_are_the_whole(data: st.DataObject, drawn: tuple[st.SearchStrategy[Any], Any]) -> None:
    """Also of values that are null or no number, of keys that only some parts have, and of parts that are empty."""
    values, kind = drawn
    row = st.tuples(st.integers(0, 3), values, st.none() | st.booleans())
    parts = data.draw(st.lists(st.lists(row, max_size=8), max_size=5))
    selection = ALL if not pa.types.is_temporal(kind) else {n: a for n, a in ALL.items() if n not in ("total", "mean")}
    aggregates = AggregateSet(selection)
    reference, merged = cells(aggregates, kind, [*chain(*parts)]), cells(aggregates, kind, [])
    for part in parts:
        names = [field.name for field in aggregates.fields()]
        part_cells = cells(aggregates, kind, part)
        state = pa.RecordBatch.from_arrays([part_cells.value_column(name, EVERY) for name in names], names=names)
        order = np.array(data.draw(st.permutations(EVERY.tolist())), dtype=np.intp)
        aggregates.merge(merged, state.take(pa.array(order)), order)
    for result, other in zip(aggregates.results(reference, EVERY), aggregates.results(merged, EVERY), strict=True):
        assert str(result.to_pylist()) == str(other.to_pylist())  # as text, one NaN is another


EVERY = np.arange(4)


def cells(aggregates: AggregateSet, kind: Any, rows: list[Any]) -> AggregateCells:
    """What rows are folded to; their keys are positions."""
    keys, values, flags = zip(*rows, strict=True) if rows else ((), (), ())
    folded = batch(["-"] * len(rows), pa.array(values, kind), list(flags))
    fields = [
        field.with_type(kind)
        for field, kind in zip(aggregates.fields(), aggregates.state_types(folded.schema), strict=True)
    ]
    cells = AggregateCells(fields, len(EVERY))
    aggregates.accumulate(cells, folded, np.array(keys, dtype=np.intp))
    return cells


def test_parts_that_do_not_fit_together_are_refused() -> None:
    aggregates = AggregateSet({"total": Sum("v")})
    reference = cells(aggregates, pa.int64(), [(0, 2**62, None)])
    part = pa.RecordBatch.from_arrays([pa.array([2**62])], names=["total:sum"])
    with pytest.raises(DataRejected, match="'total' exceeds the range"):
        aggregates.merge(reference, part, np.zeros(1, dtype=np.intp))


def test_running_aggregates_go_on_after_a_rescale() -> None:
    """S3-20, S4-50."""
    first = Harness(RunningAggregate(["k"], {"n": Count(), "low": Min("v")}))
    keys = [f"key {number % 50}" for number in range(200)]
    first.process(batch(keys, pa.array(range(200))))
    snapshot = first.snapshot("chk-1")
    results: dict[str, Any] = {}
    for index in range(3):
        part = Harness(
            RunningAggregate(["k"], {"n": Count(), "low": Min("v")}),
            store=first.store, snapshots=[snapshot], index=index, parallelism=3,
        )  # fmt: skip
        part_keys = [key for key in sorted(set(keys)) if _owns(part, key)]
        results.update(
            {
                row["k"]: (row["n"], row["low"])
                for row in part.process(batch(part_keys, pa.array([-1] * len(part_keys))))
            }
        )
    assert results == {f"key {number}": (5, -1) for number in range(50)}


def _owns(harness: Harness, key: str) -> bool:
    from runtime.state.index.hashing import key_groups

    group = key_groups(pa.RecordBatch.from_pydict({"k": [key]}), ["k"], 16)[0]
    return int(group) in harness.context.key_groups


def test_output_columns_must_differ() -> None:
    with pytest.raises(JobRejected, match="must differ"):
        RunningAggregate(["k"], {"k": Count()})
