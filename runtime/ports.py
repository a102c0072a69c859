"""The roles that the outside world plays: operators, sources, sinks, stores, channels, the clock.

A port states the guarantee it needs. Every one has an in-memory twin and a contract test that runs over the twin and
the real thing. This module knows Arrow batches, and no technology that stores or carries them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from runtime.core.job.ids import ChannelId, Token
from runtime.core.job.key_groups import range_of
from runtime.core.job.messages import Message
from runtime.core.snapshot.manifest import CommitPermit, SubtaskSnapshot

# ---------------------------------------------------------------- operators


class Collector(Protocol):
    """Where an operator's output goes; it refuses output while state is captured, after `finish` and in `close`."""

    def emit(self, batch: pa.RecordBatch) -> None: ...


class ListState(Protocol):
    """Operator list state: JSON values.

    A list stays with its subtask while the parallelism stays; a rescale redistributes it in contiguous chunks. Every
    subtask is given a union list whole.
    """

    def get(self) -> list[Any]: ...
    def replace(self, values: Iterable[Any]) -> None: ...


class StateStore(Protocol):
    """All state of one operator subtask. States are declared in `open` and hold what was restored from then on."""

    def keyed_table(self, name: str, keys: pa.Schema, values: pa.Schema) -> Any: ...
    def object_table(self, name: str) -> Any: ...
    def list_state(self, name: str) -> ListState: ...
    def union_list_state(self, name: str) -> ListState: ...
    def broadcast_map(self, name: str) -> MutableMapping[Any, Any]: ...
    def broadcast_table(self, name: str) -> Any: ...


class Capture(Protocol):
    """State copied at a barrier. Nothing that happens later shows in it."""

    def write(self, store: "SnapshotStore", prefix: str) -> tuple[SubtaskSnapshot, int]:
        """Encode and store it (background thread). Returns the handles and the bytes written.

        `prefix` is the folder for new files, relative to the job's storage root; unique to checkpoint, token and
        subtask.
        """

    def tidy(self, store: "SnapshotStore", prefix: str) -> None:
        """After a write: make few files of many, for later captures to name. In the background, and in no haste."""


@dataclass(kw_only=True)
class OperatorContext:
    """What an operator may know about itself and its surroundings."""

    job: str
    uid: str
    index: int
    parallelism: int
    max_parallelism: int
    token: Token
    state: StateStore
    now_ms: Callable[[], int]
    restored: bool = False
    wake: Callable[[], None] = lambda: None  #: from any thread: look at `next_processing_timer` and `ready` again
    counters: dict[str, int] = field(default_factory=dict)  #: shown in the console, e.g. "late_records"

    @property
    def key_groups(self) -> range:
        return range_of(self.index, self.max_parallelism, self.parallelism)

    def count(self, name: str, amount: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + amount


class Operator(ABC):
    """One parallel instance of an operator. All hooks run on the subtask's own loop, one at a time.

    Order of a life: open, start, then any of process / on_watermark / on_processing_time / the snapshot hooks, then (at
    a true end of data only) end_input per input and finish once, then close (always, even when open failed).
    """

    def open(self, context: OperatorContext) -> None:
        """Declare state and get ready. `context.restored` tells whether state was restored."""

    def start(self, out: Collector) -> None:
        """Called once when the job runs, before the first batch: emit what was restored and must precede it."""

    @abstractmethod
    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        """Handle a batch of input number `input`."""

    def process_sorted(self, batch: pa.RecordBatch, out: Collector) -> None:
        """BATCH mode only, in place of `process`: rows of input 0 in the order of their keys, then of event time.

        Keys come whole, several batches may hold one key, and no row is late. The watermark comes once, at the end: an
        operator whose event timers must fire between two rows fires them itself.
        """
        self.process(0, batch, out)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        """Event time has reached `watermark` (ms): fire what is due. It is forwarded after this returns."""

    def ready(self, finishing: bool) -> bool:
        """Whether it takes a batch now or, with `finishing`, the true end of its last input. Asked often.

        What is not taken waits in its channel, and so does what comes behind it: barriers too. So not for long.
        """
        return True

    def watermark_hold(self) -> int | None:
        """The event time (ms) beyond which the successors are not told of it, since rows from then are still inside.

        None: no limit. Rows that it holds back must be in the state at a snapshot.
        """
        return None

    def next_processing_timer(self) -> int | None:
        """When (wall clock, ms) `on_processing_time` wants to be called; None when it does not. Asked often."""
        return None

    def on_processing_time(self, now_ms: int, out: Collector) -> None:
        """The time of `next_processing_timer` has come: fire what is due. Never called at or after `finish`."""

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: Collector) -> None:
        """Last chance to emit what must precede the barrier. Keep it short: it delays everybody downstream."""

    def settle(self, out: Collector) -> None:
        """In a loop whose inputs have ended: emit whatever is held back, without need of further input.

        Called again and again until nothing comes round any more. What is emitted at the end of the input instead would
        come back into a loop that has ended.
        """

    def snapshot(self, checkpoint: int) -> None:
        """Put what lies in memory into declared state. There is no collector here: nothing can be emitted."""

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        """The checkpoint is durable. Called at most once per id, in order; ids may be skipped."""

    def checkpoint_aborted(self, checkpoint: int) -> None:
        """The checkpoint was given up. Nothing must be rolled back: what it prepared rides with the next one."""

    def end_input(self, input: int, out: Collector) -> None:
        """Input `input` has truly ended."""

    def finish(self, out: Collector) -> None:
        """All inputs have truly ended: emit what is left. No output after this."""

    def output_columns(self) -> pa.Schema | None:
        """The columns of every output batch; None: they follow from the input or from the data."""
        return None

    def committables(self) -> tuple[Any, ...]:
        """What is prepared and not yet known to be committed, as JSON values (sinks only)."""
        return ()

    def close(self) -> None:
        """Free resources. May be called after a failed open."""


# ---------------------------------------------------------------- sources


class SourceReader(ABC):
    """One parallel instance of a source. Its position is state that it declares in `open`.

    Beware of off-by-one: the position in state is that of the next record not yet emitted.
    """

    @abstractmethod
    def open(self, context: OperatorContext) -> None: ...

    @abstractmethod
    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """The next batch, or None when there is nothing now (or, with `exhausted`, ever). Must not wait."""

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """A bounded source has given out everything."""

    def watermark(self) -> int | None:
        """The watermark (ms) that is true after the last polled batch; None when not known yet."""
        return None

    @property
    def idle(self) -> bool:
        """Whether event time shall go on without this reader until it has records again.

        Asked after a poll that gave nothing. What it then gives may be late: a reader that cannot vouch for the time
        of its next record says so only if it was asked to. False holds event time back for ever where none is given.
        """
        return False

    def snapshot(self, checkpoint: int) -> None:
        """Put positions into declared state."""

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        """The checkpoint is durable: positions in it will never be read again."""

    def close(self) -> None:
        """Free resources. May be called after a failed open."""


class Source(Protocol):
    """What a pipeline names: describes a source and makes its readers. Must survive cloudpickle."""

    @property
    def bounded(self) -> bool: ...
    @property
    def guarantee(self) -> str:
        """A `core.graph.Guarantee`: what it promises of each record, whatever fails."""

    def reader(self) -> SourceReader: ...
    def check(self) -> None:
        """Refuse bad settings. Raises JobRejected naming the field. Touches nothing."""


@runtime_checkable
class DescribesColumns(Protocol):
    """A source that knows its columns before it reads. Key columns are then checked when the job is compiled."""

    def output_columns(self) -> pa.Schema | None:
        """The columns of every batch; None: known from the data only."""


@runtime_checkable
class KnowsEventTime(Protocol):
    """A source whose settings say whether it emits watermarks. Of others its reader tells: has it a `watermark`?"""

    @property
    def has_event_time(self) -> bool: ...


@runtime_checkable
class ReleasesInput(Protocol):
    """A source that keeps its input until no retained checkpoint needs it."""

    def release(self, retained: Sequence[Mapping[str, Sequence[Any]]]) -> int:
        """Deletes input that no retained checkpoint needs; called by the job master, again and again.

        Args:
            retained: for each retained checkpoint or savepoint that knows the source, the list states of its readers,
                by name, with the entries of all subtasks.

        Returns:
            How many pieces of input were deleted.

        Raises:
            OSError, EnvironmentFailure: storage failed; the next call goes on.
        """


# ---------------------------------------------------------------- sinks


class SinkWriter(ABC):
    """First phase of two-phase commit, one per subtask."""

    @abstractmethod
    def open(self, context: OperatorContext) -> None: ...

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None: ...

    @abstractmethod
    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        """Close what was written since the last call: durable, invisible, ready. Returns committables (JSON values)."""

    def close(self) -> None:
        """Free resources; in-progress output may stay behind and is cleaned by a later attempt."""


class SinkCommitter(ABC):
    """Second phase. Every method may be called again for the same committables, by anybody who holds a permit."""

    @abstractmethod
    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Make them visible; those already committed count as success. Returns how many were newly made visible.

        Committed ones may be gone again: a consumer may have moved or deleted them. Repeats must succeed all the same,
        so the target records a commit before, or in the same act as, it shows the output.

        Raises:
            EnvironmentFailure: a committable is neither pending nor committed, or storage failed.
        """

    def commit_epoch(self, permit: CommitPermit, committables: Sequence[Any]) -> None:
        """For a target that shows the output of a checkpoint all at once (Flink: `GlobalCommitter`).

        The job master calls it, with what every subtask has prepared and not yet seen committed: after the checkpoint
        was recorded and before any subtask commits, and again at a restore. Checkpoints come in order, some are left
        out, and the last one may come again. Some committables may have come with an earlier checkpoint.

        Raises:
            EnvironmentFailure: as `commit`.
        """

    def missing(self, committables: Sequence[Any]) -> list[str]:
        """Files of these committables that are neither pending nor committed, as seen from this host."""
        return []

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        """Remove what attempts of `job` older than `token` left of the sink `uid`. Returns how many.

        `keep` are the committables of this sink that a retained manifest names. Another sink of the job may write to
        the same target: its leftovers are cleaned by a call of its own.
        """
        return 0


class Sink(Protocol):
    """What a pipeline names: makes writers and committers. Must survive cloudpickle."""

    @property
    def guarantee(self) -> str:
        """A `core.graph.Guarantee`: what it promises of each record, whatever fails."""

    def writer(self) -> SinkWriter: ...
    def committer(self) -> SinkCommitter: ...
    def check(self) -> None:
        """Refuse bad settings. Raises JobRejected naming the field. Touches nothing."""


@runtime_checkable
class DeliversEpochs(Protocol):
    """A sink whose committed epochs wait for a PySpark stage to deliver them."""

    @property
    def max_backlog(self) -> int:
        """While more epochs wait, the sources of the job are not read."""

    def backlog(self) -> int:
        """Epochs that wait. Does I/O."""


@runtime_checkable
class UsesFolders(Protocol):
    """A source or sink that reads or writes folders of this machine, or of a file system that every host mounts."""

    def folders(self) -> Mapping[str, str]:
        """Every folder by the name of the argument that gave it. Only these are checked against WEIR_DATA_ROOTS."""


# ---------------------------------------------------------------- PySpark stages


@dataclass(frozen=True, slots=True)
class StageFolders:
    """Folders that a source or sink shares with its PySpark stage.

    Args:
        columns: of the job version; where Spark was asked for the columns of a DataFrame, they are kept there.
        streams: of the run and of those whose checkpoints it continues; "": none yet, as when a version is compiled.
        inputs: as `streams`, for bounded sources.
    """

    columns: str
    streams: str = ""
    inputs: str = ""


@runtime_checkable
class BoundByUid(Protocol):
    """A source or sink that finds its folders by the uid of its operator, once a pipeline adds it to a dataflow."""

    def bound(self, uid: str, folders: StageFolders) -> Any:
        """The same source or sink, with its folders."""


@runtime_checkable
class HasStandingStage(Protocol):
    """A source or sink beside which a PySpark stage stands for as long as the run lasts."""

    @property
    def stage(self) -> str:
        """The verb of `python -m spark_jobs stand` that runs the stage."""


# ---------------------------------------------------------------- storage


class SnapshotStore(Protocol):
    """Bytes under one job's storage root. A file exists wholly and durably, or not at all."""

    def put(self, path: str, data: Iterable[bytes]) -> None:
        """Create `path`: temporary name, fsync, rename, fsync of the folder. Replacing an existing file is allowed."""

    def get(self, path: str) -> bytes:
        """Raises CorruptState, naming the path, if it is not there."""

    def get_range(self, path: str, offset: int, nbytes: int) -> bytes:
        """Up to `nbytes` from `offset`: fewer where the file ends. Raises CorruptState as `get` does."""

    def delete(self, paths: Iterable[str]) -> None:
        """Those already gone count as success; folders left empty go too."""

    def list(self, prefix: str) -> list[str]: ...
    def unfinished(self) -> Sequence[str]:
        """What writers that were killed left behind. Those of living writers are among them."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""

    def monotonic_ms(self) -> float: ...


# ---------------------------------------------------------------- channels


class ExchangeListener(Protocol):
    """Told by an exchange, from its own threads, about what arrives. Must not block."""

    def arrived(self, channel: ChannelId, message: Message) -> None: ...
    def credited(self, channel: ChannelId, nbytes: int) -> None:
        """The receiver has consumed `nbytes` of `channel`, for which this slot is the sender."""

    def lost(self, channel: ChannelId, reason: str) -> None:
        """The channel broke before EndOfPartition. The attempt has failed."""


class Exchange(Protocol):
    """Channels between the slots of one attempt: reliable, FIFO, fenced by the attempt token.

    `send` and `grant` never block; flow control is the caller's (credits). Messages are numbered per channel: a gap or
    a close without EndOfPartition is `lost`, a repeat is dropped.
    """

    @property
    def address(self) -> str: ...
    def connect(self, peers: dict[int, str]) -> None:
        """Addresses of the other slots, by slot index."""

    def send(self, channel: ChannelId, target_slot: int, message: Message) -> None: ...
    def grant(self, channel: ChannelId, source_slot: int, nbytes: int) -> None: ...
    def close(self) -> None: ...
