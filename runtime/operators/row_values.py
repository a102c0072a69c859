"""The rows of a batch as dicts of Python values: what `RecordBatch.to_pylist` gives, several times as fast with times.

It decides nothing: rows, order and values are Arrow's.
"""

from collections.abc import Iterator
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

Row = dict[str, Any]

_FIRST, _LAST = np.datetime64("0001-01-01"), np.datetime64("9999-12-31")  #: what a `datetime` can be, at least
_EXACT_UNITS: Final = ("s", "ms", "us")  #: of finer ones a `datetime` would lose digits


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Each row as a dict by column name. Made one by one: many dicts at once keep the garbage collector busy."""
    if not batch.num_columns:
        return iter(batch.to_pylist())
    values = zip(*map(_values, batch.columns), strict=True)
    return map(dict, map(zip, repeat(batch.schema.names), values))  # twice as fast as a comprehension


def _values(column: pa.Array) -> list[Any]:
    values: list[Any] = (column.to_numpy().astype(object) if _are_plain_times(column) else column).tolist()
    return values


def _are_plain_times(column: pa.Array) -> bool:
    """Whether numpy makes the same values of them as Arrow does."""
    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.tz is not None or kind.unit not in _EXACT_UNITS or column.null_count:
        return False
    times = column.to_numpy()
    return not len(times) or bool(times.min() >= _FIRST and times.max() <= _LAST)
