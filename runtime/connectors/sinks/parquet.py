"""Parquet files, exactly once, by rename.

A file is written under a hidden name (`.weir-….inprogress`). At the barrier it is closed, made durable and renamed to
another hidden name (`….pending`). When its checkpoint has completed, the file gets its visible name. Readers that
ignore hidden names (Spark, Arrow, Hive) therefore see only committed rows, each exactly once.

    .weir-<job>-<token>-<uid>-<subtask>-<n>.inprogress
    .weir-<job>-<token>-<uid>-<subtask>-<n>.pending
    part-<job>-<token>-<uid>-<subtask>-<checkpoint>-<n>.parquet
    .committed-<job>-<token>-<uid>-<subtask>-<n>

With partition columns, the visible name lies in a folder such as `day=2024-01-01/` (`connectors/partitions`). Hidden
files and marks always lie in the output folder itself.

The last name is the commit mark, an empty file. It records that files 1 to n of this writer are committed or pending in
the folder. The mark is durable before a file gets its visible name. Every restore repeats the commit; before a restore,
a consumer may have moved, compacted or deleted the visible file. The mark proves that the file was committed (decision
0015). Its name begins with a dot, so `mv out/* archive/` and clean-ups of `_*` leave it alone.

The job master also keeps a commit log in the folder (`connectors/commit_log`), with an entry for each checkpoint that
has committed rows. Visible names appear one after another, but a reader of the log, such as Spark's data source
`weir-output`, sees all files of a checkpoint or none.

The attempt's token is in every name, so an attempt never touches files of another attempt. Only the job master removes
leftovers of older attempts of the same sink. Foreign files are never touched or overwritten.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa

from runtime.access.data_roots import CheckedFolder, DataRoots
from runtime.connectors.bucket import Bucket
from runtime.connectors.names import encode_name
from runtime.connectors.partitions import split_by_partition
from runtime.connectors.sinks.bucket_output import BucketCommitter, BucketPlace
from runtime.connectors.sinks.compaction import CompactingWriter, NumberingWriter
from runtime.connectors.sinks.file_committer import FileCommitter
from runtime.connectors.sinks.file_options import check_file_options
from runtime.connectors.sinks.parquet_file import ROW_GROUP_BYTES, HiddenFile, ParquetFile, PendingOutput
from runtime.durable import make_folder, sync_path
from runtime.errors import JobRejected
from runtime.ports import OperatorContext, SinkWriter
from runtime.s3 import is_bucket

MAX_WAITING_GROUPS: Final = 4  #: size of all rows that wait to be written, in row groups


@dataclass(frozen=True)
class ParquetSink:
    """Writes Parquet files into a folder.

    Args:
        path: the folder; created if it does not exist. Or `s3://bucket/prefix`, which needs the extra `cloud`.
        partition_by: columns whose values choose a sub-folder, as in Hive: `("day",)` writes to `day=2024-01-01/`.
            Text, integers, booleans or dates.
        max_bytes: a file is rolled before its row groups exceed this size; the footer comes on top. None: a file per
            checkpoint and partition.
        roll_after_idle_ms: a file without new rows for this time is rolled. It is committed with the next checkpoint,
            as all rolled files.
        compact_checkpoints: small files become visible as a single file after this number of checkpoints. None: each
            checkpoint makes its files visible.
        compact_bytes: size of the files to aim at. Small files that reach it together do not wait any longer.
    """

    guarantee: ClassVar[str] = "exactly-once"
    has_independent_writers: ClassVar[bool] = True

    path: str
    partition_by: tuple[str, ...] = ()
    max_bytes: int | None = None
    roll_after_idle_ms: int | None = None
    compact_checkpoints: int | None = None
    compact_bytes: int = 128 << 20

    def writer(self) -> SinkWriter:
        limits: dict[str, Any] = {
            "partition_by": self.partition_by,
            "max_bytes": self.max_bytes,
            "roll_after_idle_ms": self.roll_after_idle_ms,
        }
        if is_bucket(self.path):
            return ParquetWriter(BucketPlace(Bucket(self.path)), **limits)
        files = ParquetWriter(Path(self.path), **limits)
        if self.compact_checkpoints is None:
            return files
        nbytes = min(self.compact_bytes, self.max_bytes or self.compact_bytes)
        return CompactingWriter(files, Path(self.path), self.compact_checkpoints, nbytes)

    def committer(self) -> FileCommitter | BucketCommitter:
        return BucketCommitter(Bucket(self.path)) if is_bucket(self.path) else FileCommitter(Path(self.path))

    def check(self) -> None:
        intervals = {"roll_after_idle_ms": self.roll_after_idle_ms}
        sizes = {"max_bytes": self.max_bytes, "compact_bytes": self.compact_bytes}
        check_file_options(self.path, self.partition_by, sizes, intervals)
        if self.compact_checkpoints is not None and self.compact_checkpoints < 2:
            raise JobRejected("bad-interval", "compact_checkpoints", "must be at least 2 checkpoints")
        if is_bucket(self.path) and self.compact_checkpoints is not None:
            detail = "needs a folder: small files in a bucket cannot wait unseen. Leave it out"
            raise JobRejected("needs-folder", "compact_checkpoints", detail)

    def folders(self) -> Mapping[str, str]:
        return {} if is_bucket(self.path) else {"path": self.path}

    def urls(self) -> Mapping[str, str]:
        return {"path": self.path} if is_bucket(self.path) else {}


class OutputPlace(Protocol):
    """Where a writer has its files."""

    max_open_files: int  #: the least recently written file is rolled when another is needed

    @property
    def is_full(self) -> bool:
        """Whether the open files hold so much memory that the least recently written file must be rolled."""

    def check(self) -> None:
        """Raises JobRejected if jobs may not use the place."""

    def make(self) -> None: ...

    def begin(self, folder: str, owner: str, number: int) -> PendingOutput:
        """Begins the file `number` of the writer `owner`. `folder`: of its partition, relative."""

    def final_name(self, folder: str, owner: str, checkpoint: int, number: int) -> str:
        """The visible name of a file, relative."""

    def sync(self) -> None:
        """Makes the names of pending files durable."""

    def remove(self, committable: Mapping[str, Any]) -> None:
        """Deletes a pending file that belongs to no checkpoint."""


class HiddenFolder:
    """Implements `OutputPlace` by hidden files in a folder."""

    max_open_files = 100
    is_full = False

    def __init__(self, folder: Path, roots: DataRoots | None) -> None:
        self._folder = folder
        self._checked = CheckedFolder.of("path", folder, roots)

    def check(self) -> None:
        self._checked.check()

    def make(self) -> None:
        make_folder(self._folder)

    def begin(self, folder: str, owner: str, number: int) -> PendingOutput:
        return HiddenFile(self._checked, f".weir-{owner}-{number}")

    def final_name(self, folder: str, owner: str, checkpoint: int, number: int) -> str:
        return str(PurePath(folder, f"part-{owner}-{checkpoint}-{number}.parquet"))

    def sync(self) -> None:
        sync_path(self._folder)

    def remove(self, committable: Mapping[str, Any]) -> None:
        (self._folder / committable["pending"]).unlink(missing_ok=True)


class ParquetWriter(NumberingWriter):
    """Writes a file per partition and checkpoint, or several if files are rolled earlier.

    A rolled file is pending at once and belongs to the next checkpoint. All files of a checkpoint are therefore pending
    before a file of the next checkpoint begins; the commit marks rely on this.
    """

    def __init__(
        self,
        folder: Path | OutputPlace,
        roots: DataRoots | None = None,
        *,
        row_group_bytes: int = ROW_GROUP_BYTES,
        partition_by: Sequence[str] = (),
        max_bytes: int | None = None,
        roll_after_idle_ms: int | None = None,
    ) -> None:
        self._place = HiddenFolder(folder, roots) if isinstance(folder, Path) else folder
        self._row_group_bytes = row_group_bytes
        self._partition_by, self._max_bytes, self._idle_ms = partition_by, max_bytes, roll_after_idle_ms
        self._number = 0
        self._files: dict[str, ParquetFile] = {}  #: by relative folder, the least recently written first
        self._written_at: dict[str, int] = {}  #: time of the last row, by relative folder; empty without idle time
        #: rolled files that belong to no checkpoint yet: relative folder, number, committable without its visible name
        self._pending: list[tuple[str, int, dict[str, Any]]] = []

    def open(self, context: OperatorContext) -> None:
        self._owner = f"{encode_name(context.job)}-{context.token}-{encode_name(context.uid)}-{context.index}"
        self._now_ms = context.now_ms
        self._place.check()
        self._place.make()

    def write(self, batch: pa.RecordBatch) -> None:
        if not self._partition_by:
            self._write_to("", batch)
            return
        for folder, rows in split_by_partition(batch, self._partition_by):
            self._write_to(folder, rows)
        if sum(file.waiting_bytes for file in self._files.values()) >= MAX_WAITING_GROUPS * self._row_group_bytes:
            max(self._files.values(), key=lambda file: file.waiting_bytes).write_group()
        while self._place.is_full:
            self._roll(next(iter(self._files)))

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        self._place.check()
        for folder in list(self._files):
            self._roll(folder)
        if not self._pending:
            return ()
        self._place.sync()
        prepared = tuple(
            file | {"final": self._place.final_name(folder, self._owner, checkpoint, number)}
            for folder, number, file in self._pending
        )
        self._pending = []
        return prepared

    def next_processing_timer(self) -> int | None:
        oldest = next(iter(self._files), None)
        if self._idle_ms is None or oldest is None:
            return None
        return self._written_at[oldest] + self._idle_ms

    def on_processing_time(self, now_ms: int) -> None:
        """Rolls the files that got no rows for the idle time."""
        if self._idle_ms is not None:
            for folder in [each for each in self._files if self._written_at[each] + self._idle_ms <= now_ms]:
                self._roll(folder)

    def close(self) -> None:
        """Deletes the files in progress and rolled files, which belong to no checkpoint. Prepared files stay."""
        for file in self._files.values():
            file.discard()
        for _, _, rolled in self._pending:
            self._place.remove(rolled)
        self._files, self._pending = {}, []

    def take_number(self) -> int:
        self._number += 1
        return self._number

    # ------------------------------------------------------------ files

    def _write_to(self, folder: str, batch: pa.RecordBatch) -> None:
        if self._max_bytes is None:
            self._file_of(folder, batch.schema).write(batch)
            return
        rows = max(1, self._max_bytes * batch.num_rows // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            self._make_room(folder, part.nbytes)
            self._file_of(folder, part.schema).write(part)

    def _make_room(self, folder: str, nbytes: int) -> None:
        """Rolls the file if it would exceed `max_bytes` with `nbytes` more.

        Waiting rows are written first: only then is their compressed size known.
        """
        assert self._max_bytes is not None, "called with a bound only"
        file = self._files.get(folder)
        if file is not None and file.written_bytes + file.waiting_bytes + nbytes > self._max_bytes:
            file.write_group()
            if file.written_bytes + nbytes > self._max_bytes:
                self._roll(folder)

    def _file_of(self, folder: str, schema: pa.Schema) -> ParquetFile:
        """The file in progress of a partition, now the most recently written file."""
        file = self._files.pop(folder, None)
        if file is None:
            if len(self._files) >= self._place.max_open_files:
                self._roll(next(iter(self._files)))
            self._number += 1
            output = self._place.begin(folder, self._owner, self._number)
            file = ParquetFile(output, schema, self._number, self._row_group_bytes)
        self._files[folder] = file
        if self._idle_ms is not None:
            self._written_at[folder] = self._now_ms()
        return file

    def _roll(self, folder: str) -> None:
        """Makes the file of a partition pending."""
        file = self._files[folder]
        committable = {**file.finish(), "rows": file.rows}
        del self._files[folder]
        self._written_at.pop(folder, None)
        self._pending.append((folder, file.number, committable))
