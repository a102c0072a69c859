"""Arrow columns in Spark's types, for rows that do not come back from Spark.

BATCH mode casts columns back and has its own types for that (`spark_jobs.batch.wire`).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from runtime.errors import JobRejected
from spark_jobs.batch.wire import carrier_of


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of the columns.

    Raises:
        JobRejected: Spark has no type for a column; it is named.
    """
    return from_arrow_schema(_spark_arrow_schema(schema), prefer_timestamp_ntz=True)


def to_spark_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows in Spark's exact types: Spark requires that the schema of a batch equals its own."""
    target: Any = to_arrow_schema(spark_schema(batch.schema), timezone="UTC")
    columns = [column.cast(field.type) for column, field in zip(batch.columns, target, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _spark_arrow_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(_spark_type(field)) for field in schema])


def _spark_type(field: pa.Field) -> pa.DataType:
    """The Arrow type that corresponds to Spark's type for the values of a column.

    Raises:
        JobRejected: Spark has no such type; the column is named.
    """
    kind = field.type
    if pa.types.is_null(kind):
        return kind
    if pa.types.is_dictionary(kind):
        return _spark_type(field.with_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([inner.with_type(_spark_type(inner)) for inner in kind])
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_duration(kind):
        return pa.duration("us")
    carrier = None if pa.types.is_time(kind) else carrier_of(kind)
    if carrier is None:
        raise JobRejected("no-spark-type", field.name, f"Spark has no type for {kind}")
    return carrier
