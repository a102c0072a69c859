"""Micro-batches: rows of many keys are emitted together, limited by number of rows and by waiting time.

Rows are emitted in the order of arrival, so the order within a key is kept. Buffered rows are keyed state: they are
restored with their key groups and emitted before new rows of their keys. With `flush_on_barrier`, buffered rows are
emitted before each barrier instead, so a snapshot holds none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.core.job.messages import MIN_WATERMARK
from runtime.errors import JobRejected
from runtime.operators.functions.batch import apply_function
from runtime.operators.functions.kept_rows import BufferedRows, concat_batches
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.index.hashing import key_groups
from runtime.state.own_memory import with_own_memory

BY_SIZE_COUNTER: Final = "batches_by_size"
BY_TIME_COUNTER: Final = "batches_by_time"
BY_BARRIER_COUNTER: Final = "batches_by_barrier"
BY_END_COUNTER: Final = "batches_by_end"  #: the end of the input, also in a loop
ROWS_COUNTER: Final = "batched_rows"  #: rows of all batches; the console divides it by the number of batches


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is emitted: at `max_rows` rows, or when the first row has waited `max_wait_ms`."""

    max_rows: int
    max_wait_ms: int | None  #: None: only when the batch is full, or at the end of the input
    flush_on_barrier: bool = False  #: also before each barrier

    def __post_init__(self) -> None:
        if self.max_rows < 1:
            raise JobRejected("bad-batch", "max_rows", f"a batch has at least 1 row, not {self.max_rows}")
        if self.max_wait_ms is not None and self.max_wait_ms < 0:
            raise JobRejected("bad-batch", "max_wait_ms", f"rows wait 0 ms or longer, not {self.max_wait_ms}")


class Batches(Operator):
    """Applies a function to batches.

    Args:
        keys: key columns.
        function: maps a record batch to a record batch; an empty result is not forwarded.
    """

    def __init__(
        self, keys: Sequence[str], function: Callable[[pa.RecordBatch], pa.RecordBatch], limits: BatchLimits
    ) -> None:
        self._keys = tuple(keys)
        self._function = function
        self._limits = limits
        self._buffer: list[pa.RecordBatch] = []
        self._rows = 0
        self._deadline_ms: int | None = None  #: when the first row of the buffer has waited `max_wait_ms`
        self._time = MIN_WATERMARK
        self._hold = MIN_WATERMARK  #: watermark when the first row of the buffer arrived

    @property
    def max_wait_ms(self) -> int | None:
        return self._limits.max_wait_ms

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._kept = BufferedRows(context.state.object_table("_buffered"))

    def start(self, out: Collector) -> None:
        for batch in self._kept.read():
            self._add(batch, out)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._add(batch, out)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._time = watermark

    def watermark_hold(self) -> int | None:
        return self._hold if self._rows else None

    def next_processing_timer(self) -> int | None:
        return self._deadline_ms if self._rows else None

    def on_processing_time(self, now_ms: int, out: Collector) -> None:
        self._emit_batch(BY_TIME_COUNTER, out)

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: Collector) -> None:
        if self._limits.flush_on_barrier and self._rows:
            self._emit_batch(BY_BARRIER_COUNTER, out)

    def snapshot(self, checkpoint: int) -> None:
        self._kept.replace(self._rows_by_group() if self._rows else {})

    def settle(self, out: Collector) -> None:
        if self._rows:
            self._emit_batch(BY_END_COUNTER, out)

    def finish(self, out: Collector) -> None:
        self.settle(out)

    # ------------------------------------------------------------ buffer

    def _add(self, batch: pa.RecordBatch, out: Collector) -> None:
        while batch.num_rows:
            if not self._rows:
                wait_ms = self._limits.max_wait_ms
                self._deadline_ms = None if wait_ms is None else self._context.now_ms() + wait_ms
                self._hold = self._time
            fitting = batch.slice(0, self._limits.max_rows - self._rows)
            batch = batch.slice(fitting.num_rows)
            self._buffer.append(fitting)
            self._rows += fitting.num_rows
            if self._rows == self._limits.max_rows:
                self._emit_batch(BY_SIZE_COUNTER, out)
        if self._buffer:  # the rest of a batch, or all of it
            self._buffer[-1] = with_own_memory(self._buffer[-1])

    def _emit_batch(self, cause: str, out: Collector) -> None:
        rows, self._buffer, self._rows = concat_batches(self._buffer).combine_chunks(), [], 0
        self._context.count(cause)
        self._context.count(ROWS_COUNTER, rows.num_rows)
        (batch,) = rows.to_batches()
        result = apply_function(self._function, batch)
        if result.num_rows:
            out.emit(result)

    def _rows_by_group(self) -> dict[int, pa.Table]:
        (batch,) = concat_batches(self._buffer).combine_chunks().to_batches()
        groups = key_groups(batch, self._keys, self._context.max_parallelism)
        return {
            int(group): pa.Table.from_batches([batch.filter(pa.array(groups == group))]) for group in np.unique(groups)
        }
