"""A single way to run a bounded job, in its own process: `python -m benchmarks.modes.one '{"way": "batch", …}'`.

The job runs twice in the same Spark session: first on the small input, which loads classes and starts workers, then on
the whole input. The second run is measured, from the call to the commit of its output; in STREAMING from "running" to
the record of the last checkpoint, as in all other workloads. The process prints the seconds of the second run.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks import slots
from benchmarks.protocol import Task
from benchmarks.systems import spark as structured
from benchmarks.systems import weir
from benchmarks.workloads import WORKLOADS
from examples import nycflights, oracle
from examples.pipelines.flight_tables import history
from examples.pipelines.flights import PIPELINE as FLIGHTS
from examples.schemas import AIRLINES, FLIGHT_FILES, WEATHER_FILE, read_csv
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.pipelines import PipelineContext
from runtime.launch.spark import SparkLauncher
from spark_jobs.batch.run import run_batch
from spark_jobs.session import SparkSettings, spark_session
from spark_jobs.stages.tables import SPARK_SETTINGS as TABLE_SETTINGS
from spark_jobs.stages.tables import inputs_of, materialise

CORES: Final = 2
MEMORY: Final = "4g"  #: JVM memory, as for the peers of other workloads
SMALL, FULL = "small", "whole"
CHECKPOINTS: Final = CoordinatorSettings(interval_ms=1_000)

#: Runs a job on the named input ("small" or "whole") and returns the seconds.
Timed = Callable[[str], float]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of a job. `inputs` has a folder per phase (small, whole); `folder` is for output and checkpoints."""

    way: str
    job: str
    inputs: str
    folder: str

    def output(self, phase: str) -> str:
        return str(Path(self.folder) / phase / "out")

    def storage(self, phase: str) -> str:
        return str(Path(self.folder) / phase / "storage")

    @property
    def task(self) -> Task:
        """The task of the windows job: the task of W7, over all input files."""
        return replace(WORKLOADS["W7"].task("weir", self.folder), inputs=self.inputs)


def flow_of(run: Run, phase: str) -> Dataflow:
    if run.job == "flights":
        parameters = {"flights_dir": f"{run.inputs}/{phase}", "output_dir": run.output(phase), "bounded": True}
        return FLIGHTS.dataflow(parameters, PipelineContext(str(Path(run.folder) / phase / "tables")))
    flow = Dataflow(f"windows-{phase}")
    rows = flow.source("numbers", weir.source_of(run.task, phase, 0))
    weir.window(rows).sink("out", ParquetSink(run.output(phase)))
    return flow


def query_of(run: Run, phase: str, spark: SparkSession) -> DataFrame:
    """The job's query, hand-written for Spark SQL, over the input of `phase`."""
    folder = f"{run.inputs}/{phase}"
    if run.job == "flights":
        airlines = read_csv(spark, nycflights.locate("airlines.csv"), AIRLINES)
        weather = read_csv(spark, nycflights.locate("weather.csv"), WEATHER_FILE, nycflights.NULL)
        flights = read_csv(spark, Path(folder), FLIGHT_FILES).drop("arr_delay")
        arrived = flights.join(history(spark), ["time_hour", "carrier", "flight"], "left")
        return oracle.expected_output(arrived, airlines, weather)
    columns = structured.COLUMNS.format(key="bigint")
    return structured.window(spark.read.schema(columns).parquet(folder), run.task)


@contextmanager
def streaming(run: Run) -> Iterator[Timed]:
    """The way STREAMING. The splits of tables from Spark are written before the runs and not part of the time."""
    settings = SparkSettings.from_environment("bench tables", cores=CORES)
    tables = {**settings.extra, **TABLE_SETTINGS}
    for phase in (SMALL, FULL):
        materialise(inputs_of(flow_of(run, phase)), lambda: spark_session(replace(settings, extra=tables)))
    with closing(SparkLauncher("bench", f"local[{CORES}]")) as launcher:
        yield lambda phase: slots.run(flow_of(run, phase), CORES, launcher, run.storage(phase), CHECKPOINTS).seconds


def batch(run: Run, phase: str, spark: SparkSession) -> None:
    run_batch(flow_of(run, phase), parallelism=CORES, spark=spark, storage=run.storage(phase))


def sql(run: Run, phase: str, spark: SparkSession) -> None:
    query_of(run, phase, spark).write.parquet(run.output(phase))


@contextmanager
def in_session(act: Callable[[Run, str, SparkSession], None], run: Run) -> Iterator[Timed]:
    """The way `act`, which runs the job in a Spark session."""
    settings = replace(SparkSettings.for_batch("bench", cores=CORES), driver_memory=MEMORY, shuffle_partitions=CORES)
    with spark_session(settings) as spark:

        def run_once(phase: str) -> float:
            begun = time.monotonic()
            act(run, phase, spark)
            return time.monotonic() - begun

        yield run_once


MODES: Final[Mapping[str, Any]] = {
    "streaming": streaming, "batch": partial(in_session, batch), "sql": partial(in_session, sql),
}  # fmt: skip


def main() -> None:
    run = Run(**json.loads(sys.argv[1]))
    with MODES[run.way](run) as timed:
        timed(SMALL)
        seconds = timed(FULL)
    sys.stdout.write(f"{seconds}\n")


if __name__ == "__main__":
    main()
