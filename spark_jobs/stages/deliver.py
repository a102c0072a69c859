"""The standing stage of an `EpochStage`: calls its function with each committed epoch while the run lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.connectors.sinks.epoch_stage import EpochStage
from spark_jobs.sinks.delivery import Delivery, DeliveryProgress, FunctionFailed
from spark_jobs.stages.standing import Figure, StageContext, StageFailure, lock_stage, stage_session

if TYPE_CHECKING:
    from collections.abc import Callable


def deliver_epochs(standing: StageContext) -> None:
    """Delivers epochs until asked to stop.

    Raises:
        JobRejected: the target can never take these rows.
        StageFailure: the function raised.
    """
    sink = standing.endpoint(EpochStage)
    with lock_stage(standing.lock_file), stage_session(standing) as spark:
        try:
            Delivery(sink, spark, _reporter(standing, sink.max_backlog)).run(standing.stopping)
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
