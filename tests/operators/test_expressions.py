"""Filters and projections by Arrow expressions, against Python row by row; their checks before the start."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weir
from runtime.operators.expressions import Filter, Project
from tests.jobs.numbers import Numbers
from tests.operators.harness import Harness

RIDES = pa.schema([("city", pa.string()), ("fare", pa.float64()), ("people", pa.int64())])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "city": st.none() | st.sampled_from(["Ulm", "Bonn"]),
            "fare": st.none() | st.floats(-100, 100),
            "people": st.none() | st.integers(-5, 5),
        }
    ),
    min_size=1,
    max_size=20,
)


def rides(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, RIDES)


@given(ROWS)
def test_a_filter_keeps_what_a_loop_keeps(rows: list[dict[str, Any]]) -> None:
    """Null is not true."""
    output = Harness(Filter((pc.field("fare") > 0) & (pc.field("city") == "Ulm"))).process(rides(rows))
    assert output == [row for row in rows if row["city"] == "Ulm" and row["fare"] is not None and row["fare"] > 0]


@given(ROWS)
def test_a_projection_computes_what_a_loop_computes(rows: list[dict[str, Any]]) -> None:
    each = Project({"fare": pc.field("fare") * 2, "more": pc.field("people") + 1}, keeps_input=True)
    for row, output in zip(rows, Harness(each).process(rides(rows)), strict=True):
        assert list(output) == ["city", "fare", "people", "more"], "a replaced column stays where it stands"
        assert output["fare"] == (None if row["fare"] is None else row["fare"] * 2)
        assert output["more"] == (None if row["people"] is None else row["people"] + 1)


def test_large_batches_stay_whole_and_in_order() -> None:
    """Acero works in pieces of 32,768 rows."""
    harness, many = Harness(Project({"n": pc.field("people") + 1}, keeps_input=False)), 100_000
    fares = pa.array([0.5] * many)
    batch = pa.RecordBatch.from_arrays([pa.array(["Ulm"] * many), fares, pa.array(range(many))], schema=RIDES)
    harness.process(batch)
    (output,) = harness.out.batches
    assert output.column("n").to_pylist() == list(range(1, many + 1))


def stream(columns: pa.Schema | None = RIDES) -> weir.Stream:
    start = weir.Dataflow("rides").source("rides", Numbers(total=10))
    return weir.Stream(start.flow, start.uid, columns=columns)


def test_the_columns_are_declared_to_the_next_step() -> None:
    paid = stream().filter("paid", pc.field("fare") > 0)
    assert paid.columns == RIDES
    selection = paid.select("made", "city", cents=(pc.field("fare") * 100).cast(pa.int64()), on=pc.scalar(True))
    assert selection.columns == pa.schema([("city", pa.string()), ("cents", pa.int64()), ("on", pa.bool_())])
    columns = selection.with_columns("more", twice=pc.field("cents") * 2).columns
    assert columns == pa.schema([*(selection.columns or ()), ("twice", pa.int64())])
    with pytest.raises(weir.JobRejected) as error:
        selection.key_by("fare").aggregate("counts", {"n": weir.Count()})
    assert error.value.field in ("counts", "fare")


@pytest.mark.parametrize(
    ("step", "code", "message"),
    [
        (lambda s: s.filter("step", pc.field("fair") > 0), "unknown-column", "'fair'; the columns are city, fare"),
        (lambda s: s.select("step", "fair"), "unknown-column", "'fair'"),
        (lambda s: s.with_columns("step", a=pc.field("fair")), "unknown-column", "'fair'"),
        (lambda s: s.filter("step", pc.field("city") > 1), "bad-expression", "string"),
        (lambda s: s.filter("step", pc.field("fare")), "bad-expression", "must be true or false, but fare is double"),
        (lambda s: s.filter("step", True), "bad-expression", "pc.field"),
        (lambda s: s.select("step", "city", city=pc.field("fare")), "duplicate-column", "'city'"),
        (lambda s: s.select("step"), "bad-columns", "at least one"),
        (lambda s: s.select("step", a=3), "bad-a", "pc.scalar"),
    ],
)
def test_what_does_not_fit_the_columns_is_refused_when_the_job_is_built(step: Any, code: str, message: str) -> None:
    with pytest.raises(weir.JobRejected, match=message) as error:
        step(stream())
    assert (error.value.code, error.value.field) == (code, "step")


def test_where_columns_are_unknown_the_first_batch_is_checked() -> None:
    step = stream(None).filter("step", pc.field("fair") > 0)
    assert step.columns is None
    with pytest.raises(weir.JobRejected, match="'fair'; the columns are city, fare, people"):
        Harness(Filter(pc.field("fair") > 0)).process(rides([{"city": "Ulm"}]))


def test_a_value_that_cannot_be_computed_is_final_and_names_the_expression() -> None:
    with pytest.raises(weir.DataRejected, match=r"number: cast.*Failed to parse string: 'Ulm'"):
        Harness(Project({"number": pc.field("city").cast(pa.int64())}, keeps_input=False)).process(
            rides([{"city": "Ulm"}])
        )
