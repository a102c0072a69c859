"""The standing stage of an `EpochStage`: calls its function with each committed epoch while the run lasts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from runtime.connectors.sinks.epoch_stage import STAGE_VERB, EpochStage
from runtime.errors import JobRejected
from spark_jobs.session import SparkSettings, spark_session
from spark_jobs.sinks.delivery import Delivery, DeliveryProgress, FunctionFailed
from spark_jobs.stages.standing import Figure, StageContext, StageFailure, lock_stage

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STAGE_VERB", "deliver_epochs"]

SPARK_CORES: Final = 2  #: cores of a cluster, or threads of a local Spark
_SPARK_CONF: Final = {
    "spark.cores.max": str(SPARK_CORES),  # otherwise this long-lived session would occupy all cores of a cluster
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def deliver_epochs(standing: StageContext) -> None:
    """Deliver epochs until asked to stop.

    Raises:
        JobRejected: the target can never take these rows.
        StageFailure: the function raised.
    """
    sink = standing.dataflow.sinks.get(standing.operator)  # type: ignore[call-overload]
    if not isinstance(sink, EpochStage):
        detail = f"{standing.pipeline.name} has no sink of this name with an EpochStage"
        raise JobRejected("unknown-operator", standing.operator, detail)
    with lock_stage(standing.folder):
        settings = SparkSettings.from_environment(f"weir: run {standing.run}, {standing.operator}", cores=SPARK_CORES)
        with spark_session(replace(settings, extra={**_SPARK_CONF, **settings.extra})) as spark:
            delivery = Delivery(sink, spark, _reporter(standing, sink.max_backlog))
            try:
                delivery.run(standing.stopping)
            except FunctionFailed as error:
                raise StageFailure("function-failed", standing.operator, str(error)) from error


def _reporter(standing: StageContext, max_backlog: int) -> Callable[[DeliveryProgress], None]:
    def report(progress: DeliveryProgress) -> None:
        figures = [
            Figure("Epoch under way", progress.under_way),
            Figure("Last epoch", progress.last),
            Figure("Epochs waiting", progress.backlog),
            Figure("Epoch duration", progress.ms, "ms"),
            Figure("Rows in the last epoch", progress.rows),
        ]
        if progress.backlog > max_backlog:
            why = f"sources are paused: {progress.backlog:,} epochs wait, and max_backlog is {max_backlog:,}"
            figures.append(Figure("Back-pressure", why, "text"))
        if progress.away:
            figures.append(Figure("Waits for the target", progress.away, "text"))
        standing.report(figures, steps=progress.delivered)

    return report
