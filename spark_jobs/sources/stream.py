"""`from_spark_stream`: any input of `spark.readStream`, as a replayable source of a streaming job."""

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
    """Reads a streaming DataFrame exactly once, through a Structured Streaming query beside the run.

        flow.source("orders", from_spark_stream(lambda spark: spark.readStream.schema("id LONG").json("/data/orders")))

    The query writes each of its batches as an epoch of Parquet files below the job's storage; the job reads the epochs
    in order. An epoch is kept until no retained checkpoint or savepoint needs it, so the stream itself need not be
    replayable. Rows reach the job about one trigger after Spark has read them.

    Args:
        make: gets a SparkSession, returns a streaming DataFrame. It is called in separate processes: to derive the
            columns when a version is compiled, and at each start of the query.
        event_time: column of event times; None: the source emits no watermark.
        max_disorder_ms: how far a row's event time may lag behind the maximum before it in the same subtask.
        idle_after_ms: a subtask without input for this time becomes idle and does not hold back the watermark. None:
            it never becomes idle.
        trigger_ms: minimum interval between two batches of the query; 0: a batch starts when its predecessor has ended.
        max_backlog: the query pauses while the job has this many unread epochs, so that a slow or stopped job does not
            fill the disk. Epochs that a checkpoint or savepoint needs come on top.
        max_backlog_bytes: as `max_backlog`, in bytes of their files; a single epoch may exceed it.
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
