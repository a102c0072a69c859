"""Row-wise functions on streams without keys: lists and broadcast entries for state, and processing timers.

    class Heartbeat(ProcessFunction):
        # Passes rows on, and says once a minute how many there were.

        def open(self, context):
            self.stored = context.list_state("seen")
            self.seen = sum(self.stored.get())

        def start(self, context, out):
            self.due = context.now_ms() + 60_000
            context.register_processing_timer(self.due)

        def process(self, row, context, out):
            self.seen += 1
            out.emit(row)

        def on_timer(self, timestamp_ms, context, out):
            if timestamp_ms == self.due:  # the timers of the attempt before were restored
                out.emit({"seen": self.seen})
                self.start(context, out)

        def snapshot(self, checkpoint):
            self.stored.replace([self.seen])

    stream.process("heartbeat", Heartbeat, schema)

State and timers belong to the subtask. When a job is restored at another parallelism, lists and timers are dealt anew,
and a union list is given to all. A union list has a price: while some subtasks of the operator have finished and others
have not, no checkpoint completes, so a savepoint or a stop asked for then fails.
"""

import heapq
from collections.abc import Callable

import pyarrow as pa

from runtime.operators.functions.function import (
    Function,
    FunctionContext,
    FunctionOperator,
    HandlesBroadcast,
    returned_rows,
)
from runtime.operators.functions.row_values import note_row, rows_of
from runtime.operators.functions.timers import check_time
from runtime.ports import Collector, ListState, OperatorContext


class SubtaskContext(FunctionContext):
    """What a function without keys may ask for. States are declared in `open`."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._stored = context.state.list_state("_processing_timers")
        self._timers: list[int] = sorted(set(self._stored.get()))

    def list_state(self, name: str) -> ListState:
        """JSON values, dealt contiguously over the subtasks on restore."""
        return self._context.state.list_state(name)

    def union_list_state(self, name: str) -> ListState:
        """JSON values; on restore every subtask is given those of all."""
        return self._context.state.union_list_state(name)

    def register_processing_timer(self, timestamp_ms: int) -> None:
        """`on_timer` is called when the wall clock reaches it. Those still ahead when the input ends do not fire.

        Raises:
            TypeError: it is not a whole number.
            ValueError: it is too large for a snapshot.
        """
        check_time(timestamp_ms)
        if timestamp_ms not in self._timers:
            heapq.heappush(self._timers, timestamp_ms)

    # ------------------------------------------------------------ for the operator

    @property
    def next_timer_ms(self) -> int | None:
        return self._timers[0] if self._timers else None

    def due(self, now_ms: int) -> list[int]:
        """Takes out the timers up to and including `now_ms`; those that are set meanwhile wait for the next time."""
        found = []
        while self._timers and self._timers[0] <= now_ms:
            found.append(heapq.heappop(self._timers))
        return found

    def store_timers(self) -> None:
        self._stored.replace(sorted(self._timers))


class ProcessFunction(Function[SubtaskContext]):
    """What an author writes; one per subtask."""


class BroadcastProcessFunction(ProcessFunction, HandlesBroadcast[SubtaskContext]):
    """With a second input whose rows every subtask gets."""


class Process(FunctionOperator[SubtaskContext]):
    """Runs a function over rows and timers."""

    def _made(self, context: OperatorContext) -> SubtaskContext:
        return SubtaskContext(context)

    def _rows(self, batch: pa.RecordBatch, out: Collector) -> None:
        process: Callable[..., object] = self._function.process
        with self._out.into(out):
            for row in rows_of(batch):
                try:
                    if (returned := process(row, self._context, self._out)) is not None:
                        raise returned_rows(returned)
                except (Exception, SystemExit) as error:
                    note_row(error, row)
                    raise

    def next_processing_timer(self) -> int | None:
        return self._context.next_timer_ms

    def on_processing_time(self, now_ms: int, out: Collector) -> None:
        on_timer: Callable[..., object] = self._function.on_timer
        with self._out.into(out):
            for timestamp in self._context.due(now_ms):
                if (returned := on_timer(timestamp, self._context, self._out)) is not None:
                    raise returned_rows(returned)

    def snapshot(self, checkpoint: int) -> None:
        super().snapshot(checkpoint)
        self._context.store_timers()
