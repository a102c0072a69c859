"""The code inside `mapInArrow`: a task reads rows, runs the operators of its stage, and partitions or writes.

A task gets plain values, the job's code and Spark broadcasts. Its subtask index comes from the data: the id of the
range row for a source, the owner for shuffled rows. (`TaskContext.partitionId()` is another number once Spark combines
plans.) Spark may repeat a task while an earlier attempt still runs, so a task must not publish output.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from runtime.connectors.sources.event_clock import BoundedOutOfOrderness
from runtime.core.job.messages import MIN_WATERMARK
from runtime.errors import DataRejected, JobRejected, OperatorFailure
from runtime.operators.event_time import event_times_ms
from runtime.operators.partition import owners_of_groups, partition_by_function
from runtime.ports import Collector
from runtime.slot.programming_errors import describe_error
from runtime.state.encodings import nullable_schema, with_schema
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes
from spark_jobs.batch.counts import RowCounter, TaskReport
from spark_jobs.batch.late_rows import LateRule, late_rows_error
from spark_jobs.batch.plan import BatchStage, EmitRows, ExchangeKind, ReadRows, ReadSource, Step, WriteSink
from spark_jobs.batch.subtask import JobFacts, OperatorChain, Subtask, check_columns, context_of, wall_clock_ms
from spark_jobs.batch.wire import from_stream
from spark_jobs.session import current_task
from spark_jobs.sources.frames import FrameShape
from spark_jobs.sources.table import SparkTable

CHUNK_ROWS: Final = 200_000  #: rows after which a keyed operator gets a fresh instance, at the next new key
POLL_ROWS: Final = 16_384
_EMPTY_POLL_PAUSE_S: Final = 0.002  #: after an empty poll
_ROW_COLUMN: Final = ":row"

#: The result of a sink task: sink, attempt, number of rows, and the committables as JSON.
SINK_RESULT_SCHEMA: Final = pa.schema(
    [("sink", pa.string()), ("attempt", pa.int64()), ("rows", pa.int64()), ("committables", pa.string())]
)
Batches = Iterator[pa.RecordBatch]
T = TypeVar("T")
Builds = Mapping[int, Any]  #: stage number -> Spark broadcast of the stage's rows as Arrow IPC streams


class TaskRefused(Exception):
    """A `JobRejected` in a task, as JSON: Spark passes on the text of an error only."""

    def __init__(self, error: JobRejected) -> None:
        super().__init__(msgspec.json.encode([error.code, error.field, error.detail]).decode())


class TaskRaised(Exception):
    """An `OperatorFailure` in a task, as JSON: the operator, and the error with its place in the code."""

    def __init__(self, error: OperatorFailure) -> None:
        super().__init__(msgspec.json.encode([error.operator, describe_error(error)]).decode())


def task_of(
    stage: BatchStage,
    job: JobFacts,
    builds: Builds,
    chunk_rows: int = CHUNK_ROWS,
    report: Callable[[TaskReport], None] = lambda _: None,
) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow`. It calls `report` after its last row."""

    def run(batches: Batches) -> Batches:
        try:
            task = _Task(stage, job, builds, chunk_rows)
            yield from task.run(batches)
            report(task.tally.report(stage.number))
        except JobRejected as error:
            raise TaskRefused(error) from error
        except OperatorFailure as error:
            raise TaskRaised(error) from error

    return run


class _Tail(ABC):
    """Receives the output of the last operator, for Spark or for a sink."""

    def __init__(self) -> None:
        self._ready: list[pa.RecordBatch] = []
        self.watermark = MIN_WATERMARK  #: of the source at the head of the stage, before the current batch

    @abstractmethod
    def emit(self, batch: pa.RecordBatch) -> None: ...

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        """Drops the batch: `check_batch` refuses jobs that read a side output."""

    @abstractmethod
    def finish(self) -> None: ...

    def close(self) -> None:
        """Releases resources; by default there are none."""

    def take_ready(self) -> list[pa.RecordBatch]:
        """The batches to pass to Spark now."""
        ready, self._ready = self._ready, []
        return ready


class _Task:
    def __init__(self, stage: BatchStage, job: JobFacts, builds: Builds, chunk_rows: int) -> None:
        self._stage, self._job, self.chunk_rows = stage, job, chunk_rows
        self.tally = RowCounter()
        numbers = {number for step in stage.steps for _, number in step.builds}
        self._builds = {
            number: [batch for stream in builds[number].value for batch in from_stream(stream)] for number in numbers
        }

    def run(self, batches: Batches) -> Batches:
        head = self._stage.head
        return self._read_source(head, batches) if isinstance(head, ReadSource) else self._process_rows(head, batches)

    # ------------------------------------------------------------ heads

    def _read_source(self, head: ReadSource, batches: Batches) -> Batches:
        if head.shape is not None:
            yield from self._read_frame(head, head.shape, batches)
            return
        for ids in batches:
            for index in ids.column(0).to_pylist():
                with _SubtaskRun(self, index, self._stage.steps) as run:
                    yield from self._poll(head, index, run)
                    yield from run.finish()

    def _poll(self, head: ReadSource, index: int, run: _SubtaskRun) -> Batches:
        reader = head.source.reader()
        try:
            reader.open(context_of(self._job, head.uid, index, head.parallelism, wall_clock_ms))
            while True:
                watermark = reader.watermark()
                batch = reader.poll(POLL_ROWS)
                if batch is not None:
                    self.tally.count_read(batch.num_rows, head.uid)
                    run.tail.watermark = MIN_WATERMARK if watermark is None else watermark
                    yield from run.push(batch)
                elif reader.exhausted:
                    reader.snapshot(1)  # makes dead letters durable
                    return
                else:
                    time.sleep(_EMPTY_POLL_PAUSE_S)
        finally:
            reader.close()

    def _read_frame(self, head: ReadSource, shape: FrameShape, batches: Batches) -> Batches:
        """Processes a partition of a DataFrame. Partitions may share a subtask index, which only shuffles use."""
        assert isinstance(head.source, SparkTable), "only a SparkTable has a shape"
        clock = BoundedOutOfOrderness(head.source.event_time, head.source.max_disorder_ms)
        with _SubtaskRun(self, current_task().partitionId() % head.parallelism, self._stage.steps) as run:
            for batch in batches:
                rows = shape.to_source_schema(batch)
                self.tally.count_read(rows.num_rows, head.uid)
                run.tail.watermark = MIN_WATERMARK if clock.watermark is None else clock.watermark
                clock.on_batch(rows)
                yield from run.push(rows)
            yield from run.finish()
        self.tally.watermark = clock.watermark

    def _process_rows(self, head: ReadRows, batches: Batches) -> Batches:
        """Processes the rows of each owner (subtask of this stage), one owner after another."""
        run: _SubtaskRun | None = None
        owner = -1
        try:
            for spark_batch in batches:
                for rows in head.wire.decode(spark_batch, by_watermark=not head.owners):
                    self.tally.count_read(rows.batch.num_rows)
                    if run is None or rows.owner != owner:
                        if run is not None:
                            yield from run.finish()
                            run.close()
                        owner, run = rows.owner, self._subtask_run(head, rows.owner)
                    run.tail.watermark = rows.watermark
                    yield from run.take(rows.batch, rows.hashes)
            if run is not None:
                yield from run.finish()
        finally:
            if run is not None:
                run.close()

    def _subtask_run(self, head: ReadRows, owner: int) -> _SubtaskRun:
        steps = self._stage.steps
        return _KeyedRun(self, owner, steps[0], steps[1:]) if head.by_key else _SubtaskRun(self, owner, steps)

    # ------------------------------------------------------------ parts

    def subtask(self, step: Step, index: int, out: Collector) -> Subtask:
        builds = [(number, self._builds[stage]) for number, stage in step.builds]
        operator, tally = step.make(), self.tally
        return Subtask(self._job, step.uid, index, step.parallelism, operator, step.schema, builds, out, tally)

    def tail(self, index: int) -> _Tail:
        tail = self._stage.tail
        if isinstance(tail, EmitRows):
            return _Emitter(tail, index, self.tally)
        return _SinkWriter(tail, self._job, self.tally)

    def check_read(self, batch: pa.RecordBatch) -> None:
        """Checks the columns of source rows against the plan if the stage emits the rows unchanged."""
        head, tail = self._stage.head, self._stage.tail
        if (
            isinstance(head, ReadSource)
            and not self._stage.steps
            and isinstance(tail, EmitRows)
            and tail.pre_aggregation is None
        ):
            check_columns(head.uid, tail.wire.schema, batch.schema)


class _SubtaskRun:
    """The operators of a stage for one subtask."""

    def __init__(self, task: _Task, index: int, steps: Sequence[Step]) -> None:
        self._task, self._index = task, index
        self.tail = task.tail(index)
        try:
            self._chain = OperatorChain([partial(task.subtask, step, index) for step in steps], self.tail)
        except BaseException:
            self.tail.close()
            raise

    def __enter__(self) -> _SubtaskRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def push(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        self._task.check_read(batch)
        self._chain.emit(batch)
        return self.tail.take_ready()

    def take(self, batch: pa.RecordBatch, hashes: Any) -> Batches:
        """Processes rows that were shuffled to this subtask."""
        yield from self.push(batch)

    def finish(self) -> Batches:
        self._chain.finish()
        self.tail.finish()
        yield from self.tail.take_ready()

    def close(self) -> None:
        try:
            self._chain.close()
        finally:
            self.tail.close()


class _KeyedRun(_SubtaskRun):
    """A stage whose first operator is keyed: each chunk of whole keys gets a fresh instance, which bounds its state."""

    def __init__(self, task: _Task, index: int, first: Step, steps: Sequence[Step]) -> None:
        super().__init__(task, index, steps)
        self._first = first
        self._operator: Subtask | None = None
        self._rows = 0
        self._last = 0  #: key hash of the last processed row

    def take(self, batch: pa.RecordBatch, hashes: Any) -> Batches:
        start = 0
        while start < len(hashes):
            stop = self._end_of_chunk(hashes, start)
            if self._operator is not None and stop == start:
                yield from self._end_chunk()
                continue
            if self._operator is None:
                self._operator = self._task.subtask(self._first, self._index, self._chain)
            self._operator.process_sorted_rows(batch.slice(start, stop - start))
            self._rows += stop - start
            self._last = int(hashes[stop - 1])
            start = stop
            yield from self.tail.take_ready()

    def _end_of_chunk(self, hashes: Any, start: int) -> int:
        """The index of the first row of the next chunk: the first new key at or after the chunk size."""
        enough = start + max(0, self._task.chunk_rows - self._rows)
        if enough >= len(hashes):
            return len(hashes)
        before = self._last if enough == start else int(hashes[enough - 1])
        other = np.flatnonzero(hashes[enough:] != before)
        return len(hashes) if not len(other) else enough + int(other[0])

    def _end_chunk(self) -> Batches:
        if self._operator is not None:
            operator, self._operator = self._operator, None
            try:
                operator.finish()
            finally:
                operator.close()
        self._rows = 0
        yield from self.tail.take_ready()

    def finish(self) -> Batches:
        yield from self._end_chunk()
        yield from super().finish()

    def close(self) -> None:
        if self._operator is not None:
            self._operator.close()
        super().close()


# ---------------------------------------------------------------- tails


class _Emitter(_Tail):
    """Emits rows for a later stage, with their owner, hash and event time.

    Rows without a hash have the watermark of their source in place of the event time.
    """

    def __init__(self, emit: EmitRows, index: int, tally: RowCounter) -> None:
        super().__init__()
        self._emit, self._index, self._tally = emit, index, tally
        self._pre_aggregator = None if emit.pre_aggregation is None else emit.pre_aggregation.create()
        self._emitted_rows = 0

    def emit(self, batch: pa.RecordBatch) -> None:
        if self._emit.late_rule is not None:
            self._refuse_late_rows(self._emit.late_rule, batch)
        if self._pre_aggregator is None:
            self._add(batch)
            return
        for part in self._name_target(partial(self._pre_aggregator.add, batch)):
            self._add(part)
        for part in self._name_target(partial(self._pre_aggregator.advance, self.watermark)):
            self._add(part)

    def finish(self) -> None:
        if self._pre_aggregator is not None:
            for part in self._name_target(self._pre_aggregator.flush):
                self._add(part)

    def _name_target(self, function: Callable[[], T]) -> T:
        """Calls `function`. Raises DataRejected with the name of the operator that gets the rows."""
        try:
            return function()
        except DataRejected as error:
            raise DataRejected(f"operator {self._emit.target!r}: {error}") from error

    def _add(self, batch: pa.RecordBatch) -> None:
        owners, hashes = self._owners_and_hashes(batch)
        times: Any = self.watermark
        if self._emit.exchange is ExchangeKind.HASH:
            times = 0 if self._emit.time is None else event_times_ms(batch, self._emit.time)
        self._ready.append(self._emit.wire.encode(batch, owners, hashes, times, self._index, self._emitted_rows))
        self._emitted_rows += batch.num_rows
        self._tally.count_written_rows(batch.num_rows)

    def _owners_and_hashes(self, batch: pa.RecordBatch) -> tuple[Any, Any]:
        emit = self._emit
        match emit.exchange:
            case ExchangeKind.KEPT:
                return self._index, 0
            case ExchangeKind.HASH:
                hashes = hash_columns([batch.column(key) for key in emit.keys])
                groups = key_groups_of_hashes(hashes, emit.max_parallelism)
                return owners_of_groups(emit.max_parallelism, emit.owners)[groups], hashes.view(np.int64)
            case ExchangeKind.REBALANCE:
                return (self._index + self._emitted_rows + np.arange(batch.num_rows)) % emit.owners, 0
            case ExchangeKind.CUSTOM:
                return self._custom_owners(batch), 0

    def _custom_owners(self, batch: pa.RecordBatch) -> Any:
        assert self._emit.partitioner is not None, "a custom edge has a partitioner"
        numbered = batch.select(list(self._emit.keys)).append_column(_ROW_COLUMN, pa.array(np.arange(batch.num_rows)))

        def function(rows: pa.RecordBatch, owners: int) -> Any:
            return self._emit.partitioner(rows.select(list(self._emit.keys)), owners)  # type: ignore[misc]

        parts = partition_by_function(numbered, numbered.schema.names, function, self._emit.target, self._emit.owners)
        owners = np.zeros(batch.num_rows, dtype=np.int32)
        for owner, part in enumerate(parts):
            if part is not None:
                owners[part.column(part.num_columns - 1).to_numpy()] = owner
        return owners

    def _refuse_late_rows(self, rule: LateRule, batch: pa.RecordBatch) -> None:
        """Raises JobRejected if a row is late: STREAMING would drop such a row."""
        if not batch.num_rows:
            return
        late_from = self._name_target(partial(rule.late_from, batch))
        self._tally.count_late_from(int(late_from.min()))
        late = np.count_nonzero(late_from <= self.watermark)
        if late:
            behind = self.watermark - int(late_from.min())
            detail = (
                f"{late} rows of a batch are late, by up to {behind} ms: STREAMING drops such rows, so the answers "
                "would differ; give the source a larger max_disorder_ms"
            )
            raise late_rows_error(self._emit.target, detail)


class _SinkWriter(_Tail):
    """Writes a sink's rows to files named after this task attempt, which stay invisible until they are committed."""

    def __init__(self, write: WriteSink, job: JobFacts, tally: RowCounter) -> None:
        super().__init__()
        self._uid, self._attempt = write.uid, int(current_task().taskAttemptId())
        self._rows, self._tally = 0, tally
        context = context_of(job, write.uid, 0, 1, wall_clock_ms)
        context.index = self._attempt  # part of file names: no two attempts share a file
        self._writer = write.sink.writer()
        self._writer.open(context)

    def emit(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._tally.count_written_rows(batch.num_rows, self._uid)
        self._writer.write(with_schema(batch, nullable_schema(batch.schema)))  # as in STREAMING

    def finish(self) -> None:
        self._writer.finish()
        committables = msgspec.json.encode(self._writer.prepare(1)).decode()
        columns = [[self._uid], [self._attempt], [self._rows], [committables]]
        self._ready.append(pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=SINK_RESULT_SCHEMA))

    def close(self) -> None:
        self._writer.close()
