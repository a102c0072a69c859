"""The code inside `mapInArrow`: a task reads rows, runs the operators of its stage, and partitions or writes.

A task gets plain values, the job's code and Spark broadcasts. Its subtask index comes from the data: the id of the
range row for a source, the owner for shuffled rows. (`TaskContext.partitionId()` is another number once Spark combines
plans.) Spark may repeat a task while an earlier attempt still runs, so a task must not publish output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from runtime.connectors.sources.event_clock import BoundedOutOfOrderness
from runtime.core.job.messages import MIN_WATERMARK
from runtime.ports import Collector
from spark_jobs.batch.counts import RowCounter, TaskReport
from spark_jobs.batch.failures import call_hook, errors_for_spark
from spark_jobs.batch.plan import BatchStage, EmitRows, ReadRows, ReadSource, Step
from spark_jobs.batch.subtask import JobFacts, OperatorChain, Subtask, check_columns, context_of, wall_clock_ms
from spark_jobs.batch.tails import Emitter, SinkWriter, Tail
from spark_jobs.batch.wire import OwnerRows, from_stream
from spark_jobs.sources.frames import FrameShape
from spark_jobs.sources.table import SparkTable

CHUNK_ROWS: Final = 200_000  #: rows after which a keyed operator gets a fresh instance, at the next new key
POLL_ROWS: Final = 16_384
_EMPTY_POLL_PAUSE_S: Final = 0.002  #: after an empty poll

Batches = Iterator[pa.RecordBatch]
Builds = Mapping[int, Any]  #: stage number -> Spark broadcast of the stage's rows as Arrow IPC streams


def task_of(
    stage: BatchStage,
    job: JobFacts,
    builds: Builds,
    chunk_rows: int = CHUNK_ROWS,
    report: Callable[[TaskReport], None] = lambda _: None,
) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow`. It calls `report` after its last row."""

    def run(batches: Batches) -> Batches:
        with errors_for_spark():
            task = _Task(stage, job, builds, chunk_rows)
            yield from task.run(batches)
            report(task.tally.report(stage.number))

    return run


class _Task:
    def __init__(self, stage: BatchStage, job: JobFacts, builds: Builds, chunk_rows: int) -> None:
        self._stage, self._job, self.chunk_rows = stage, job, chunk_rows
        self.tally = RowCounter()
        numbers = {number for step in stage.steps for _, stages in step.builds for number in stages}
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
                self.tally.begin(index)
                with _SubtaskRun(self, index, self._stage.steps) as run:
                    yield from self._poll(head, index, run)
                    yield from run.finish()

    def _poll(self, head: ReadSource, index: int, run: _SubtaskRun) -> Batches:
        hook = partial(call_hook, head.uid, index)
        reader = hook("reader", head.source.reader)
        try:
            hook("open", reader.open, context_of(self._job, head.uid, index, head.parallelism, wall_clock_ms))
            while True:
                watermark = reader.watermark()
                batch = hook("poll", reader.poll, POLL_ROWS)
                if batch is not None:
                    self.tally.count_source_rows(batch.num_rows, head.uid)
                    run.tail.watermark = MIN_WATERMARK if watermark is None else watermark
                    yield from run.push(batch)
                elif reader.awaits_live:
                    # Order by event time is restored later: subtasks need not wait for each other.
                    hook("begin_live", reader.begin_live)
                elif reader.exhausted:
                    hook("snapshot", reader.snapshot, 1)  # makes dead letters durable
                    return
                else:
                    time.sleep(_EMPTY_POLL_PAUSE_S)
        finally:
            hook("close", reader.close)

    def _read_frame(self, head: ReadSource, shape: FrameShape, batches: Batches) -> Batches:
        """Processes a partition of a DataFrame, which is a subtask of its own.

        Other tasks of the run refer to the partition by the number in its rows, which is that of the DataFrame.
        """
        assert isinstance(head.source, SparkTable), "only a SparkTable has a shape"
        clock = BoundedOutOfOrderness(head.source.event_time, head.source.max_disorder_ms)
        filled = (batch for batch in batches if batch.num_rows)
        if (first := next(filled, None)) is None:
            return
        partition = shape.partition_of(first)
        self.tally.begin(partition)
        with _SubtaskRun(self, partition, self._stage.steps) as run:
            for batch in chain([first], filled):
                rows = call_hook(head.uid, partition, "poll", shape.to_source_schema, batch)
                self.tally.count_source_rows(rows.num_rows, head.uid)
                run.tail.watermark = MIN_WATERMARK if clock.watermark is None else clock.watermark
                call_hook(head.uid, partition, "poll", clock.on_batch, rows)
                yield from run.push(rows)
            yield from run.finish()
        self.tally.watermark = clock.watermark

    def _process_rows(self, head: ReadRows, batches: Batches) -> Batches:
        """Processes the rows of each owner (subtask of this stage), one owner after another."""
        run: _SubtaskRun | None = None
        owner = -1
        try:
            for spark_batch in batches:
                for rows in head.frame.decode(spark_batch, by_watermark=not head.owners):
                    self.tally.begin(rows.owner)
                    for number, total in rows.sums.items():
                        self.tally.count_read(number, total)
                    if run is None or rows.owner != owner:
                        if run is not None:
                            yield from run.finish()
                            run.close()
                        owner, run = rows.owner, self._subtask_run(head, rows.owner)
                    run.tail.watermark = rows.watermark
                    yield from run.take(rows)
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
        builds = [
            (number, [batch for stage in stages for batch in self._builds[stage]]) for number, stages in step.builds
        ]
        return Subtask(
            self._job,
            step.uid,
            index,
            step.parallelism,
            step.make(),
            step.schema,
            builds,
            out,
            self.tally,
            step.inputs,
            step.outputs,
        )

    def tail(self, index: int) -> Tail:
        tail = self._stage.tail
        if isinstance(tail, EmitRows):
            return Emitter(tail, index, self.tally)
        return SinkWriter(tail, self._job, self.tally)

    def check_read(self, batch: pa.RecordBatch) -> None:
        """Checks the columns of source rows against the plan if the stage emits the rows unchanged."""
        head, tail = self._stage.head, self._stage.tail
        if (
            isinstance(head, ReadSource)
            and not self._stage.steps
            and isinstance(tail, EmitRows)
            and tail.pre_aggregation is None
        ):
            for _, stream in tail.outputs:
                check_columns(head.uid, stream.schema, batch.schema)


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

    def push(self, batch: pa.RecordBatch, input: int = 0) -> list[pa.RecordBatch]:
        self._task.check_read(batch)
        self._chain.process(input, batch)
        return self.tail.take_ready()

    def take(self, rows: OwnerRows) -> Batches:
        """Processes rows of earlier stages."""
        for number, batch in rows.runs():
            yield from self.push(batch, number)

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

    def take(self, rows: OwnerRows) -> Batches:
        start, hashes = 0, rows.hashes
        while start < len(hashes):
            stop = self._end_of_chunk(hashes, start)
            if self._operator is not None and stop == start:
                yield from self._end_chunk()
                continue
            if self._operator is None:
                self._operator = self._task.subtask(self._first, self._index, self._chain)
            some = rows.slice(start, stop)
            self._operator.process_sorted_rows(some.batches, some.inputs)
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
