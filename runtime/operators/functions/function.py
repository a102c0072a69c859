"""What all row-wise functions of authors share: their hooks, what they may ask for, and the operator that drives them.

Everything runs on the subtask's loop, one thing at a time. A function gets its collector as an argument wherever it may
emit; there is none in `snapshot` and `close`, and one that was kept refuses.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, Generic, NoReturn, TypeVar

import pyarrow as pa

from runtime.core.snapshot.manifest import CommitPermit
from runtime.errors import JobRejected, WeirError
from runtime.operators.arguments import check_hooks
from runtime.operators.functions.batch import ROWS_PER_BATCH
from runtime.operators.functions.row_values import batch_of, rows_of
from runtime.ports import Collector, Operator, OperatorContext

Row = dict[str, Any]

RULES: Final = 1  #: the input of broadcast rows


class _Nowhere(list[Row]):
    """In place of the rows while no hook that may emit is being called, so that `emit` need not ask each time."""

    def append(self, row: Row) -> NoReturn:
        raise WeirError("output is refused outside of the hooks that are given a collector: it would be lost")


class RowCollector:
    """Where a function's rows go, as dicts; those of one call leave in batches, in their order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows: list[Row] = _Nowhere()
        self._target: Collector

    def emit(self, row: Row) -> None:
        """Gives out a row; columns that it lacks are null. It is taken as it is: do not change it afterwards.

        Raises:
            WeirError: no hook that may emit is being called: it would be lost.
        """
        rows = self._rows
        rows.append(row)
        if len(rows) >= ROWS_PER_BATCH:
            self._flush()

    @contextmanager
    def into(self, target: Collector) -> Iterator[None]:
        """Accepts rows, and sends them to `target`."""
        self._target, self._rows = target, []
        try:
            yield
            self._flush()
        finally:
            self._rows = _Nowhere()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._target.emit(batch_of(rows, self._schema))


class FunctionContext:
    """What every function may ask for. States are declared in `open`."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._alike = False  #: what is being handled, every subtask handles alike

    @property
    def index(self) -> int:
        """Of this subtask, from 0."""
        return self._context.index

    @property
    def parallelism(self) -> int:
        return self._context.parallelism

    @property
    def restored(self) -> bool:
        """Whether the states hold what a checkpoint had; false at a first start."""
        return self._context.restored

    def now_ms(self) -> int:
        """Processing time."""
        return self._context.now_ms()

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter that the console shows."""
        self._context.count(name, amount)

    def broadcast_map(self, name: str) -> "BroadcastState":
        """Entries that every subtask holds alike; written in `open` and `process_broadcast` only."""
        return BroadcastState(self, self._context.state.broadcast_map(name))

    @property
    def writes_alike(self) -> bool:
        return self._alike

    @contextmanager
    def alike(self) -> Iterator[None]:
        self._alike = True
        try:
            yield
        finally:
            self._alike = False


class BroadcastState(MutableMapping[Any, Any]):
    """Broadcast entries, read only where subtasks see different rows: else their copies would drift apart."""

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
        self._check()
        self._entries.clear()

    def _check(self) -> None:
        if not self._context.writes_alike:
            raise WeirError("broadcast state is written in open and process_broadcast only: copies would differ")


C = TypeVar("C", bound=FunctionContext)


def returned_rows(value: object) -> JobRejected:
    """The error for a hook that returned rows instead of emitting them: they would be lost."""
    detail = f"it returned {type(value).__name__}, which would be lost: emit rows with out.emit, and return nothing"
    return JobRejected("rows-returned", "process", detail)


class Function(ABC, Generic[C]):
    """The hooks of a row-wise function; one function per subtask. `out.emit` takes rows as dicts."""

    def open(self, context: C) -> None:
        """Declare state; it holds what was restored from then on."""

    def start(self, context: C, out: RowCollector) -> None:
        """Called once before the first row: what was restored and must precede it is emitted here."""

    @abstractmethod
    def process(self, row: Row, context: C, out: RowCollector) -> None:
        """Handle a row."""

    def on_timer(self, timestamp_ms: int, context: C, out: RowCollector) -> None:
        """A timer is due."""

    def snapshot(self, checkpoint: int) -> None:
        """Put what lies in memory into declared state. Nothing can be emitted."""

    def checkpoint_completed(self, checkpoint: int) -> None:
        """The checkpoint is durable. Called at most once per id, in order; ids may be skipped."""

    def checkpoint_aborted(self, checkpoint: int) -> None:
        """The checkpoint was given up. What was put into state for it goes with the next one."""

    def settle(self, context: C, out: RowCollector) -> None:
        """In a loop whose inputs have ended, again and again until nothing comes round: emit what is held back."""

    def end_input(self, input: int, context: C, out: RowCollector) -> None:
        """Input `input` (1: the broadcast rows) has truly ended."""

    def finish(self, context: C, out: RowCollector) -> None:
        """All inputs have truly ended: emit what is left. No output after this."""

    def close(self) -> None:
        """Free resources: called once, however the subtask ends, also when `open` failed."""


class HandlesBroadcast(ABC, Generic[C]):
    """What a function with a second, broadcast input does as well."""

    @abstractmethod
    def process_broadcast(self, row: Row, context: C, out: RowCollector) -> None:
        """Handle a broadcast row: every subtask gets it. Broadcast state is written here."""


class FunctionOperator(Operator, Generic[C]):
    """Drives a function.

    Args:
        function: for this subtask alone.
        schema: of the rows that come out.
    """

    def __init__(self, function: Function[C], schema: pa.Schema) -> None:
        check_hooks("function_factory", type(function))
        self._function = function
        self._schema = schema
        self._out = RowCollector(schema)
        self._context: C

    @abstractmethod
    def _made(self, context: OperatorContext) -> C:
        """The context of the function."""

    @abstractmethod
    def _rows(self, batch: pa.RecordBatch, out: Collector) -> None:
        """Hands rows of the main input to the function."""

    @property
    def function(self) -> Function[C]:
        return self._function

    def output_columns(self) -> pa.Schema:
        return self._schema

    def open(self, context: OperatorContext) -> None:
        self._context = self._made(context)
        with self._context.alike():
            self._function.open(self._context)

    def start(self, out: Collector) -> None:
        with self._out.into(out):
            self._function.start(self._context, self._out)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        if input == RULES:
            self._broadcast_rows(batch, out)
        else:
            self._rows(batch, out)

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

    def _broadcast_rows(self, batch: pa.RecordBatch, out: Collector) -> None:
        function = self._function
        assert isinstance(function, HandlesBroadcast), "only functions that handle broadcast rows have a second input"
        process: Callable[..., object] = function.process_broadcast
        with self._out.into(out), self._context.alike():
            for row in rows_of(batch):
                if (returned := process(row, self._context, self._out)) is not None:
                    raise returned_rows(returned)
