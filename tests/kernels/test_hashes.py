"""The compiled hash equals its twin in numpy, bit for bit: it decides the key group of stored rows."""

import pyarrow as pa
from hypothesis import given

from runtime.state.index.hashing import hash_columns
from tests.kernels.twins import key_columns, numpy_twins


@given(key_columns())
def test_both_hash_alike(columns: list[pa.Array]) -> None:
    with numpy_twins():
        expected = hash_columns(columns)
    assert (hash_columns(columns) == expected).all()
