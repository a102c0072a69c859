"""Ports of a source: its readers, and the optional abilities of a source."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.snapshot.commit import CommitPermit
from runtime.ports.operators import OperatorContext


class NumberedRows(NamedTuple):
    """Consecutive rows of a batch. `numbers`: of each row in `split`, from 1 on, ascending also between batches."""

    split: str
    numbers: npt.NDArray[np.int64]


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
        again before `watermark` is read (`core.subtask.batch_size`): such batches are sent as one.
        """

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether a bounded source has emitted all its records."""

    def watermark(self) -> int | None:
        """The watermark (ms) after the last polled batch; None while it is unknown.

        At the end of a bounded source it must not pass the last row by more: a live part may follow (`weir.then`).
        """
        return None

    @property
    def max_disorder_ms(self) -> int:
        """How far `watermark` stays behind the largest event time. Barriers wait for the pane of the newest rows."""
        return 0

    @property
    def idle(self) -> bool:
        """Whether event time advances without this reader until the reader has records again. Read after an empty poll.

        An idle subtask follows the watermark of its siblings (`core.subtask.idle_sources`). Records of a split that
        the reader knew while it was idle may be late. A reader that cannot bound the time of its next record is idle
        only if its settings request it. If `idle` is False, a reader without records holds event time back for ever.
        """
        return False

    @property
    def discoveries(self) -> int:
        """How often the reader has discovered splits of its own, such as new files. It never decreases."""
        return 0

    def look_for_splits(self) -> None:
        """Begin a look for new splits at the next poll, also while another look is in progress."""

    @property
    def has_looked(self) -> bool:
        """Whether the look that was requested last has ended. Its splits count in `discoveries`, and end `idle`."""
        return True

    @property
    def awaits_live(self) -> bool:
        """Whether a reader of two parts has emitted all its records of the first, and waits for `begin_live`."""
        return False

    def begin_live(self) -> None:
        """Begins the second part: every subtask has emitted its records of the first (`core.subtask.source_parts`)."""

    @property
    def numbered_rows(self) -> Sequence["NumberedRows"]:
        """The rows of the last polled batch, in their order, if the source numbers its rows; see `NumbersRows`."""
        return ()

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
class EmitsChangelog(Protocol):
    """A source whose column `op` marks rows that take back earlier rows, as `RunningAggregate` does."""

    @property
    def emits_changelog(self) -> bool: ...


@runtime_checkable
class StatesDisorder(Protocol):
    """A source whose settings state how far its rows are out of order.

    A bounded source that states nothing must be in order: its late rows fail the job, unless a step has `late_to`.
    """

    @property
    def max_disorder_ms(self) -> int | None: ...


@runtime_checkable
class ReadsAlone(Protocol):
    """A source whose input may have a single reader, such as a replication slot. A clone must not read beside the run.

    Otherwise several runs may read the input at a time.
    """

    @property
    def exclusive(self) -> bool: ...


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
class HasParts(Protocol):
    """A source that reads several sources, one after the other."""

    @property
    def parts(self) -> Mapping[str, Source]:
        """Argument name -> source, in the order of reading."""


@runtime_checkable
class RepeatsOrder(Protocol):
    """A source whose readers emit rows as they arrive, and can emit them in the same order each time, as BATCH needs.

    Spark repeats a lost task. A rebalance assigns rows by their number in the output of the task.
    """

    def in_order(self) -> Source:
        """A copy of the source whose readers emit the rows of an input in the same order each time."""


@runtime_checkable
class NumbersRows(Protocol):
    """A source that numbers its rows, so that subtasks downstream keep their state after a failure.

    A row has the same number each time it is read, however rows are divided into batches and whatever lies between
    them: `SourceReader.numbered_rows`. Splits may come in another order, rows of a split may not.
    """

    @property
    def numbers_rows(self) -> bool: ...


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
