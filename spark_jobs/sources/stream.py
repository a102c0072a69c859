"""`from_spark_stream`: whatever `spark.readStream` reads, as a replayable source of a streaming job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from runtime.connectors.sources.epochs import MAX_BACKLOG, MAX_BACKLOG_BYTES, EpochSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def from_spark_stream(
    make: Callable[[SparkSession], DataFrame],
    *,
    event_time: str | None = None,
    max_disorder_ms: int = 0,
    idle_after_ms: int | None = None,
    trigger_ms: int = 1_000,
    max_backlog: int = MAX_BACKLOG,
    max_backlog_bytes: int = MAX_BACKLOG_BYTES,
) -> EpochSource:
    """Reads a streaming DataFrame, exactly once, through a Structured Streaming query that stands beside the run.

        flow.source("orders", from_spark_stream(lambda spark: spark.readStream.schema("id LONG").json("/data/orders")))

    The query writes what each of its batches holds as an epoch of Parquet files below the job's storage; the job reads
    the epochs in order. An epoch is kept until no retained checkpoint or savepoint needs it, so nothing depends on
    whether the stream itself can be replayed. Rows appear in the job about one trigger after Spark has seen them.

    Args:
        make: gets a SparkSession, returns a streaming DataFrame. It is called in processes of its own: to learn the
            columns when a version is compiled, and at each start of the query.
        event_time: column of event times; None: the source emits no watermark.
        max_disorder_ms: how far a row's event time may lie behind the largest one before it in the same subtask.
        idle_after_ms: event time goes on without a subtask that has had nothing to read for so long. None: it waits.
        trigger_ms: the query begins a batch at most so often; 0: as soon as the one before has ended.
        max_backlog: the query waits while the job has this many epochs to read, and goes on by itself. So a job that
            is down or slow does not fill the disk. Epochs that a checkpoint or savepoint needs come on top.
        max_backlog_bytes: as `max_backlog`, for the size of their files; one epoch may pass it.
    """
    return EpochSource(
        make=make,
        event_time=event_time,
        max_disorder_ms=max_disorder_ms,
        idle_after_ms=idle_after_ms,
        trigger_ms=trigger_ms,
        max_backlog=max_backlog,
        max_backlog_bytes=max_backlog_bytes,
    )
