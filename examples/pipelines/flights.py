"""The demo job: flights with their airline, weather and arrival, summed per airline, airport and day.

    flights (folder of CSV files, unbounded) ─ prepared ─┐
    airlines (from Spark: 16 rows) ──────────────────────┴ joined ─┐
    weather (from Spark: 26,112 hours) ────────────────────────────┴ outside ─┐
    history (from Spark: a year, 336,776 rows) ───────────────────────────────┴ arrived ─ daily windows ─ parquet

Event time is the scheduled departure on the airport's own clock.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta

import weir
from examples.pipelines import flight_tables
from examples.samples.folders import Bounded, Folder
from examples.schemas import AIRLINES, FLIGHT_FILES, HISTORY, WEATHER

OptionalPath = Annotated[str, Meta(pattern="^(/|$)", max_length=1024)]
HOUR_MS = 3_600_000
_FLIGHT_COLUMNS = ["scheduled", "carrier", "origin", "year", "month", "day", "hour", "time_hour", "flight", "dep_delay"]


class FlightsParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the job.

    The default of `max_disorder_hours` covers the disorder that the feeder can cause: 6 hours between rows, and two
    adjacent files read in the wrong order (a file appears while the folder is listed): 66 hours with a file per day.
    """

    flights_dir: Annotated[Folder, Meta(title="Folder of flights", description="CSV files, read as they appear.")]
    output_dir: Annotated[Folder, Meta(title="Output folder", description="Committed Parquet files appear here.")]
    max_disorder_hours: Annotated[
        int, Meta(ge=0, le=8784, title="Largest disorder (hours)", description="A row later than this counts as late.")
    ] = 96
    on_malformed: Annotated[
        Literal["fail", "skip", "dead_letter"],
        Meta(title="Malformed rows", description="Fail the run, skip and count, or keep them as dead letters."),
    ] = "fail"
    dead_letter_dir: Annotated[
        OptionalPath, Meta(title="Folder of dead letters", description="Needed for the policy dead_letter.")
    ] = ""
    airlines_csv: Annotated[
        OptionalPath, Meta(title="Airlines (CSV)", description="Empty: the list that comes with the demo.")
    ] = ""
    bounded: Bounded = False


def prepare(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Selects the job's columns and adds `cancelled`: a flight without a departure time was cancelled."""
    columns = batch.select([*_FLIGHT_COLUMNS, "dep_time"])
    return columns.set_column(len(_FLIGHT_COLUMNS), "cancelled", pc.is_null(batch["dep_time"]))


def build(params: FlightsParams, context: weir.PipelineContext) -> weir.Dataflow:
    if params.airlines_csv:
        context.check_path("airlines_csv", params.airlines_csv)
    flow = weir.Dataflow("flights")
    flights = flow.source("flights", _source(params)).map_batches("prepared", prepare, repeatable=True)
    airlines = flow.source(
        "airlines",
        weir.from_spark(lambda spark: flight_tables.airlines(spark, params.airlines_csv), schema=AIRLINES),
        parallelism=1,
    )
    weather = flow.source("weather", weir.from_spark(flight_tables.weather, schema=WEATHER), parallelism=1)
    history = flow.source("history", weir.from_spark(flight_tables.history, schema=HISTORY))
    named_flights = flights.join_broadcast("joined", airlines, on=["carrier"], take=["name"], how="left")
    hours = ["origin", "year", "month", "day", "hour"]
    outside = named_flights.join_broadcast("outside", weather, on=hours, take=["wet", "wind_speed"], how="left")
    arrived = outside.join_broadcast(
        "arrived", history, on=["time_hour", "carrier", "flight"], take=["arr_delay"], how="left"
    )
    daily = arrived.key_by("carrier", "name", "origin").window(
        "daily",
        timedelta(days=1),
        "scheduled",
        {
            "flights": weir.Count(),
            "mean_delay": weir.Mean("dep_delay"),
            "max_delay": weir.Max("dep_delay"),
            "cancelled": weir.CountIf("cancelled"),
            "wet": weir.CountIf("wet"),
            "max_wind": weir.Max("wind_speed"),
            "mean_arrival_delay": weir.Mean("arr_delay"),
        },
    )
    daily.sink("parquet", weir.ParquetSink(params.output_dir))
    return flow


def _source(params: FlightsParams) -> weir.DirectorySource:
    _check(params)
    return weir.DirectorySource(
        params.flights_dir,
        weir.CsvFormat(FLIGHT_FILES),
        event_time="scheduled",
        max_disorder_ms=params.max_disorder_hours * HOUR_MS,
        bounded=params.bounded,
        on_malformed=params.on_malformed,
        dead_letter_path=params.dead_letter_dir if params.on_malformed == "dead_letter" else None,
    )


def _check(params: FlightsParams) -> None:
    if params.on_malformed == "dead_letter" and not params.dead_letter_dir:
        raise weir.JobRejected("missing-folder", "dead_letter_dir", "the policy dead_letter needs a folder")
    for name in ("output_dir", "dead_letter_dir"):
        if getattr(params, name).rstrip("/") == params.flights_dir.rstrip("/"):
            raise weir.JobRejected("same-folder", name, "the job would read its own output: choose another folder")


OPEN_BY_AIRLINE = """
SELECT name AS airline, count(*) AS open_windows, sum(`flights:count`) AS flights, sum(`cancelled:count`) AS cancelled,
       timestamp_millis(min(window_start)) AS oldest_day
FROM daily_windows GROUP BY name ORDER BY flights DESC
"""
OPEN_BY_DAY = """
SELECT timestamp_millis(window_start) AS day, count(*) AS open_windows, sum(`flights:count`) AS flights,
       round(sum(`mean_delay:sum`) / sum(`mean_delay:count`), 1) AS mean_delay
FROM daily_windows GROUP BY window_start ORDER BY window_start
"""

PIPELINE = weir.Pipeline(
    name="flights",
    description="New York flights by airline, airport and day: how many, how late, in which weather.",
    params=FlightsParams,
    build=build,
    queries={"open windows by airline": OPEN_BY_AIRLINE, "open windows by day": OPEN_BY_DAY},
)
