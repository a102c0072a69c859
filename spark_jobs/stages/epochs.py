"""The standing stage of `from_spark_stream`: a Structured Streaming query whose batches become epochs of Parquet files.

An epoch has the number of Spark's batch. It is written aside, made durable and renamed; an epoch that is there is kept
and skipped, whether or not the stream replays the same rows, so a batch that Spark repeats after a crash changes
nothing. Spark's own checkpoint lies beside the epochs. The two are compared at the first batch of each process: where
one of them is older than a crash explains, rows would be lost or repeated, and the stage refuses to go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from runtime.connectors.epochs import EpochFolder
from runtime.connectors.sources.epochs import STAGE, EpochSource, read_columns
from runtime.errors import JobRejected
from spark_jobs.session import SparkSettings, spark_session
from spark_jobs.sources.columns import FAILED, call, checked_columns
from spark_jobs.standing import Figure, StageFailure, Standing, alone

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

VERB: Final = STAGE
POLL_S: Final = 0.25
IDLE_S: Final = 10.0  #: after a batch
_PROCESSING: Final = "Processing new data"  #: of `StreamingQuery.status`
_BATCH: Final = "addBatch"  #: of the durations of a batch
CORES: Final = 2  #: of a cluster, or threads of a local Spark
_CONF: Final = {
    "spark.cores.max": str(CORES),  # a query lasts: without it it would take all of a cluster
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def write_epochs(standing: Standing) -> None:
    """Runs the query until it is asked to stop.

    Raises:
        JobRejected: the query cannot feed this job, now or later.
        StageFailure: the function or the query failed.
    """
    source = standing.dataflow.sources.get(standing.operator)  # type: ignore[call-overload]
    if not isinstance(source, EpochSource):
        detail = f"{standing.pipeline.name} has no source of this name that from_spark_stream feeds"
        raise JobRejected("unknown-operator", standing.operator, detail)
    folder = EpochFolder(standing.folder)
    with alone(folder.path):
        folder.prepare()
        settings = SparkSettings.from_environment(f"weir: run {standing.run}, {standing.operator}", cores=CORES)
        with spark_session(replace(settings, extra={**_CONF, **settings.extra})) as spark:
            _run(standing, source, folder, spark)


def _run(standing: Standing, source: EpochSource, folder: EpochFolder, spark: SparkSession) -> None:
    try:
        frame = call(source, spark, standing.operator)
    except JobRejected as error:
        if error.code == FAILED:  # it did not when the version was compiled: what it reads may come back
            raise StageFailure(error.code, error.field, error.detail) from error
        raise
    columns = checked_columns(frame, standing.operator, streaming=True)
    _must_match(columns, read_columns(str(standing.columns), standing.operator), standing.operator)
    writer = EpochWriter(folder, standing, UnreadEpochs(folder, source.max_backlog, source.max_backlog_bytes))
    query = (
        frame.writeStream.foreachBatch(writer.write)
        .option("checkpointLocation", folder.spark_checkpoint.as_uri())
        .trigger(processingTime=f"{source.trigger_ms} milliseconds")
        .queryName(standing.operator)
        .start()
    )
    try:
        while query.isActive and not standing.stopping.wait(POLL_S):
            writer.show(query)
    finally:
        writer.close()  # waits for the epoch under way
        _stop(query)
    if isinstance(writer.failure, JobRejected):
        raise writer.failure
    if not standing.stopping.is_set():
        why = _first_line(writer.failure) if writer.failure is not None else _why(query)
        raise StageFailure("query-failed", standing.operator, why)


def _must_match(now: pa.Schema, before: pa.Schema | None, uid: str) -> None:
    if before is None or now.equals(before):
        return
    changed = sorted({field.name for field in [*now, *before] if not _has(now, field) or not _has(before, field)})
    detail = (
        f"the columns of its DataFrame have changed since the version was compiled: {', '.join(changed) or 'order'}"
    )
    raise JobRejected("schema-changed", uid, f"{detail}. Make a new version")


def _has(columns: pa.Schema, field: pa.Field) -> bool:
    index = columns.get_field_index(field.name)
    return index >= 0 and bool(columns.field(index).equals(field))


def _stop(query: StreamingQuery) -> None:
    try:
        query.stop()
    except Exception as error:
        if query.isActive:
            raise StageFailure("query-failed", str(query.name), f"the query did not stop: {error}") from error


def _why(query: StreamingQuery) -> str:
    try:
        failure = query.exception()
    except Exception as error:  # noqa: BLE001 - the JVM is gone, and with it what it knew
        return f"Spark is gone: {type(error).__name__}"
    return "the query ended by itself" if failure is None else _first_line(failure)


def _first_line(error: BaseException) -> str:
    """Spark's messages carry a whole Java stack; the first line is the sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:1_000] if lines else type(error).__name__


@dataclass(frozen=True, slots=True)
class Unread:
    """What the job has not read. `bound`: which bound that reaches, as a sentence; "": none."""

    epochs: int
    nbytes: int
    bound: str


class UnreadEpochs:
    """How far the query may be ahead of the job. May be used by two threads."""

    def __init__(self, folder: EpochFolder, max_epochs: int, max_bytes: int) -> None:
        self._folder, self._max_epochs, self._max_bytes = folder, max_epochs, max_bytes
        self._sizes: Mapping[int, int] = {}  #: by number; an epoch never changes

    def measure(self, next_number: int) -> Unread:
        known, numbers = self._sizes, range(self._folder.read_below(), next_number)
        self._sizes = sizes = {number: known.get(number) or self._folder.size(number) for number in numbers}
        epochs, nbytes = len(sizes), sum(sizes.values())
        return Unread(epochs, nbytes, self._bound(epochs, nbytes))

    def _bound(self, epochs: int, nbytes: int) -> str:
        if epochs >= self._max_epochs:
            return f"the query waits: the job has not read {epochs:,} epochs, and max_backlog is {self._max_epochs:,}"
        if nbytes >= self._max_bytes:
            limit = f"max_backlog_bytes is {self._max_bytes:,}"
            return f"the query waits: the job has not read epochs of {nbytes:,} bytes, and {limit}"
        return ""


def _ran(progress: Mapping[str, Any]) -> bool:
    """Whether it is of a batch. Spark also reports triggers that found nothing."""
    return _BATCH in (progress.get("durationMs") or {})


def _age_s(progress: Mapping[str, Any]) -> float:
    """Seconds since the end of the batch."""
    began = datetime.fromisoformat(progress["timestamp"])
    return time.time() - began.timestamp() - (progress.get("batchDuration") or 0) / 1000


class _Closing(Exception):
    """The stage is ending; the batch comes again with the next process."""


class EpochWriter:
    """Makes epochs of batches. `write` is called from a thread of Spark's, one batch at a time.

    Back-pressure: a batch waits in `write` while too much is unread, before any of its rows is read. Spark triggers no
    other one meanwhile.
    """

    def __init__(self, folder: EpochFolder, standing: Standing, unread: UnreadEpochs) -> None:
        self._folder, self._standing, self._unread = folder, standing, unread
        self._next = folder.next_number()
        self._is_first = True
        self._closing = threading.Event()
        self._turn = threading.Lock()
        self._written = 0
        self._batch: Mapping[str, Any] = {}  #: Spark's progress of the last one
        self._waits = ""  #: why the query is held back
        self.failure: Exception | None = None  #: that ended the query

    def write(self, frame: DataFrame, batch: int) -> None:
        """Writes `batch` as an epoch, unless that has been done. Spark wraps what it raises, so it is remembered."""
        with self._turn:
            try:
                self._write(frame, batch)
            except _Closing:
                raise
            except Exception as error:
                self.failure = error
                raise
            self._written += 1

    def _write(self, frame: DataFrame, batch: int) -> None:
        if self._closing.is_set():
            raise _Closing
        self._check_number(batch)
        if batch == self._next:
            self._wait_for_room()
            with self._folder.writing(batch, self._standing.token) as aside:
                frame.write.parquet(aside.as_uri())
            self._next = batch + 1

    def _wait_for_room(self) -> None:
        while bound := self._unread.measure(self._next).bound:
            self._waits = bound
            if self._closing.wait(POLL_S):
                raise _Closing
        self._waits = ""

    def close(self) -> None:
        """Waits for the batch under way, unless it waits itself. Later ones are refused."""
        self._closing.set()
        with self._turn:
            pass

    def show(self, query: StreamingQuery) -> None:
        """Reports how far the query has come."""
        newest: Any = query.lastProgress or {}
        self._batch = progress = newest if _ran(newest) else self._batch
        is_idle = bool(self._waits) or (bool(newest) and self._is_idle(newest, query.status["message"]))
        unread = self._unread.measure(self._next)
        figures = [
            Figure("Input rate", 0.0 if is_idle else progress.get("inputRowsPerSecond"), "rate"),
            Figure("Rows in the last batch", progress.get("numInputRows")),
            Figure("Batch duration", progress.get("batchDuration"), "ms"),
            Figure("Epochs written", self._next),
            Figure("Epochs to read", unread.epochs),
            Figure("Size to read", unread.nbytes, "bytes"),
            Figure("Epochs kept", self._next - self._folder.released_below()),
        ]
        if self._waits:
            figures.append(Figure("Back-pressure", self._waits, "text"))
        self._standing.report(figures, steps=self._written)

    @staticmethod
    def _is_idle(newest: Mapping[str, Any], message: str) -> bool:
        """Whether no rows come in. Spark's newest progress stays as it is while no trigger finds any."""
        return not _ran(newest) or (message != _PROCESSING and _age_s(newest) > IDLE_S)

    def _check_number(self, batch: int) -> None:
        """A crash repeats the newest batch at most. Anything else is another stream than that of the epochs."""
        first, self._is_first = self._is_first, False
        if batch == self._next or (first and batch == self._next - 1):
            return
        detail = (
            f"Spark's checkpoint goes on with batch {batch}, and the next epoch is number {self._next}: one of the "
            f"two below {self._folder.path} was lost or replaced. Start the job anew, or bring back what was there"
        )
        raise JobRejected("epochs-out-of-step", self._standing.operator, detail)
