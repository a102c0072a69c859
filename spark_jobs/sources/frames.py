"""The DataFrame of a `from_spark` source, and the mapping of its columns to the source's schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from runtime.errors import DataRejected, JobRejected
from spark_jobs.sources.columns import checked_columns, make_frame
from spark_jobs.sources.table import SparkTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class FrameShape:
    """The columns of a DataFrame, and the schema of the rows that its source emits."""

    columns: pa.Schema
    schema: pa.Schema

    def to_source_schema(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Selects and casts the first columns of a DataFrame's batch to the source's schema; input names are ignored.

        Raises:
            DataRejected: a value does not fit the schema; the column is named.
        """
        by_name = dict(zip(self.columns.names, batch.columns, strict=False))
        columns = [self._cast(by_name[field.name], field) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def partition_of(self, batch: pa.RecordBatch) -> int:
        """The partition of a batch of `CheckedFrame.with_partitions` that has rows."""
        partition: int = batch.column(len(self.columns))[0].as_py()
        return partition

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if column.null_count and not field.nullable:
            raise DataRejected(f"column {field.name!r}: a value is missing")
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            raise DataRejected(f"column {field.name!r}: {error}") from error


@dataclass(frozen=True)
class CheckedFrame:
    """The checked DataFrame of a source."""

    frame: DataFrame
    shape: FrameShape

    def with_numbered_columns(self) -> DataFrame:
        """The DataFrame with columns named by number: dots and backticks have a meaning in `mapInArrow`."""
        return self.frame.toDF(*(f"c{number}" for number in range(len(self.shape.columns))))

    def with_partitions(self) -> DataFrame:
        """As `with_numbered_columns`, with a last column for the number of the row's partition in this DataFrame."""
        from pyspark.sql import functions

        return self.with_numbered_columns().select("*", functions.spark_partition_id().alias("partition"))

    def first_rows(self, count: int) -> pa.RecordBatch:
        """At most `count` rows, computed by Spark."""
        table = self.with_numbered_columns().limit(count).toArrow().combine_chunks()
        batches = [self.shape.to_source_schema(batch) for batch in table.to_batches()]
        return batches[0] if batches else pa.RecordBatch.from_pylist([], self.shape.schema)


def open_frame(uid: str, source: SparkTable, spark: SparkSession) -> CheckedFrame:
    """Calls the author's function and checks its DataFrame. No rows are computed.

    Raises:
        JobRejected: the function raised, or its result is not a DataFrame that fits the source.
    """
    frame = make_frame(source, spark, uid)
    columns = checked_columns(frame, uid, streaming=False)
    if source.schema is not None:
        _check_schema(uid, source.schema, columns)
    if source.event_time is not None and source.event_time not in columns.names:
        detail = f"there is no column {source.event_time!r}; there are {', '.join(columns.names)}"
        raise JobRejected("unknown-column", uid, f"event_time: {detail}")
    return CheckedFrame(frame, FrameShape(columns, source.schema or columns))


def _check_schema(uid: str, schema: pa.Schema, columns: pa.Schema) -> None:
    for field in schema:
        if field.name not in columns.names:
            detail = f"schema: its DataFrame has no column {field.name!r}; it has {', '.join(columns.names)}"
            raise JobRejected("unknown-column", uid, detail)
        there = columns.field(field.name).type
        try:
            pa.array([], there).cast(field.type)
        except (pa.ArrowException, NotImplementedError):
            detail = f"schema: column {field.name!r} is {there}, which cannot be cast to {field.type}"
            raise JobRejected("type-from-spark", uid, detail) from None
