"""Row-wise functions of authors: their hooks, their context, and the operator that calls them.

All hooks run on the subtask's loop, one at a time. A hook that may emit gets the collector as an argument. `snapshot`
and `close` get none, and a collector kept from an earlier hook refuses rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, NoReturn, TypeVar

import pyarrow as pa

from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import JobRejected, WeirError
from runtime.operators.arguments import check_hooks
from runtime.operators.functions.batch import MAX_ROWS_PER_BATCH
from runtime.operators.functions.row_values import batch_of, rows_of
from runtime.operators.output_tag import OutputTag, unknown_output_error
from runtime.ports import Collector, Operator, OperatorContext

Row = dict[str, Any]

BROADCAST_INPUT: Final = 1  #: number of the input with broadcast rows


class _ClosedRows(list[Row]):
    """The row list of a `RowCollector` outside hooks that may emit: `emit` then needs no check per row."""

    def append(self, row: Row) -> NoReturn:
        raise WeirError("emit was called outside a hook that gets a collector: the row would be lost")


class RowCollector:
    """Collects the output rows (dicts) of a function and emits them in batches, in order."""

    def __init__(self, schema: pa.Schema, side_outputs: Sequence[OutputTag] = ()) -> None:
        self._schema = schema
        self._rows: list[Row] = _ClosedRows()
        self._side_schemas = {tag.name: tag.schema for tag in side_outputs}
        self._side_rows: dict[str, list[Row]] = {tag.name: _ClosedRows() for tag in side_outputs}
        self._target: Collector

    def emit(self, row: Row) -> None:
        """Emits a row; missing columns are null. The row is not copied: do not change it afterwards.

        Raises:
            WeirError: no hook that may emit is running: the row would be lost.
        """
        rows = self._rows
        rows.append(row)
        if len(rows) >= MAX_ROWS_PER_BATCH:
            self._flush()

    def emit_to(self, tag: OutputTag, row: Row) -> None:
        """Emits a row to a side output; as `emit` otherwise.

        Raises:
            WeirError: as `emit`.
            JobRejected: the step does not declare this side output.
        """
        rows = self._side_rows.get(tag.name)
        if rows is None:
            raise unknown_output_error("side_outputs", tag.name, self._side_schemas)
        rows.append(row)
        if len(rows) >= MAX_ROWS_PER_BATCH:
            self._flush_to(tag.name)

    @contextmanager
    def into(self, target: Collector) -> Iterator[None]:
        """Accepts rows within the `with` body, and emits them to `target`."""
        self._target, self._rows = target, []
        for name in self._side_rows:
            self._side_rows[name] = []
        try:
            yield
            self._flush()
            for name in self._side_rows:
                self._flush_to(name)
        finally:
            self._rows = _ClosedRows()
            for name in self._side_rows:
                self._side_rows[name] = _ClosedRows()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._target.emit(batch_of(rows, self._schema))

    def _flush_to(self, name: str) -> None:
        rows, self._side_rows[name] = self._side_rows[name], []
        if rows:
            self._target.emit_to(name, batch_of(rows, self._side_schemas[name]))


class FunctionContext:
    """Services for every function. States are declared in `open`."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._allows_broadcast_writes = False  #: whether the current hook runs identically on every subtask

    @property
    def index(self) -> int:
        """Index of this subtask, from 0."""
        return self._context.index

    @property
    def parallelism(self) -> int:
        """Number of subtasks of this step."""
        return self._context.parallelism

    @property
    def restored(self) -> bool:
        """Whether the states were restored from a checkpoint; false at a first start."""
        return self._context.restored

    def now_ms(self) -> int:
        """Processing time: milliseconds since the epoch (1970-01-01, UTC)."""
        return self._context.now_ms()

    def count(self, name: str, amount: int = 1) -> None:
        """Adds `amount` to the counter `name`, which the console shows for the step."""
        self._context.count(name, amount)

    def broadcast_map(self, name: str) -> "BroadcastState":
        """Declares entries that are identical on every subtask; see `BroadcastState`.

        Raises:
            JobRejected: the name is invalid or taken, or a table of rows was restored under it.
        """
        return BroadcastState(self, self._context.state.broadcast_map(name))

    @property
    def allows_broadcast_writes(self) -> bool:
        """Whether the current hook may write broadcast state."""
        return self._allows_broadcast_writes

    @contextmanager
    def allow_broadcast_writes(self) -> Iterator[None]:
        """Allows writes of broadcast state in the `with` body."""
        self._allows_broadcast_writes = True
        try:
            yield
        finally:
            self._allows_broadcast_writes = False


class BroadcastState(MutableMapping[Any, Any]):
    """Broadcast entries, used like a dictionary: str, int or bytes as keys, values as for `ValueState.update`.

    Only `open` and `process_broadcast` may write them, and a write in another hook raises WeirError. The rows of other
    hooks differ between subtasks, so the copies would diverge.
    """

    def __init__(self, context: FunctionContext, entries: MutableMapping[Any, Any]) -> None:
        self._context = context
        self._entries = entries

    def __getitem__(self, key: Any) -> Any:
        return self._entries[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check()
        self._entries[key] = value

    def __delitem__(self, key: Any) -> None:
        self._check()
        del self._entries[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Removes all entries."""
        self._check()
        self._entries.clear()

    def _check(self) -> None:
        if not self._context.allows_broadcast_writes:
            raise WeirError("broadcast state is written in open and process_broadcast only: copies would differ")


C = TypeVar("C", bound=FunctionContext)


def returned_rows_error(value: object) -> JobRejected:
    """The error for a hook that returned rows instead of emitting them."""
    detail = f"it returned {type(value).__name__}, which would be lost: emit rows with out.emit, and return nothing"
    return JobRejected("rows-returned", "process", detail)


class FunctionHooks(ABC, Generic[C]):
    """The hooks of every row-wise function; each subtask has its own instance. `out.emit` takes rows as dicts."""

    def open(self, context: C) -> None:
        """Declares states. Declared states hold the restored values."""

    def start(self, context: C, out: RowCollector) -> None:
        """Called once before the first row. Emit restored rows that must precede new rows."""

    def on_timer(self, timestamp_ms: int, context: C, out: RowCollector) -> None:
        """Handles a due timer."""

    def prepare_snapshot_pre_barrier(self, checkpoint: int, context: C, out: RowCollector) -> None:
        """Emits rows that belong to `checkpoint`, before its barrier. Keep it short: the barrier waits for it.

        A function that buffers rows may emit them here instead of storing them in `snapshot`. It emits the last rows in
        `finish`; the barrier of the last checkpoint follows, and emitting is then refused.
        """

    def snapshot(self, checkpoint: int) -> None:
        """Writes values held in memory to declared states. Emitting is refused: the rows would be lost."""

    def checkpoint_completed(self, checkpoint: int) -> None:
        """Called when the checkpoint is durable, at most once per id and in order; ids may be skipped."""

    def checkpoint_aborted(self, checkpoint: int) -> None:
        """Called when the checkpoint was aborted. State written for it becomes part of the next checkpoint."""

    def settle(self, context: C, out: RowCollector) -> None:
        """Emits buffered rows. Called repeatedly in a loop whose inputs have ended, until no rows circulate."""

    def end_input(self, input: int, context: C, out: RowCollector) -> None:
        """Called when input `input` (1: the broadcast rows, or the second stream) has ended. Not called at a stop."""

    def finish(self, context: C, out: RowCollector) -> None:
        """Emits the remaining rows when all inputs have ended: the last output. Not called when the job stops."""

    def close(self) -> None:
        """Frees resources. Called exactly once, however the subtask ends, also after a failed `open`."""


class Function(FunctionHooks[C]):
    """A function with one main input."""

    @abstractmethod
    def process(self, row: Row, context: C, out: RowCollector) -> None:
        """Handles a row."""


class CoFunction(FunctionHooks[C]):
    """A function with two main inputs, which share states and timers. Event time is the minimum of both inputs."""

    @abstractmethod
    def process1(self, row: Row, context: C, out: RowCollector) -> None:
        """Handles a row of the first stream."""

    @abstractmethod
    def process2(self, row: Row, context: C, out: RowCollector) -> None:
        """Handles a row of the second stream."""


class HandlesBroadcast(ABC, Generic[C]):
    """Additional hook of a function with a second, broadcast input."""

    @abstractmethod
    def process_broadcast(self, row: Row, context: C, out: RowCollector) -> None:
        """Handles a broadcast row, which every subtask gets. This hook may write broadcast state."""


class FunctionOperator(Operator, Generic[C]):
    """Runs a function.

    Args:
        function: the function instance of this subtask.
        schema: schema of the output rows.
        side_outputs: further outputs, for `RowCollector.emit_to`.
    """

    def __init__(self, function: FunctionHooks[C], schema: pa.Schema, side_outputs: Sequence[OutputTag] = ()) -> None:
        check_hooks("function_factory", type(function))
        self._function = function
        self._row_hooks = _row_hooks(function)  #: by main input
        self._schema = schema
        self._out = RowCollector(schema, side_outputs)
        self._context: C

    @abstractmethod
    def _create_context(self, context: OperatorContext) -> C:
        """The context for the function."""

    @abstractmethod
    def _process_rows(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        """Passes rows of a main input to the function."""

    @property
    def function(self) -> FunctionHooks[C]:
        return self._function

    def output_columns(self) -> pa.Schema:
        return self._schema

    def open(self, context: OperatorContext) -> None:
        self._context = self._create_context(context)
        with self._context.allow_broadcast_writes():
            self._function.open(self._context)

    def start(self, out: Collector) -> None:
        with self._out.into(out):
            self._function.start(self._context, self._out)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        if input == BROADCAST_INPUT and isinstance(self._function, HandlesBroadcast):
            self._process_broadcast_rows(batch, out)
        else:
            self._process_rows(input, batch, out)

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: Collector) -> None:
        with self._out.into(out):
            self._function.prepare_snapshot_pre_barrier(checkpoint, self._context, self._out)

    def snapshot(self, checkpoint: int) -> None:
        self._function.snapshot(checkpoint)

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        self._function.checkpoint_completed(permit.checkpoint)

    def checkpoint_aborted(self, checkpoint: int) -> None:
        self._function.checkpoint_aborted(checkpoint)

    def settle(self, out: Collector) -> None:
        with self._out.into(out):
            self._function.settle(self._context, self._out)

    def end_input(self, input: int, out: Collector) -> None:
        with self._out.into(out):
            self._function.end_input(input, self._context, self._out)

    def finish(self, out: Collector) -> None:
        with self._out.into(out):
            self._function.finish(self._context, self._out)

    def close(self) -> None:
        self._function.close()

    def _process_broadcast_rows(self, batch: pa.RecordBatch, out: Collector) -> None:
        function = self._function
        assert isinstance(function, HandlesBroadcast), "only functions that handle broadcast rows have a second input"
        process: Callable[..., object] = function.process_broadcast
        with self._out.into(out), self._context.allow_broadcast_writes():
            for row in rows_of(batch):
                if (returned := process(row, self._context, self._out)) is not None:
                    raise returned_rows_error(returned)


def _row_hooks(function: FunctionHooks[Any]) -> tuple[Callable[..., object], ...]:
    """The hooks for rows, by main input."""
    if isinstance(function, CoFunction):
        return function.process1, function.process2
    assert isinstance(function, Function), "a function has one main input or two"
    return (function.process,)
