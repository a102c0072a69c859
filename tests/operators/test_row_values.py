"""Rows as dicts: what Arrow itself says, value by value and type by type."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.operators.row_values import rows_of

COLUMNS: dict[str, Any] = {
    "integer": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "text": (st.text(max_size=3), pa.string()),
    "s": (st.integers(-62_135_596_800, 253_402_300_799), pa.timestamp("s")),
    "ms": (st.integers(-62_135_596_800_000, 253_402_300_799_999), pa.timestamp("ms")),
    "us": (st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999), pa.timestamp("us")),
    "zone": (st.integers(0, 10**12), pa.timestamp("ms", "Europe/Berlin")),
}


@given(st.data(), st.lists(st.sampled_from(sorted(COLUMNS)), max_size=4, unique=True), st.booleans())
def test_rows_are_those_of_arrow(data: st.DataObject, names: list[str], nulls: bool) -> None:
    count = data.draw(st.integers(0, 6))
    columns = {}
    for name in names:
        values, kind = COLUMNS[name]
        drawn = data.draw(st.lists(st.none() | values if nulls else values, min_size=count, max_size=count))
        columns[name] = pa.array(drawn, kind if pa.types.is_string(kind) else pa.int64()).cast(kind)
    batch = pa.record_batch(columns)
    expected = batch.to_pylist()
    assert list(rows_of(batch)) == expected
    assert [type(value) for row in rows_of(batch) for value in row.values()] == [
        type(value) for row in expected for value in row.values()
    ]


@pytest.mark.parametrize("value", [-(2**62), 2**62])
def test_a_time_beyond_those_of_python_is_refused_as_by_arrow(value: int) -> None:
    batch = pa.record_batch({"at": pa.array([0, value]).view(pa.timestamp("ms"))})
    with pytest.raises((ValueError, OverflowError)):
        batch.to_pylist()
    with pytest.raises((ValueError, OverflowError)):
        list(rows_of(batch))


def test_rows_without_columns_are_still_rows() -> None:
    assert list(rows_of(pa.record_batch({"k": [1, 2]}).select([]))) == [{}, {}]
