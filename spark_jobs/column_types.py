"""Arrow columns in Spark's types.

Spark has fewer types than Arrow. `carrier_of` is the type that holds every value exactly, for rows that are cast back
(BATCH). `spark_schema` and `to_spark_types` are for rows that stay in Spark, where timestamps remain timestamps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from runtime.errors import JobRejected

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

types = pa.types
_UNCHANGED_TYPES: Final = (
    types.is_boolean, types.is_int8, types.is_int16, types.is_int32, types.is_int64, types.is_float32,
    types.is_float64, types.is_string, types.is_binary, types.is_date32,
)  # fmt: skip
_CARRIER_TYPES: Final = (
    (types.is_uint8, pa.int16()),
    (types.is_uint16, pa.int32()),
    (types.is_uint32, pa.int64()),
    (types.is_uint64, pa.decimal128(20, 0)),
    (types.is_float16, pa.float32()),
    (types.is_large_string, pa.string()),
    (types.is_string_view, pa.string()),
    (types.is_large_binary, pa.binary()),
    (types.is_binary_view, pa.binary()),
    (types.is_fixed_size_binary, pa.binary()),
    (types.is_date64, pa.int64()),
    (types.is_time32, pa.int32()),
    (types.is_time64, pa.int64()),
    (types.is_duration, pa.int64()),
    (types.is_null, pa.int8()),
)
_MAX_DECIMAL_PRECISION: Final = 38  #: of Spark's decimal type


def carrier_of(kind: pa.DataType) -> pa.DataType | None:
    """The type in which Spark holds values of `kind` exactly; None: there is no such type."""
    if isinstance(kind, pa.BaseExtensionType):
        return None
    if any(test(kind) for test in _UNCHANGED_TYPES):
        return kind
    for test, carrier in _CARRIER_TYPES:
        if test(kind):
            return carrier
    if types.is_timestamp(kind):
        return pa.int64() if kind.unit == "ns" else pa.timestamp("us")
    if types.is_decimal(kind):
        is_supported = kind.precision <= _MAX_DECIMAL_PRECISION and 0 <= kind.scale <= kind.precision
        return pa.decimal128(kind.precision, kind.scale) if is_supported else None
    if types.is_dictionary(kind):
        return carrier_of(kind.value_type)
    return _nested_carrier(kind)


def _nested_carrier(kind: pa.DataType) -> pa.DataType | None:
    carrier: pa.DataType | None = None
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = carrier_of(kind.value_type)
        carrier = None if item is None else pa.list_(item)
    elif types.is_struct(kind):
        inner = [(field.name, carrier_of(field.type)) for field in kind]
        names = {name.casefold() for name, _ in inner}
        if inner and len(names) == len(inner) and all(element is not None for _, element in inner):
            carrier = pa.struct(inner)
    elif types.is_map(kind):
        key, item = carrier_of(kind.key_type), carrier_of(kind.item_type)
        carrier = None if key is None or item is None else pa.map_(key, item)
    return carrier if carrier is not None and _casts_back(kind, carrier) else None


def _casts_back(kind: pa.DataType, carrier: pa.DataType) -> bool:
    try:
        pa.array([], kind).cast(carrier).cast(kind)
    except (pa.ArrowException, NotImplementedError):
        return False
    return True


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of the columns. A timestamp without a time zone becomes `TimestampNTZType`.

    Raises:
        JobRejected: Spark has no type for a column; it is named.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    carried = pa.schema([field.with_type(_spark_type(field)) for field in schema])
    return from_arrow_schema(carried, prefer_timestamp_ntz=True)


def to_spark_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows cast to Spark's Arrow types: Spark requires that a batch has exactly the schema declared to it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    target: Any = to_arrow_schema(spark_schema(batch.schema), timezone="UTC")
    columns = [column.cast(field.type) for column, field in zip(batch.columns, target, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _spark_type(field: pa.Field) -> pa.DataType:
    """The Arrow type that corresponds to Spark's type for the values of a column.

    Raises:
        JobRejected: Spark has no such type; the column is named.
    """
    kind = field.type
    if types.is_null(kind):
        return kind
    if types.is_dictionary(kind):
        return _spark_type(field.with_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([inner.with_type(_spark_type(inner)) for inner in kind])
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if types.is_date64(kind):
        return pa.date32()
    if types.is_duration(kind):
        return pa.duration("us")
    carrier = None if types.is_time(kind) else carrier_of(kind)
    if carrier is None:
        raise JobRejected("no-spark-type", field.name, f"Spark has no type for {kind}")
    return carrier


def quote_name(column: str) -> str:
    """The name of a column, quoted for Spark SQL."""
    return f"`{column.replace('`', '``')}`"
