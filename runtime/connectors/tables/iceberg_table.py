"""Columns and partitions of Iceberg tables: which rows a table takes, and how its files contain them.

Files carry Iceberg's field ids, by which readers find columns. Partition transforms follow the specification of Iceberg
("Partition Transforms"); a value stands in a committable as Iceberg stores it: a day is the number of days since 1970.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runtime.errors import JobRejected
from runtime.libraries import import_library

_FIRST_PARTITION_ID: Final = 1000  #: Iceberg's id of the first partition field
_EXPRESSION: Final = re.compile(r"(?:(?P<transform>years|months|days|hours)\((?P<argument>.+)\)|(?P<column>[^()]+))")
_HOUR_US: Final = 3_600_000_000
_EPOCH_YEAR: Final = 1970


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """A partition field of a table: `apply` computes its values from the column."""

    column: str
    apply: Callable[[pa.Array], pa.Array]


def parse_partition(expression: str) -> tuple[str, str]:
    """Transform, as Iceberg names it, and column of an expression such as `country` or `days(at)`.

    Raises:
        JobRejected: the expression is invalid.
    """
    match = _EXPRESSION.fullmatch(expression) if isinstance(expression, str) else None
    if match is None:
        detail = f"{expression!r} is neither a column nor years(…), months(…), days(…) or hours(…) of a column"
        raise JobRejected("bad-partition", "partition_by", detail)
    if match["column"]:
        return "identity", match["column"]
    return match["transform"].removesuffix("s"), match["argument"]


def iceberg_schema(schema: pa.Schema) -> Any:
    """The columns as an Iceberg schema with new field ids.

    Raises:
        JobRejected: a column has a type that Iceberg lacks; the error names the column.
    """
    library = import_library("pyiceberg.io.pyarrow", "iceberg")
    unreadable = import_library("pyiceberg.exceptions", "iceberg").ValidationError
    for field in schema:
        try:
            draft = library._pyarrow_to_schema_without_ids(pa.schema([field]))
            type(draft).model_validate_json(draft.model_dump_json())  # a decimal of negative scale cannot be read back
        except (library.UnsupportedPyArrowTypeException, unreadable, ValueError) as error:
            problem = f"column {field.name} has type {field.type}, which Iceberg lacks: cast it before the sink"
            raise JobRejected("unsupported-type", "table", problem) from error
    draft = library._pyarrow_to_schema_without_ids(schema)
    return import_library("pyiceberg.schema", "iceberg").assign_fresh_schema_ids(draft)


def partition_spec(schema: Any, partition_by: Sequence[str]) -> Any:
    """The partitioning of a new table with the columns `schema`.

    Raises:
        JobRejected: a column is missing, its type has no such partitions, or a partition would have its name.
    """
    partitioning = import_library("pyiceberg.partitioning", "iceberg")
    transforms = import_library("pyiceberg.transforms", "iceberg")
    by_name, fields = {field.name: field for field in schema.fields}, []
    for number, expression in enumerate(partition_by):
        transform, column = parse_partition(expression)
        if (source := by_name.get(column)) is None:
            names = ", ".join(by_name)
            raise JobRejected("no-column", "partition_by", f"the stream has no column {column}; it has {names}")
        _check_partition_type(column, _arrow_type(source), transform)
        name = column if transform == "identity" else f"{column}_{transform}"
        if name != column and name in by_name:
            problem = f"Iceberg names the partition {expression} {name}, which is a column: rename the column"
            raise JobRejected("bad-partition", "partition_by", problem)
        parsed = transforms.parse_transform(transform)
        fields.append(partitioning.PartitionField(source.field_id, _FIRST_PARTITION_ID + number, parsed, name))
    return partitioning.PartitionSpec(*fields)


def check_columns(table: Any, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raises JobRejected, naming the columns, unless rows of `schema` may be appended to the table."""
    name = ".".join(table.name())
    table_fields = {field.name: field for field in table.schema().fields}
    stream_fields = {field.name: field for field in iceberg_schema(schema).fields}
    problems = [
        f"{column} is {field.field_type} in the stream and {table_fields[column].field_type} in the table"
        if column in table_fields
        else f"{column} is {field.field_type} in the stream and missing in the table"
        for column, field in stream_fields.items()
        if column not in table_fields or _arrow_type(field) != _arrow_type(table_fields[column])
    ]
    problems += [
        f"{column} is required in the table and missing in the stream"
        for column, field in table_fields.items()
        if column not in stream_fields and field.required
    ]
    if problems:
        raise JobRejected("schema-mismatch", "table", f"{name}: {'; '.join(problems)}")
    existing = [_expression(table, field) for field in table.spec().fields]
    if partition_by and existing != list(partition_by):
        problem = f"{name} is partitioned by {existing}, the sink by {list(partition_by)}"
        raise JobRejected("schema-mismatch", "partition_by", problem)


def file_columns(table: Any, schema: pa.Schema) -> pa.Schema:
    """The Arrow columns of a file with rows of `schema`: the table's types and field ids, in the table's order."""
    library = import_library("pyiceberg.io.pyarrow", "iceberg")
    schemas = import_library("pyiceberg.schema", "iceberg")
    present = [field for field in table.schema().fields if field.name in schema.names]
    columns: pa.Schema = library.schema_to_pyarrow(schemas.Schema(*present))
    return columns


def partition_keys(table: Any, columns: pa.Schema) -> list[PartitionKey]:
    """The partition fields of the table.

    Raises:
        JobRejected: a column is missing in the stream, or the sink lacks a transform or a type.
    """
    keys = []
    for field in table.spec().fields:
        column, transform = table.schema().find_column_name(field.source_id), str(field.transform)
        if column not in columns.names:
            problem = f"the table is partitioned by {column}, which the stream lacks; it has {columns.names}"
            raise JobRejected("no-column", "table", problem)
        apply = _TRANSFORMS.get(transform)
        if apply is None:
            problem = f"the table is partitioned by {transform} of {column}: this sink has {', '.join(_TRANSFORMS)}"
            raise JobRejected("unsupported-table", "table", problem)
        _check_partition_type(column, columns.field(column).type, transform)
        keys.append(PartitionKey(column, apply))
    return keys


def _expression(table: Any, field: Any) -> str:
    column, transform = table.schema().find_column_name(field.source_id), str(field.transform)
    return column if transform == "identity" else f"{transform}s({column})"


def _arrow_type(field: Any) -> pa.DataType:
    """The type without field ids, which differ between the stream and the table within nested types."""
    library = import_library("pyiceberg.io.pyarrow", "iceberg")
    return library.schema_to_pyarrow(field.field_type, include_field_ids=False)


def _check_partition_type(column: str, kind: pa.DataType, transform: str) -> None:
    if not _is_partition_type(kind, transform):
        problem = f"column {column} is {kind}: no partitions by {transform} of it"
        raise JobRejected("bad-partition", "table", problem)


def _is_partition_type(kind: pa.DataType, transform: str) -> bool:
    types = pa.types
    if transform == "hour":
        return bool(types.is_timestamp(kind))
    if transform in ("day", "month", "year"):
        return bool(types.is_timestamp(kind) or types.is_date32(kind))
    tests = (types.is_integer, types.is_boolean, types.is_string, types.is_large_string, types.is_date32)
    return any(test(kind) for test in tests)


def _identity(column: pa.Array) -> pa.Array:
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


def _hour(column: pa.Array) -> pa.Array:
    return _floor(column.cast(pa.int64()), _HOUR_US)


def _day(column: pa.Array) -> pa.Array:
    return (
        column.cast(pa.int32()) if pa.types.is_date32(column.type) else _floor(column.cast(pa.int64()), 24 * _HOUR_US)
    )


def _month(column: pa.Array) -> pa.Array:
    return pc.add(pc.multiply(_year(column), 12), pc.subtract(pc.month(column), 1))


def _year(column: pa.Array) -> pa.Array:
    return pc.subtract(pc.year(column), _EPOCH_YEAR)


def _floor(column: pa.Array, unit: int) -> pa.Array:
    """Whole units, rounded down also before 1970; Arrow's integer division rounds towards zero."""
    values = np.asarray(column.fill_null(0)) // unit
    return pa.array(values, pa.int64(), mask=np.asarray(column.is_null()))


_TRANSFORMS: Final[Mapping[str, Callable[[pa.Array], pa.Array]]] = {
    "identity": _identity,
    "year": _year,
    "month": _month,
    "day": _day,
    "hour": _hour,
}
