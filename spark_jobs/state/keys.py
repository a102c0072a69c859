"""Key groups of given keys: a filter on a key reads a single key group instead of the whole state.

A filter value is cast to the type of its key column and hashed as the runtime hashes rows (`state.index.hashing`). A
row that equals the value has the same hash. A value that the type cannot hold equals no row. This module uses no Spark.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa

from runtime.errors import JobRejected
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes
from spark_jobs.state.rows import OBJECT_SCHEMA, CheckpointState, arrow_type

MAX_KEY_COMBINATIONS: Final = 64  #: combinations of values; more would select most of a state
_OBJECT_KEY: Final = OBJECT_SCHEMA.names[0]
#: Types of key columns that JSON represents exactly (bytes are base 64 in JSON, times are numbers).
_JSON_EXACT_TYPES: Final[tuple[tuple[Callable[[Any], bool], type], ...]] = (
    (pa.types.is_boolean, bool), (pa.types.is_integer, int), (pa.types.is_string, str), (pa.types.is_large_string, str),
)  # fmt: skip


def groups_with_keys(state: CheckpointState, key_values: Mapping[str, Sequence[Any]]) -> frozenset[int] | None:
    """The key groups of rows whose columns have one of the `key_values`.

    None if they are unknown: `key_values` lack a partition column, or a column's type cannot hold a value exactly.
    """
    if state.is_broadcast:
        return None
    try:
        columns = _object_columns(state, key_values) if state.holds_objects else _typed_columns(state, key_values)
        if columns is None:
            return None
        return frozenset(key_groups_of_hashes(hash_columns(columns), state.key_groups).tolist())
    except (JobRejected, pa.ArrowException, msgspec.DecodeError, TypeError, ValueError, OverflowError):
        return None


def _typed_columns(state: CheckpointState, key_values: Mapping[str, Sequence[Any]]) -> list[pa.Array] | None:
    """A column per partition column, with a row for each combination of values."""
    fields = state.partition_fields
    if not fields or any(field.name not in key_values for field in fields):
        return None
    combinations = list(
        itertools.islice(itertools.product(*(key_values[field.name] for field in fields)), MAX_KEY_COMBINATIONS + 1)
    )
    if not combinations or len(combinations) > MAX_KEY_COMBINATIONS:
        return None
    columns = zip(*combinations, strict=True)
    return [_column(values, field.type) for values, field in zip(columns, fields, strict=True)]


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):  # Spark has no uint64: it passes such a column as decimal
        values = [int(value) if isinstance(value, Decimal) else value for value in values]
    return pa.array(values, kind)


def _object_columns(state: CheckpointState, key_values: Mapping[str, Sequence[Any]]) -> list[pa.Array] | None:
    """Key columns for state of Python functions, decoded from column `key`: JSON, a list for several key columns."""
    texts = key_values.get(_OBJECT_KEY)
    if not texts or len(texts) > MAX_KEY_COMBINATIONS or not state.key_types or not state.has_keys_of_rows():
        return None
    kinds = [arrow_type(name) for name in state.key_types.values()]
    decoded = [msgspec.json.decode(text) for text in texts]
    rows = [[values] if len(kinds) == 1 else values for values in decoded]
    columns = list(zip(*rows, strict=True))
    if len(columns) != len(kinds) or not all(map(_is_exact, columns, kinds)):
        return None
    return [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]


def _is_exact(values: Sequence[Any], kind: pa.DataType) -> bool:
    python_type = next((python for test, python in _JSON_EXACT_TYPES if test(kind)), None)
    return python_type is not None and all(type(value) is python_type for value in values)
