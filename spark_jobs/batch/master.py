"""The job master of a run in BATCH: `python -m spark_jobs.batch.master run RUN TOKEN`.

A worker thread plans and runs the job; the main thread writes heartbeats, handles cancels and reports progress. The
master takes no checkpoints and needs no slots: Spark retries tasks. A restarted master begins anew, unless the end of
the run was recorded. The process ends when its stdin ends, so no master outlives its supervisor.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from runtime.access.spark_settings import check_spark_settings
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunEvent
from runtime.dataflow.plan import CompiledJob
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, OperatorFailure
from runtime.io import logs
from runtime.io.postgres.store import RunRow
from runtime.io.store import open_store
from runtime.launch.driver_jvm import DriverJvm
from runtime.launch.spark import UI_SETTINGS
from runtime.master.master_process import (
    compile_job,
    record_code,
    records_of,
    run_master,
    settings_of,
    storage_of,
    touch_heartbeat,
)
from runtime.master.metadata_thread import RETRY_INTERVAL_S
from runtime.ports import SnapshotStore
from runtime.run_store import RunStore
from spark_jobs.batch.failures import StepRefused, TaskFailure
from spark_jobs.batch.progress import BatchProgress
from spark_jobs.batch.run import BatchRun, Superseded, plan_with_session
from spark_jobs.session import SparkSettings, first_line, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
POLL_S: Final = 0.25
POLLS_PER_REPORT: Final = 4  #: polls of the main thread between two reports

log = structlog.get_logger()


class BatchMaster:
    """The master of one attempt. Call `run` once; `release` may be called from any thread.

    Args:
        session: starts Spark; entered in the worker thread.
        alive: called periodically while the master makes progress.
    """

    def __init__(
        self,
        *,
        job: CompiledJob,
        job_id: str,
        token: Token,
        records: RunStore,
        store: SnapshotStore,
        session: Callable[[], AbstractContextManager[SparkSession]],
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._records, self._session, self._alive = records, session, alive
        self._run = BatchRun(
            job=job,
            job_id=job_id,
            token=token,
            records=records,
            store=store,
            retry=self._retry,
            may_end=self._try_end,
        )
        self._progress: BatchProgress | None = None
        self._report_lock = threading.Lock()  #: orders the reports of both threads: the last one written is the newest
        self._spark: SparkSession | None = None
        self._jvm: DriverJvm | None = None  #: as `_spark`
        self._ui_address = ""  #: of Spark's UI; read once, because a context that stops gives none
        self._error: Exception | SystemExit | None = None
        self._end_lock = threading.Lock()  #: orders the recorded end, a cancel and a release of the run
        self._has_ended = False
        self._cancelled_by: list[str] = []
        self._released = False

    def release(self) -> None:
        """Stops the run, on SIGTERM. The next master begins anew, or commits if the end was recorded."""
        with self._end_lock:
            self._released = self._released or not self._has_ended
        self._stop_work()

    def run(self) -> MasterExitCode:
        """Runs the job. Blocks until the run has ended or was released, or until this master is superseded."""
        self._retry(self._records.requeue_operations)
        work = threading.Thread(target=self._execute, name="batch", daemon=True)
        work.start()
        turn = 0
        while work.is_alive():
            self._alive()
            turn += 1
            if turn % POLLS_PER_REPORT == 0 and not self._handle_operations():
                self._stop_work()
                return MasterExitCode.SUPERSEDED
            if self._cancelled_by or self._released:
                self._stop_work()  # repeated: cancelling a group does not affect jobs submitted later
            work.join(POLL_S)
        return self._finish()

    # ------------------------------------------------------------ worker thread

    def _execute(self) -> None:
        try:
            if self._retry(self._records.final_savepoint) is not None:
                with self._end_lock:
                    self._has_ended = True  # recorded by another master
            with plan_with_session(self._run.job, self._session) as (plan, spark):
                progress = BatchProgress(spark.sparkContext, plan.stages, self._run.group)
                self._ui_address = str(spark.sparkContext.uiWebUrl or "")
                self._jvm = DriverJvm(spark.sparkContext)
                self._progress, self._spark = progress, spark
                self._retry(lambda: self._records.change_state(RunEvent.DEPLOYED))
                self._run.run(plan, spark, progress)
                self._report()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - thread boundary: `_finish` reports the error
            self._error = error

    def _try_end(self) -> bool:
        """Claims the end of the run. Returns False after a cancel or release. Later requests have no effect."""
        with self._end_lock:
            self._has_ended = not self._cancelled_by and not self._released
            return self._has_ended

    # ------------------------------------------------------------ main thread

    def _handle_operations(self) -> bool:
        """Takes pending operations and reports progress. Returns False if this master is superseded."""
        with suppress(EnvironmentFailure):  # retried within a second
            operations = self._records.take_operations(only_cancel=False)
            if operations is None:
                return False
            for request in operations:
                if request.kind == "cancel":
                    self._cancel(request.id)
                else:
                    detail = "a run in BATCH takes no checkpoints; it can be cancelled"
                    self._records.complete_operation(request.id, None, {"code": "batch-run", "message": detail})
            self._report()
        return True

    def _cancel(self, operation: str) -> None:
        with self._end_lock:
            if self._has_ended:
                error = {"code": "has-ended", "message": "the end of the run was recorded already"}
                self._records.complete_operation(operation, None, error)
                return
            if operation in self._cancelled_by:
                return
            self._cancelled_by.append(operation)
        self._records.change_state(RunEvent.CANCEL_REQUESTED)
        self._stop_work()

    def _stop_work(self) -> None:
        self._run.stopping.set()
        if self._spark is not None and self._jvm is not None:
            cancel = partial(self._spark.sparkContext.cancelJobGroup, self._run.group)
            with suppress(Exception):  # a stopped context has no jobs to cancel
                self._jvm.call("the cancel of its jobs", cancel)

    def _report(self) -> None:
        """Writes the live report, once a stage has begun: a master that only commits keeps its predecessor's report."""
        if self._progress is None or self._jvm is None or not self._progress.has_begun:
            return
        with self._report_lock:
            try:
                live = self._jvm.call("a query of its status", self._progress.live)
            except Exception as error:  # noqa: BLE001 - py4j: the context may be stopping
                log.debug("no news of the stages", error=str(error))
                return
            live |= {"parallelism": self._run.job.graph.parallelism, "spark_ui": self._ui_address}
            with suppress(EnvironmentFailure):
                self._records.write_live(live)

    def _finish(self) -> MasterExitCode:
        error = self._error
        if isinstance(error, Superseded):
            return MasterExitCode.SUPERSEDED
        if error is None:
            return self._record_end("ended", RunEvent.ENDED)
        log.error("the batch run failed", error=str(error), traceback=logs.traceback_text(error))
        if self._has_ended and not isinstance(error, JobRejected | DataRejected):
            self._retry(lambda: self._records.end_attempt("failed", first_line(error)))
            return MasterExitCode.BROKEN  # the end is recorded: the next master commits it
        if self._cancelled_by:
            self._retry(lambda: self._records.change_state(RunEvent.CANCEL_REQUESTED))
            exit_code = self._record_end("canceled", RunEvent.ENDED)
            for operation in self._cancelled_by:
                self._retry(partial(self._records.complete_operation, operation, {}, None))
            return exit_code
        if self._released:
            self._retry(lambda: self._records.end_attempt("released"))
            return MasterExitCode.RELEASED
        if loss := self._spark_loss():
            reason = f"{first_line(error)}; {loss}"
            self._retry(lambda: self._records.end_attempt("failed", reason))
            return MasterExitCode.BROKEN
        code = error.code if isinstance(error, JobRejected) else "batch-failed"
        operator = error.operator if isinstance(error, TaskFailure | OperatorFailure) else ""
        operator = error.field if isinstance(error, StepRefused) else operator
        return self._record_end("failed", RunEvent.GAVE_UP, {"code": code, "message": str(error), "operator": operator})

    def _record_end(self, outcome: str, event: RunEvent, failure: dict[str, Any] | None = None) -> MasterExitCode:
        reason = str(failure["message"]) if failure else ""
        self._retry(lambda: self._records.end_attempt(outcome, reason))
        state = self._retry(lambda: self._records.change_state(event, failure))
        return MasterExitCode.SUPERSEDED if state is None else MasterExitCode.DONE

    def _spark_loss(self) -> str:
        """Why the JVM can run nothing more; "" if it can. The next master starts another."""
        if self._spark is None or self._jvm is None:
            return ""
        context = self._spark.sparkContext
        try:
            has_stopped = self._jvm.call(
                "a query of its status", lambda: context._jsc is not None and bool(context._jsc.sc().isStopped())
            )
        except Exception as error:  # noqa: BLE001 - py4j raises if the JVM does not answer
            return self._jvm.loss or f"the JVM of the Spark driver does not answer: {first_line(error)}"
        return "its Spark context has stopped" if has_stopped else ""

    def _retry(self, function: Callable[[], T]) -> T:
        """Calls `function`, and retries while the database is unavailable."""
        while True:
            try:
                return function()
            except EnvironmentFailure as error:
                log.warning("waiting for the database", error=str(error))
                self._alive()
                threading.Event().wait(RETRY_INTERVAL_S)


def batch_settings(name: str, cores: int, version_settings: Mapping[str, str]) -> SparkSettings:
    """Settings of the session of a run, with those that its version has chosen.

    Raises:
        ValueError: a version may not choose a setting.
    """
    check_spark_settings(version_settings)  # again: the console may have other settings, or the row may be changed
    settings = SparkSettings.for_batch(name, cores=cores)
    return replace(settings, extra={**settings.extra, **UI_SETTINGS, **version_settings})


def _run(row: RunRow, run: int, token: Token, url: str) -> MasterExitCode:
    if row.discards_output:
        raise JobRejected("batch-clone", "execution_mode", "a job with discarded output runs in streaming mode only")
    (job, code), version_settings = compile_job(row), settings_of(row).spark
    settings = batch_settings(f"{row.job_name}, run {run}", row.parallelism, version_settings)
    records = records_of(row, run, token, url)
    record_code(records, code)
    master = BatchMaster(
        job=job,
        job_id=str(row.job_id),
        token=token,
        records=records,
        store=open_store(storage_of(row)),
        session=lambda: spark_session(settings),
        alive=touch_heartbeat,
    )
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=master.release, daemon=True).start())
    try:
        return master.run()
    finally:
        records.close()


if __name__ == "__main__":
    sys.exit(run_master("spark_jobs.batch.master", _run))
