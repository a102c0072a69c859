"""Matching of Arrow columns to the columns of a Postgres table, and values in the form of COPY.

Values travel as CSV text: Arrow writes it, Postgres parses it by column type. The values of a supported type have the
same text in Arrow and Postgres, or are cast to a type whose values have.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from runtime.errors import JobRejected

types = pa.types
_TEXT_TYPES: Final = ("text", "varchar", "bpchar", "name", "citext", "json", "jsonb", "uuid")
_INTEGER_TYPES: Final = ("int8", "numeric")
#: Arrow type → Postgres types (`pg_type.typname`) that take every value of it.
_COMPATIBLE_TYPES: Final = (
    (types.is_boolean, ("bool",)),
    (types.is_int8, ("int2", "int4", *_INTEGER_TYPES)),
    (types.is_int16, ("int2", "int4", *_INTEGER_TYPES)),
    (types.is_int32, ("int4", *_INTEGER_TYPES)),
    (types.is_int64, _INTEGER_TYPES),
    (types.is_float32, ("float4", "float8")),
    (types.is_float64, ("float8",)),
    (types.is_decimal, ("numeric",)),
    (types.is_string, _TEXT_TYPES),
    (types.is_large_string, _TEXT_TYPES),
    (types.is_date32, ("date",)),
    (types.is_binary, ("bytea",)),
    (types.is_large_binary, ("bytea",)),
)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table. `required`: NOT NULL, without a default, neither identity nor generated.

    `generated`: rows must not have it.
    """

    name: str
    type: str
    required: bool
    not_null: bool = False
    generated: bool = False


def check_columns(table: str, columns: Sequence[TableColumn], rows: pa.Schema) -> None:
    """Raises JobRejected: a column of the rows does not fit the table; it is named, with the alternatives."""
    by_name = {column.name: column for column in columns}
    for field in rows:
        column = by_name.get(field.name)
        if column is None:
            names = ", ".join(by_name)
            detail = f"the table {table} has no column {field.name!r}, only {names}"
            raise JobRejected("unknown-column", field.name, detail)
        if column.generated:
            detail = f"column {field.name!r} of the table {table} is always generated: leave it out of the rows"
            raise JobRejected("generated-column", field.name, detail)
        if column.type not in _compatible_types(field.type):
            alternatives = " or ".join(_compatible_types(field.type)) or "none: cast it"
            detail = f"column {field.name!r} of the table {table} is {column.type}; {field.type} needs {alternatives}"
            raise JobRejected("type-differs", field.name, detail)
    missing = [column.name for column in columns if column.required and column.name not in rows.names]
    if missing:
        detail = f"column {missing[0]!r} of the table {table} must have a value; the rows have no such column"
        raise JobRejected("missing-column", missing[0], detail)


def encode_csv(batch: pa.RecordBatch, constants: Mapping[str, object] = MappingProxyType({})) -> bytes:
    """CSV lines without a header, constants first. Null is an empty field without quotes, the default of COPY."""
    fixed = [pa.array([value] * batch.num_rows) for value in constants.values()]
    columns = [*fixed, *(_text(column) for column in batch.columns)]
    names = [f"c{number}" for number in range(len(columns))]
    target = io.BytesIO()
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=names), target, csv.WriteOptions(include_header=False))
    return target.getvalue()


def _compatible_types(kind: pa.DataType) -> tuple[str, ...]:
    if types.is_timestamp(kind):
        return ("timestamptz",) if kind.tz else ("timestamp",)
    return next((kinds for test, kinds in _COMPATIBLE_TYPES if test(kind)), ())


def _text(column: pa.Array) -> pa.Array:
    kind = column.type
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pa.array([None if value is None else "\\x" + value.hex() for value in column.to_pylist()], pa.string())
    if types.is_floating(kind) or types.is_decimal(kind):
        return pc.cast(column, pa.string())
    return column
