"""The author's function → a DataFrame that can be read as a source, and its columns as Arrow has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from runtime.errors import DataRejected, JobRejected
from spark_jobs.sources.table import SparkTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FAILED: Final = "input-failed"


@dataclass(frozen=True)
class Shape:
    """Columns of a DataFrame, and of the rows that its source emits."""

    uid: str
    columns: pa.Schema
    schema: pa.Schema

    def fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the DataFrame, whose columns may have other names, as the source emits it.

        Raises:
            DataRejected: a value has no place in the schema; the column is named.
        """
        by_name = dict(zip(self.columns.names, batch.columns, strict=True))
        columns = [self._cast(by_name[field.name], field) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if column.null_count and not field.nullable:
            raise DataRejected(f"source {self.uid!r}, column {field.name!r}: a value is missing")
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            raise DataRejected(f"source {self.uid!r}, column {field.name!r}: {error}") from error


@dataclass(frozen=True)
class OpenedFrame:
    """The DataFrame of a source, in BATCH."""

    frame: DataFrame
    shape: Shape

    def numbered(self) -> DataFrame:
        """With columns named by their number: `mapInArrow` gives dots and backticks in a name a meaning."""
        return self.frame.toDF(*(f"c{number}" for number in range(len(self.shape.columns))))

    def first_rows(self, count: int) -> pa.RecordBatch:
        """At most `count` of its rows. Spark computes them."""
        table = self.numbered().limit(count).toArrow().combine_chunks()
        batches = [self.shape.fitted(batch) for batch in table.to_batches()]
        return batches[0] if batches else pa.RecordBatch.from_pylist([], self.shape.schema)


def opened(uid: str, source: SparkTable, spark: SparkSession) -> OpenedFrame:
    """Raises JobRejected: as `frame_of` and `columns_of`."""
    frame = frame_of(uid, source, spark)
    columns = columns_of(uid, source, frame)
    return OpenedFrame(frame, Shape(uid, columns, source.schema or columns))


def frame_of(uid: str, source: SparkTable, spark: SparkSession) -> DataFrame:
    """What the author's function returns. Nothing is computed.

    Raises:
        JobRejected: the function raised (`input-failed`), or did not return a DataFrame of rows that a source can give.
    """
    from pyspark.sql import DataFrame

    assert source.make is not None, "only slots have a source without its function"
    try:
        frame = source.make(spark)
        streaming = isinstance(frame, DataFrame) and frame.isStreaming
    except JobRejected:
        raise
    except Exception as error:
        raise JobRejected(FAILED, uid, f"its function raised {describe(error)}") from error
    if not isinstance(frame, DataFrame):
        raise JobRejected("not-a-dataframe", uid, f"its function returned {type(frame).__name__}, not a DataFrame")
    if streaming:
        raise JobRejected("streaming-dataframe", uid, "its DataFrame has no end: use from_spark_stream")
    return frame


def columns_of(uid: str, source: SparkTable, frame: DataFrame) -> pa.Schema:
    """All columns of the DataFrame, without those that `source.schema` leaves out.

    Raises:
        JobRejected: there are none, two have one name, or one has a type that a source cannot give; it is named.
    """
    from pyspark.sql.pandas.types import to_arrow_type

    names = frame.columns
    if not names:
        raise JobRejected("no-columns", uid, "its DataFrame has no columns")
    for name in names:
        if [other.casefold() for other in names].count(name.casefold()) > 1:
            raise JobRejected("duplicate-column", uid, f"two columns of its DataFrame are called {name!r}")
    for field in frame.schema:
        if not _is_plain(field.dataType):
            detail = f"column {field.name!r} is {field.dataType.simpleString()}, which a source cannot give"
            raise JobRejected("type-from-spark", uid, f"{detail}: cast it in the DataFrame")
    columns = pa.schema([(field.name, to_arrow_type(field.dataType, timezone="UTC")) for field in frame.schema])
    if source.schema is not None:
        _check_schema(uid, source.schema, columns)
    if source.event_time is not None and source.event_time not in names:
        detail = f"there is no column {source.event_time!r}; there are {', '.join(names)}"
        raise JobRejected("unknown-column", uid, f"event_time: {detail}")
    return columns


def describe(error: BaseException) -> str:
    """Type and first line: Spark's messages carry a whole Java stack."""
    lines = [line for line in str(error).splitlines() if line.strip()] or ["no message"]
    return f"{type(error).__name__}: {lines[0].strip()}"


def _is_plain(kind: Any) -> bool:
    """Whether Parquet, Arrow and Spark hold the same values in this type."""
    from pyspark.sql import types as t

    match kind:
        case t.ArrayType():
            return _is_plain(kind.elementType)
        case t.MapType():
            return _is_plain(kind.keyType) and _is_plain(kind.valueType)
        case t.StructType():
            return bool(kind.fields) and all(_is_plain(field.dataType) for field in kind.fields)
        case t.UserDefinedType():
            return False
    plain = (
        t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.DecimalType,
        t.StringType, t.BinaryType, t.DateType, t.TimestampType, t.TimestampNTZType,
    )  # fmt: skip
    return isinstance(kind, plain)


def _check_schema(uid: str, wanted: pa.Schema, columns: pa.Schema) -> None:
    for field in wanted:
        if field.name not in columns.names:
            detail = f"schema: its DataFrame has no column {field.name!r}; it has {', '.join(columns.names)}"
            raise JobRejected("unknown-column", uid, detail)
        there = columns.field(field.name).type
        try:
            pa.array([], there).cast(field.type)
        except (pa.ArrowException, NotImplementedError):
            detail = f"schema: column {field.name!r} is {there}, which does not become {field.type}"
            raise JobRejected("type-from-spark", uid, detail) from None
