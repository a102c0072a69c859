"""Checks of the columns of a stream, and the difference between the columns of two batches or streams."""

from collections.abc import Mapping

import pyarrow as pa

from runtime.errors import JobRejected
from runtime.state.encoded_texts import declared_field
from runtime.state.encodings import nullable_schema


def check_distinct_columns(schema: pa.Schema, uid: str) -> None:
    """Raises JobRejected if two columns in the output of operator `uid` have the same name."""
    names = schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise JobRejected("duplicate-column", uid, f"two columns of its output have the name {twice!r}")


def columns_of(schema: pa.Schema) -> dict[str, str]:
    """Names and declared types, in order. Operators may emit batches that differ in nullability."""
    return {item.name: str(declared_field(item).type) for item in nullable_schema(schema)}


def column_difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Names the columns that differ; both arguments are as `columns_of` returns them."""
    missing = [f"{name!r} is missing" for name in before if name not in now]
    new = [f"{name!r} is new" for name in now if name not in before]
    changed = [
        f"{name!r} was {before[name]} and is {now[name]}" for name in now if before.get(name, now[name]) != now[name]
    ]
    return "; ".join(missing + new + changed) or f"their order was {', '.join(before)} and is {', '.join(now)}"
