"""The stage behind the state pages of a checkpoint: a request → a table, with progress while Spark works."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from spark_jobs.batch.progress import task_counts
from spark_jobs.session import SparkSettings, spark_session
from spark_jobs.state.query import parse_request, result_table
from spark_jobs.state.source import StateSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.state.rows import OpenedCheckpoint

PROGRESS_S: Final = 1.0
_JOB_GROUP: Final = "weir-state"


class _ReadMonitor:
    """Until `stop`, each second: renews the checkpoint's pin against retention, and writes a JSON line of progress."""

    def __init__(self, answers: TextIO) -> None:
        self._answers = answers
        self._opened: OpenedCheckpoint | None = None
        self._spark: SparkSession | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="state-progress", daemon=True)

    def __enter__(self) -> _ReadMonitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops and joins the thread. Idempotent. Spark may be stopped only afterwards."""
        self._stopped.set()
        self._thread.join()

    def on_open(self, opened: OpenedCheckpoint) -> None:
        self._opened = opened

    def on_spark(self, spark: SparkSession) -> None:
        spark.sparkContext.setJobGroup(_JOB_GROUP, "state of a checkpoint")
        self._spark = spark

    def _run(self) -> None:
        while not self._stopped.wait(PROGRESS_S):
            if self._opened is not None:
                self._opened.renew_pin()
            self._answers.write(json.dumps({"progress": self._progress()}) + "\n")
            self._answers.flush()

    def _progress(self) -> dict[str, Any]:
        if self._spark is None:
            return {"phase": "starting Spark"}
        tasks, ended_tasks = task_counts(self._spark.sparkContext, _JOB_GROUP)
        return {"phase": "reading", "tasks": tasks, "tasks_done": ended_tasks}


def answer_query(checkpoint: str, params: Mapping[str, Any], answers: TextIO) -> dict[str, Any]:
    """The table for the request `params`, from the checkpoint in folder `checkpoint`.

    Raises:
        JobRejected: see `query.result_table`.
        SparkUnavailable: Spark does not start.
    """
    request = parse_request(params)
    with ExitStack() as stack:
        attendance = stack.enter_context(_ReadMonitor(answers))

        def start_spark() -> SparkSession:
            spark = stack.enter_context(spark_session(SparkSettings.from_environment("weir: state of a checkpoint")))
            stack.callback(attendance.stop)
            spark.dataSource.register(StateSource)  # otherwise Spark scans all packages for it at each load
            attendance.on_spark(spark)
            return spark

        table = result_table(start_spark, checkpoint, request, attendance.on_open)
        return {"table": msgspec.to_builtins(table)}
