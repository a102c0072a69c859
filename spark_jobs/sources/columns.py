"""The DataFrame that feeds a source: checks, and its columns as an Arrow schema.

The columns of a streaming DataFrame are derived once, when a version is compiled, and stored with the version: neither
the job master nor a slot starts Spark for them. The stage of a table derives the table's columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from runtime.connectors.sources.epochs import EpochSource, schema_file
from runtime.durable import make_folder, write_file
from runtime.errors import JobRejected
from runtime.ports import Source
from spark_jobs.session import SparkSettings, error_summary, spark_session
from spark_jobs.sources.table import SparkTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

INPUT_FAILED: Final = "input-failed"  #: the author's function raised


def derive_columns(
    sources: Mapping[Any, Source],
    folder: str,
    name: str,
    session: Callable[[SparkSettings], AbstractContextManager[SparkSession]] = spark_session,
) -> bool:
    """Derives the unknown columns of `sources`, in a single Spark session. Returns whether any columns were unknown.

    Args:
        sources: the sources of a dataflow, by uid.
        folder: folder of the version's column schemas; "": columns are not derived.
        name: the job's name, for Spark.
        session: starts Spark; entered only if columns are unknown.

    Raises:
        JobRejected: a function raises, or its DataFrame cannot feed the source; the operator is named.
    """
    unknown = {
        str(uid): source
        for uid, source in sources.items()
        if isinstance(source, EpochSource) and not schema_file(folder, str(uid)).is_file()
    }
    if not unknown or not folder:
        return False
    with session(SparkSettings.from_environment(f"weir: {name}, columns")) as spark:
        for uid, source in unknown.items():
            columns = checked_columns(make_frame(source, spark, uid), uid, streaming=True)
            make_folder(schema_file(folder, uid).parent)
            write_file(schema_file(folder, uid), columns.serialize().to_pybytes())
    return True


def make_frame(source: EpochSource | SparkTable, spark: SparkSession, uid: str) -> DataFrame:
    """Calls the author's function. Raises JobRejected naming the operator if the function raises (`input-failed`)."""
    assert source.make is not None, "only slots have a source without its function"
    try:
        frame: DataFrame = source.make(spark)
    except JobRejected:
        raise
    except Exception as error:
        raise JobRejected(INPUT_FAILED, uid, f"its function raised {error_summary(error)}") from error
    return frame


def checked_columns(frame: Any, uid: str, *, streaming: bool) -> pa.Schema:
    """The columns of a DataFrame in Arrow types. All are nullable, since Spark writes them so.

    Args:
        streaming: whether the DataFrame must be streaming or bounded.

    Raises:
        JobRejected: the DataFrame cannot feed the source; operator and column are named.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.types import to_arrow_type

    if not isinstance(frame, DataFrame):
        raise JobRejected("not-a-dataframe", uid, f"its function returned {type(frame).__name__}, not a DataFrame")
    if streaming and not frame.isStreaming:
        raise JobRejected("not-streaming", uid, "its DataFrame has an end: use spark.readStream, or from_spark")
    if frame.isStreaming and not streaming:
        raise JobRejected("streaming-dataframe", uid, "its DataFrame has no end: use from_spark_stream")
    fields = frame.schema.toNullable().fields
    if not fields:
        raise JobRejected("no-columns", uid, "its DataFrame has no columns")
    names: dict[str, str] = {}
    for field in fields:
        if (other := names.setdefault(field.name.casefold(), field.name)) is not field.name:
            detail = f"its DataFrame has the columns {other!r} and {field.name!r}: Spark takes them for one"
            raise JobRejected("duplicate-column", uid, detail)
        if (data_type := _unsupported_type(field.dataType)) is not None:
            detail = f"column {field.name!r} is {data_type.simpleString()}, which a source cannot give"
            raise JobRejected("type-from-spark", uid, f"{detail}: cast it in the DataFrame")
    return pa.schema([pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC")) for field in fields])


def _unsupported_type(kind: DataType) -> DataType | None:
    """The first type within `kind` that Parquet and Arrow do not both support; None: all are supported."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return next(
            (data_type for field in kind.fields if (data_type := _unsupported_type(field.dataType)) is not None), None
        )
    if isinstance(kind, t.ArrayType):
        return _unsupported_type(kind.elementType)
    if isinstance(kind, t.MapType):
        return _unsupported_type(kind.keyType) or _unsupported_type(kind.valueType)
    supported_types = (
        t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.DecimalType,
        t.StringType, t.BinaryType, t.DateType, t.TimestampType, t.TimestampNTZType,
    )  # fmt: skip
    return None if isinstance(kind, supported_types) else kind
