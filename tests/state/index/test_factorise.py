"""Distinct keys of a batch, against a dictionary in plain Python."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.state.index.factorise import factorise

COLUMNS = {
    "small": (st.integers(-3, 3), pa.int32()),
    "wide": (st.sampled_from([-(2**63), -1, 0, 1, 2**40, 2**63 - 1]), pa.int64()),
    "unsigned": (st.sampled_from([0, 1, 2**63, 2**64 - 1]), pa.uint64()),
    "text": (st.sampled_from(["", "a", "b", "ab", "é"]), pa.string()),
    "view": (st.sampled_from(["", "a", "b", "longer than twelve bytes"]), pa.string_view()),
    "flag": (st.booleans(), pa.bool_()),
    "float": (st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]), pa.float64()),
    "day": (st.integers(0, 3), pa.date32()),
}


def identity(value: Any) -> Any:
    """Python's equality, made that of keys."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


@given(st.data(), st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3), st.booleans())
def test_rows_share_a_number_exactly_when_their_keys_are_equal(
    data: st.DataObject, kinds: list[str], encode: bool
) -> None:
    rows = data.draw(st.integers(0, 25))
    columns = []
    for kind in kinds:
        values, arrow = COLUMNS[kind]
        column = pa.array(data.draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), arrow)
        columns.append(column.dictionary_encode() if encode and kind in ("text", "wide", "float") else column)
    keys = [tuple(map(identity, key)) for key in zip(*(column.to_pylist() for column in columns), strict=True)]
    distinct = factorise(columns)
    assert len(distinct) == len(set(keys))
    assert [keys[distinct.first_rows[number]] for number in distinct.key_numbers] == keys


def test_a_dictionary_that_holds_a_value_twice_is_one_key() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None, 3], pa.int8()), pa.array(["a", "b", "a", None]))
    distinct = factorise([column])
    assert len(distinct) == 3
    assert distinct.key_numbers[0] == distinct.key_numbers[2]
    assert distinct.key_numbers[3] == distinct.key_numbers[4]


@pytest.mark.parametrize("cardinality", [10, 30_000, 10**15])
def test_large_batches_of_several_columns_agree_with_numpy(cardinality: int) -> None:
    random = np.random.default_rng(cardinality)
    left, middle, right = (random.integers(0, bound, 50_000) for bound in (cardinality, 5, cardinality))
    distinct = factorise([pa.array(left), pa.array(middle), pa.array(right)])
    rows = np.stack([left, middle, right])
    assert len(distinct) == np.unique(rows, axis=1).shape[1]
    assert (rows[:, distinct.first_rows][:, distinct.key_numbers] == rows).all()
