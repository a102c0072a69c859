"""A folder of files as a source, bounded or watched continuously.

A split is a file, or a part of a large file. Each split belongs to a key group: that of its path and first byte, or in
a bounded source that of `assign_groups`. Positions (split, next row) are therefore keyed state and move with their key
groups at a rescale. Each subtask reads its own splits in the order of path and first byte.

A file is read as soon as it is seen, so writers must rename finished files into the folder. Names that begin with "."
or "_" are ignored: unfinished files can have such names. A file that was read to its end is never opened again.

A bounded source reads the files of a single listing, which the job master makes before the first attempt. From the
first checkpoint on the listing is state: every file of it has a position.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runtime.access.data_roots import is_same_url
from runtime.connectors.bucket import check_place
from runtime.connectors.dead_letters import DeadLetters, open_dead_letters
from runtime.connectors.formats import Chunk, Format, Malformed, MalformedFile, ScannedFormat
from runtime.connectors.formats.base import RowNumbers
from runtime.connectors.formats.input_file import InputFile, LocalFile
from runtime.connectors.sources.event_clock import BoundedOutOfOrderness, EventClockReader, check_event_time
from runtime.connectors.sources.file_positions import FilePositions, Split, SplitPosition
from runtime.connectors.sources.listing import InputFolder, Listing
from runtime.connectors.sources.local_folder import LocalFolder
from runtime.connectors.sources.open_file import OpenFile
from runtime.connectors.sources.partition_columns import (
    PartitionBy,
    check_partition_by,
    infer_types,
    names_of,
    schema_of,
    values_of,
)
from runtime.connectors.sources.pending_splits import PendingSplits, missing_file_error
from runtime.connectors.sources.remote_folder import RemoteFolder, check_local_path, check_remote_url, local_path
from runtime.connectors.sources.selection import Selection, Values
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.ports import NumberedRows, OperatorContext
from runtime.s3 import is_bucket
from runtime.state.encoded_texts import declared_schema
from runtime.state.encodings import nullable_schema

MALFORMED_RECORDS: Final = "malformed_records"
DEFAULT_SPLIT_BYTES: Final = 128 << 20  #: as in Spark's file sources
_ALIGNED_SPLIT_BYTES: Final = 16 << 20  #: subtasks that read neighbouring splits of this size stay close in event time
_CHUNKS_PER_POLL: Final = 16  #: chunks without a valid row per poll, so that a bad file cannot block the subtask's loop

OnMalformed = Literal["fail", "skip", "dead_letter"]


@dataclass(frozen=True)
class DirectorySource:
    """Reads the files of a folder.

    Args:
        path: the folder, or a URL of `file:`, `s3:`, `gs:`, `abfs:` or `hdfs:`. A key may stand in a URL as references
            to secrets: `s3://${secret:key-id}:${secret:key}@bucket/folder`. A watched folder may be created later.
        format: format of the files.
        event_time: column of event times; None: the source emits no watermarks.
        max_disorder_ms: bound of out-of-orderness: how far a row's event time may lie behind the largest event time
            that the same subtask has read. None: 0, and a late row of a bounded source fails the job.
        max_future_ms: a row whose event time is further ahead of the clock is malformed. None: no limit. One such row
            would make all others late.
        bounded: read the files that exist at the start of the job, then end. Later files are not read, also after a
            restore.
        on_malformed: a row that cannot be read fails the job, is skipped and counted, or is stored as a dead letter.
        dead_letter_path: folder for dead letters.
        discovery_interval_ms: how often a watched folder is listed.
        idle_after_ms: a subtask without input becomes idle after this time and no longer holds back the watermark.
            None: never. A subtask that has had no file at all is always idle.
        columns: the columns of the stream, in their order; other columns are not read. None: all columns, partition
            columns last.
        filter: the rows of the stream: an Arrow expression over all columns, such as `pc.field("fare") > 0`. Folders
            and Parquet row groups without such rows are not read.
        partition_by: the partition columns, a level of folders such as `day=2024-01-01` each, from the outermost on: a
            schema, or names. The types of mere names are inferred from the folders of a bounded source.
        split_bytes: a larger file is cut into splits of this size at most, which several subtasks read, except Arrow
            files. Rows keep their order within a split. None: files are not cut. A bounded local folder with event time
            is cut at 16 MiB, so that subtasks read the same stretch of time. The first run of a job fixes the size.
    """

    guarantee: ClassVar[str] = "exactly-once"

    path: str
    format: Format
    event_time: str | None = None
    max_disorder_ms: int | None = None
    bounded: bool = False
    on_malformed: OnMalformed = "fail"
    dead_letter_path: str | None = None
    discovery_interval_ms: int = 200
    idle_after_ms: int | None = None
    max_future_ms: int | None = None
    columns: tuple[str, ...] | None = None
    filter: pc.Expression | None = field(default=None, compare=False)  # expressions have no equality
    partition_by: PartitionBy = ()
    split_bytes: int | None = DEFAULT_SPLIT_BYTES
    listing: Listing | None = field(default=None, kw_only=True, repr=False)  #: set by `with_input`
    used_columns: frozenset[str] | None = field(default=None, kw_only=True, repr=False)  #: set by `with_used_columns`
    encodes_texts: bool = field(default=False, kw_only=True, repr=False)  #: set by `with_encoded_texts`

    def output_columns(self) -> pa.Schema | None:
        return self.selection(self._declared_partition).output_columns() if self._has_known_columns else None

    def with_used_columns(self, used: frozenset[str]) -> "DirectorySource":
        """The source without unused columns. A used column that is no column of the files is no error here.

        With dead letters all columns are read: a dead letter holds the whole row.
        """
        if self.on_malformed == "dead_letter":
            return self
        used |= set() if self.event_time is None else {self.event_time}
        declared = self.format.columns()
        if self.columns is not None:
            columns = self.columns
        elif declared is not None:
            columns = (*declared.names, *names_of(self.partition_by))
        else:
            return replace(self, used_columns=used)
        return replace(self, columns=tuple(name for name in columns if name in used) or columns[:1])

    def with_encoded_texts(self) -> "DirectorySource":
        return replace(self, encodes_texts=True)

    @property
    def numbers_rows(self) -> bool:
        """Rows by their place in the version of a file. Which rows are ahead of the clock depends on the attempt."""
        return self.max_future_ms is None

    def reader(self) -> "DirectoryReader":
        return DirectoryReader(self)

    def check(self) -> None:
        if not self.path:
            raise JobRejected("bad-path", "path", "must name the folder to read")
        if local_path(self.path) is not None:
            check_local_path("path", self.path)
        else:
            check_remote_url("path", self.path)
            if not isinstance(self.format, ScannedFormat):
                detail = f"{type(self.format).__name__} reads local files only: it is no weir.spi.ScannedFormat"
                raise JobRejected("local-format", "format", detail)
        if self.discovery_interval_ms < 1:
            raise JobRejected("bad-interval", "discovery_interval_ms", "must be at least 1 ms")
        if self.idle_after_ms is not None and self.idle_after_ms < 1:
            raise JobRejected("bad-interval", "idle_after_ms", "must be at least 1 ms")
        if self.split_bytes is not None and self.split_bytes < 1:
            raise JobRejected("bad-size", "split_bytes", "must be at least 1 byte")
        self._check_policy()
        self.format.check()
        check_partition_by(self.partition_by, bounded=self.bounded, file_columns=self.format.columns())
        if self._has_known_columns:
            self.selection(self._declared_partition).check()
        check_event_time(self.event_time, self.max_disorder_ms, self.output_columns(), self.max_future_ms)

    @property
    def has_event_time(self) -> bool:
        return self.event_time is not None

    @property
    def largest_split_bytes(self) -> int | None:
        """Size of splits; None: files are not cut. Splits of remote files stay large, since each is opened anew."""
        is_aligned = self.bounded and self.has_event_time and local_path(self.path) is not None
        if self.split_bytes is None or not is_aligned:
            return self.split_bytes
        return min(self.split_bytes, _ALIGNED_SPLIT_BYTES)

    def folders(self) -> Mapping[str, str]:
        letters, local = self.dead_letter_path, local_path(self.path)
        folders = {} if local is None else {"path": local}
        return folders if not letters or is_bucket(letters) else {**folders, "dead_letter_path": letters}

    def urls(self) -> Mapping[str, str]:
        places = {"path": self.path, "dead_letter_path": self.dead_letter_path or ""}
        return {argument: place for argument, place in places.items() if local_path(place) is None}

    def list_input(self) -> bytes | None:
        """The files of a bounded source.

        Raises:
            EnvironmentFailure: there is no such folder.
            JobRejected, DataRejected: the folder cannot be read.
        """
        return msgspec.msgpack.encode(list_files(self)) if self.bounded else None

    def with_input(self, listing: bytes) -> "DirectorySource":
        return replace(self, listing=msgspec.msgpack.decode(listing, type=Listing))

    def folder(self) -> InputFolder:
        local, names = local_path(self.path), names_of(self.partition_by)
        return RemoteFolder(self.path, names) if local is None else LocalFolder(local, names)

    def selection(self, partition: pa.Schema) -> Selection:
        """The columns and rows of the stream, with these partition columns."""
        columns = self.format.columns()
        return Selection(columns, partition, self.columns, self.filter, self.used_columns, self.encodes_texts)

    @property
    def _has_known_columns(self) -> bool:
        """Whether the partition columns are known before the folder is listed."""
        return isinstance(self.partition_by, pa.Schema) or not self.partition_by

    @property
    def _declared_partition(self) -> pa.Schema:
        return self.partition_by if isinstance(self.partition_by, pa.Schema) else pa.schema([])

    def _check_policy(self) -> None:
        if self.on_malformed not in ("fail", "skip", "dead_letter"):
            raise JobRejected(
                "bad-policy", "on_malformed", f"must be fail, skip or dead_letter, not {self.on_malformed!r}"
            )
        if self.on_malformed != "dead_letter":
            return
        if not self.dead_letter_path:
            raise JobRejected("missing-folder", "dead_letter_path", "the policy dead_letter needs a folder")
        if is_bucket(self.dead_letter_path):
            check_place("dead_letter_path", self.dead_letter_path)
            if is_same_url(self.dead_letter_path, self.path):
                raise JobRejected("same-folder", "dead_letter_path", "dead letters would be read as input")
        elif local_path(self.dead_letter_path) != self.dead_letter_path:
            raise JobRejected("unsupported-scheme", "dead_letter_path", "must be a folder or s3://bucket/prefix")
        local = local_path(self.path)
        if local is not None and Path(self.dead_letter_path).resolve() == Path(local).resolve():
            raise JobRejected("same-folder", "dead_letter_path", "dead letters would be read as input")


def list_files(source: DirectorySource) -> Listing:
    """The files of a bounded source. Raises EnvironmentFailure: there is no such folder."""
    try:
        files = tuple(sorted(source.folder().files()))
    except FileNotFoundError:
        raise EnvironmentFailure(f"there is no folder {source.folder().location}") from None
    if isinstance(source.partition_by, pa.Schema):
        return Listing(files)
    return Listing(files, infer_types(source.partition_by, (file.path for file in files)))


class DirectoryReader(EventClockReader):
    """Reads the splits of a subtask's key groups."""

    def __init__(self, source: DirectorySource) -> None:
        self._source = source
        self._folder = source.folder()
        self._idle_since: int | None = None  #: time of the first poll without rows to read
        self._has_begun_file = False
        self._current: OpenFile | None = None
        self._split = Split("")  #: of the current file
        self._version = ""  #: of the current file
        self._rows: RowNumbers = np.empty(0, np.int64)  #: of the last batch, in the split
        self._schema: pa.Schema | None = None
        self._clock = BoundedOutOfOrderness(source.event_time, source.max_disorder_ms)
        self._letters: DeadLetters | None = None

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._positions = FilePositions(context, self._source.largest_split_bytes)
        self._pending = PendingSplits(
            self._folder,
            self._positions,
            self._source.format,
            partial(list_files, self._source) if self._source.bounded else None,
            self._source.listing,
            self._source.discovery_interval_ms,
        )
        if self._positions.are_assigned and not self._source.bounded:
            detail = "the restored state is that of a bounded source, which cannot become a watched one"
            raise JobRejected("bounded-state", "bounded", f"{detail}: keep bounded=True, or choose another uid")
        self._has_begun_file = len(self._positions) > 0
        if self._positions.is_listing_complete or not self._source.bounded:
            self._select_columns()
        if self._source.on_malformed == "dead_letter":
            assert self._source.dead_letter_path, "the source was checked"
            self._letters = open_dead_letters(self._source.dead_letter_path, context)

    def _select_columns(self) -> None:
        """The types of partition columns are known from the listing on."""
        self._partition = schema_of(self._source.partition_by, self._positions.partition_types)
        self._selection = self._source.selection(self._partition)
        self._schema = self._selection.output_columns()

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        self._discover()
        for _ in range(_CHUNKS_PER_POLL):
            if self._current is None and not self._begin_next():
                self._idle_since = self._context.now_ms() if self._idle_since is None else self._idle_since
                return None
            self._idle_since = None
            batch = self._advance(max_rows)
            if batch is not None:
                self._clock.on_batch(batch)
                return batch
        return None

    @property
    def numbered_rows(self) -> Sequence[NumberedRows]:
        return [NumberedRows(f"{self._split.start}:{self._version}:{self._split.path}", self._rows + 1)]

    @property
    def exhausted(self) -> bool:
        nothing_left = self._current is None and not self._pending
        return self._source.bounded and self._pending.is_listed and nothing_left

    @property
    def idle(self) -> bool:
        """True if the subtask has had no file at all, or no rows to read for `idle_after_ms`."""
        if self._idle_since is None:
            return False
        if not self._has_begun_file:
            return True
        after_ms = self._source.idle_after_ms
        return after_ms is not None and self._context.now_ms() - self._idle_since >= after_ms

    @property
    def discoveries(self) -> int:
        return self._pending.discoveries

    def look_for_splits(self) -> None:
        self._pending.is_look_due = not self._source.bounded

    @property
    def has_looked(self) -> bool:
        return not self._pending.is_look_due

    def snapshot(self, checkpoint: int) -> None:
        if self._letters is not None:
            self._letters.sync()
        if self._source.bounded:
            self._discover()  # every snapshot holds the listing, also if no poll has come before the first barrier
        self._positions.snapshot()

    def close(self) -> None:
        if self._current is not None:
            self._current.close()
        if self._letters is not None:
            self._letters.close()

    # ------------------------------------------------------------ files

    def _discover(self) -> None:
        if self._pending.discover(self._context.now_ms()):
            self._select_columns()

    def _begin_next(self) -> bool:
        while self._pending:
            split = self._pending.take()
            values = values_of(split.path, self._partition)
            if not self._selection.excludes(values):
                self._begin(split, values)
                return True
            self._positions.add(split, 0)
            self._positions.finish(split)
        return False

    def _begin(self, split: Split, values: Values) -> None:
        try:
            opened = self._folder.open(split.path)
        except FileNotFoundError:
            raise missing_file_error(self._folder, split.path) from None
        self._has_begun_file = True
        size = opened.file.size_bytes
        position = self._positions.add(split, size)
        chunks = self._selection.apply(self._chunks(opened.file, split, position, values), values)
        self._current = OpenFile(f"{self._folder.location}/{split}", opened.descriptor, chunks)
        self._split, self._version = split, opened.version
        if size != position.size_bytes:
            since = f"row {position.next_row} of it was read" if position.next_row else "it was listed"
            was = f"it has {size} bytes and had {position.size_bytes}"
            raise DataRejected(f"{self._current.path}: the file has changed since {since}: {was}")

    def _chunks(self, file: InputFile, split: Split, position: SplitPosition, values: Values) -> Iterator[Chunk]:
        kind = self._source.format
        if isinstance(kind, ScannedFormat):
            return kind.scan(file, self._selection.scan(split, position, values))
        assert isinstance(file, LocalFile), "the source was checked"
        return kind.read(file.path, position.next_row)

    # ------------------------------------------------------------ rows

    def _advance(self, max_rows: int) -> pa.RecordBatch | None:
        """Rows of the current file; None at its end or if the next piece has no valid row."""
        assert self._current is not None, "a file has been begun"
        file = self._current
        try:
            piece = file.next_piece(max_rows, self._source.event_time, self._latest_time_ms())
        except MalformedFile as error:
            self._on_malformed(file, [Malformed(row=None, column="", reason=str(error), text="")])
            piece = None
        except FileNotFoundError:
            raise missing_file_error(self._folder, self._split.path) from None
        if piece is None:
            self._positions.finish(self._split)
            file.close()
            self._current = None
            return None
        if piece.malformed:
            self._on_malformed(file, piece.malformed)
        self._positions.advance(self._split, piece.next_row)
        self._rows = piece.rows
        return self._check_columns(piece.batch, file.path) if piece.batch.num_rows else None

    def _latest_time_ms(self) -> int | None:
        bound_ms = self._source.max_future_ms
        return None if bound_ms is None else self._context.now_ms() + bound_ms

    def _on_malformed(self, file: OpenFile, rows: Any) -> None:
        if self._source.on_malformed == "fail":
            raise DataRejected(f"{file.path}: {_shorten(str(rows[0]))}")
        if self._letters is not None:
            self._letters.write(str(file.path), rows)
        self._context.count(MALFORMED_RECORDS, len(rows))

    def _check_columns(self, batch: pa.RecordBatch, path: Path | str) -> pa.RecordBatch:
        """The batch. Nullability may differ between files.

        Raises:
            DataRejected: the columns differ from the stream's columns, by default those of the first file.
        """
        schema = declared_schema(batch.schema)
        if self._schema is None:
            self._schema = schema
        if schema.equals(self._schema) or nullable_schema(schema).equals(nullable_schema(self._schema)):
            return batch
        raise DataRejected(f"{path}: its columns differ from the columns of earlier files: {schema} / {self._schema}")


def _shorten(message: str) -> str:
    """The message, shortened for the console: a parser may quote a value of any size."""
    return message if len(message) <= 1_000 else f"{message[:700]} … {message[-300:]}"
