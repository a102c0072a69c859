"""The standing stage of `from_spark_stream`: a Structured Streaming query whose batches become epochs of Parquet files.

An epoch has the number of Spark's batch. It is staged, made durable and renamed. If Spark repeats a batch after a
crash, the existing epoch is kept and the batch is skipped, even if the stream replays other rows. Spark's own
checkpoint lies beside the epochs. Each batch must have the number of the next epoch; the first batch of a process may
repeat the newest epoch. Any other number would lose or repeat rows, so the stage refuses to continue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from runtime.connectors.epochs import EpochFolder
from runtime.connectors.sources.epochs import EpochSource, read_columns
from runtime.errors import JobRejected
from spark_jobs.session import first_line
from spark_jobs.sources.columns import INPUT_FAILED, checked_columns, make_frame
from spark_jobs.stages.standing import Figure, StageContext, StageFailure, lock_stage, stage_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.25
IDLE_AFTER_S: Final = 10.0  #: age of the last batch from which the stream counts as idle
_PROCESSING_MESSAGE: Final = "Processing new data"  #: `message` of `StreamingQuery.status`
_BATCH_DURATION_KEY: Final = "addBatch"  #: key in the durations of a batch


def write_epochs(standing: StageContext) -> None:
    """Runs the query until asked to stop.

    Raises:
        JobRejected: the query can never feed this job.
        StageFailure: the function or the query failed.
    """
    source, folder = standing.endpoint(EpochSource), EpochFolder(standing.folder)
    with lock_stage(standing.lock_file):
        folder.prepare()
        with stage_session(standing) as spark:
            run_query(standing, source, folder, spark)


def run_query(
    standing: StageContext,
    source: EpochSource,
    folder: EpochFolder,
    spark: SparkSession,
    idle_after_s: float = IDLE_AFTER_S,
) -> None:
    """Runs the query until asked to stop. Raises as `write_epochs`."""
    try:
        frame = make_frame(source, spark, standing.operator)
    except JobRejected as error:
        if error.code == INPUT_FAILED:  # the function succeeded at compile time: the failure may be temporary
            raise StageFailure(error.code, error.field, error.detail) from error
        raise
    columns = checked_columns(frame, standing.operator, streaming=True)
    _check_columns(columns, read_columns(str(standing.columns), standing.operator), standing.operator)
    writer = EpochWriter(
        folder, standing, BacklogMeter(folder, source.max_backlog, source.max_backlog_bytes), idle_after_s
    )
    query = (
        frame.writeStream.foreachBatch(writer.write)
        .option("checkpointLocation", folder.spark_checkpoint.as_uri())
        .trigger(processingTime=f"{source.trigger_ms} milliseconds")
        .queryName(standing.operator)
        .start()
    )
    try:
        while query.isActive and not standing.stopping.wait(POLL_S):
            writer.report_progress(query)
    finally:
        writer.close()  # waits for the current epoch
        _stop(query)
    if isinstance(writer.failure, JobRejected):
        raise writer.failure
    if not standing.stopping.is_set():
        why = first_line(writer.failure) if writer.failure is not None else _end_reason(query)
        raise StageFailure("query-failed", standing.operator, why)


def _check_columns(now: pa.Schema, before: pa.Schema | None, uid: str) -> None:
    if before is None or now.equals(before):
        return
    old, new = list(before), list(now)
    changed = sorted({field.name for field in [*old, *new] if field not in old or field not in new})
    detail = (
        f"the columns of its DataFrame have changed since the version was compiled: {', '.join(changed) or 'order'}"
    )
    raise JobRejected("schema-changed", uid, f"{detail}. Make a new version")


def _stop(query: StreamingQuery) -> None:
    try:
        query.stop()
    except Exception as error:
        if query.isActive:
            raise StageFailure("query-failed", str(query.name), f"the query did not stop: {error}") from error


def _end_reason(query: StreamingQuery) -> str:
    try:
        failure = query.exception()
    except Exception as error:  # noqa: BLE001 - the JVM, and its reason, are gone
        return f"Spark is gone: {type(error).__name__}"
    return "the query ended by itself" if failure is None else first_line(failure)


@dataclass(frozen=True, slots=True)
class UnreadBacklog:
    """Epochs that the job has not read yet. `reached_bound`: the limit that they reach, as a sentence; "": none."""

    epochs: int
    nbytes: int
    reached_bound: str


class BacklogMeter:
    """Measures how far the query is ahead of the job. Two threads may use it."""

    def __init__(self, folder: EpochFolder, max_epochs: int, max_bytes: int) -> None:
        self._folder, self._max_epochs, self._max_bytes = folder, max_epochs, max_bytes
        self._sizes: Mapping[int, int] = {}  #: bytes by epoch number; an epoch never changes

    def measure(self, next_number: int) -> UnreadBacklog:
        old_sizes, numbers = self._sizes, range(self._folder.read_below(), next_number)
        self._sizes = sizes = {number: old_sizes.get(number) or self._folder.size(number) for number in numbers}
        epochs, nbytes = len(sizes), sum(sizes.values())
        return UnreadBacklog(epochs, nbytes, self._reached_bound(epochs, nbytes))

    def _reached_bound(self, epochs: int, nbytes: int) -> str:
        if epochs >= self._max_epochs:
            return f"the query waits: the job has not read {epochs:,} epochs, and max_backlog is {self._max_epochs:,}"
        if nbytes >= self._max_bytes:
            limit = f"max_backlog_bytes is {self._max_bytes:,}"
            return f"the query waits: the job has not read epochs of {nbytes:,} bytes, and {limit}"
        return ""


def _is_batch(progress: Mapping[str, Any]) -> bool:
    """Whether `progress` is of a batch; Spark also reports triggers without new data."""
    return _BATCH_DURATION_KEY in (progress.get("durationMs") or {})


def _age_s(progress: Mapping[str, Any]) -> float:
    """Seconds since the end of the batch."""
    began = datetime.fromisoformat(progress["timestamp"])
    return time.time() - began.timestamp() - (progress.get("batchDuration") or 0) / 1000


class _Closing(Exception):
    """The stage is ending; the next process repeats the batch."""


class EpochWriter:
    """Writes batches as epochs. A thread of Spark calls `write`, batch by batch.

    Back-pressure: `write` waits while the unread epochs reach a bound, before it reads any row of the batch. Spark
    triggers no other batch in the meantime.
    """

    def __init__(self, folder: EpochFolder, standing: StageContext, unread: BacklogMeter, idle_after_s: float) -> None:
        self._folder, self._standing, self._unread, self._idle_after_s = folder, standing, unread, idle_after_s
        self._next_epoch = folder.next_number()
        self._is_first = True
        self._closing = threading.Event()
        self._write_lock = threading.Lock()
        self._written_epochs = 0
        self._last_batch: Mapping[str, Any] = {}  #: Spark's progress of the last batch
        self._wait_reason = ""  #: reason for back-pressure; "": none
        self.failure: Exception | None = None  #: the error that ended the query

    def write(self, frame: DataFrame, batch: int) -> None:
        """Writes `batch` as an epoch, unless it exists. Stores an error in `failure`, since Spark wraps it."""
        with self._write_lock:
            try:
                self._write(frame, batch)
            except _Closing:
                raise
            except Exception as error:
                self.failure = error
                raise
            self._written_epochs += 1

    def _write(self, frame: DataFrame, batch: int) -> None:
        if self._closing.is_set():
            raise _Closing
        self._check_number(batch)
        if batch == self._next_epoch:
            self._wait_for_room()
            with self._folder.write_epoch(batch, self._standing.token) as aside:
                frame.write.parquet(aside.as_uri())
            self._next_epoch = batch + 1

    def _wait_for_room(self) -> None:
        while bound := self._unread.measure(self._next_epoch).reached_bound:
            self._wait_reason = bound
            if self._closing.wait(POLL_S):
                raise _Closing
        self._wait_reason = ""

    def close(self) -> None:
        """Waits until the current batch is written; aborts it under back-pressure. Later batches are refused."""
        self._closing.set()
        with self._write_lock:
            pass

    def report_progress(self, query: StreamingQuery) -> None:
        """Reports the progress of the query."""
        newest: Any = query.lastProgress or {}
        self._last_batch = progress = newest if _is_batch(newest) else self._last_batch
        is_idle = bool(self._wait_reason) or (bool(newest) and self._is_idle(newest, query.status["message"]))
        unread = self._unread.measure(self._next_epoch)
        figures = [
            Figure("Input rate", 0.0 if is_idle else progress.get("inputRowsPerSecond"), "rate"),
            Figure("Rows in the last batch", progress.get("numInputRows")),
            Figure("Batch duration", progress.get("batchDuration"), "ms"),
            Figure("Epochs written", self._next_epoch),
            Figure("Epochs to read", unread.epochs),
            Figure("Size to read", unread.nbytes, "bytes"),
            Figure("Epochs kept", self._next_epoch - self._folder.released_below()),
        ]
        if self._wait_reason:
            figures.append(Figure("Back-pressure", self._wait_reason, "text"))
        self._standing.report(figures, steps=self._written_epochs)

    def _is_idle(self, newest: Mapping[str, Any], message: str) -> bool:
        """Whether the stream is idle. Spark does not update its progress while triggers find no data."""
        return not _is_batch(newest) or (message != _PROCESSING_MESSAGE and _age_s(newest) > self._idle_after_s)

    def _check_number(self, batch: int) -> None:
        """Checks that `batch` continues the epochs. After a crash, Spark repeats at most its newest batch."""
        first, self._is_first = self._is_first, False
        if batch == self._next_epoch or (first and batch == self._next_epoch - 1):
            return
        detail = (
            f"Spark's checkpoint continues with batch {batch}, and the next epoch is {self._next_epoch}: the epochs "
            f"or the checkpoint below {self._folder.path} were lost or replaced. Start the job anew, or restore them"
        )
        raise JobRejected("epochs-out-of-step", self._standing.operator, detail)
