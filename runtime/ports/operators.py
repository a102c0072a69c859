"""Ports of an operator: its hooks, its context, its state and its output."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.job.ids import Token
from runtime.core.job.key_groups import key_group_range
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.ports.storage import SnapshotStore


class Collector(Protocol):
    """The output of an operator. `emit` and `emit_to` raise while state is captured, after `finish` and in `close`."""

    def emit(self, batch: pa.RecordBatch) -> None: ...
    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        """Emits to the side output of this name. Rows of a side output that no step reads are dropped."""


class ListState(Protocol):
    """Operator list state: JSON values.

    A list stays with its subtask at equal parallelism; a rescale redistributes it in contiguous chunks. A restore gives
    every subtask all entries of a union list.
    """

    def get(self) -> list[Any]:
        """A copy of the values of this subtask, in order."""

    def replace(self, values: Iterable[Any]) -> None:
        """Replaces all values of this subtask; usually in `snapshot`.

        Raises:
            JobRejected: a value is not JSON, has an integer beyond 64 bits or a lone surrogate, or would be restored
                as another type; the error names the state.
        """


class StateStore(Protocol):
    """All state of an operator subtask. States are declared in `open` and hold the restored values from then on."""

    def keyed_table(self, name: str, keys: pa.Schema, values: pa.Schema) -> Any: ...
    def object_table(self, name: str) -> Any: ...
    def list_state(self, name: str) -> ListState: ...
    def union_list_state(self, name: str) -> ListState: ...
    def broadcast_map(self, name: str) -> MutableMapping[Any, Any]: ...
    def broadcast_table(self, name: str) -> Any: ...
    def discard(self, prefix: str) -> None:
        """Drops restored states that are over: those whose names begin with `prefix`. They need no declaration."""


class Capture(Protocol):
    """The state copied at a barrier, unaffected by later changes."""

    def write(self, store: SnapshotStore, prefix: str) -> tuple[SubtaskSnapshot, int]:
        """Encodes and stores the state (background thread). Returns the handles and the bytes written.

        `prefix` is the folder for new files, relative to the job's storage root; unique to checkpoint, token and
        subtask.
        """

    def compact(self, store: SnapshotStore, prefix: str) -> None:
        """Compacts files after `write`, for later captures (background thread, low priority)."""


@dataclass(kw_only=True)
class OperatorContext:
    """The context of an operator subtask."""

    job: str
    uid: str
    index: int
    parallelism: int
    max_parallelism: int
    token: Token
    state: StateStore
    now_ms: Callable[[], int]
    restored: bool = False
    wake: Callable[[], None] = lambda: None  #: thread-safe: makes the host call `next_processing_timer` and `ready`
    refuses_late_rows: bool = False  #: a row that would be dropped as late fails the job; see `StatesDisorder`
    counters: dict[str, int] = field(default_factory=dict)  #: shown in the console, e.g. "late_records"

    @property
    def key_groups(self) -> range:
        return key_group_range(self.index, self.max_parallelism, self.parallelism)

    def count(self, name: str, amount: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + amount


class Operator(ABC):
    """A parallel instance of an operator. All hooks run on the subtask's own loop, never concurrently.

    Order of calls: open; start; any of process, on_watermark, on_processing_time and the snapshot hooks; at the end of
    all data only, end_input per input and finish once; close (always, even if open failed).
    """

    def open(self, context: OperatorContext) -> None:
        """Declares state and acquires resources. `context.restored`: whether state was restored."""

    def start(self, out: Collector) -> None:
        """Called once when the job runs, before the first batch: emit restored rows that must precede that batch."""

    @abstractmethod
    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        """Handles a batch of input number `input`."""

    def process_sorted(self, batch: pa.RecordBatch, out: Collector) -> None:
        """BATCH mode only, in place of `process`: rows of input 0, sorted by key, then by event time.

        The rows of a key are consecutive and may span several batches. No row is late. The only watermark follows the
        last row: an operator whose event timers must fire between two rows fires them itself.
        """
        self.process(0, batch, out)

    def process_sorted_inputs(
        self, batches: Sequence[pa.RecordBatch], inputs: npt.NDArray[np.int64], out: Collector
    ) -> None:
        """BATCH mode only, in place of `process_sorted` for a step with two streams, whose rows have one order.

        Args:
            batches: by input, its rows in order.
            inputs: the input of each row of the common order.
        """
        for number, batch in enumerate(batches):
            self.process(number, batch, out)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        """Event time has reached `watermark` (ms): fire the due timers. The watermark is forwarded after this call."""

    def ready(self, finishing: bool) -> bool:
        """Whether the operator accepts a batch now or, with `finishing`, the end of its last input. Called often.

        While False, a batch waits in its channel, and so does every message behind it, including barriers. At a stop,
        rows that upstream steps emit before the barrier arrive even while False: no timer fires any more, and the
        savepoint must contain these rows. The end of the last input waits without blocking barriers: until it arrives,
        snapshots are taken as before.
        """
        return True

    def open_results(self) -> Mapping[str, int]:
        """Numbers of results that are not final yet, for the console.

        The names are "windows", "panes", "sessions", "joined" (rows of open window joins), "timers" and "rows". A drain
        emits windows and sessions, fires timers, and commits rows. Called by the thread of the heartbeat.
        """
        return {}

    def watermark_hold(self) -> int | None:
        """The maximum watermark (ms) to forward while the operator buffers rows. None: no limit.

        Buffered rows must be in the state at a snapshot.
        """
        return None

    def next_processing_timer(self) -> int | None:
        """The time (wall clock, ms) of the next call of `on_processing_time`, or None. Called often."""
        return None

    def on_processing_time(self, now_ms: int, out: Collector) -> None:
        """Fires the timers that are due at `now_ms` (wall clock). Never called at or after `finish`."""

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: Collector) -> None:
        """Emits rows that must precede the barrier. Keep it short: the call delays the barrier downstream.

        Also called at barriers that follow `finish`, when output is refused: emit the last rows in `finish`.
        """

    def settle(self, out: Collector) -> None:
        """In a loop whose inputs have ended: emit buffered rows without further input.

        Called repeatedly until the loop has terminated. Rows that are emitted at the end of the input instead would
        enter a terminated loop, which fails the job.
        """

    def snapshot(self, checkpoint: int) -> None:
        """Writes buffered values to declared state. No output is possible here."""

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        """The checkpoint is durable. Called at most once per checkpoint id, in increasing order; ids may be skipped."""

    def checkpoint_aborted(self, checkpoint: int) -> None:
        """The checkpoint was aborted. Do not roll back: its prepared output is part of the next checkpoint."""

    def end_input(self, input: int, out: Collector) -> None:
        """All data of input `input` has been processed. Not called at a stop."""

    def finish(self, out: Collector) -> None:
        """All data of all inputs has been processed: emit the last rows. Not called at a stop."""

    def output_columns(self) -> pa.Schema | None:
        """The columns of every output batch; None: they depend on the input or on the data."""
        return None

    def committables(self) -> tuple[Any, ...]:
        """The prepared committables that are not known to be committed, as JSON values (sinks only)."""
        return ()

    def close(self) -> None:
        """Frees resources. May be called after a failed open."""
