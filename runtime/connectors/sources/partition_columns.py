"""Partition columns of files: their values stand in the names of folders, such as `day=2024-01-01/`.

Types are declared, or inferred from all folders as Spark does: integers, dates, else text.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from runtime.connectors.partitions import check_partition_columns, has_folder_names, partition_values
from runtime.errors import DataRejected, JobRejected

PartitionBy: TypeAlias = pa.Schema | Sequence[str]
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_INT32_BOUND: Final = 1 << 31
_TYPES: Final = {str(kind): kind for kind in (pa.int32(), pa.int64(), pa.date32(), pa.string())}


def names_of(partition_by: PartitionBy) -> tuple[str, ...]:
    return tuple(partition_by.names if isinstance(partition_by, pa.Schema) else partition_by)


def check_partition_by(partition_by: PartitionBy, *, bounded: bool, file_columns: pa.Schema | None) -> None:
    """Raises JobRejected, which names `partition_by`, if it does not fit the source."""
    names = partition_by.names if isinstance(partition_by, pa.Schema) else partition_by
    check_partition_columns(names)
    for name in names:
        if file_columns is not None and name in file_columns.names:
            detail = f"{name!r} is a column of the format as well: its values come from the folders"
            raise JobRejected("bad-partition", "partition_by", detail)
    if isinstance(partition_by, pa.Schema):
        for item in partition_by:
            if not has_folder_names(item.type):
                detail = f"{item.name!r} is {item.type}: a partition column is text, an integer, a boolean or a date"
                raise JobRejected("bad-partition", "partition_by", detail)
    elif names and not bounded:
        detail = "an unbounded source sees later folders too, so it needs types: pa.schema([('day', pa.date32())])"
        raise JobRejected("bad-partition", "partition_by", detail)


def check_folder_name(path: str, name: str, partition_names: Sequence[str]) -> None:
    """Raises DataRejected unless a sub-folder is a folder of the next partition column, or no partition at all."""
    column, equals, _ = name.partition("=")
    if partition_names and (not equals or unquote(column) != partition_names[0]):
        raise DataRejected(f"{path}: partition_by needs folders {partition_names[0]}=… here")
    if not partition_names and equals:
        column = unquote(column)
        raise DataRejected(f"{path}: this is a folder of the partition column {column!r}, which partition_by lacks")


def check_file_depth(path: str, partition_names: Sequence[str]) -> None:
    """Raises DataRejected if a file lies above the folders of `partition_names`."""
    if partition_names:
        raise DataRejected(f"{path}: the file lies in no folder {partition_names[0]}=…, which partition_by needs")


def infer_types(names: Sequence[str], paths: Iterable[str]) -> dict[str, str]:
    """The types of partition columns from all files, by name."""
    texts: dict[str, set[str]] = {name: set() for name in names}
    for folder in {path.rpartition("/")[0] for path in paths} if names else ():
        for name, text in partition_values(f"{folder}/-").items():
            if text is not None:
                texts[name].add(text)
    return {name: str(_infer_type(values)) for name, values in texts.items()}


def schema_of(partition_by: PartitionBy, types: Mapping[str, str]) -> pa.Schema:
    """The partition columns.

    Args:
        types: the inferred types, unless they are declared.

    Raises:
        JobRejected: the types were inferred for other columns, by an earlier version of the job.
    """
    if isinstance(partition_by, pa.Schema):
        return partition_by
    if unknown := [name for name in partition_by if name not in types]:
        detail = f"the savepoint has no type of the partition column {unknown[0]!r}: declare the types by a schema"
        raise JobRejected("partition-changed", "partition_by", detail)
    return pa.schema([pa.field(name, _TYPES[types[name]]) for name in partition_by])


def values_of(path: str, schema: pa.Schema) -> dict[str, pa.Scalar]:
    """The values of the partition columns of a file. Raises DataRejected: a value is not of its type."""
    if not len(schema):
        return {}
    texts = partition_values(path)
    return {item.name: _parse(path, item, texts[item.name]) for item in schema}


def _infer_type(texts: set[str]) -> pa.DataType:
    if texts and all(_INTEGER.fullmatch(text) for text in texts):
        fits = all(-_INT32_BOUND <= int(text) < _INT32_BOUND for text in texts)
        return pa.int32() if fits else pa.int64()
    if texts and all(_DATE.fullmatch(text) and _is_date(text) for text in texts):
        return pa.date32()
    return pa.string()


def _is_date(text: str) -> bool:
    try:
        pa.scalar(text).cast(pa.date32())
    except pa.ArrowInvalid:
        return False
    return True


def _parse(path: str, column: pa.Field, text: str | None) -> pa.Scalar:
    if text is None and not column.nullable:
        raise DataRejected(f"{path}: the partition column {column.name!r} has no value")
    try:
        return pa.scalar(text, pa.string()).cast(column.type)
    except pa.ArrowException:
        raise DataRejected(f"{path}: {text!r} is no {column.type}, which partition_by declares") from None
