"""A sink that holds its rows until their checkpoint has completed, and then writes them to a target, in order.

The rows of a checkpoint are an epoch: Parquet files of the slots, as of `ParquetSink`, and an entry of a commit log.
Once the checkpoint is recorded, the job master writes the epoch to the target, records the delivery durably and deletes
the files. If the master ends in between, the restore writes the same epoch again, with the same identity and rows.

The next checkpoint is recorded only after the epoch is written, so at most one checkpoint waits for delivery. A target
that is away therefore delays checkpoints, and never loses rows (Flink: `GenericWriteAheadSink`, `CheckpointCommitter`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.access.data_roots import DataRoots
from runtime.connectors.commit_log import CommitLog, CommittedEpoch
from runtime.connectors.epochs import stage_folder
from runtime.connectors.names import decode_name
from runtime.connectors.sinks.file_committer import FileCommitter, sink_of
from runtime.connectors.sinks.parquet import ParquetWriter
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.ports import EncodesRows, EpochTarget, OperatorContext, OutputEpoch, SinkCommitter, StageFolders


@dataclass(frozen=True)
class WriteAheadSink:
    """Writes rows to `target` after their checkpoint has completed.

    Args:
        target: an `EpochTarget`, such as `Webhook`; its guarantee is the guarantee of the sink.
        folder: holds the rows of a checkpoint until they are written; on a file system that every host mounts. A job
            that the console starts has its own folder for this, and the argument may be left out.
    """

    has_independent_writers: ClassVar[bool] = True

    target: EpochTarget
    folder: str = ""
    is_bound: bool = False  #: whether the folder belongs to the run

    @property
    def guarantee(self) -> str:
        return self.target.guarantee

    def bind(self, uid: str, folders: StageFolders) -> "WriteAheadSink":
        return self if self.folder else replace(self, folder=stage_folder(folders.streams, uid), is_bound=True)

    def writer(self) -> ParquetWriter:
        if isinstance(self.target, EncodesRows):
            return EncodingWriter(self._folder_path(), self.target, self._roots())
        return ParquetWriter(self._folder_path(), self._roots())

    def committer(self) -> "WriteAheadCommitter":
        return WriteAheadCommitter(self._folder_path(), self.target, self._roots())

    def check(self) -> None:
        if not callable(getattr(self.target, "write_epoch", None)):
            problem = f"must be an EpochTarget, with check(), guarantee and write_epoch(), not {self.target!r}"
            raise JobRejected("bad-target", "target", problem)
        self.target.check()
        if not self.folder and not self.is_bound:
            raise _no_folder_error()

    def folders(self) -> Mapping[str, str]:
        return {} if self.is_bound else {"folder": self.folder}

    def _folder_path(self) -> Path:
        if not self.folder:
            raise _no_folder_error()
        return Path(self.folder)

    def _roots(self) -> DataRoots | None:
        """Allows the run's own folder, which lies outside WEIR_DATA_ROOTS."""
        return DataRoots(allowed=(Path(self.folder).parent.parent.resolve(),)) if self.is_bound else None


def _no_folder_error() -> JobRejected:
    return JobRejected("no-folder", "folder", "must name a folder for the rows that await the end of their checkpoint")


class EncodingWriter(ParquetWriter):
    """Holds rows as their target encodes them. A row that the target cannot take is found when it arrives."""

    def __init__(self, folder: Path, target: EncodesRows, roots: DataRoots | None) -> None:
        super().__init__(folder, roots)
        self._target = target

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._encode = self._target.row_encoder()

    def write(self, batch: pa.RecordBatch) -> None:
        super().write(self._encode(batch))


class WriteAheadCommitter(SinkCommitter):
    """Commits files as `FileCommitter` does; writes the epochs of its commit log to the target."""

    def __init__(self, folder: Path, target: EpochTarget, roots: DataRoots | None = None) -> None:
        self._folder, self._target, self._roots = folder, target, roots
        self._files = FileCommitter(folder, roots)
        self._log = CommitLog(folder, roots)

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        return self._files.commit(permit, committables)

    def commit_epoch(self, permit: CommitPermit, committables: Sequence[Any]) -> None:
        """Adds the files to the log as an epoch, and writes every epoch that is not delivered yet, in order.

        Files that were committed in a former folder keep the identity of their epoch there.

        Raises:
            EnvironmentFailure: the target or the storage failed, or a file of an undelivered epoch is lost.
            JobRejected, DataRejected: the target refuses permanently.
        """
        self._files.commit_epoch(permit, committables)
        if not committables:
            return
        job, sink = sink_of(committables)
        for folder, former in self._files.committed_elsewhere(committables).items():
            # A checkpoint is restored into another folder: the former master may have ended before it delivered them.
            WriteAheadCommitter(Path(folder), self._target, self._roots).commit_epoch(permit, former)
        for number in self._log.backlog(job, sink):
            for epoch in self._log.epochs(job, sink, [number]):
                self._deliver(epoch)
            self._log.release(job, sink, number)

    def _deliver(self, epoch: CommittedEpoch) -> None:
        identity = OutputEpoch(
            source=epoch.log,
            number=epoch.number,
            job=decode_name(epoch.job),
            sink=decode_name(epoch.sink),
            checkpoint=epoch.checkpoint,
            rows=epoch.rows,
        )
        try:
            self._target.write_epoch(identity, self._batches(epoch))
        except FileNotFoundError as error:
            lost = [path for file in epoch.files if not (path := self._folder / file.name).exists()]
            if self._log.delivered_epoch(epoch.job, epoch.sink) >= epoch.number:
                return  # a master of another attempt has delivered the epoch and deleted its files
            problem = f"rows of epoch {epoch.number}, which is not delivered, are missing"
            raise EnvironmentFailure(f"{', '.join(map(str, lost)) or error}: {problem}") from error

    def _batches(self, epoch: CommittedEpoch) -> Iterator[pa.RecordBatch]:
        for file in epoch.files:
            with pq.ParquetFile(self._folder / file.name) as parquet:
                yield from parquet.iter_batches()

    def missing(self, committables: Sequence[Any]) -> list[str]:
        return self._files.missing(committables)

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        return self._files.clean(job, uid, token, keep)
