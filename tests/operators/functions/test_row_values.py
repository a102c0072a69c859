"""Rows as dicts, and back: what Arrow itself says, value by value and type by type."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import JobRejected
from runtime.operators.functions.row_values import batch_of, rows_of

COLUMNS: dict[str, Any] = {
    "integer": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "text": (st.text(max_size=3), pa.string()),
    "s": (st.integers(-62_135_596_800, 253_402_300_799), pa.timestamp("s")),
    "ms": (st.integers(-62_135_596_800_000, 253_402_300_799_999), pa.timestamp("ms")),
    "us": (st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999), pa.timestamp("us")),
    "zone": (st.integers(0, 10**12), pa.timestamp("ms", "Europe/Berlin")),
    "utc": (st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999), pa.timestamp("us", "UTC")),
    "day": (st.integers(-719_162, 2_932_896), pa.date32()),
    "encoded": (st.text(max_size=3), pa.dictionary(pa.int8(), pa.string())),
    "a 'quoted'\n{name}": (st.integers(-5, 5), pa.int64()),
}

#: One value of each kind that has a rule of its own somewhere, and a column type for it.
UNUSUAL: dict[str, tuple[Any, pa.DataType]] = {
    "time with a zone": (datetime(2026, 1, 2, 3, tzinfo=UTC), pa.timestamp("us", "UTC")),
    "nanoseconds": (datetime.fromisoformat("2026-01-02T03:04:05.000006"), pa.timestamp("ns")),
    "day in ms": (date(2026, 1, 2), pa.date64()),
    "time of day": (time(1, 2, 3, 4), pa.time64("us")),
    "duration": (timedelta(seconds=1), pa.duration("us")),
    "decimal": (Decimal("12.34"), pa.decimal128(10, 2)),
    "list": ([1, None], pa.list_(pa.int64())),
    "struct": ({"a": 1, "b": ["x"]}, pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    "map": ([("a", 1)], pa.map_(pa.string(), pa.int64())),
    "dictionary": ("x", pa.dictionary(pa.int32(), pa.string())),
    "large text": ("x", pa.large_string()),
    "text view": ("x", pa.string_view()),
    "bytes": (b"\xff", pa.binary()),
    "four bytes": (b"\xff123", pa.binary(4)),
    "boolean": (True, pa.bool_()),
    "float": (1.5, pa.float32()),
    "unsigned": (2**64 - 1, pa.uint64()),
    "nothing": (None, pa.null()),
}


@given(st.data(), st.lists(st.sampled_from(sorted(COLUMNS)), max_size=4, unique=True), st.booleans())
def test_rows_are_those_of_arrow(data: st.DataObject, names: list[str], nulls: bool) -> None:
    count = data.draw(st.integers(0, 6))
    columns = {}
    for name in names:
        values, kind = COLUMNS[name]
        drawn = data.draw(st.lists(st.none() | values if nulls else values, min_size=count, max_size=count))
        columns[name] = _column(drawn, kind)
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


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind) or pa.types.is_dictionary(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)


@pytest.mark.parametrize("name", UNUSUAL)
def test_every_type_comes_out_as_arrow_says_and_goes_back(name: str) -> None:
    value, kind = UNUSUAL[name]
    batch = pa.record_batch({"x": pa.array([value, None, value], kind), "n": [1, 2, 3]}).slice(1)
    rows = list(rows_of(batch))
    assert rows == batch.to_pylist()
    assert [type(row["x"]) for row in rows] == [type(row["x"]) for row in batch.to_pylist()]
    assert batch_of(rows, batch.schema).to_pylist() == rows


def test_an_encoded_column_whose_dictionary_holds_nulls_and_more_than_its_rows() -> None:
    values = pa.array(["a", None, "c", "unused"])
    column = pa.DictionaryArray.from_arrays(pa.array([2, 1, None, 0], pa.int8()), values)
    batch = pa.record_batch({"x": column})
    assert [row["x"] for row in rows_of(batch)] == ["c", None, None, "a"]


def test_rows_are_dicts_of_their_own_that_may_be_changed() -> None:
    first, second = rows_of(pa.record_batch({"x": [[1], [1]]}))
    first["x"].append(2)
    first["more"] = 1
    assert second == {"x": [1]}


SCHEMA = pa.schema([("key", pa.string()), ("total", pa.int64())])


@pytest.mark.parametrize(
    "rows",
    [
        [{"key": "a", "total": 1, "totals": 2}],
        [{"key": "a", "totals": 1}],
        [{"key": "a", "total": 1}, {"totals": 1}],
        [{}, {"key": None, "totals": 1}],
    ],
)
def test_a_column_that_the_schema_lacks_is_refused_by_name(rows: list[dict[str, Any]]) -> None:
    """Misspelt or too many: its values were dropped."""
    with pytest.raises(JobRejected, match=r"totals: .*it has key, total") as error:
        batch_of(rows, SCHEMA)
    assert error.value.code == "unknown-column"


def test_a_column_that_may_not_be_null_is_refused_by_name() -> None:
    schema = pa.schema([pa.field("key", pa.string(), nullable=False), ("total", pa.int64())])
    assert batch_of([{"key": "a"}], schema).num_rows == 1
    with pytest.raises(JobRejected, match="key: a row has no value"):
        batch_of([{"key": "a", "total": 1}, {"total": 1}], schema)


def test_columns_that_a_row_lacks_are_null() -> None:
    batch = batch_of([{"total": 1}, {"key": "b"}, {}], SCHEMA)
    assert batch.schema == SCHEMA
    assert batch.to_pylist() == [{"key": None, "total": 1}, {"key": "b", "total": None}, {"key": None, "total": None}]


@pytest.mark.parametrize("value", ["7", 1.5, float("nan"), True, 2**70, [1], object(), b"x"])
def test_a_value_of_a_wrong_type_names_its_column(value: Any) -> None:
    with pytest.raises(TypeError, match="column 'total' of the output rows is int64: "):
        batch_of([{"key": "a", "total": 1}, {"key": "b", "total": value}], SCHEMA)


def test_a_float_without_digits_is_an_integer() -> None:
    assert batch_of([{"total": 2.0}, {"total": None}, {"total": 3}], SCHEMA)["total"].to_pylist() == [2, None, 3]


@pytest.mark.parametrize("row", [None, ["a", 1], 7, "a", ("a", 1)])
@pytest.mark.parametrize("before", [[], [{}]])
def test_what_is_no_dict_is_refused_by_its_type(row: Any, before: list[Any]) -> None:
    with pytest.raises(TypeError, match=f"must be dicts by column name, not {type(row).__name__}$"):
        batch_of([*before, row], SCHEMA)
