"""Access to a Delta table by `deltalake`: loading, comparison of columns, and its errors as errors of Weir."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from runtime import s3
from runtime.connectors.bucket import Bucket
from runtime.errors import EnvironmentFailure, JobRejected, TargetAway
from runtime.libraries import import_library

#: Column metadata and table properties that oblige a writer to compute or check values. This sink does neither.
_DUTIES: Final = ("delta.generationExpression", "delta.invariants", "delta.identity", "delta.constraints.")

_DECORATION: Final = re.compile(r"\s*\x1b\[\d*m↳\x1b\[\d*m")  #: a colored arrow before each cause
_MAX_ERROR_CHARACTERS: Final = 500


@contextmanager
def delta_errors(path: str) -> Iterator[Any]:
    """Yields the library; turns its errors within the block into errors that name the table.

    Raises:
        JobRejected: the library is missing, or it does not support the table.
        TargetAway: the store of the table does not serve now.
        EnvironmentFailure: any other error of the library, the file system or the store.
    """
    library = import_library("deltalake", "delta")
    exceptions = import_library("deltalake.exceptions", "delta")
    try:
        yield library
    except exceptions.DeltaProtocolError as error:
        raise JobRejected("unsupported-table", "path", f"{path}: {_short_text(error)}") from error
    except (exceptions.DeltaError, OSError) as error:
        kind = TargetAway if s3.is_bucket(path) and s3.is_temporary_text(str(error)) else EnvironmentFailure
        raise kind(f"{path}: the Delta table cannot be used: {_short_text(error)}") from error


def load_table(path: str) -> Any:
    """The newest version of the table as a `deltalake.DeltaTable`; None if the folder has no table."""
    with delta_errors(path) as library:
        try:
            return library.DeltaTable(path, storage_options=storage_options(path))
        except import_library("deltalake.exceptions", "delta").TableNotFoundError:
            return None


def check_store(path: str) -> None:
    """Raises JobRejected if the table is in a store on which a commit would replace another."""
    if s3.is_bucket(path):
        Bucket(path).check_conditions()


def storage_options(path: str) -> dict[str, str] | None:
    """Options of the library for a bucket; endpoint and credentials come from the environment of the host.

    A commit is a conditional PUT, so of two writers of a version one is refused.
    """
    if not s3.is_bucket(path):
        return None
    return {
        "allow_http": "true",  # an endpoint `http://` is the choice of the host's administrator
        "aws_conditional_put": "etag",
        "connect_timeout": f"{s3.CONNECT_TIMEOUT_S}s",
        "max_retries": str(s3.RETRIES),
        "retry_timeout": f"{s3.RETRY_TIMEOUT_S}s",
        "timeout": f"{s3.READ_TIMEOUT_S}s",
    }


def delta_schema(schema: pa.Schema) -> tuple[str, pa.Schema]:
    """The columns as Delta's JSON, and as the Arrow types that Delta's Parquet files have.

    Raises:
        JobRejected: a column has a type that Delta lacks; the error names the column.
    """
    library = import_library("deltalake", "delta")
    for field in schema:
        try:
            library.Schema.from_arrow(pa.schema([field]))
        except Exception as error:  # the library raises plain exceptions with a stack trace in their text
            problem = f"column {field.name} has type {field.type}, which Delta lacks: cast it before the sink"
            raise JobRejected("unsupported-type", "path", problem) from error
        if pa.types.is_null(field.type):
            raise JobRejected("unsupported-type", "path", f"column {field.name} has no type: cast it before the sink")
    library_schema = library.Schema.from_arrow(schema)
    return library_schema.to_json(), pa.schema(library_schema.to_arrow())


def check_columns(path: str, table: Any, columns: str, partition_by: Sequence[str]) -> None:
    """Raises JobRejected unless rows of `columns`, Delta's JSON, may be appended to the table as they are."""
    metadata = table.metadata()
    if tuple(metadata.partition_columns) != tuple(partition_by):
        problem = f"{path} is partitioned by {list(metadata.partition_columns)}, the sink by {list(partition_by)}"
        raise JobRejected("schema-mismatch", "partition_by", problem)
    stream_fields, table_fields = _fields(columns), _fields(table.schema().to_json())
    keys = [*metadata.configuration, *(key for field in table_fields.values() for key in field["metadata"])]
    if duties := sorted(key for key in keys if key.startswith(_DUTIES)):
        raise JobRejected("unsupported-table", "path", f"{path} obliges its writers to observe {', '.join(duties)}")
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        raise JobRejected("unsupported-table", "path", f"{path} maps its columns to other names in its files")
    problems = [
        f"{name} is {_type_name(field)} in the stream and {_type_name(table_fields.get(name))} in the table"
        for name, field in stream_fields.items()
        if name not in table_fields or field["type"] != table_fields[name]["type"]
    ]
    problems += [
        f"{name} is required in the table and missing in the stream"
        for name, field in table_fields.items()
        if name not in stream_fields and not field["nullable"]
    ]
    if problems:
        raise JobRejected("schema-mismatch", "path", f"{path}: {'; '.join(problems)}")


def required_columns(table: Any) -> Sequence[str]:
    """The columns of the table that must not be null. Delta leaves this check to its writers."""
    return [name for name, field in _fields(table.schema().to_json()).items() if not field["nullable"]]


def _fields(columns: str) -> Mapping[str, Mapping[str, Any]]:
    return {field["name"]: field for field in json.loads(columns)["fields"]}


def _type_name(field: Mapping[str, Any] | None) -> str:
    if field is None:
        return "missing"
    return field["type"] if isinstance(field["type"], str) else json.dumps(field["type"])


def _short_text(error: Exception) -> str:
    """The library's text in a line: its first line may name no cause, such as a full disk."""
    return " ".join(_DECORATION.sub(":", str(error)).split())[:_MAX_ERROR_CHARACTERS]
