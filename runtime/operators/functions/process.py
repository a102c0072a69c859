"""Row-wise functions without keys: state is list state and broadcast entries; timers are processing-time timers.

    class Heartbeat(ProcessFunction):
        # Forwards rows, and emits their number once a minute.

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
            if timestamp_ms == self.due:  # timers of the previous attempt were restored
                out.emit({"seen": self.seen})
                self.start(context, out)

        def snapshot(self, checkpoint):
            self.stored.replace([self.seen])

    stream.process("heartbeat", Heartbeat, schema)

State and timers belong to the subtask. A restore at another parallelism redistributes lists and timers, and gives every
subtask the whole union list. A union list has a price: while only some subtasks of the operator have finished, no
checkpoint completes. A savepoint or stop requested in this phase fails.
"""

import heapq
from collections.abc import Callable

import pyarrow as pa

from runtime.operators.functions.function import (
    Function,
    FunctionContext,
    FunctionOperator,
    HandlesBroadcast,
    returned_rows_error,
)
from runtime.operators.functions.row_values import add_row_note, rows_of
from runtime.operators.functions.timers import check_time
from runtime.ports import Collector, ListState, OperatorContext


class SubtaskContext(FunctionContext):
    """Services for a function without keys. States are declared in `open`.

    Checkpoints store a state under its name, and a restore finds it by its name: at most 64 letters, digits, `_`, `.`
    and `-`, unique within the step. The methods that declare a state raise JobRejected for another name.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._stored = context.state.list_state("_processing_timers")
        self._timers: list[int] = sorted(set(self._stored.get()))

    def list_state(self, name: str) -> ListState:
        """A list of JSON values; a restore redistributes them in contiguous parts over the subtasks."""
        return self._context.state.list_state(name)

    def union_list_state(self, name: str) -> ListState:
        """A list of JSON values; a restore gives every subtask the values of all subtasks."""
        return self._context.state.union_list_state(name)

    def register_processing_timer(self, timestamp_ms: int) -> None:
        """Registers a timer for a processing time. Timers pending at the end of the input do not fire.

        Args:
            timestamp_ms: milliseconds since the epoch, on the clock of `now_ms()`.

        Raises:
            TypeError: `timestamp_ms` is not an int.
            ValueError: `timestamp_ms` exceeds 64 bits.
        """
        check_time(timestamp_ms)
        if timestamp_ms not in self._timers:
            heapq.heappush(self._timers, timestamp_ms)

    # ------------------------------------------------------------ for the operator

    @property
    def next_timer_ms(self) -> int | None:
        """Processing time of the next timer; None without a timer."""
        return self._timers[0] if self._timers else None

    def take_due(self, now_ms: int) -> list[int]:
        """Removes and returns the timers up to and including `now_ms`, but no timers registered later."""
        timers = []
        while self._timers and self._timers[0] <= now_ms:
            timers.append(heapq.heappop(self._timers))
        return timers

    def store_timers(self) -> None:
        """Writes the pending timers to state."""
        self._stored.replace(sorted(self._timers))


class ProcessFunction(Function[SubtaskContext]):
    """Base class of an author's function without keys; each subtask has its own instance."""


class BroadcastProcessFunction(ProcessFunction, HandlesBroadcast[SubtaskContext]):
    """A function without keys, with a second input whose rows every subtask gets."""


class Process(FunctionOperator[SubtaskContext]):
    """Runs a function without keys over rows and timers."""

    def _create_context(self, context: OperatorContext) -> SubtaskContext:
        return SubtaskContext(context)

    def _process_rows(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        process = self._row_hooks[input]
        with self._out.into(out):
            for row in rows_of(batch):
                try:
                    if (returned := process(row, self._context, self._out)) is not None:
                        raise returned_rows_error(returned)
                except (Exception, SystemExit) as error:
                    add_row_note(error, row)
                    raise

    def next_processing_timer(self) -> int | None:
        return self._context.next_timer_ms

    def on_processing_time(self, now_ms: int, out: Collector) -> None:
        on_timer: Callable[..., object] = self._function.on_timer
        with self._out.into(out):
            for timestamp in self._context.take_due(now_ms):
                if (returned := on_timer(timestamp, self._context, self._out)) is not None:
                    raise returned_rows_error(returned)

    def snapshot(self, checkpoint: int) -> None:
        super().snapshot(checkpoint)
        self._context.store_timers()
