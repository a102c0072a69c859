"""Row-wise functions with state and timers per key.

    class Sessions(KeyedProcessFunction):
        # Counts the rows of a user between two pauses of more than a minute.

        def open(self, context):
            self.open_sessions = context.value_state("open")  # [first, last, count] of each session

        def process(self, row, context, out):
            at = context.timestamp
            near = [s for s in self.open_sessions.get() or [] if s[0] - 60_000 <= at <= s[1] + 60_000]
            far = [s for s in self.open_sessions.get() or [] if s not in near]
            joined = [min([at, *(s[0] for s in near)]), max([at, *(s[1] for s in near)]), 1 + sum(s[2] for s in near)]
            self.open_sessions.update([*far, joined])
            context.register_event_timer(joined[1] + 60_000)

        def on_timer(self, timestamp_ms, context, out):
            over = [s for s in self.open_sessions.get() or [] if s[1] + 60_000 == timestamp_ms]
            for first, last, count in over:
                out.emit({"user": context.current_key, "first": first, "count": count})
            self.open_sessions.update([s for s in self.open_sessions.get() or [] if s not in over])

    stream.key_by("user").process("sessions", Sessions, schema, time="at")

The order of rows and timers is defined only as far as the watermark determines it. Rows arrive out of order, so a row
may be processed before a timer whose time is earlier. `Sessions` gives the same result wherever the watermark falls,
because a row joins its session by its own time. A function that compares the timer with the last row only gives
different results from run to run, and between STREAMING and BATCH.

A batch is processed row by row within an operator: a row sees the state changes of the row before. All hooks run on the
subtask's loop, one at a time, so rows and timers of a key are never handled concurrently.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.job.messages import MAX_WATERMARK
from runtime.errors import JobRejected
from runtime.operators.event_time import event_times_ms
from runtime.operators.functions.function import (
    Function,
    FunctionContext,
    FunctionHooks,
    FunctionOperator,
    HandlesBroadcast,
    Row,
    returned_rows_error,
)
from runtime.operators.functions.keyed_state import CurrentKey, KeyAddress, KeyedListState, MapState, StateElements
from runtime.operators.functions.row_values import add_row_note, rows_of, values_of
from runtime.operators.functions.timers import Timer, Timers
from runtime.operators.functions.value_state import AggregatingState, ExpiringValueState, ReducingState, ValueState
from runtime.operators.output_tag import OutputTag
from runtime.operators.paired_keys import check_key_pairs
from runtime.ports import Collector, OperatorContext
from runtime.state.index.factorise import factorise
from runtime.state.index.hashing import key_groups
from runtime.state.index.key_codec import plain_type

SortedRow = tuple[Callable[..., object], Row, int | None]  #: its hook, the row, its event time in milliseconds

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


class ProcessContext(FunctionContext):
    """Services for a keyed function. States are declared in `open`; states and timers belong to the current key.

    Checkpoints store a state under its name, and a restore finds it by its name: at most 64 letters, digits, `_`, `.`
    and `-`, unique within the step. A restored state that is not declared, or is of another kind, ends the run.

    `ttl_ms` is a time to live: milliseconds of processing time since the last write, at least 1. An expired element is
    invisible, and is removed at the next snapshot at the latest. BATCH refuses a job with a time to live.

    The methods that declare a state raise JobRejected for an invalid or repeated name and for an invalid `ttl_ms`.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self.key = CurrentKey()
        self._cells: list[StateElements] = []
        self._values: list[ValueState] = []
        self._key_numbers: dict[KeyAddress, int] = {}  #: numbers of the keys of timers
        self._decoded_keys: dict[int, Any] = {}  #: decoded keys by number
        self.event_timers = Timers(context.state.object_table("_event_timers"), self.key)
        self.processing_timers = Timers(context.state.object_table("_processing_timers"), self.key)
        #: Milliseconds: event time of the row (None without a time column), or time of the timer.
        self.timestamp: int | None = None
        #: Event time (ms) of the step: the last watermark. None before the first watermark after a start or a restore,
        #: and before the end of the input in BATCH. A row behind it is late.
        self.watermark: int | None = None

    # ------------------------------------------------------------ states

    def value_state(self, name: str, *, ttl_ms: int | None = None) -> ValueState:
        """Declares a value per key. `ttl_ms` None: it does not expire."""
        cells = self._declare(name, ttl_ms)
        if ttl_ms is not None:
            return ExpiringValueState(cells)
        self._values.append(state := ValueState(cells))
        return state

    def list_state(self, name: str, *, ttl_ms: int | None = None) -> KeyedListState:
        """Declares a list per key. With a time to live, each element expires by itself."""
        return KeyedListState(self._declare(name, ttl_ms))

    def map_state(self, name: str, *, ttl_ms: int | None = None) -> MapState:
        """Declares a map per key. With a time to live, each entry expires by itself."""
        return MapState(self._declare(name, ttl_ms))

    def reducing_state(
        self, name: str, function: Callable[[Any, Any], Any], *, ttl_ms: int | None = None
    ) -> ReducingState:
        """Declares a state that reduces the values of a key to a single value.

        Args:
            function: gets the reduced value and a further value, and returns the new reduced value, for example `max`.
        """
        return ReducingState(self.value_state(name, ttl_ms=ttl_ms), function)

    def aggregating_state(
        self,
        name: str,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
        *,
        ttl_ms: int | None = None,
    ) -> AggregatingState:
        """Declares a state that aggregates the values of a key in an accumulator.

        Args:
            create: makes an empty accumulator, of the types that `ValueState.update` takes.
            add: gets the accumulator and a value, and returns the accumulator with the value added.
            result: computes the result from the accumulator.
        """
        return AggregatingState(self.value_state(name, ttl_ms=ttl_ms), create, add, result)

    # ------------------------------------------------------------ current key and timers

    @property
    def current_key(self) -> Any:
        """The value of the key column; a tuple of values if there are several key columns."""
        number = self.key.number
        try:
            return self._decoded_keys[number]
        except KeyError:
            values = _decode(self.key.get()[1])
            key = self._decoded_keys[number] = values[0] if len(values) == 1 else tuple(values)
            return key

    def register_event_timer(self, timestamp_ms: int) -> None:
        """Registers a timer of the current key: the next watermark that has reached its time calls `on_timer`.

        The same timer, registered again, fires once.

        Args:
            timestamp_ms: event time in milliseconds since the epoch (1970-01-01, UTC).

        Raises:
            TypeError: `timestamp_ms` is not an int.
            ValueError: `timestamp_ms` exceeds 64 bits.
            WeirError: there is no current key.
        """
        self.event_timers.register(timestamp_ms)

    def register_processing_timer(self, timestamp_ms: int) -> None:
        """Registers a timer of the current key for a processing time; otherwise as `register_event_timer`.

        Timers pending at the end of the input do not fire. BATCH refuses them.

        Args:
            timestamp_ms: milliseconds since the epoch, on the clock of `now_ms()`.
        """
        self.processing_timers.register(timestamp_ms)

    # ------------------------------------------------------------ for the operator

    @contextmanager
    def handling(self, keys: list[KeyAddress]) -> Iterator[None]:
        """Numbers `keys` for the rows or timers of the `with` body, which sets the key number before each of them."""
        self.key.keys = keys
        for state in self._values:
            state.begin_batch(len(keys))
        try:
            yield
        finally:
            for state in self._values:
                state.end_batch()
            self.key.keys, self.timestamp = [], None
            self._key_numbers, self._decoded_keys = {}, {}

    def set_timer_key(self, at: KeyAddress, timestamp: int) -> None:
        """Makes `at` the current key for a timer. The key may be new to this batch."""
        number = self._key_numbers.setdefault(at, len(self._key_numbers))
        if number == len(self.key.keys):
            self.key.keys.append(at)
            for state in self._values:
                state.add_key()
        self.key.number, self.timestamp = number, timestamp

    def remove_expired_elements(self) -> None:
        """Removes the expired elements of all states and keys."""
        for cells in self._cells:
            cells.remove_expired_elements()

    def _declare(self, name: str, ttl_ms: int | None) -> StateElements:
        table = self._context.state.object_table(name)
        cells = StateElements(table, self.key, self.now_ms, ttl_ms)
        self._cells.append(cells)
        return cells


@dataclass(frozen=True, slots=True)
class KeyedInput:
    """An input of a keyed operator: key columns, and the column of event times, if any."""

    keys: tuple[str, ...]
    time: str | None = None


class KeyedProcessFunction(Function[ProcessContext]):
    """Base class of an author's keyed function; each subtask has its own instance.

    Only `process` and `on_timer` have a current key.
    """


class KeyedBroadcastProcessFunction(KeyedProcessFunction, HandlesBroadcast[ProcessContext]):
    """A keyed function with a second input. Every subtask gets its rows, which have no current key."""


class KeyedProcess(FunctionOperator[ProcessContext]):
    """Runs a keyed function over rows and timers.

    Args:
        function: the function instance of this subtask.
        keys: key columns: text, binary, integers or booleans.
        schema: schema of the output rows.
        time: column of event times.
        side_outputs: further outputs.
        second: the second input of a function with two inputs.
    """

    def __init__(
        self,
        function: FunctionHooks[ProcessContext],
        keys: Sequence[str],
        schema: pa.Schema,
        time: str | None = None,
        side_outputs: Sequence[OutputTag] = (),
        second: KeyedInput | None = None,
    ) -> None:
        super().__init__(function, schema, side_outputs)
        first = KeyedInput(tuple(keys), time)
        self._inputs = (first,) if second is None else (first, second)
        self._checked_schemas: dict[int, pa.Schema] = {}  #: by input
        self._sorted_key: KeyAddress | None = None  #: key of the last row of sorted input

    @property
    def times(self) -> tuple[str | None, ...]:
        """By input, the column of event times."""
        return tuple(each.time for each in self._inputs)

    def open(self, context: OperatorContext) -> None:
        self._uid, self._groups = context.uid, context.max_parallelism
        super().open(context)

    def _create_context(self, context: OperatorContext) -> ProcessContext:
        return ProcessContext(context)

    def _process_rows(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        keys, which = self._keys_of(input, batch)
        times = self._times_of(input, batch)
        process = self._row_hooks[input]
        context, collector, key = self._context, self._out, self._context.key
        with collector.into(out), context.handling(keys):
            row = None
            try:
                for row, key.number, context.timestamp in zip(rows_of(batch), which, times):  # noqa: B905  # unbounded
                    if (returned := process(row, context, collector)) is not None:
                        raise returned_rows_error(returned)
            except (Exception, SystemExit) as error:
                add_row_note(error, row)
                raise

    def process_sorted(self, batch: pa.RecordBatch, out: Collector) -> None:
        """Processes rows sorted by key and time, as Flink does in BATCH. Timers of the current key only are queued.

        A timer fires before the first row of its key with a later time, and before the rows of the next key.
        """
        if batch.num_rows:
            keys, numbers = self._keys_of(0, batch)
            self._process_sorted_rows(keys, numbers, self._hooks_of(0, batch), out)

    def process_sorted_inputs(
        self, batches: Sequence[pa.RecordBatch], inputs: npt.NDArray[np.int64], out: Collector
    ) -> None:
        if not len(inputs):
            return
        common_numbers: dict[KeyAddress, int] = {}
        numbers = np.empty(len(inputs), np.int64)
        rows: dict[int, Iterator[SortedRow]] = {}
        for number, batch in enumerate(batches):
            if batch.num_rows:
                keys, numbers_of_input = self._keys_of(number, batch)
                common = np.array([common_numbers.setdefault(key, len(common_numbers)) for key in keys])
                numbers[inputs == number] = common[numbers_of_input]
                rows[number] = self._hooks_of(number, batch)
        ordered = (next(rows[number]) for number in inputs.tolist())
        self._process_sorted_rows(list(common_numbers), numbers.tolist(), ordered, out)

    def _hooks_of(self, input: int, batch: pa.RecordBatch) -> Iterator[SortedRow]:
        """By row: its hook, the row, and its event time."""
        return zip(repeat(self._row_hooks[input]), rows_of(batch), self._times_of(input, batch), strict=False)

    def _process_sorted_rows(
        self, keys: list[KeyAddress], numbers: list[int], rows: Iterator[SortedRow], out: Collector
    ) -> None:
        """Processes sorted rows; `numbers`: by row, the number of its key."""
        if self._sorted_key not in (None, keys[numbers[0]]):
            self._fire(self._context.event_timers.take_due(MAX_WATERMARK), out)
        self._sorted_key = keys[numbers[-1]]
        context, collector, key, timers = self._context, self._out, self._context.key, self._context.event_timers
        with collector.into(out), context.handling(keys):
            key.number = numbers[0]
            for number, (process, row, time) in zip(numbers, rows, strict=True):
                if (due := timers.next_ms) is not None:
                    if number != key.number:
                        self._fire_current(MAX_WATERMARK)
                    elif time is not None and due < time:
                        self._fire_current(time - 1)
                key.number, context.timestamp = number, time
                try:
                    if (returned := process(row, context, collector)) is not None:
                        raise returned_rows_error(returned)
                except (Exception, SystemExit) as error:
                    add_row_note(error, row)
                    raise

    def _fire_current(self, watermark: int) -> None:
        """Fires due timers of the current key between its rows."""
        on_timer: Callable[..., object] = self._function.on_timer
        for timestamp, _, _ in self._context.event_timers.take_due(watermark):
            self._context.timestamp = timestamp
            if (returned := on_timer(timestamp, self._context, self._out)) is not None:
                raise returned_rows_error(returned)

    def _times_of(self, input: int, batch: pa.RecordBatch) -> Iterable[int | None]:
        time = self._inputs[input].time
        return repeat(None) if time is None else event_times_ms(batch, time).tolist()

    def _keys_of(self, input: int, batch: pa.RecordBatch) -> tuple[list[KeyAddress], list[int]]:
        """Key group and key of each distinct key, and by row the number of its key.

        Raises:
            JobRejected: the type of a key column does not fit.
        """
        self._check_keys(input, batch.schema)
        names = self._inputs[input].keys
        columns = batch.select(list(names))
        distinct = factorise(columns.columns)
        once = columns.take(pa.array(distinct.first_rows))
        groups = key_groups(once, names, self._groups).tolist()
        keys = map(_encode, zip(*map(values_of, once.columns), strict=True))
        return list(zip(groups, keys, strict=True)), distinct.key_numbers.tolist()

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._context.watermark = watermark
        self._fire(self._context.event_timers.take_due(watermark), out)

    def open_results(self) -> Mapping[str, int]:
        return {"timers": len(self._context.event_timers)}

    def next_processing_timer(self) -> int | None:
        return self._context.processing_timers.next_ms

    def on_processing_time(self, now_ms: int, out: Collector) -> None:
        self._fire(self._context.processing_timers.take_due(now_ms), out)

    def snapshot(self, checkpoint: int) -> None:
        super().snapshot(checkpoint)
        self._context.remove_expired_elements()

    def _fire(self, due: Iterator[Timer], out: Collector) -> None:
        on_timer: Callable[..., object] = self._function.on_timer
        with self._out.into(out), self._context.handling([]):
            for timestamp, group, key in due:
                self._context.set_timer_key((group, key), timestamp)
                if (returned := on_timer(timestamp, self._context, self._out)) is not None:
                    raise returned_rows_error(returned)

    def _check_keys(self, input: int, schema: pa.Schema) -> None:
        if schema is self._checked_schemas.get(input):
            return
        for name in self._inputs[input].keys:
            kind = plain_type(schema.field(name).type)
            if not _can_be_key(kind):
                detail = f"a key of a process function must be text, binary, an integer or a boolean, not {kind}"
                raise JobRejected("bad-key-type", name, detail)
        self._checked_schemas[input] = schema
        if len(self._inputs) > 1:
            first, second = self._inputs
            schemas = self._checked_schemas
            check_key_pairs(self._uid, first.keys, second.keys, schemas.get(0), schemas.get(1))


def _can_be_key(kind: Any) -> bool:
    """Whether values of type `kind` are equal in Python exactly where their Arrow keys are, also after a restore."""
    return any(
        test(kind)
        for test in (
            pa.types.is_integer,
            pa.types.is_boolean,
            pa.types.is_null,
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
        )
    )
