"""The demo job: a year of flights, joined with their airlines, summed per airline, airport and day.

    flights (folder of CSV files, unbounded) ─ prepared ─┐
    airlines (materialised by a PySpark stage, bounded) ─┴ joined ─ daily windows ─ parquet

It decides the graph and its parameters. Event time is the scheduled departure on the airport's own clock.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta

from runtime.connectors.formats import CsvFormat
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.parquet import ParquetSource
from runtime.dataflow import Dataflow
from runtime.errors import JobRejected
from runtime.operators.aggregates import Count, CountIf, Max, Mean
from runtime.pipelines import Pipeline, PipelineContext
from spark_jobs.schemas import FLIGHT_FILES
from spark_jobs.stages import airlines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Folder = Annotated[str, Meta(pattern="^/", max_length=1024)]
OptionalPath = Annotated[str, Meta(pattern="^(/|$)", max_length=1024)]
HOUR_MS = 3_600_000


class FlightsParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person sets.

    The default of `max_disorder_hours` covers what the feeder can cause: 6 hours between rows, and two neighbouring
    files read in the wrong order (a folder listed while a file appears), which is 66 hours with one file per day.
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
    bounded: Annotated[
        bool, Meta(title="Bounded", description="Read the files that are there, then end; needed for BATCH.")
    ] = False


def prepare(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keeps the columns that the job needs; a flight that never departed was cancelled."""
    return pa.RecordBatch.from_arrays(
        [batch["scheduled"], batch["carrier"], batch["origin"], batch["dep_delay"], pc.is_null(batch["dep_time"])],
        names=["scheduled", "carrier", "origin", "dep_delay", "cancelled"],
    )


def build(params: FlightsParams, context: PipelineContext) -> Dataflow:
    if params.airlines_csv:
        context.check_path("airlines_csv", params.airlines_csv)
    flow = Dataflow("flights")
    flights = flow.source("flights", _source(params)).map_batches("prepared", prepare)
    names = flow.source("airlines", ParquetSource(context.input("airlines")), parallelism=1)
    joined = flights.join_broadcast("joined", names, on=["carrier"], take=["name"], how="left")
    daily = joined.key_by("carrier", "name", "origin").window(
        "daily",
        timedelta(days=1),
        "scheduled",
        {
            "flights": Count(),
            "mean_delay": Mean("dep_delay"),
            "max_delay": Max("dep_delay"),
            "cancelled": CountIf("cancelled"),
        },
    )
    daily.sink("parquet", ParquetSink(params.output_dir))
    return flow


def _source(params: FlightsParams) -> DirectorySource:
    _check(params)
    return DirectorySource(
        params.flights_dir,
        CsvFormat(FLIGHT_FILES),
        event_time="scheduled",
        max_disorder_ms=params.max_disorder_hours * HOUR_MS,
        bounded=params.bounded,
        on_malformed=params.on_malformed,
        dead_letter_path=params.dead_letter_dir if params.on_malformed == "dead_letter" else None,
    )


def _check(params: FlightsParams) -> None:
    if params.on_malformed == "dead_letter" and not params.dead_letter_dir:
        raise JobRejected("missing-folder", "dead_letter_dir", "the policy dead_letter needs a folder")
    for name in ("output_dir", "dead_letter_dir"):
        if getattr(params, name).rstrip("/") == params.flights_dir.rstrip("/"):
            raise JobRejected("same-folder", name, "the job would read its own output: choose another folder")


def _airlines(spark: SparkSession, params: FlightsParams) -> DataFrame:
    return airlines.frame(spark, params.airlines_csv)


PIPELINE = Pipeline(
    name="flights",
    description="A year of New York flights: how many, how late and how many cancelled, by airline, airport and day.",
    params=FlightsParams,
    build=build,
    inputs={"airlines": _airlines},
)
