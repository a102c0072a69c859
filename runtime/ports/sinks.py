"""Ports of a sink: its writers and committers, its target, and the optional abilities of a sink."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.ports.operators import OperatorContext


class SinkWriter(ABC):
    """First phase of two-phase commit. Each subtask of a sink has a writer."""

    @abstractmethod
    def open(self, context: OperatorContext) -> None: ...

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None: ...

    @abstractmethod
    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        """Makes the output since the last call durable, but not visible.

        Returns:
            Its committables: JSON values, as list state takes them. Other values end the attempt.
        """

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
class WritesAtOnce(Protocol):
    """A sink that can write rows to their target before the checkpoint, and then without a second phase."""

    @property
    def is_immediate(self) -> bool: ...


@runtime_checkable
class HasIndependentWriters(Protocol):
    """A sink whose writers need not restart together; without it, a failure restarts all of them.

    A new writer leaves the writers of its siblings alone, which may be of older attempts. What a lost writer leaves
    behind blocks neither them nor readers until `SinkCommitter.clean`.
    """

    @property
    def has_independent_writers(self) -> bool: ...


@runtime_checkable
class ChecksColumns(Protocol):
    """A sink that knows which columns it can write."""

    def check_columns(self, columns: pa.Schema) -> None:
        """Raises JobRejected for columns that the sink cannot write. Called before the start, if they are known."""


@runtime_checkable
class ErrorPolicy(Protocol):
    """The policy of a step for rows for which its code raises: each goes to `sink()` as a dead letter."""

    @property
    def max_per_minute(self) -> int:
        """The number of dead letters of a subtask within a minute; one more fails the job."""

    def sink(self) -> Sink: ...


@runtime_checkable
class HoldsDeadLetters(Protocol):
    """A sink of dead letters in a folder that the console can read."""

    @property
    def dead_letter_folder(self) -> str: ...


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
