"""The stages of a plan as DataFrames. Each sink is a Spark action: one collect, which returns the committables.

Spark retries failed tasks. A collect takes exactly one result per partition, so one attempt of each task counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from runtime.core.job.ids import OperatorId
from runtime.dataflow.plan import source_with_input
from runtime.errors import EnvironmentFailure, WeirError
from runtime.ports import ListsInput, RepeatsOrder
from spark_jobs.batch.counts import Reports, RowSum
from spark_jobs.batch.failures import typed_task_errors
from spark_jobs.batch.late_rows import late_rows_error
from spark_jobs.batch.plan import BatchStage, EmitRows, ReadRows, ReadSource, WriteSink
from spark_jobs.batch.progress import BatchProgress
from spark_jobs.batch.subtask import JobFacts
from spark_jobs.batch.tails import SINK_RESULT_SCHEMA
from spark_jobs.batch.tasks import CHUNK_ROWS, task_of
from spark_jobs.batch.wire import HASH_COLUMN, ORDER_COLUMN, OWNER_COLUMN, STREAM_SHIFT, TIME_COLUMN, to_stream
from spark_jobs.column_types import quote_name, spark_schema
from spark_jobs.sources.frames import CheckedFrame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECK_INTERVAL_S: Final = 0.5  #: between two checks for late rows

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class SinkResult:
    """The output of one sink task: `committables` are for the sink's committer."""

    sink: OperatorId
    partition: int
    rows: int
    committables: tuple[Any, ...]


def execute(
    spark: SparkSession,
    stages: Sequence[BatchStage],
    job: JobFacts,
    group: str,
    chunk_rows: int = CHUNK_ROWS,
    frames: Mapping[OperatorId, CheckedFrame] = MappingProxyType({}),
    progress: BatchProgress | None = None,
) -> list[SinkResult]:
    """Runs the stages. Returns a result per sink task; the output is visible once its committables are committed.

    Args:
        group: the Spark job group, by which the run can be cancelled.
        chunk_rows: see `tasks.CHUNK_ROWS`.
        frames: the checked DataFrame of each `from_spark` source, by uid.
        progress: progress of these stages, updated while they run.

    Raises:
        WeirError: a task failed in all attempts; the operator is named.
        EnvironmentFailure: a stage read other rows than earlier stages wrote for it.
    """
    progress = progress or BatchProgress(spark.sparkContext, stages, group)
    execution = _Execution(spark, stages, job, group, chunk_rows, frames, progress)
    try:
        with typed_task_errors(), execution.checked_partitions():
            return execution.run()
    finally:
        execution.close()


@dataclass
class _Execution:
    spark: SparkSession
    stages: Sequence[BatchStage]
    job: JobFacts
    group: str
    chunk_rows: int
    sources: Mapping[OperatorId, CheckedFrame]
    progress: BatchProgress
    frames: dict[int, DataFrame] = field(default_factory=dict)
    builds: dict[int, Any] = field(default_factory=dict)
    broadcast_rows: dict[int, RowSum] = field(default_factory=dict)  #: by stage

    def run(self) -> list[SinkResult]:
        results: list[SinkResult] = []
        for stage in self.stages:
            self.spark.sparkContext.setJobGroup(self.group, f"{self.job.name}: {stage.name}", interruptOnCancel=True)
            frame = self._frame(stage)
            if isinstance(stage.tail, WriteSink):
                with self.progress.action(stage):
                    rows = frame.collect()
                results += [_sink_result(partition, row) for partition, row in enumerate(rows)]
                continue
            self.frames[stage.number] = frame.persist() if stage.shared else frame
            if stage.broadcast:
                with self.progress.action(stage):
                    self.builds[stage.number] = self._broadcast_build(stage.number, stage.tail)
        check_rows(self.stages, self.progress.reports, self.broadcast_rows)
        return results

    @contextmanager
    def checked_partitions(self) -> Iterator[None]:
        """Context of `run`: ends it soon after the tasks in front of a step have found a late row."""
        if all(_compared_source(self.stages, stage) is None for stage in self.stages):
            yield
            return
        cancel = partial(self.spark.sparkContext.cancelJobGroup, self.group)
        with repeated_check(lambda: check_partitions(self.stages, self.progress.reports), cancel):
            yield

    def close(self) -> None:
        for number, frame in self.frames.items():
            if self.stages[number].shared:
                frame.unpersist()
        for build in self.builds.values():
            build.unpersist()

    def _frame(self, stage: BatchStage) -> DataFrame:
        task = task_of(_with_input(stage), self.job, self.builds, self.chunk_rows, self.progress.reporter)
        schema = (
            stage.tail.frame.spark_schema() if isinstance(stage.tail, EmitRows) else spark_schema(SINK_RESULT_SCHEMA)
        )
        return self._input(stage.head).mapInArrow(task, schema)

    def _input(self, head: ReadSource | ReadRows) -> DataFrame:
        if isinstance(head, ReadSource):
            if head.uid in self.sources:
                return self.sources[head.uid].with_partitions()
            return self.spark.range(0, head.parallelism, 1, head.parallelism)
        frame = reduce(
            lambda frame, other: frame.unionByName(other, allowMissingColumns=True),
            [self._rows(number, head) for number in head.stages],
        )
        if head.markers:
            frame = frame.unionByName(self._markers(head), allowMissingColumns=True)
        if len(head.stages) > 1:
            frame = frame.select(*map(quote_name, head.frame.arrow_schema.names))
        if head.owners:
            frame = frame.repartitionById(head.owners, OWNER_COLUMN).sortWithinPartitions(OWNER_COLUMN, *_order(head))
        return frame

    def _rows(self, number: int, head: ReadRows) -> DataFrame:
        """The rows of an earlier stage that `head` reads: those of one of its outputs."""
        from pyspark.sql import functions

        frame, tail = self.frames[number], self.stages[number].tail
        assert isinstance(tail, EmitRows), "the rows of a sink have no readers"
        if len(tail.outputs) == 1:
            return frame
        (stream,) = head.streams
        number_of_stream = functions.shiftright(functions.col(ORDER_COLUMN), STREAM_SHIFT)
        return frame.where(number_of_stream == stream.number).select(*map(quote_name, head.frame.arrow_schema.names))

    def _markers(self, head: ReadRows) -> DataFrame:
        schema, owners = head.frame, head.owners

        def markers(batches: Any) -> Any:
            for _ in batches:
                yield schema.markers(range(owners))

        return self.spark.range(0, 1, 1, 1).mapInArrow(markers, schema.spark_schema())

    def _broadcast_build(self, number: int, tail: EmitRows) -> Any:
        """Broadcasts the rows of a build side to all executors, as Arrow IPC streams with the step's Arrow types."""
        batches = self.frames[number].toArrow().to_batches()
        streams: list[bytes] = []
        self.broadcast_rows[number] = RowSum()
        for rows in (rows for batch in batches for rows in tail.frame.decode(batch)):
            streams.append(to_stream(rows.batch))
            self.broadcast_rows[number] += rows.sums[0]
        return self.spark.sparkContext.broadcast(streams)


@contextmanager
def repeated_check(check: Callable[[], None], cancel: Callable[[], None]) -> Iterator[None]:
    """Calls `check` during the body and after it. If it raises, cancels the body and raises the same error."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(CHECK_INTERVAL_S):
            try:
                check()
            except WeirError:
                with suppress(Exception):  # a stopped context has no jobs to cancel
                    cancel()  # repeated: cancelling a group does not affect jobs submitted later

    thread = threading.Thread(target=watch, name="late-rows", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        check()


def check_partitions(stages: Sequence[BatchStage], reports: Reports) -> None:
    """Checks that no row is late by the watermark of an earlier partition of its DataFrame.

    The reports of the tasks that have ended so far suffice for a refusal: with more reports, watermarks only rise.

    Raises:
        JobRejected: a row may be late in STREAMING (`late-rows-in-batch`); the operator is named.
    """
    for stage in stages:
        source = _compared_source(stages, stage)
        if source is None or not isinstance(stage.tail, EmitRows):
            continue
        watermark: int | None = None
        for partition in sorted(number for numbered, number in reports if numbered == source.number):
            report = reports.get((stage.number, partition))
            late_from = None if report is None else report.late_from
            if watermark is not None and late_from is not None and late_from <= watermark:
                detail = (
                    f"partition {partition} of the DataFrame has rows that are late by {watermark - late_from} ms, by "
                    "the watermark of an earlier partition. A subtask may read both in STREAMING, and drops such rows: "
                    "order the DataFrame by event time, or give the source a larger max_disorder_ms"
                )
                raise late_rows_error(stage.tail.target, detail)
            end = reports[source.number, partition].watermark
            if end is not None:
                watermark = end if watermark is None else max(watermark, end)


def _compared_source(stages: Sequence[BatchStage], stage: BatchStage) -> BatchStage | None:
    """The stage that reads the DataFrame of `stage`, if the partitions of both are compared."""
    if not isinstance(stage.tail, EmitRows) or stage.tail.late_rule is None:
        return None
    while isinstance(stage.head, ReadRows):
        if stage.head.owners:
            return None
        (number,) = stage.head.stages
        stage = stages[number]
    return stage if stage.head.shape is not None else None


def check_rows(stages: Sequence[BatchStage], reports: Reports, broadcast: Mapping[int, RowSum]) -> None:
    """Checks that each stage has read the rows that earlier stages wrote for it, each once.

    Args:
        broadcast: the rows that the driver has broadcast, by the stage that wrote them.

    Raises:
        EnvironmentFailure: a stage has read other rows; it is named.
    """
    written: dict[tuple[int, int], RowSum] = {}
    read: dict[tuple[int, int], RowSum] = {}
    for (number, _), report in reports.items():
        for sums, side in ((written, report.written), (read, report.read)):
            for stream, rows in side.items():
                sums[number, stream] = sums.get((number, stream), RowSum()) + rows
    for stage in stages:
        if isinstance(stage.head, ReadRows):
            for stream in (each.number for each in stage.head.streams):
                sent = sum((written.get((number, stream), RowSum()) for number in stage.head.stages), RowSum())
                _check_sum(stage.name, sent, read.get((stage.number, stream), RowSum()))
        if stage.number in broadcast:
            _check_sum(
                f"the broadcast of {stage.name}", written.get((stage.number, 0), RowSum()), broadcast[stage.number]
            )


def _check_sum(reader: str, written: RowSum, read: RowSum) -> None:
    if written == read:
        return
    difference = f"{read.rows} rows" if written.rows != read.rows else "as many, but other rows"
    raise EnvironmentFailure(
        f"{reader!r} was to read {written.rows} rows of earlier stages, and read {difference}: Spark lost or doubled "
        "rows, or a task that ran again emitted other rows. No output is committed: run the job again"
    )


def _order(head: ReadRows) -> list[Any]:
    """The columns by which the rows of an owner are sorted."""
    from pyspark.sql import functions

    if not head.by_key:
        return [ORDER_COLUMN]
    keys = (functions.coalesce(*map(functions.col, map(quote_name, columns))) for columns in head.sort)
    return [HASH_COLUMN, *keys, TIME_COLUMN, ORDER_COLUMN]


def _with_input(stage: BatchStage) -> BatchStage:
    """The stage with a source that a repeated task reads alike: the same rows, in the same order."""
    head = stage.head
    if not isinstance(head, ReadSource):
        return stage
    source = head.source.in_order() if isinstance(head.source, RepeatsOrder) else head.source
    if isinstance(source, ListsInput):
        source = source_with_input(source, source.list_input())
    return replace(stage, head=replace(head, source=source))


def _sink_result(partition: int, row: Any) -> SinkResult:
    committables = tuple(msgspec.json.decode(row["committables"]))
    return SinkResult(sink=OperatorId(row["sink"]), partition=partition, rows=row["rows"], committables=committables)
