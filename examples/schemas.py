"""The contract of each dataset, as Arrow schemas; Spark's types are derived from them.

Times are local to New York, without a time zone: a day is the day on the airport's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_jobs.column_types import spark_schema

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

#: A row of the package's flights.csv. `dep_time` is null for a cancelled flight; times are hhmm on the local clock.
FLIGHTS: Final = pa.schema(
    [
        ("year", pa.int64()),
        ("month", pa.int64()),
        ("day", pa.int64()),
        ("dep_time", pa.int64()),
        ("sched_dep_time", pa.int64()),
        ("dep_delay", pa.int64()),
        ("arr_time", pa.int64()),
        ("sched_arr_time", pa.int64()),
        ("arr_delay", pa.int64()),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("air_time", pa.int64()),
        ("distance", pa.int64()),
        ("hour", pa.int64()),
        ("minute", pa.int64()),
        ("time_hour", pa.string()),
    ]
)

#: A row of the files that the feeder writes: the event time, then the unchanged row.
FLIGHT_FILES: Final = pa.schema([pa.field("scheduled", pa.timestamp("ms")), *FLIGHTS])

AIRLINES: Final = pa.schema([("carrier", pa.string()), ("name", pa.string())])

#: A row of the package's weather.csv: one airport in one hour.
WEATHER_FILE: Final = pa.schema(
    [
        ("origin", pa.string()),
        *((name, pa.int64()) for name in ("year", "month", "day", "hour")),
        *((name, pa.float64()) for name in ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust")),
        *((name, pa.float64()) for name in ("precip", "pressure", "visib")),
        ("time_hour", pa.string()),
    ]
)

#: The weather that the job reads: `wet`, whether there was rain or snow, and `wind_speed` in miles per hour.
WEATHER: Final = pa.schema(
    [
        ("origin", pa.string()),
        *((name, pa.int64()) for name in ("year", "month", "day", "hour")),
        ("wet", pa.bool_()),
        ("wind_speed", pa.float64()),
    ]
)

#: The columns of the flight archive that the job reads.
HISTORY: Final = pa.schema([FLIGHTS.field(name) for name in ("time_hour", "carrier", "flight", "arr_delay")])

#: A row of the job's output: one airline at one airport on one day.
DAILY: Final = pa.schema(
    [
        ("carrier", pa.string()),
        ("name", pa.string()),
        ("origin", pa.string()),
        ("window_start", pa.timestamp("ms")),
        ("window_end", pa.timestamp("ms")),
        ("flights", pa.int64()),
        ("mean_delay", pa.float64()),
        ("max_delay", pa.int64()),
        ("cancelled", pa.int64()),
        ("wet", pa.int64()),
        ("max_wind", pa.float64()),
        ("mean_arrival_delay", pa.float64()),
    ]
)


def read_csv(spark: SparkSession, path: Path, schema: pa.Schema, null: str = "") -> DataFrame:
    """Reads a CSV file with a header. A row or a header that violates `schema` is an error."""
    rows = spark.read.schema(spark_schema(schema))
    return rows.csv(path.as_uri(), header=True, mode="FAILFAST", enforceSchema=False, nullValue=null)
