"""The tails of a task: rows for later stages, with their owner, hash and event time, or files of a sink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from runtime.core.job.messages import MIN_WATERMARK
from runtime.operators.event_time import event_times_ms
from runtime.operators.partition import owners_of_groups, partition_by_function
from runtime.state.encodings import nullable_schema, with_schema
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes
from spark_jobs.batch.counts import RowCounter
from spark_jobs.batch.failures import call_hook
from spark_jobs.batch.late_rows import LateRule, late_rows_error
from spark_jobs.batch.plan import EmitRows, ExchangeKind, WriteSink
from spark_jobs.batch.subtask import JobFacts, context_of, wall_clock_ms
from spark_jobs.batch.wire import WireSchema, row_sum
from spark_jobs.session import current_task

_ROW_COLUMN: Final = ":row"

#: The result of a sink task: sink, attempt, number of rows, and the committables as JSON.
SINK_RESULT_SCHEMA: Final = pa.schema(
    [("sink", pa.string()), ("attempt", pa.int64()), ("rows", pa.int64()), ("committables", pa.string())]
)


class Tail(ABC):
    """Receives the output of the last operator, for Spark or for a sink."""

    def __init__(self) -> None:
        self._ready: list[pa.RecordBatch] = []
        self.watermark = MIN_WATERMARK  #: of the source at the head of the stage, before the current batch

    @abstractmethod
    def emit(self, batch: pa.RecordBatch) -> None: ...

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        """Emits to a side output. By default the rows are dropped, as no step reads them."""

    @abstractmethod
    def finish(self) -> None: ...

    def close(self) -> None:
        """Releases resources; by default there are none."""

    def take_ready(self) -> list[pa.RecordBatch]:
        """The batches to pass to Spark now."""
        ready, self._ready = self._ready, []
        return ready


class Emitter(Tail):
    """Emits rows for a later stage, with their owner, hash and event time.

    Rows without a hash have the watermark of their source in place of the event time.
    """

    def __init__(self, emit: EmitRows, index: int, tally: RowCounter) -> None:
        super().__init__()
        self._emit, self._index, self._tally = emit, index, tally
        self._pre_aggregator = None if emit.pre_aggregation is None else emit.pre_aggregation.create()
        self._streams = dict(emit.outputs)
        self._emitted_rows = 0

    def emit(self, batch: pa.RecordBatch) -> None:
        self.emit_to("", batch)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        stream = self._streams.get(output)
        if stream is None:  # no step reads it
            return
        if self._emit.late_rule is not None:
            self._refuse_late_rows(self._emit.late_rule, batch)
        if self._pre_aggregator is None:
            self._add(stream, batch)
            return
        for part in self._call("process", self._pre_aggregator.add, batch):
            self._add(stream, part)
        for part in self._call("process", self._pre_aggregator.advance, self.watermark):
            self._add(stream, part)

    def finish(self) -> None:
        if self._pre_aggregator is not None:
            (stream,) = self._streams.values()
            for part in self._call("process", self._pre_aggregator.flush):
                self._add(stream, part)

    def _call(self, hook: str, function: Callable[..., Any], *args: Any) -> Any:
        """Calls `function`. Its errors name the operator that gets the rows."""
        return call_hook(self._emit.target, self._index, hook, function, *args)

    def _add(self, stream: WireSchema, batch: pa.RecordBatch) -> None:
        owners, hashes = self._owners_and_hashes(batch)
        times: Any = self.watermark
        if self._emit.exchange is ExchangeKind.HASH:
            time = self._emit.time
            times = 0 if time is None else self._call("process", event_times_ms, batch, time)
        rows = stream.encode(batch, owners, hashes, times, self._index, self._emitted_rows, self._emit.branch)
        self._ready.append(self._emit.frame.with_all_columns(rows))
        self._emitted_rows += batch.num_rows
        self._tally.count_written(stream.number, row_sum(rows, rows.columns[-len(stream.carriers) :]))

    def _owners_and_hashes(self, batch: pa.RecordBatch) -> tuple[Any, Any]:
        emit = self._emit
        match emit.exchange:
            case ExchangeKind.KEPT:
                return self._index % emit.owners if emit.owners else self._index, 0
            case ExchangeKind.HASH:
                hashes = hash_columns([batch.column(key) for key in emit.keys])
                groups = key_groups_of_hashes(hashes, emit.max_parallelism)
                return owners_of_groups(emit.max_parallelism, emit.owners)[groups], hashes.view(np.int64)
            case ExchangeKind.REBALANCE:
                return (self._index + self._emitted_rows + np.arange(batch.num_rows)) % emit.owners, 0
            case ExchangeKind.CUSTOM:
                return self._call("partition", self._custom_owners, batch), 0

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
        late_from = self._call("process", rule.late_from, batch)
        self._tally.count_late_from(int(late_from.min()))
        late = np.count_nonzero(late_from <= self.watermark)
        if late:
            behind = self.watermark - int(late_from.min())
            detail = (
                f"{late} rows of a batch are late, by up to {behind} ms: STREAMING drops such rows or sends them to "
                "late_to, so the answers would differ; give the source a larger max_disorder_ms"
            )
            raise late_rows_error(self._emit.target, detail)


class SinkWriter(Tail):
    """Writes a sink's rows to files named after this task attempt, which stay invisible until they are committed."""

    def __init__(self, write: WriteSink, job: JobFacts, tally: RowCounter) -> None:
        super().__init__()
        self._uid, self._attempt = write.uid, int(current_task().taskAttemptId())
        self._rows, self._tally = 0, tally
        context = context_of(job, write.uid, 0, 1, wall_clock_ms)
        context.index = self._attempt  # part of file names: no two attempts share a file
        self._writer = self._call("writer", write.sink.writer)
        self._call("open", self._writer.open, context)

    def emit(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._tally.count_sink_rows(batch.num_rows, self._uid)
        self._call("write", self._writer.write, with_schema(batch, nullable_schema(batch.schema)))  # as in STREAMING

    def finish(self) -> None:
        self._call("finish", self._writer.finish)
        committables = msgspec.json.encode(self._call("prepare", self._writer.prepare, 1)).decode()
        columns = [[self._uid], [self._attempt], [self._rows], [committables]]
        self._ready.append(pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=SINK_RESULT_SCHEMA))

    def close(self) -> None:
        self._call("close", self._writer.close)

    def _call(self, hook: str, function: Callable[..., Any], *args: Any) -> Any:
        return call_hook(self._uid, self._attempt, hook, function, *args)
