"""The ports of the runtime: operators, sources, sinks, stores, channels, the clock.

A port states the guarantees that the runtime needs. Each port has an in-memory implementation. A contract test runs
against the in-memory and the production implementation.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from runtime.core.job.ids import ChannelId, Token
from runtime.core.job.key_groups import key_group_range
from runtime.core.job.messages import Message
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.manifest import SubtaskSnapshot

# ---------------------------------------------------------------- operators


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
            JobRejected: a value is not JSON, or would be restored as another type; the error names the state.
        """


class StateStore(Protocol):
    """All state of an operator subtask. States are declared in `open` and hold the restored values from then on."""

    def keyed_table(self, name: str, keys: pa.Schema, values: pa.Schema) -> Any: ...
    def object_table(self, name: str) -> Any: ...
    def list_state(self, name: str) -> ListState: ...
    def union_list_state(self, name: str) -> ListState: ...
    def broadcast_map(self, name: str) -> MutableMapping[Any, Any]: ...
    def broadcast_table(self, name: str) -> Any: ...


class Capture(Protocol):
    """The state copied at a barrier, unaffected by later changes."""

    def write(self, store: "SnapshotStore", prefix: str) -> tuple[SubtaskSnapshot, int]:
        """Encodes and stores the state (background thread). Returns the handles and the bytes written.

        `prefix` is the folder for new files, relative to the job's storage root; unique to checkpoint, token and
        subtask.
        """

    def compact(self, store: "SnapshotStore", prefix: str) -> None:
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

    def on_watermark(self, watermark: int, out: Collector) -> None:
        """Event time has reached `watermark` (ms): fire the due timers. The watermark is forwarded after this call."""

    def ready(self, finishing: bool) -> bool:
        """Whether the operator accepts a batch now or, with `finishing`, the end of its last input. Called often.

        While False, the message waits in its channel, and so does every message behind it, including barriers. At a
        stop, rows that upstream steps emit before the barrier arrive even while False: no timer fires any more, and the
        savepoint must contain these rows.
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


# ---------------------------------------------------------------- sources


class SourceReader(ABC):
    """A parallel instance of a source. Its position is state that it declares in `open`.

    Beware of off-by-one errors: the position in state is that of the next record not yet emitted.
    """

    @abstractmethod
    def open(self, context: OperatorContext) -> None: ...

    @abstractmethod
    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """The next batch, or None if no row is available now; if `exhausted`, none will follow. Must not block.

        At most `max_rows` rows, or slightly more where rows must not be separated. After a small batch it may be called
        again before `watermark` is read (`core.subtask.coalescing`): such batches are sent as one.
        """

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether a bounded source has emitted all its records."""

    def watermark(self) -> int | None:
        """The watermark (ms) after the last polled batch; None while it is unknown."""
        return None

    @property
    def max_disorder_ms(self) -> int:
        """How far `watermark` stays behind the largest event time. Barriers wait for the pane of the newest rows."""
        return 0

    @property
    def idle(self) -> bool:
        """Whether event time advances without this reader until the reader has records again. Read after an empty poll.

        The records after an idle period may be late. A reader that cannot bound the time of its next record is idle
        only if its settings request it. If `idle` is False, a reader without records holds event time back for ever.
        """
        return False

    def snapshot(self, checkpoint: int) -> None:
        """Writes the positions to declared state."""

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        """The checkpoint is durable: records before its positions will never be read again."""

    def close(self) -> None:
        """Frees resources. May be called after a failed open."""


class Source(Protocol):
    """A source as a pipeline describes it; creates its readers. Must be serialisable by cloudpickle."""

    @property
    def bounded(self) -> bool: ...
    @property
    def guarantee(self) -> str:
        """The value of a `Guarantee`: the guarantee for each record under failures."""

    def reader(self) -> SourceReader: ...
    def check(self) -> None:
        """Raises JobRejected, naming the field, if a setting is invalid. Does no I/O."""


@runtime_checkable
class DescribesColumns(Protocol):
    """A source with columns that are known before it reads. Key columns are then checked at compile time."""

    def output_columns(self) -> pa.Schema | None:
        """The columns of every batch; None: known from the data only."""


@runtime_checkable
class LeavesOutColumns(Protocol):
    """A source that need not read columns that no step uses."""

    def with_used_columns(self, used: frozenset[str]) -> "Source":
        """The source without columns outside of `used`, as far as it can leave them out.

        The columns that remain keep their order and types. Its state must not depend on `used`.
        """


@runtime_checkable
class EncodesTexts(Protocol):
    """A source that can leave texts of few values dictionary-encoded (`state.encoded_texts`)."""

    def with_encoded_texts(self) -> "Source":
        """The source whose readers may emit encoded columns. Its state must not depend on it."""


@runtime_checkable
class KnowsEventTime(Protocol):
    """A source whose settings decide whether it emits watermarks. Otherwise its reader decides, by `watermark`."""

    @property
    def has_event_time(self) -> bool: ...


@runtime_checkable
class ListsInput(Protocol):
    """A source whose subtasks must agree on its input. The job master lists the input once, before the first attempt.

    The readers ignore the listing if their restored state holds one.
    """

    def list_input(self) -> bytes | None:
        """The input as it is now; None: the subtasks need no agreement. Does I/O.

        Raises:
            WeirError, OSError: the attempt fails, by the kind of the error.
        """

    def with_input(self, listing: bytes) -> Source:
        """A copy of the source that reads a listing of `list_input`."""


@runtime_checkable
class RepeatsOrder(Protocol):
    """A source whose readers emit rows as they arrive, and can emit them in the same order each time, as BATCH needs.

    Spark repeats a lost task. A rebalance assigns rows by their number in the output of the task.
    """

    def in_order(self) -> Source:
        """A copy of the source whose readers emit the rows of an input in the same order each time."""


@runtime_checkable
class ReleasesInput(Protocol):
    """A source that keeps its input until no retained checkpoint needs it."""

    def release(self, retained: Sequence[Mapping[str, Sequence[Any]]]) -> int:
        """Deletes input that no retained checkpoint needs; called repeatedly by the job master.

        Args:
            retained: for each retained checkpoint or savepoint with this source, the list states of its readers, by
                name, with the entries of all subtasks.

        Returns:
            The number of deleted pieces of input.

        Raises:
            OSError, EnvironmentFailure: storage failed; the next call continues.
        """


# ---------------------------------------------------------------- sinks


class SinkWriter(ABC):
    """First phase of two-phase commit. Each subtask of a sink has a writer."""

    @abstractmethod
    def open(self, context: OperatorContext) -> None: ...

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None: ...

    @abstractmethod
    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        """Makes the output since the last call durable, but not visible. Returns its committables (JSON values)."""

    def next_processing_timer(self) -> int | None:
        """The time (wall clock, ms) of the next call of `on_processing_time`, or None. Called often."""
        return None

    def on_processing_time(self, now_ms: int) -> None:
        """Acts on passed time, for example by closing a file without new rows. Never called after the last row."""

    def finish(self) -> None:
        """All rows have been written: the next `prepare` must return all output in progress. Not called at a stop."""

    def close(self) -> None:
        """Frees resources. Output in progress may be left behind; a later attempt cleans it."""


class SinkCommitter(ABC):
    """Second phase of two-phase commit. Any holder of a permit may repeat a call for the same committables.

    `list_states`: names of list states in which writers record output that stays in progress over checkpoints. Their
    entries are not committed, but `missing` and `clean` get them beside committables.
    """

    list_states: tuple[str, ...] = ()
    #: True: the job master commits the output of all subtasks together, by `commit`, and slots commit nothing.
    commits_in_master: bool = False

    @abstractmethod
    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Makes the committables visible. Returns the number that were not committed before.

        A repeated commit must succeed, even if a consumer has moved or deleted the committed output. The target must
        therefore record a commit before, or atomically with, making the output visible.

        Raises:
            EnvironmentFailure: a committable is neither pending nor committed, or storage failed.
        """

    def commit_epoch(self, permit: CommitPermit, committables: Sequence[Any]) -> None:
        """For a target that makes the output of a checkpoint visible atomically (Flink: `GlobalCommitter`).

        The job master calls it with the pending committables of all subtasks: after the checkpoint was recorded and
        before any subtask commits, and again at a restore. Calls follow the order of checkpoints; checkpoints may be
        skipped, and the last may be repeated. Committables may have been passed with an earlier checkpoint already.

        Raises:
            EnvironmentFailure: as `commit`.
        """
        if self.commits_in_master:
            self.commit(permit, committables)

    def missing(self, committables: Sequence[Any]) -> list[str]:
        """Files that are neither pending nor committed, as seen from this host."""
        return []

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        """Removes leftovers of the sink `uid` from attempts of `job` older than `token`. Returns the number removed.

        Leaves the output of other sinks in the same target. `keep`: committables and entries of retained manifests.
        """
        return 0


class Sink(Protocol):
    """A sink as a pipeline describes it; creates writers and committers. Must be serialisable by cloudpickle."""

    @property
    def guarantee(self) -> str:
        """The value of a `Guarantee`: the guarantee for each record under failures."""

    def writer(self) -> SinkWriter: ...
    def committer(self) -> SinkCommitter: ...
    def check(self) -> None:
        """Raises JobRejected, naming the field, if a setting is invalid. Does no I/O."""


@runtime_checkable
class ExpiringOutput(Protocol):
    """A sink whose target drops prepared output that is not committed in time."""

    @property
    def output_expires_ms(self) -> int | None:
        """Milliseconds from the first row after a barrier to the loss of the prepared output; None: never."""


@runtime_checkable
class ChecksColumns(Protocol):
    """A sink that knows which columns it can write."""

    def check_columns(self, columns: pa.Schema) -> None:
        """Raises JobRejected for columns that the sink cannot write. Called before the start, if they are known."""


@dataclass(frozen=True, slots=True)
class OutputEpoch:
    """The rows of a sink between two checkpoints.

    Args:
        source: identifies the sequence of epochs; a job that starts without a checkpoint has a new source.
        number: from 1, without gaps, in order.
        job, sink: the job and the uid of the sink.
        rows: number of rows.
    """

    source: str
    number: int
    job: str
    sink: str
    checkpoint: int
    rows: int


class EpochTarget(Protocol):
    """The target of a `WriteAheadSink`; used by the job master only. Must be serialisable by cloudpickle."""

    @property
    def guarantee(self) -> str:
        """The value of a `Guarantee`: for each record, if epochs are written again after a failure."""

    def check(self) -> None:
        """Raises JobRejected, naming the field, if a setting is invalid. Does no I/O."""

    def write_epoch(self, epoch: OutputEpoch, batches: Iterable[pa.RecordBatch]) -> None:
        """Writes the rows of an epoch. Epochs arrive in order, and each at least once.

        A repeated epoch has the same `source`, `number` and rows in the same order. An exactly-once target writes its
        rows once, also if a write was interrupted or if a master of an older attempt repeats an earlier epoch.

        Raises:
            EnvironmentFailure: a retry may help; the epoch is repeated until it is written.
            JobRejected, DataRejected: the target refuses permanently.
        """


@runtime_checkable
class EncodesRows(Protocol):
    """An `EpochTarget` whose rows are encoded in the slots, before the barrier of their checkpoint."""

    def row_encoder(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """For a writer: a function of arriving rows to the rows that are held, and passed to `write_epoch` later.

        The function raises JobRejected or DataRejected for rows that the target cannot take.
        """


@runtime_checkable
class DeliversEpochs(Protocol):
    """A sink whose committed epochs are delivered by a PySpark stage."""

    @property
    def max_backlog(self) -> int:
        """The number of undelivered epochs above which the sources of the job are paused."""

    def backlog(self) -> int:
        """The number of undelivered epochs. Does I/O."""


@runtime_checkable
class UsesFolders(Protocol):
    """A source or sink that reads or writes folders, local or on a file system that every host mounts."""

    def folders(self) -> Mapping[str, str]:
        """Argument name -> folder. Only these folders are checked against WEIR_DATA_ROOTS."""


# ---------------------------------------------------------------- PySpark stages


@dataclass(frozen=True, slots=True)
class StageFolders:
    """Folders that a source or sink shares with its PySpark stage.

    Args:
        columns: folder of the job version that caches the columns of DataFrames as Spark reported them.
        streams: folder of the run and of the runs whose checkpoints it continues; "" if unknown, as at compile time.
        inputs: folder like `streams`, for bounded sources.
    """

    columns: str
    streams: str = ""
    inputs: str = ""


@runtime_checkable
class BindsUid(Protocol):
    """A source or sink that derives its folders from the uid of its operator, when it is added to a dataflow."""

    def bind(self, uid: str, folders: StageFolders) -> Any:
        """A copy of the source or sink, with its folders."""


@runtime_checkable
class HasStandingStage(Protocol):
    """A source or sink with a PySpark stage that runs for the lifetime of the run."""

    @property
    def stage(self) -> str:
        """The argument VERB of `python -m spark_jobs stand` that selects the stage."""


# ---------------------------------------------------------------- storage


class SnapshotStore(Protocol):
    """Files below a job's storage root. A file exists completely and durably, or not at all."""

    def put(self, path: str, data: Iterable[bytes]) -> None:
        """Creates `path`: temporary name, fsync, rename, fsync of the folder. Replacing an existing file is allowed."""

    def get(self, path: str) -> bytes:
        """Raises CorruptState, naming the path, if the file is missing."""

    def get_range(self, path: str, offset: int, nbytes: int) -> bytes:
        """Up to `nbytes` from `offset`; fewer at the end of the file. Raises CorruptState as `get` does."""

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes files and the folders that become empty. A missing file counts as success."""

    def list(self, prefix: str) -> list[str]: ...
    def leftover_files(self) -> Sequence[str]:
        """Temporary files of killed writers, and of running ones."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""

    def monotonic_ms(self) -> float: ...


# ---------------------------------------------------------------- channels


class ExchangeListener(Protocol):
    """Receives the messages and credits of an exchange, on the exchange's threads. Must not block."""

    def on_message(self, channel: ChannelId, message: Message) -> None: ...
    def on_credit(self, channel: ChannelId, nbytes: int) -> None:
        """The receiver has consumed `nbytes` of `channel`, for which this slot is the sender."""

    def on_lost(self, channel: ChannelId, reason: str) -> None:
        """The channel failed before EndOfPartition, and with it the attempt."""


class Exchange(Protocol):
    """Channels between the slots of an attempt: reliable, FIFO, fenced by the attempt token.

    `send` and `grant` never block; the caller does flow control (credits). Messages are numbered per channel. A gap, or
    a close without EndOfPartition, is reported by `on_lost`; a repeated message is dropped.
    """

    @property
    def address(self) -> str: ...
    def connect(self, peers: dict[int, str]) -> None:
        """Sets the addresses of the other slots, by slot index."""

    def send(self, channel: ChannelId, target_slot: int, message: Message) -> None: ...
    def grant(self, channel: ChannelId, nbytes: int) -> None: ...
    def close(self) -> None: ...
