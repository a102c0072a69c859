"""Operators with compiled kernels against the same operators in numpy."""

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import DataRejected
from runtime.operators.aggregates import Aggregate, Count, CountIf, Max, Mean, Sum
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.operators.windows.tumbling import TumblingWindow
from tests.example_counts import examples
from tests.kernels.twins import key_columns, numpy_twins
from tests.operators.harness import Harness

AGGREGATES: dict[str, Aggregate] = {
    "n": Count(), "if": CountIf("b"), "sum": Sum("v"), "mean": Mean("f"), "floats": Sum("f"), "high": Max("v"),
}  # fmt: skip
VALUES = st.none() | st.integers(-5, 5) | st.sampled_from([2**62, -(2**62)])


@st.composite
def batches(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Batches of one schema: key columns, a time, an integer and a float; slices of the same columns, in any order."""
    keys = draw(key_columns(max_rows=40))
    rows = len(keys[0])
    times = draw(st.lists(st.integers(0, 40), min_size=rows, max_size=rows))
    values = draw(st.lists(VALUES, min_size=rows, max_size=rows))
    columns = {f"k{place}": column for place, column in enumerate(keys)}
    numbers = [None if value == 5 else float(value or 0) / 3 for value in values]
    whole = pa.record_batch(
        {
            **columns,
            "t": pa.array(times),
            "v": pa.array(values, pa.int64()),
            "f": pa.array(numbers, pa.float64()),
            "b": pa.array([None if value is None else value > 0 for value in values], pa.bool_()),
        }
    )
    cuts = draw(st.lists(st.tuples(st.integers(0, rows - 1), st.integers(1, rows)), min_size=1, max_size=4))
    return [whole.slice(start, count) for start, count in cuts]


def windows_of(given: list[pa.RecordBatch]) -> Any:
    """The rows that windows emit, or the text of the refusal."""
    keys = [name for name in given[0].schema.names if name.startswith("k")]
    pre_aggregator = WindowPreAggregator(keys, "t", 10, AGGREGATES)
    harness = Harness(TumblingWindow(keys, 10, AGGREGATES))
    try:
        for batch in given:
            for parts in pre_aggregator.add(batch):
                harness.process(parts)
        for parts in pre_aggregator.flush():
            harness.process(parts)
    except DataRejected as error:
        return str(error)
    return sorted(map(repr, harness.watermark(100)))


def running_values_of(given: list[pa.RecordBatch]) -> Any:
    keys = [name for name in given[0].schema.names if name.startswith("k")]
    harness = Harness(RunningAggregate(keys, AGGREGATES))
    try:
        return [repr(harness.process(batch)) for batch in given]
    except DataRejected as error:
        return str(error)


@given(batches())
@settings(max_examples=examples(40))
def test_windows_are_alike(given: list[pa.RecordBatch]) -> None:
    with numpy_twins():
        expected = windows_of(given)
    assert windows_of(given) == expected


@given(batches())
@settings(max_examples=examples(40))
def test_running_aggregates_are_alike(given: list[pa.RecordBatch]) -> None:
    with numpy_twins():
        expected = running_values_of(given)
    assert running_values_of(given) == expected
