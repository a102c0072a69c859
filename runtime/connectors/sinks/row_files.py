"""Files of rows, exactly once: JSON lines, CSV and Avro. A file stays in progress over several checkpoints.

Each checkpoint makes the rows of a file in progress durable and records its length and checksum in list state. A file
is finished ("rolled") by size, age, idleness or at a checkpoint. It then belongs to the next checkpoint and becomes
visible when that checkpoint has completed, as a file of `ParquetSink` does (`file_committer`). A restore resumes at the
recorded length: a new attempt checks that part and copies it into a file with its own token. (Flink: `FileSink` with
`RecoverableWriter`.)

- At another parallelism the files in progress are assigned to the subtasks. A file that a subtask cannot continue,
  because of other columns or since it continues another file of the partition, is rolled.
- A recorded file that is found under its visible name was committed by a later checkpoint. Its rows are visible, so a
  restore of the older checkpoint does not continue it. The same holds if another attempt has committed a copy
  (`claims`).
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar, Final

import msgspec
import pyarrow as pa

from runtime.access.data_roots import CheckedFolder
from runtime.connectors.bucket import Bucket
from runtime.connectors.names import encode_name
from runtime.connectors.partitions import check_split, split_by_partition
from runtime.connectors.sinks.bucket_output import BucketCommitter, BucketPlace, UploadedFile
from runtime.connectors.sinks.file_committer import FILES_IN_PROGRESS, FileCommitter
from runtime.connectors.sinks.file_options import check_file_options
from runtime.connectors.sinks.row_file import GrowingFile, HiddenRowFile, RowEncoder, RowFile, digest
from runtime.durable import make_folder, sync_path
from runtime.errors import DataRejected, JobRejected
from runtime.ports import OperatorContext, SinkWriter
from runtime.s3 import is_bucket

ENCODED_BYTES: Final = 256 << 10  #: rows that are encoded together, by their size in memory


@dataclass(frozen=True)
class RowFileSink:
    """Writes files of rows into a folder. The defaults of the limits are those of Flink's `DefaultRollingPolicy`.

    Args:
        path: the folder; created if it does not exist. Or `s3://bucket/prefix` with `roll_on_checkpoint`, which needs
            the extra `cloud`.
        partition_by: columns whose values choose a sub-folder, as for `ParquetSink`.
        max_bytes: a file is rolled before it exceeds this size. None: no limit.
        roll_after_ms: a file is rolled at this age. None: no limit.
        roll_after_idle_ms: a file without new rows for this time is rolled. None: no limit.
        roll_on_checkpoint: every checkpoint rolls all files.
    """

    guarantee: ClassVar[str] = "exactly-once"
    has_independent_writers: ClassVar[bool] = True
    suffix: ClassVar[str]

    path: str
    partition_by: tuple[str, ...] = ()
    max_bytes: int | None = 128 << 20
    roll_after_ms: int | None = 60_000
    roll_after_idle_ms: int | None = 60_000
    roll_on_checkpoint: bool = False

    @abstractmethod
    def encoder(self, schema: pa.Schema) -> RowEncoder:
        """The encoder of rows of `schema`. Raises DataRejected, which names the column, if the format lacks a type."""

    def writer(self) -> "RowFileWriter":
        return BucketRowWriter(self) if is_bucket(self.path) else FolderRowWriter(self)

    def committer(self) -> FileCommitter | BucketCommitter:
        return BucketCommitter(Bucket(self.path)) if is_bucket(self.path) else FileCommitter(Path(self.path))

    def check(self) -> None:
        limits = {"roll_after_ms": self.roll_after_ms, "roll_after_idle_ms": self.roll_after_idle_ms}
        check_file_options(self.path, self.partition_by, {"max_bytes": self.max_bytes}, limits)
        if is_bucket(self.path) and not self.roll_on_checkpoint:
            detail = "must be True in a bucket: an object cannot grow over several checkpoints"
            raise JobRejected("needs-folder", "roll_on_checkpoint", detail)
        if self.max_bytes is None and not self.roll_on_checkpoint and set(limits.values()) == {None}:
            problem = "without any limit no file is ever rolled, so no row becomes visible before the end of the job"
            raise JobRejected("no-limit", "max_bytes", problem)

    def check_columns(self, columns: pa.Schema) -> None:
        """Raises JobRejected if rows of these columns cannot be written."""
        try:
            check_split(columns, self.partition_by)
            self.encoder(pa.schema([item for item in columns if item.name not in self.partition_by]))
        except DataRejected as error:
            raise JobRejected("bad-column", "columns", str(error)) from error

    def folders(self) -> Mapping[str, str]:
        return {} if is_bucket(self.path) else {"path": self.path}

    def urls(self) -> Mapping[str, str]:
        return {"path": self.path} if is_bucket(self.path) else {}


class RowFileWriter(SinkWriter):
    """Appends rows to a file per partition."""

    max_open_files: int

    def __init__(self, sink: RowFileSink) -> None:
        self._sink = sink
        self._files: dict[str, RowFile] = {}  #: by partition, the least recently written first
        self._begun = self._rolled = 0  #: number of files
        self._encoder: tuple[pa.Schema, RowEncoder] | None = None  #: of the last schema
        #: rolled files that belong to no checkpoint yet: number and committable without its visible name
        self._pending: list[tuple[RowFile, int, dict[str, Any]]] = []

    def open(self, context: OperatorContext) -> None:
        self._owner = f"{encode_name(context.job)}-{context.token}-{encode_name(context.uid)}-{context.index}"
        self._now_ms = context.now_ms
        self._state = context.state.list_state(FILES_IN_PROGRESS)

    def _is_full(self) -> bool:
        """Whether the open files hold so much memory that the least recently written file must be rolled."""
        return False

    @abstractmethod
    def _begin(self, partition: str) -> RowFile:
        """Begins a file of a partition."""

    @abstractmethod
    def _persist(self) -> None:
        """Makes the files in progress durable and records them, after the others have been rolled."""

    @abstractmethod
    def _final_name(self, file: RowFile, checkpoint: int, number: int) -> str:
        """The visible name of a file. `number`: among the finished files of the writer."""

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if not self._sink.partition_by:
            self._write_to("", batch)
            return
        for partition, rows in split_by_partition(batch, self._sink.partition_by):
            self._write_to(partition, rows)
        while self._is_full():
            self._roll(next(iter(self._files)))

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        for partition in list(self._files):
            self._roll(partition) if self._sink.roll_on_checkpoint else self._append_waiting(partition)
        self._persist()
        prepared = tuple(
            committable | {"final": self._final_name(file, checkpoint, number)}
            for file, number, committable in self._pending
        )
        self._pending = []
        return prepared

    def finish(self) -> None:
        for partition in list(self._files):
            self._roll(partition)

    def next_processing_timer(self) -> int | None:
        return min((due for file in self._files.values() for due in self._limits_of(file)), default=None)

    def on_processing_time(self, now_ms: int) -> None:
        """Rolls the files that are too old, and the files that got no rows for the idle time."""
        for file in [each for each in self._files.values() if any(due <= now_ms for due in self._limits_of(each))]:
            self._roll(file.partition)

    def close(self) -> None:
        """Deletes the files that no checkpoint names. Recorded and prepared files stay."""
        for file in (*self._files.values(), *(file for file, _, _ in self._pending)):
            file.discard()
        self._files, self._pending = {}, []

    # ------------------------------------------------------------ rows

    def _write_to(self, partition: str, batch: pa.RecordBatch) -> None:
        file = self._file_of(partition, self._encoder_of(batch.schema))
        file.add(batch, self._now_ms())
        if file.waiting_bytes >= min(ENCODED_BYTES, self._sink.max_bytes or ENCODED_BYTES):
            self._append_waiting(partition)

    def _append_waiting(self, partition: str) -> None:
        """Encodes and appends the waiting rows of a partition. Halves rows that exceed `max_bytes` together."""
        file = self._files[partition]
        encoder, rows, limit = file.encoder, file.take_waiting(), self._sink.max_bytes
        left = [] if rows is None else [rows]
        while left:
            assert encoder is not None, "rows wait with their encoder"
            rows = left.pop()
            file = self._file_of(partition, encoder)
            data = encoder.encode(rows, file.marker)
            if limit is None or file.size + len(data) <= limit or (rows.num_rows == 1 and not file.rows):
                file.append(data, rows.num_rows)
            elif rows.num_rows == 1:
                self._roll(partition)
                left.append(rows)
            else:
                half = rows.num_rows // 2
                left += [rows.slice(half), rows.slice(0, half)]

    def _encoder_of(self, schema: pa.Schema) -> RowEncoder:
        if self._encoder is None or not self._encoder[0].equals(schema):
            self._encoder = schema, self._sink.encoder(schema)
        return self._encoder[1]

    # ------------------------------------------------------------ files

    def _file_of(self, partition: str, encoder: RowEncoder) -> RowFile:
        """The file in progress of a partition for rows of `encoder`, now the most recently written file."""
        file = self._files.get(partition)
        if file is not None and file.encoder is not encoder:
            self._append_waiting(partition)
            if digest(self._sink.suffix, encoder) != self._files[partition].layout:
                self._roll(partition)
        file = self._files.pop(partition, None)
        if file is None:
            if len(self._files) >= self.max_open_files:
                self._roll(next(iter(self._files)))
            file = self._begin(partition)
            file.begin(encoder)
        file.encoder = encoder
        self._files[partition] = file
        return file

    def _roll(self, partition: str) -> None:
        """Finishes the file of a partition, which then belongs to the next checkpoint."""
        self._append_waiting(partition)
        self._finish_file(self._files[partition])
        del self._files[partition]  # only now: after a failure, `close` discards the file

    def _finish_file(self, file: RowFile) -> None:
        committable = {**file.finish(), "rows": file.rows}
        self._rolled += 1
        self._pending.append((file, self._rolled, committable))

    def _limits_of(self, file: RowFile) -> Iterator[int]:
        """The times (ms) at which the file is rolled by age or idleness."""
        if self._sink.roll_after_ms is not None:
            yield file.begun_ms + self._sink.roll_after_ms
        if self._sink.roll_after_idle_ms is not None:
            yield file.written_ms + self._sink.roll_after_idle_ms


class FolderRowWriter(RowFileWriter):
    """Writes hidden files, which grow over checkpoints and are resumed at a restore."""

    max_open_files = 100

    def __init__(self, sink: RowFileSink) -> None:
        super().__init__(sink)
        self._folder = Path(sink.path)
        self._checked = CheckedFolder.of("path", self._folder)
        self._has_new_names = False  #: whether the folder must be synced

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._checked.check()
        make_folder(self._folder)
        for entry in self._state.get():
            self._resume(GrowingFile.of_state(entry))

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        self._checked.check()
        return super().prepare(checkpoint)

    def _persist(self) -> None:
        growing = [file for file in self._files.values() if isinstance(file, HiddenRowFile)]
        for file in growing:
            file.persist()
        if self._has_new_names:
            sync_path(self._folder)
            self._has_new_names = False
        self._state.replace(msgspec.to_builtins(file.record()) for file in growing)

    def _begin(self, partition: str, recorded: GrowingFile | None = None) -> HiddenRowFile:
        self._begun += 1
        self._has_new_names = True
        name = f".weir-{self._owner}-{self._begun}.inprogress"
        suffix = self._sink.suffix if recorded is None else recorded.suffix
        return HiddenRowFile(self._checked, name, self._begun, partition, suffix, self._now_ms(), recorded)

    def _final_name(self, file: RowFile, checkpoint: int, number: int) -> str:
        name = f"part-{self._owner}-{checkpoint}-{number}~{file.number}.{file.suffix}"
        return str(PurePath(file.partition, name))

    def _resume(self, recorded: GrowingFile) -> None:
        """Continues a recorded file in a file of this attempt, or rolls it if this writer cannot continue it.

        Raises:
            EnvironmentFailure: the file is lost or damaged; the error names it.
        """
        with recorded.found_in(self._checked) as location:
            if location is None:
                return
            file = self._begin(recorded.partition, recorded)
            file.copy_from(location[1], recorded)
        is_full = len(self._files) >= self.max_open_files
        if file.partition in self._files or file.suffix != self._sink.suffix or is_full:
            self._finish_file(file)
        else:
            self._files[file.partition] = file


class BucketRowWriter(RowFileWriter):
    """Writes uploads, which each checkpoint ends."""

    max_open_files = BucketPlace.max_open_files

    def __init__(self, sink: RowFileSink) -> None:
        super().__init__(sink)
        self._place = BucketPlace(Bucket(sink.path), sink.suffix)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._place.check()
        for entry in self._state.get():
            recorded = GrowingFile.of_state(entry)
            detail = f"a file of the checkpoint is in progress in {recorded.folder}, which a bucket cannot continue"
            raise JobRejected("other-folder", "path", f"{detail}: restore it into that folder, and drain the job first")

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        self._place.check()
        return super().prepare(checkpoint)

    def _is_full(self) -> bool:
        return self._place.is_full

    def _persist(self) -> None:
        """No file is in progress behind a barrier."""

    def _begin(self, partition: str) -> RowFile:
        self._begun += 1
        output = self._place.begin(partition, self._owner, self._begun)
        return UploadedRowFile(output, self._begun, partition, self._sink.suffix, self._now_ms())

    def _final_name(self, file: RowFile, checkpoint: int, number: int) -> str:
        return self._place.final_name(file.partition, self._owner, checkpoint, file.number)


class UploadedRowFile(RowFile):
    """A file that is uploaded in parts. A checkpoint names it once it is finished."""

    def __init__(self, upload: UploadedFile, number: int, partition: str, suffix: str, now_ms: int) -> None:
        super().__init__(upload, upload.name, number, partition, suffix, now_ms)
        self._upload = upload

    def finish(self) -> dict[str, Any]:
        return dict(self._upload.finish())

    def discard(self) -> None:
        self._upload.discard()
