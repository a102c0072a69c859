"""Runs the twins of kernels, and makes key columns for both."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from runtime.kernels.loading import SWITCH, native

_TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
_BINARY_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]
_TEXTS = st.sampled_from(["", "a", "b", "\0", "a\0", "é" * 4, "a" * 8, "a" * 9, "b" * 64, "b" * 65]) | st.text(
    max_size=70
)
_INTEGERS = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
_FLOATS = st.sampled_from([0.0, -0.0, float("nan"), float("inf")]) | st.floats()


@contextmanager
def numpy_twins() -> Iterator[None]:
    """Within the context, callers of kernels use numpy."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "numpy"
    native.cache_clear()
    try:
        yield
    finally:
        os.environ.pop(SWITCH) if before is None else os.environ.update({SWITCH: before})
        native.cache_clear()


@st.composite
def key_columns(draw: st.DrawFn, width: st.SearchStrategy[int] | None = None, max_rows: int = 30) -> list[pa.Array]:
    """Key columns of one length with nulls and repeated values, of many types; some are slices or dictionaries."""
    rows, columns = draw(st.integers(1, max_rows)), draw(width or st.integers(1, 3))
    return [draw(_column(rows)) for _ in range(columns)]


@st.composite
def _column(draw: st.DrawFn, rows: int) -> Any:
    kind = draw(st.sampled_from([*_TEXT_TYPES, *_BINARY_TYPES, pa.int64(), pa.int32(), pa.float64(), pa.bool_()]))
    if kind in _TEXT_TYPES:
        values: Any = _TEXTS
    elif kind in _BINARY_TYPES:
        values = _TEXTS.map(str.encode)
    elif pa.types.is_floating(kind):
        values = _FLOATS
    elif pa.types.is_boolean(kind):
        values = st.booleans()
    else:
        values = _INTEGERS if kind == pa.int64() else st.integers(-3, 2**31 - 1)
    before = draw(st.integers(0, 3))
    pool = draw(st.lists(st.none() | values, min_size=1, max_size=8))
    column = pa.array(draw(st.lists(st.sampled_from(pool), min_size=rows + before, max_size=rows + before)), kind)
    if kind in (pa.string(), pa.int64()) and draw(st.booleans()):
        column = column.dictionary_encode()
    return column.slice(before)
