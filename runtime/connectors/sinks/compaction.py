"""Compaction: the small Parquet files of several checkpoints become visible as a single file, exactly once.

A small file stays hidden, and list state names it, until files of enough checkpoints or bytes wait in its partition. A
thread then merges them. The next barrier makes the merged file a committable, in place of the small files. (Flink:
`FileCompactStrategy`. There the compactor runs behind the committer; here it runs before, in the writer.)

- The commit of a merged file deletes its small files, after the merged file is visible. Before that they stay, so each
  earlier checkpoint can be restored: it names the small files and no merged file.
- A checkpoint that is restored after its small files were merged and committed finds a visible file that covers them.
  Their rows are visible.
- A new attempt links the recorded files into names with its own token. They never change. The rows of a small file
  become visible once, however many attempts have linked it (`claims`).
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.access.data_roots import CheckedFolder
from runtime.connectors.names import encode_name
from runtime.connectors.sinks.file_committer import SMALL_FILES
from runtime.connectors.sinks.parquet_file import HiddenFile, ParquetFile
from runtime.connectors.sinks.recorded_file import RecordedFile
from runtime.durable import copy_file, sync_path
from runtime.errors import EnvironmentFailure
from runtime.ports import OperatorContext, SinkWriter


class NumberingWriter(SinkWriter):
    """A writer of files with numbered names; its committables are pending files."""

    @abstractmethod
    def take_number(self) -> int:
        """The number of a file that the caller names."""


class SmallFile(RecordedFile, frozen=True, kw_only=True):
    """A complete file that waits to be merged. `checkpoints`: number of barriers since it was written."""

    checkpoints: int = 0


@dataclass(frozen=True)
class MergedFile:
    """Consecutive small files of a partition, and the hidden file with all their rows."""

    files: tuple[SmallFile, ...]
    path: Path
    bytes: int
    crc32: int

    @property
    def begun(self) -> str:
        """The numbers under which the files were begun, as file names have them."""
        first, last = self.files[0].begun, self.files[-1].begun
        return str(first) if first == last else f"{first}~{last}"


class CompactingWriter(SinkWriter):
    """Merges the files of another writer."""

    def __init__(self, inner: NumberingWriter, folder: Path, checkpoints: int, nbytes: int) -> None:
        """Merges the files of a partition after `checkpoints` barriers, or when they have `nbytes` bytes together."""
        self._inner, self._folder, self._max_checkpoints, self._max_bytes = inner, folder, checkpoints, nbytes
        self._checked = CheckedFolder.of("path", folder)
        self._waiting: list[SmallFile] = []  #: in the order in which they were begun, as in each checkpoint
        self._merges: dict[Future[list[MergedFile]], set[str]] = {}  #: names of the files that each merge reads
        self._thread: ThreadPoolExecutor | None = None
        self._rolled = 0  #: number of committables so far
        self._is_finished = self._is_closing = False

    def open(self, context: OperatorContext) -> None:
        self._owner = f"{encode_name(context.job)}-{context.token}-{encode_name(context.uid)}-{context.index}"
        self._inner.open(context)
        self._state = context.state.list_state(SMALL_FILES)
        for entry in self._state.get():
            self._link(SmallFile.of_state(entry))

    def write(self, batch: pa.RecordBatch) -> None:
        self._inner.write(batch)

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        self._waiting = [msgspec.structs.replace(file, checkpoints=file.checkpoints + 1) for file in self._waiting]
        self._waiting += [_small_file(each) for each in self._inner.prepare(checkpoint)]
        ended = list(self._take_merged())  # a checkpoint has the files whose merge begins with it
        for files in self._due_files():
            self._submit(files)
        if self._is_finished:
            ended += self._take_merged()
        prepared = [self._committable(merged, checkpoint) for merged in ended]
        if prepared:
            sync_path(self._folder)
        self._state.replace(msgspec.to_builtins(self._waiting))
        return tuple(prepared)

    def next_processing_timer(self) -> int | None:
        return self._inner.next_processing_timer()

    def on_processing_time(self, now_ms: int) -> None:
        self._inner.on_processing_time(now_ms)

    def finish(self) -> None:
        self._inner.finish()
        self._is_finished = True

    def close(self) -> None:
        """Deletes the merged files that belong to no checkpoint. The small files stay."""
        self._is_closing = True
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        for merge in self._merges:
            if not merge.cancelled() and merge.exception() is None:
                for merged in merge.result():
                    if len(merged.files) > 1:
                        merged.path.unlink(missing_ok=True)
        self._merges = {}
        self._inner.close()

    # ------------------------------------------------------------ merging

    def _due_files(self) -> Iterator[list[SmallFile]]:
        """Per partition, the files that are due and in no merge yet."""
        merging = {name for names in self._merges.values() for name in names}
        free = sorted((file for file in self._waiting if file.hidden not in merging), key=lambda file: file.partition)
        for _, group in groupby(free, lambda file: file.partition):
            files = list(group)
            if (
                self._is_finished
                or max(file.checkpoints for file in files) + 1 >= self._max_checkpoints
                or sum(file.bytes for file in files) >= self._max_bytes
            ):
                yield files

    def _submit(self, files: list[SmallFile]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        merge = self._thread.submit(self._merge, files)
        self._merges[merge] = {file.hidden for file in files}

    def _take_merged(self) -> Iterator[MergedFile]:
        """The results of merges that are done; at the end of all rows, of all merges."""
        for merge in [each for each in self._merges if self._is_finished or each.done()]:
            names = self._merges[merge]
            yield from merge.result()
            del self._merges[merge]
            self._waiting = [file for file in self._waiting if file.hidden not in names]

    def _merge(self, files: Sequence[SmallFile]) -> list[MergedFile]:
        """Merges runs of consecutive files with the same columns, up to the size. On the thread of the writer.

        Raises:
            EnvironmentFailure: a file is gone or damaged; a merged file would have the damage and a valid checksum.
        """
        for file in files:
            file.check_in(self._checked)
        merged = []
        for run in self._runs(files):
            if len(run) == 1:
                merged.append(MergedFile(tuple(run), self._folder / run[0].hidden, run[0].bytes, run[0].crc32))
            else:
                merged.append(self._merge_run(run))
        return merged

    def _runs(self, files: Sequence[SmallFile]) -> Iterator[list[SmallFile]]:
        run: list[SmallFile] = []
        schema: pa.Schema | None = None
        for file in files:
            file_schema = self._schema_of(file)
            full = sum(each.bytes for each in run) + file.bytes > self._max_bytes
            if run and (full or not file_schema.equals(schema)):
                yield run
                run = []
            run.append(file)
            schema = file_schema
        yield run

    def _merge_run(self, run: Sequence[SmallFile]) -> MergedFile:
        name = f".weir-{self._owner}-{run[0].begun}~{run[-1].begun}"
        schema, path = self._schema_of(run[0]), self._checked.path / f"{name}.pending"
        target = ParquetFile(HiddenFile(self._checked, name), schema, run[0].begun)
        try:
            for file in run:
                with self._open(file) as source:
                    for batch in source.iter_batches():
                        if self._is_closing:
                            raise EnvironmentFailure(f"{path}: the attempt ended while the file was merged")
                        target.write(batch)
            finished = target.finish()
        except BaseException:
            target.discard()
            raise
        return MergedFile(tuple(run), path, finished["bytes"], finished["crc32"])

    def _schema_of(self, file: SmallFile) -> pa.Schema:
        with self._open(file) as source:
            schema: pa.Schema = source.schema_arrow
            return schema

    @contextmanager
    def _open(self, file: SmallFile) -> Iterator[Any]:
        """The open file. An error of its content within the block names it, too."""
        try:
            with pq.ParquetFile(self._folder / file.hidden) as source:
                yield source
        except (OSError, pa.ArrowException) as error:
            raise EnvironmentFailure(f"{self._folder / file.hidden}: the file cannot be merged: {error}") from error

    # ------------------------------------------------------------ files

    def _committable(self, merged: MergedFile, checkpoint: int) -> dict[str, Any]:
        self._rolled += 1
        name = f"part-{self._owner}-{checkpoint}-{self._rolled}~{merged.begun}.parquet"
        return {
            "pending": merged.path.name,
            "rows": sum(file.rows for file in merged.files),
            "bytes": merged.bytes,
            "crc32": merged.crc32,
            "folder": str(self._folder.absolute()),
            "final": str(PurePath(merged.files[0].partition, name)),
            "merged": [file.hidden for file in merged.files] if len(merged.files) > 1 else [],
            "parts": [file.contents for file in merged.files],
        }

    def _link(self, recorded: SmallFile) -> None:
        """Gives a recorded file a name of this attempt."""
        with recorded.found_in(self._checked) as location:
            if location is None:
                return
            name = f".weir-{self._owner}-{self._inner.take_number()}.pending"
            copy_file(location[0], self._folder / name)
        folder = str(self._folder.absolute())
        self._waiting.append(msgspec.structs.replace(recorded, hidden=name, folder=folder, copied=recorded.contents))


def _small_file(committable: Any) -> SmallFile:
    partition = str(PurePath(committable["final"]).parent)
    return SmallFile(
        hidden=committable["pending"],
        folder=committable["folder"],
        partition="" if partition == "." else partition,
        bytes=committable["bytes"],
        crc32=committable["crc32"],
        rows=committable["rows"],
    )
