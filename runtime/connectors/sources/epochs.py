"""Epochs of a standing PySpark stage as an unbounded, replayable source: the rows of `spark.readStream`.

The rows of an epoch are divided into `LANE_COUNT` contiguous shares. Each lane reads its share of every epoch, so its
position is (epoch, row). The lanes of a subtask are adjacent. Lane positions are entries of list state, which a rescale
redistributes in contiguous chunks. List state is stored in the manifest, so the job master knows which epochs the
retained checkpoints need.

The run starts the stage with the command-line verb `stream` (`spark_jobs.stages.stream`). This module does not import
Spark.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa

from runtime.connectors.epochs import EpochFolder, InputEpoch, no_stage_error, stage_folder
from runtime.connectors.formats import MalformedFile, ParquetFormat
from runtime.connectors.names import encode_name
from runtime.connectors.sources.event_clock import BoundedOutOfOrderness, EventClockReader, check_event_time
from runtime.core.job.key_groups import key_group_range
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.ports import OperatorContext, StageFolders

LANE_COUNT: Final = 64  #: maximum number of subtasks that read
POSITIONS_STATE: Final = "positions"  #: list state; an entry is [lineage, lane, epoch, row]
SCHEMA_SUFFIX: Final = ".schema"
MAX_BACKLOG: Final = 1_000
MAX_BACKLOG_BYTES: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class EpochSource:
    """Created by `spark_jobs.sources.from_spark_stream`, which documents the other arguments.

    Args:
        make: returns the streaming DataFrame; only the stage calls it.
        folder: folder of the stage; "" while unknown, for example when a version is compiled.
        lineage: id of the runs that share the epochs; a checkpoint of another lineage is refused.
        columns: columns of the DataFrame; None while unknown.
    """

    bounded: ClassVar[bool] = False
    guarantee: ClassVar[str] = "exactly-once"
    stage: ClassVar[str] = "stream"

    make: Callable[[Any], Any] | None = field(repr=False)
    event_time: str | None = None
    max_disorder_ms: int = 0
    idle_after_ms: int | None = None
    trigger_ms: int = 1_000
    max_backlog: int = MAX_BACKLOG
    max_backlog_bytes: int = MAX_BACKLOG_BYTES
    folder: str = ""
    lineage: str = ""
    columns: pa.Schema | None = None
    is_bound: bool = False

    def bind(self, uid: str, folders: StageFolders) -> "EpochSource":
        return replace(
            self,
            folder=stage_folder(folders.streams, uid),
            lineage=Path(folders.streams).name,
            columns=read_columns(folders.columns, uid),
            is_bound=True,
        )

    def __getstate__(self) -> dict[str, Any]:
        """The pickled state, without the author's function, which may close over a password: slots only read epochs."""
        return {**self.__dict__, "make": None}

    @property
    def has_event_time(self) -> bool:
        return self.event_time is not None

    def output_columns(self) -> pa.Schema | None:
        return self.columns

    def reader(self) -> "EpochReader":
        return EpochReader(self)

    def check(self) -> None:
        if not self.is_bound:
            raise no_stage_error("from_spark_stream")
        if not callable(self.make):
            raise JobRejected("bad-function", "make", f"must be a function of a SparkSession, not {self.make!r}")
        if self.idle_after_ms is not None and self.idle_after_ms < 1:
            raise JobRejected("bad-interval", "idle_after_ms", "must be at least 1 ms")
        if self.trigger_ms < 0:
            raise JobRejected("bad-interval", "trigger_ms", "must not be negative")
        for name in ("max_backlog", "max_backlog_bytes"):
            if getattr(self, name) < 1:
                raise JobRejected("bad-backlog", name, "must be at least 1")
        check_event_time(self.event_time, self.max_disorder_ms, self.columns)

    def release(self, retained: Sequence[Mapping[str, Sequence[Any]]]) -> int:
        """Deletes the epochs that no retained checkpoint needs; see `ports.ReleasesInput`."""
        entries = [entry for lists in retained for entry in lists.get(POSITIONS_STATE, ())]
        numbers = [int(epoch) for lineage, _, epoch, _ in entries if str(lineage) == self.lineage]
        return EpochFolder(self.folder).release(min(numbers)) if numbers else 0


def schema_file(columns: str, uid: str) -> Path:
    """The file with the columns of a DataFrame for a version: the job master reads them without Spark."""
    return Path(columns) / f"{encode_name(uid)}{SCHEMA_SUFFIX}"


def read_columns(columns: str, uid: str) -> pa.Schema | None:
    """The columns that the compile stage has stored; None if it has stored none yet."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(schema_file(columns, uid).read_bytes()))
    except FileNotFoundError:
        return None


@dataclass(slots=True)
class _Lane:
    """The position of a lane: its epoch and the next row, counted within the whole epoch."""

    number: int
    epoch: int
    row: int = 0  #: 0: the beginning of the lane's share


class EpochReader(EventClockReader):
    """Reads the lanes of a subtask, epoch by epoch."""

    def __init__(self, source: EpochSource) -> None:
        self._source = source
        self._folder = EpochFolder(source.folder)
        self._format = ParquetFormat(source.columns)
        self._lanes: list[_Lane] = []
        self._batches: Generator[tuple[pa.RecordBatch, int]] | None = None  #: with the number of the row after each
        self._rest: tuple[pa.RecordBatch, int] | None = None
        self._reading: list[_Lane] = []
        self._epoch: InputEpoch | None = None
        self._clock = BoundedOutOfOrderness(source.event_time, source.max_disorder_ms)
        self._idle_since: int | None = None
        self._recorded_epoch: int | None = None
        self._has_read = False
        self._discoveries = 0
        self._is_look_due = False

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._state = context.state.list_state(POSITIONS_STATE)
        restored = self._state.get()
        if restored or context.restored:
            self._lanes = [self._restore_lane(*entry) for entry in restored]
        else:
            lane_numbers = (
                key_group_range(context.index, LANE_COUNT, min(context.parallelism, LANE_COUNT))
                if context.index < LANE_COUNT
                else range(0)
            )
            self._lanes = [_Lane(number, 0) for number in lane_numbers]
        self._check_not_released_yet()
        self._record_position()

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        self._is_look_due = False  # each poll of a reader without rows at hand looks for its next epoch
        batch = self._next(max_rows) if self._lanes else None
        if batch is None:
            self._idle_since = self._context.now_ms() if self._idle_since is None else self._idle_since
            return None
        self._idle_since, self._has_read = None, True
        try:
            self._clock.on_batch(batch)
        except DataRejected as error:
            assert self._epoch is not None, "a share has been begun"
            raise DataRejected(f"{self._epoch.folder}: {error}") from error
        return batch

    @property
    def exhausted(self) -> bool:
        return False

    @property
    def idle(self) -> bool:
        """True if the subtask has no lanes, or no rows to read for `idle_after_ms`."""
        if not self._lanes:
            return True
        after_ms = self._source.idle_after_ms
        if self._idle_since is None or after_ms is None:
            return False
        return self._context.now_ms() - self._idle_since >= after_ms

    @property
    def discoveries(self) -> int:
        return self._discoveries

    def look_for_splits(self) -> None:
        self._is_look_due = True

    @property
    def has_looked(self) -> bool:
        return not self._is_look_due

    def snapshot(self, checkpoint: int) -> None:
        self._state.replace([self._source.lineage, lane.number, lane.epoch, lane.row] for lane in self._lanes)

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    # ------------------------------------------------------------ positions

    def _restore_lane(self, lineage: str, lane: int, epoch: int, row: int) -> _Lane:
        if lineage != self._source.lineage:
            detail = (
                f"the checkpoint reads the epochs of lineage {lineage} (run {lineage} and the runs that continue it), "
                f"but this run belongs to lineage {self._source.lineage}: restore the checkpoint from its record in "
                "the console instead of from a copy of its folder"
            )
            raise JobRejected("other-epochs", self._context.uid, detail)
        return _Lane(int(lane), int(epoch), int(row))

    def _check_not_released_yet(self) -> None:
        """Raises JobRejected if an epoch that is still to be read is released: its rows would be lost silently."""
        below = self._folder.released_below()
        first = min((lane.epoch for lane in self._lanes), default=below)
        if first < below:
            detail = (
                f"epoch {first} of {self._folder.path} is needed, but epochs below {below} are deleted: no retained "
                "checkpoint needed them. Start the job without a checkpoint, or restore a newer checkpoint"
            )
            raise JobRejected("epochs-released", self._context.uid, detail)

    # ------------------------------------------------------------ rows

    def _next(self, max_rows: int) -> pa.RecordBatch | None:
        """Up to `max_rows` rows of the lanes that lag most; None if their next epoch does not exist yet."""
        while True:
            if self._batches is None and not self._begin_share():
                return None
            piece = self._rest or self._read()
            if piece is None:
                self._end_share()
                continue
            batch, stop = piece
            self._rest = None
            if batch.num_rows > max_rows:
                self._rest = batch.slice(max_rows), stop
                stop -= batch.num_rows - max_rows
                batch = batch.slice(0, max_rows)
            self._advance(stop)
            return batch

    def _begin_share(self) -> bool:
        """Opens the oldest unread epoch, to read shares of neighbouring lanes at once. False if there is none."""
        number = min(lane.epoch for lane in self._lanes)
        if self._epoch is None or self._epoch.number != number:
            self._epoch = self._folder.find(number) or self._find_again(number)
            self._discoveries += self._epoch is not None
        if self._epoch is None:
            return False
        behind = [lane for lane in self._lanes if lane.epoch == number]
        self._reading = _contiguous_prefix(behind)
        start = max(self._reading[0].row, self._start(self._reading[0]))
        self._batches = self._rows_of(self._epoch, start, self._end(self._reading[-1]))
        return True

    def _find_again(self, number: int) -> InputEpoch | None:
        """Looks for a missing epoch again if newer epochs exist. Raises EnvironmentFailure if the epoch was removed.

        The folder is listed once per idle phase. The second look finds an epoch that appeared during the listing.
        """
        if self._idle_since is not None or self._folder.next_number() <= number:
            return None
        if (epoch := self._folder.find(number)) is None:
            raise EnvironmentFailure(f"epoch {number} of {self._folder.path} is missing, but newer epochs exist")
        return epoch

    def _record_position(self) -> None:
        """Records the position of this subtask for back-pressure: the stage delays its query if too much is unread."""
        below = min((lane.epoch for lane in self._lanes), default=None)
        if below is not None and below != self._recorded_epoch:
            with contextlib.suppress(OSError):  # without the note, back-pressure starts too early, but no row is lost
                self._folder.record_position(self._context.token, self._context.index, below)
                self._recorded_epoch = below

    def _read(self) -> tuple[pa.RecordBatch, int] | None:
        assert self._batches is not None, "a share has been begun"
        assert self._epoch is not None, "a share has been begun"
        try:
            return next(self._batches, None)
        except FileNotFoundError as error:
            raise EnvironmentFailure(f"{self._epoch.folder}: a file of the epoch is missing: {error}") from error
        except MalformedFile as error:
            raise DataRejected(f"{self._epoch.folder}: {error}") from error

    def _rows_of(self, epoch: InputEpoch, start: int, end: int) -> Generator[tuple[pa.RecordBatch, int]]:
        """Batches of the rows from `start` to `end`, each with the number of the row after it."""
        first = 0  # epoch row at which the file begins
        for name, rows in epoch.files:
            if first < end and first + rows > start:
                for chunk in self._format.read(epoch.folder / name, max(start - first, 0)):
                    stop = first + chunk.next_row
                    batch = chunk.batch.slice(0, chunk.batch.num_rows - max(stop - end, 0))
                    self._check_columns(batch, epoch, name)
                    if batch.num_rows:
                        yield batch, min(stop, end)
                    if stop >= end:
                        return
            first += rows

    def _check_columns(self, batch: pa.RecordBatch, epoch: InputEpoch, name: str) -> None:
        if self._source.columns is not None and not batch.schema.equals(self._source.columns):
            detail = f"{epoch.folder / name}: its columns differ from the columns of the version: {batch.schema}"
            raise DataRejected(detail)

    def _advance(self, stop: int) -> None:
        """Moves the lanes being read to row `stop`: all rows below it are emitted."""
        assert self._epoch is not None, "a share has been begun"
        for lane in self._reading:
            if lane.epoch != self._epoch.number:
                continue
            if self._end(lane) <= stop:
                lane.epoch, lane.row = lane.epoch + 1, 0
            elif self._start(lane) < stop:
                lane.row = stop

    def _end_share(self) -> None:
        """Moves the lanes being read to the next epoch, including lanes without a row in this epoch."""
        assert self._epoch is not None, "a share has been begun"
        for lane in self._reading:
            if lane.epoch == self._epoch.number:
                lane.epoch, lane.row = lane.epoch + 1, 0
        self._batches = None
        self._record_position()

    def _start(self, lane: _Lane) -> int:
        assert self._epoch is not None, "a share has been begun"
        return self._epoch.rows * lane.number // LANE_COUNT

    def _end(self, lane: _Lane) -> int:
        assert self._epoch is not None, "a share has been begun"
        return self._epoch.rows * (lane.number + 1) // LANE_COUNT


def _contiguous_prefix(lanes: Sequence[_Lane]) -> list[_Lane]:
    """The longest prefix of `lanes` whose shares are contiguous, so that they are read together."""
    prefix = [lanes[0]]
    for lane in lanes[1:]:
        if lane.number != prefix[-1].number + 1 or lane.row:
            break
        prefix.append(lane)
    return prefix
