"""The Arrow types of Avro types, including logical types. An Avro union is a column only with `null`."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from runtime.errors import JobRejected

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def arrow_type(schema: Any, names: dict[str, pa.DataType], where: str) -> tuple[pa.DataType, bool]:
    """The column type of an Avro type, and whether it is nullable.

    Args:
        names: the named types so far; the call adds the types that `schema` names.
        where: begins the message of an error.

    Raises:
        JobRejected: the Avro type has no column type.
    """
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            detail = f"{where}: a union of several types has no column type"
            raise JobRejected("bad-schema", "format.schema", detail)
        return arrow_type(others[0], names, where)[0], len(others) < len(schema)
    if isinstance(schema, str):
        if (found := _PRIMITIVES.get(schema) or names.get(schema)) is None:
            raise JobRejected("bad-schema", "format.schema", f"{where}: the type {schema!r} has no column type")
        return found, False
    kind, logical = schema["type"], schema.get("logicalType")
    if logical in _LOGICAL:
        return _LOGICAL[logical], False
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0)), False
    if kind == "array":
        return pa.list_(arrow_type(schema["items"], names, f"{where}[]")[0]), False
    if kind == "map":
        return pa.map_(pa.string(), arrow_type(schema["values"], names, f"{where}{{}}")[0]), False
    if kind == "record":
        fields = []
        for each in schema["fields"]:
            item, nullable = arrow_type(each["type"], names, f"{where}.{each['name']}")
            fields.append(pa.field(each["name"], item, nullable=nullable))
        return _named(schema, names, pa.struct(fields)), False
    if kind == "enum":
        return _named(schema, names, pa.string()), False
    if kind == "fixed":
        return _named(schema, names, pa.binary(schema["size"])), False
    return arrow_type(kind, names, where)


def _named(schema: Mapping[str, Any], names: dict[str, pa.DataType], found: pa.DataType) -> pa.DataType:
    names[schema["name"]] = found
    if "namespace" in schema:
        names[f"{schema['namespace']}.{schema['name']}"] = found
    return found
