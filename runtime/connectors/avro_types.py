"""The Arrow types of Avro types and the reverse, with logical types. An Avro union is a column only with `null`."""

import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from runtime.errors import DataRejected, JobRejected

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
        branches = [each for each in schema if each != "null"]
        if len(branches) != 1:
            detail = f"{where}: a union of several types has no column type"
            raise JobRejected("bad-schema", "format.schema", detail)
        return arrow_type(branches[0], names, where)[0], len(branches) < len(schema)
    if isinstance(schema, str):
        if (column_type := _PRIMITIVES.get(schema) or names.get(schema)) is None:
            raise JobRejected("bad-schema", "format.schema", f"{where}: the type {schema!r} has no column type")
        return column_type, False
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


def _named(schema: Mapping[str, Any], names: dict[str, pa.DataType], column_type: pa.DataType) -> pa.DataType:
    names[schema["name"]] = column_type
    if "namespace" in schema:
        names[f"{schema['namespace']}.{schema['name']}"] = column_type
    return column_type


# ---------------------------------------------------------------- from Arrow

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AVRO_PRIMITIVES: Final[Mapping[str, str]] = {
    "bool": "boolean",
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), "int"),
    **dict.fromkeys(("int64", "uint32"), "long"),
    **dict.fromkeys(("halffloat", "float"), "float"),
    "double": "double",
    **dict.fromkeys(("string", "large_string"), "string"),
    **dict.fromkeys(("binary", "large_binary"), "bytes"),
    "null": "null",
}


def avro_schema(columns: pa.Schema) -> dict[str, Any]:
    """The Avro record of rows with these columns.

    Raises:
        DataRejected: Avro has no such name or type; the error names the column.
    """
    return _record(list(columns), "Row", "")


def _record(fields: list[pa.Field], name: str, where: str) -> dict[str, Any]:
    names = [item.name for item in fields]
    if len(set(names)) < len(names):
        raise DataRejected(f"Avro: two columns have the same name: {', '.join(names)}")
    avro_fields = []
    for item in fields:
        path = f"{where}{item.name}"
        if not _NAME.fullmatch(item.name):
            problem = "Avro names are letters, digits and '_', and begin with no digit: rename it"
            raise DataRejected(f"Avro: column {path!r}: {problem}")
        avro_fields.append({"name": item.name, "type": _field_type(item, f"{name}_{item.name}", path)})
    return {"type": "record", "name": name, "fields": avro_fields}


def _field_type(item: pa.Field, name: str, path: str) -> Any:
    kind = _avro_type(item.type, name, path)
    return ["null", kind] if item.nullable and kind != "null" else kind


def _avro_type(kind: pa.DataType, name: str, path: str) -> Any:
    if (primitive := _AVRO_PRIMITIVES.get(str(kind))) is not None:
        return primitive
    if pa.types.is_fixed_size_binary(kind):
        return "bytes"
    if pa.types.is_dictionary(kind):
        return _avro_type(kind.value_type, name, path)
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_decimal(kind) and kind.scale >= 0:
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_time32(kind) or pa.types.is_time64(kind):
        return _time_type("time", kind, path)
    if pa.types.is_timestamp(kind):
        return _time_type("local-timestamp" if kind.tz is None else "timestamp", kind, path)
    if pa.types.is_struct(kind):
        return _record([kind.field(place) for place in range(kind.num_fields)], name, f"{path}.")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return {"type": "array", "items": _field_type(kind.value_field, name, f"{path}[]")}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": _field_type(kind.item_field, name, f"{path}{{}}")}
    raise DataRejected(f"Avro: column {path!r} is {kind}, which Avro cannot hold: cast it to another type")


def _time_type(logical: str, kind: pa.DataType, path: str) -> dict[str, str]:
    """The logical type of a time or timestamp, in ms or us."""
    if kind.unit == "ns":
        raise DataRejected(f"Avro: column {path!r} is {kind}: cast it to microseconds")
    if kind.unit == "us":
        return {"type": "long", "logicalType": f"{logical}-micros"}
    return {"type": "int" if logical == "time" else "long", "logicalType": f"{logical}-millis"}
