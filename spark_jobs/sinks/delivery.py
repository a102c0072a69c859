"""Calls the function of an `EpochStage` with each committed epoch, in order, and releases delivered epochs.

An epoch is delivered once the function has returned. The delivery is recorded durably; then the epoch's files are
deleted. After a crash before the record is durable, the function is called with the same epoch again.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from runtime.connectors.commit_log import CommittedEpoch
from runtime.connectors.sinks.epoch_stage import EpochStage
from runtime.errors import JobRejected, TargetAway, WeirError
from spark_jobs.session import error_summary
from spark_jobs.sinks.targets import DeliveredEpoch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_S: Final = 0.2  #: between two polls for a new epoch
RETRY_PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0)  #: between attempts while the target is unreachable
_GLOB_CHARACTERS: Final = re.compile(r"[\\{}\[\]*?]")

log = structlog.get_logger()


class FunctionFailed(WeirError):
    """The function of an `EpochStage` raised; the message names the epoch, which will be delivered again."""


@dataclass(frozen=True, slots=True)
class DeliveryProgress:
    """Progress of a delivery stage. `ms`, `rows`: of the last delivered epoch; `away`: why the target is unreachable.

    `under_way`: the epoch in delivery; None between two epochs.
    """

    delivered: int = 0
    last: int | None = None
    backlog: int = 0
    ms: float | None = None
    rows: int | None = None
    away: str = ""
    under_way: int | None = None


class Delivery:
    """Delivery for a sink. Only a single process may run it: two would deliver epochs twice.

    In STREAMING a standing stage calls `run`. In BATCH the driver calls `prepare` before its stages, and `run_to_end`
    behind its commit.
    """

    def __init__(self, stage: EpochStage, spark: SparkSession, report: Callable[[DeliveryProgress], None]) -> None:
        assert stage.function is not None, "only slots have a sink without its function"
        self._function, self._log, self._spark, self._report = stage.function, stage.commit_log(), spark, report
        self._progress = DeliveryProgress()

    def run(self, stopping: threading.Event) -> None:
        """Delivers until `stopping` is set; an epoch in delivery is finished first.

        Raises:
            JobRejected: the target can never take these rows.
            FunctionFailed: the function raised.
        """
        self.delete_delivered_epochs()
        self._update_progress()
        self.prepare(stopping)
        while not stopping.is_set():
            if not self.deliver_next(stopping):
                stopping.wait(POLL_S)

    def prepare(self, stopping: threading.Event) -> None:
        """Prepares the target. Raises JobRejected: it cannot take rows."""
        if (prepare := getattr(self._function, "prepare", None)) is not None:
            self._retry_until_reachable(prepare, stopping)

    def run_to_end(self, stopping: threading.Event) -> bool:
        """Delivers all committed epochs. Returns False if `stopping` was set first. Raises as `run`."""
        self.delete_delivered_epochs()
        while not stopping.is_set():
            if not self.deliver_next(stopping):
                return not stopping.is_set()
        return False

    def deliver_next(self, stopping: threading.Event) -> bool:
        """Delivers the oldest undelivered epoch. Returns False if there is none or the stage was asked to stop."""
        for job, sink in self._log.sinks():
            waiting = self._log.backlog(job, sink)
            self._update_progress(backlog=len(waiting))
            if waiting:
                (epoch,) = self._log.epochs(job, sink, waiting[:1])
                return self._deliver(epoch, len(waiting), stopping)
        return False

    def _deliver(self, epoch: CommittedEpoch, backlog: int, stopping: threading.Event) -> bool:
        started = time.monotonic()
        self._update_progress(under_way=epoch.number)
        if not self._call(epoch, stopping):
            return False
        self._log.release(epoch.job, epoch.sink, epoch.number)
        ms = (time.monotonic() - started) * 1000
        delivered = self._progress.delivered + 1
        self._update_progress(
            delivered=delivered, last=epoch.number, backlog=backlog - 1, ms=ms, rows=epoch.rows, under_way=None
        )
        log.info("delivered an epoch", epoch=epoch.number, rows=epoch.rows, ms=round(ms))
        return True

    def _call(self, epoch: CommittedEpoch, stopping: threading.Event) -> bool:
        """Calls the function. Returns False if the stage was asked to stop while the target was unreachable."""

        def call() -> None:
            if epoch.files:
                self._function(self._spark, self._frame(epoch), _identity(epoch))

        try:
            return self._retry_until_reachable(call, stopping)
        except JobRejected:
            raise
        except (Exception, SystemExit) as error:  # an author's `sys.exit` must be reported
            raise FunctionFailed(f"epoch {epoch.number}: {error_summary(error)}") from error

    def _retry_until_reachable(self, act: Callable[[], None], stopping: threading.Event) -> bool:
        """Calls `act` until the target is reachable. Returns False if the stage was asked to stop first."""
        for pause_s in chain(RETRY_PAUSES_S, repeat(RETRY_PAUSES_S[-1])):
            try:
                act()
            except TargetAway as error:
                log.warning("the target is away", epoch=self._progress.under_way, error=str(error))
                self._update_progress(away=str(error))
                if stopping.wait(pause_s):
                    break
            else:
                self._update_progress(away="")
                return True
        return False

    def _frame(self, epoch: CommittedEpoch) -> DataFrame:
        paths = [_literal_url(self._log.output / file.name) for file in epoch.files]
        return self._spark.read.option("mergeSchema", "true").parquet(*paths)

    def delete_delivered_epochs(self) -> None:
        """Deletes the epochs that a killed process had recorded as delivered but not deleted."""
        for job, sink in self._log.sinks():
            self._log.release(job, sink, self._log.delivered_epoch(job, sink))

    def _update_progress(self, **changes: Any) -> None:
        self._progress = replace(self._progress, **changes)
        self._report(self._progress)


def _identity(epoch: CommittedEpoch) -> DeliveredEpoch:
    return DeliveredEpoch(
        source=epoch.log,
        number=epoch.number,
        job=epoch.job,
        sink=epoch.sink,
        checkpoint=epoch.checkpoint,
        rows=epoch.rows,
    )


def _literal_url(path: Path) -> str:
    """`path` as a URL with escaped wildcards: Spark reads a path as a glob pattern."""
    return "file://" + _GLOB_CHARACTERS.sub(lambda match: f"\\{match[0]}", str(path))
