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

import contextlib
import os
import re
import stat
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar, Final

import pyarrow as pa

from runtime.connectors.commit_log import CommitLog, LoggedFile
from runtime.connectors.names import NAME_PATTERN, encode_name
from runtime.connectors.partitions import FOLDER_PATTERN, check_partition_columns, split_by_partition
from runtime.connectors.sinks.parquet_file import ROW_GROUP_BYTES, ParquetFile
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.data_roots import CheckedFolder, DataRoots
from runtime.durable import copy_file, make_folder, name_write_errors, rename_without_replacing, sync_path
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.ports import OperatorContext, SinkCommitter, SinkWriter

_OWNER_PATTERN: Final = rf"(?P<job>{NAME_PATTERN})-(?P<token>\d+)-(?P<uid>{NAME_PATTERN})-\d+"
_HIDDEN_NAME: Final = re.compile(rf"\.weir-{_OWNER_PATTERN}-\d+\.(?:inprogress|pending)")
_PENDING_NAME: Final = re.compile(rf"\.weir-(?P<owner>{_OWNER_PATTERN})-(?P<number>\d+)\.pending")
_FINAL_NAME: Final = re.compile(rf"{FOLDER_PATTERN}part-(?P<owner>{_OWNER_PATTERN})-\d+-(?P<number>\d+)\.parquet")
_MARK_NAME: Final = re.compile(rf"\.committed-(?P<owner>{_OWNER_PATTERN})-(?P<number>\d+)")
MAX_OPEN_FILES: Final = 100  #: of a writer; the least recently written file is rolled when another is needed
MAX_WAITING_GROUPS: Final = 4  #: size of all rows that wait to be written, in row groups


@dataclass(frozen=True)
class ParquetSink:
    """Writes Parquet files into a folder.

    Args:
        path: the folder; created if it does not exist.
        partition_by: columns whose values choose a sub-folder, as in Hive: `("day",)` writes to `day=2024-01-01/`.
            Text, integers, booleans or dates.
        max_bytes: a file is rolled before its row groups exceed this size; the footer comes on top. None: a file per
            checkpoint and partition.
        roll_after_idle_ms: a file without new rows for this time is rolled. It is committed with the next checkpoint,
            as all rolled files.
    """

    guarantee: ClassVar[str] = "exactly-once"

    path: str
    partition_by: tuple[str, ...] = ()
    max_bytes: int | None = None
    roll_after_idle_ms: int | None = None

    def writer(self) -> "ParquetWriter":
        return ParquetWriter(
            Path(self.path),
            partition_by=self.partition_by,
            max_bytes=self.max_bytes,
            roll_after_idle_ms=self.roll_after_idle_ms,
        )

    def committer(self) -> "ParquetCommitter":
        return ParquetCommitter(Path(self.path))

    def check(self) -> None:
        if not self.path:
            raise JobRejected("bad-path", "path", "must name the output folder")
        check_partition_columns(self.partition_by)
        if self.max_bytes is not None and self.max_bytes < 1:
            raise JobRejected("bad-size", "max_bytes", "must be at least 1 byte")
        if self.roll_after_idle_ms is not None and self.roll_after_idle_ms < 1:
            raise JobRejected("bad-interval", "roll_after_idle_ms", "must be at least 1 ms")

    def folders(self) -> Mapping[str, str]:
        return {"path": self.path}


class ParquetWriter(SinkWriter):
    """Writes a file per partition and checkpoint, or several if files are rolled earlier.

    A rolled file is pending at once and belongs to the next checkpoint. All files of a checkpoint are therefore pending
    before a file of the next checkpoint begins; the commit marks rely on this.
    """

    def __init__(
        self,
        folder: Path,
        roots: DataRoots | None = None,
        *,
        row_group_bytes: int = ROW_GROUP_BYTES,
        partition_by: Sequence[str] = (),
        max_bytes: int | None = None,
        roll_after_idle_ms: int | None = None,
    ) -> None:
        self._folder, self._row_group_bytes = folder, row_group_bytes
        self._partition_by, self._max_bytes, self._idle_ms = partition_by, max_bytes, roll_after_idle_ms
        self._checked = CheckedFolder.of("path", folder, roots)
        self._number = 0
        self._files: dict[str, ParquetFile] = {}  #: by relative folder, the least recently written first
        self._written_at: dict[str, int] = {}  #: time of the last row, by relative folder; empty without idle time
        #: rolled files that belong to no checkpoint yet: relative folder, number, committable without its visible name
        self._pending: list[tuple[str, int, dict[str, Any]]] = []

    def open(self, context: OperatorContext) -> None:
        self._owner = f"{encode_name(context.job)}-{context.token}-{encode_name(context.uid)}-{context.index}"
        self._now_ms = context.now_ms
        self._checked.check()
        make_folder(self._folder)

    def write(self, batch: pa.RecordBatch) -> None:
        if not self._partition_by:
            self._write_to("", batch)
            return
        for folder, rows in split_by_partition(batch, self._partition_by):
            self._write_to(folder, rows)
        if sum(file.waiting_bytes for file in self._files.values()) >= MAX_WAITING_GROUPS * self._row_group_bytes:
            max(self._files.values(), key=lambda file: file.waiting_bytes).write_group()

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        self._checked.check()
        for folder in list(self._files):
            self._roll(folder)
        if not self._pending:
            return ()
        sync_path(self._folder)
        part = f"part-{self._owner}-{checkpoint}"
        prepared = tuple(
            file | {"final": str(PurePath(folder, f"{part}-{number}.parquet"))}
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
            (self._folder / rolled["pending"]).unlink(missing_ok=True)
        self._files, self._pending = {}, []

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
            if len(self._files) >= MAX_OPEN_FILES:
                self._roll(next(iter(self._files)))
            self._number += 1
            name = f".weir-{self._owner}-{self._number}"
            file = ParquetFile(self._checked, name, schema, self._number, self._row_group_bytes)
        self._files[folder] = file
        if self._idle_ms is not None:
            self._written_at[folder] = self._now_ms()
        return file

    def _roll(self, folder: str) -> None:
        """Makes the file of a partition pending."""
        file = self._files[folder]
        pending = file.finish()
        del self._files[folder]
        self._written_at.pop(folder, None)
        committable = {
            "pending": pending.name,
            "rows": file.rows,
            "bytes": pending.stat().st_size,
            "folder": str(self._folder.absolute()),
        }
        self._pending.append((folder, file.number, committable))


class ParquetCommitter(SinkCommitter):
    """Gives pending files their visible names."""

    def __init__(self, folder: Path, roots: DataRoots | None = None) -> None:
        self._folder = folder
        self._roots = roots
        self._checked = CheckedFolder.of("path", folder, roots)
        self._marks: dict[str, Path] = {}  #: by writer, the newest commit mark that this committer has written
        self._log = CommitLog(folder, roots)

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Makes the files visible. Checks all files first: if a file is missing, none becomes visible or is marked."""
        self._checked.check()
        files = [_check_committable(committable, permit.job) for committable in committables]
        due = [file for file in files if self._is_pending(file)]
        if due:
            self._write_marks(due)
        for name in {str(PurePath(file["final"]).parent) for file in due if "/" in file["final"]}:
            folder = self._folder / name
            CheckedFolder("path", folder, self._checked.roots).check()  # a link may lead out of the data roots
            make_folder(folder)
        shown = sum(self._make_visible(self._folder / file["pending"], self._folder / file["final"]) for file in due)
        # also if none is due: an earlier commit may not be durable yet
        for folder in {self._folder, *((self._folder / file["final"]).parent for file in files)} if files else ():
            if folder.is_dir():
                sync_path(folder)
        return shown

    def commit_epoch(self, permit: CommitPermit, committables: Sequence[Any]) -> None:
        """Commits the files, then adds the files that the log does not name yet as a new epoch.

        Raises:
            EnvironmentFailure: as for `commit`, or the entry cannot be written.
        """
        self.commit(permit, committables)
        files = [_check_committable(committable, permit.job) for committable in committables]
        here = [file for file in files if self._is_committed(file)]  # the rest was committed in a former folder
        if here:
            job, sink = sink_of(here)
            token = max(int(found["token"]) for file in here if (found := _FINAL_NAME.fullmatch(file["final"])))
            new = [LoggedFile(file["final"], file["bytes"], file.get("rows")) for file in here]
            names = {file.name for file in new}
            self._log.add(job, sink, (token, permit.checkpoint), new, lambda: self._visible_files(job, sink, names))

    def committed_elsewhere(self, committables: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
        """Committables that `commit` found committed in a former folder and not in this one, by former folder."""
        here, found = str(self._folder.absolute()), dict[str, list[Any]]()
        for file in committables:
            if file.get("folder", here) != here and not self._is_committed(file):
                found.setdefault(file["folder"], []).append(file)
        return found

    def _visible_files(self, job: str, sink: str, new: Set[str]) -> list[LoggedFile]:
        """Visible files of the sink that are not among `new`."""
        paths = (path.relative_to(self._folder).as_posix() for path in self._folder.rglob("part-*.parquet"))
        found = [(path, _FINAL_NAME.fullmatch(path)) for path in sorted(paths)]
        own = [path for path, name in found if name and name.group("job", "uid") == (job, sink)]
        return [LoggedFile(path, (self._folder / path).stat().st_size) for path in own if path not in new]

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        self._checked.check()
        self._log.clean(encode_name(job), encode_name(uid), token)
        kept, owner = {committable["pending"] for committable in keep}, (encode_name(job), encode_name(uid))
        removed = 0
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            found = _HIDDEN_NAME.fullmatch(path.name)
            if found and found.group("job", "uid") == owner and int(found["token"]) < token and path.name not in kept:
                path.unlink(missing_ok=True)
                removed += 1
        self._clean_marks(owner, token, {found["owner"] for name in kept if (found := _PENDING_NAME.fullmatch(name))})
        return removed

    def missing(self, committables: Sequence[Any]) -> list[str]:
        pairs = [(self._folder / file["pending"], self._folder / file["final"]) for file in committables]
        return [str(pending) for pending, final in pairs if not pending.exists() and not final.exists()]

    # ------------------------------------------------------------ pending files

    def _is_pending(self, file: Mapping[str, Any]) -> bool:
        """Returns True if the file is pending, False if it was committed, in this folder or in its former folder.

        If the file is pending in its former folder only, it is copied into this folder first.

        Raises:
            JobRejected: the pending file is a link or a folder. A link could publish any file of the service account.
            EnvironmentFailure: the pending file is missing or has another size.
        """
        pending, final = self._folder / file["pending"], self._folder / file["final"]
        try:
            found = pending.lstat()
        except FileNotFoundError:
            return not self._is_committed(file) and self._copy_from_former_folder(file)
        if not stat.S_ISREG(found.st_mode):
            raise JobRejected("bad-committable", "sink", f"{pending}: the file to commit is not a regular file")
        if found.st_size != file["bytes"]:
            raise EnvironmentFailure(f"{pending}: the file to commit has {found.st_size} bytes, not {file['bytes']}")
        self._check_not_foreign(pending, final)
        return True

    def _check_not_foreign(self, pending: Path, final: Path) -> None:
        """Raises EnvironmentFailure if a foreign file has the visible name.

        A hard link to the pending file is accepted: older versions committed by link and unlink and may be interrupted.
        """
        with contextlib.suppress(FileNotFoundError):
            if not os.path.samestat(final.lstat(), pending.lstat()):
                raise EnvironmentFailure(f"{final}: a foreign file has the name of the file to commit: move it away")

    def _is_committed(self, file: Mapping[str, Any]) -> bool:
        return (self._folder / file["final"]).exists() or self._is_marked(file)

    def _is_marked(self, file: Mapping[str, Any]) -> bool:
        """Whether a commit mark covers the file. Lists the folder, so it is called only for missing files."""
        pending = _PENDING_NAME.fullmatch(file["pending"])
        assert pending is not None, "its name has been checked"
        newest = max((number for _, number in self._marks_of(pending["owner"])), default=0)
        return int(pending["number"]) <= newest

    def _copy_from_former_folder(self, file: Mapping[str, Any]) -> bool:
        """Copies a pending file from the former folder, if a savepoint is restored into another output folder.

        The file is copied, not moved: the same savepoint may be restored again, into any folder.

        Returns:
            True if the copy is pending. False if the file was committed in the former folder.
        """
        pending, former = self._folder / file["pending"], file.get("folder")
        if former is None or Path(former) == self._folder.absolute():
            raise EnvironmentFailure(f"{pending}: the file to commit is neither pending nor committed")
        before = ParquetCommitter(Path(former), self._roots)
        before._checked.check()
        if os.path.lexists(before._folder / file["pending"]):
            before._is_pending(file)
            make_folder(self._folder)
            copy_file(before._folder / file["pending"], pending)
            return self._is_pending(file)  # the former folder may have changed since the check
        if before._is_committed(file):
            return False
        raise EnvironmentFailure(
            f"{pending}: the file to commit, with {file.get('rows')} rows, is neither pending nor committed in "
            f"{former}, where it was written, nor here; copy {file['pending']} from there into this folder"
        )

    # ------------------------------------------------------------ commit marks

    def _write_marks(self, due: Sequence[Mapping[str, Any]]) -> None:
        """Adds commit marks and removes older marks of this committer. A marked file that is not pending was committed.

        A committer of an older attempt may run at the same time. Its marks never lower the newest mark of a writer.
        """
        newest: dict[str, int] = {}
        for file in due:
            pending = _PENDING_NAME.fullmatch(file["pending"])
            assert pending is not None, "its name has been checked"
            newest[pending["owner"]] = max(int(pending["number"]), newest.get(pending["owner"], 0))
        made = {owner: self._folder / f".committed-{owner}-{number}" for owner, number in newest.items()}
        for path in made.values():
            with name_write_errors(path):
                os.close(self._checked.open_to_write(path.name, 0))
        sync_path(self._folder)
        for owner, path in made.items():
            if owner in self._marks and self._marks[owner] != path:
                self._marks[owner].unlink(missing_ok=True)
        self._marks.update(made)

    def _marks_of(self, owner: str) -> list[tuple[Path, int]]:
        found = ((path, _MARK_NAME.fullmatch(path.name)) for path in self._folder.glob(f".committed-{owner}-*"))
        return [(path, int(name["number"])) for path, name in found if name and name["owner"] == owner]

    def _clean_marks(self, sink: tuple[str, str], token: Token, kept: Set[str]) -> None:
        """Removes marks of attempts before `token`. A manifest needs the newest mark of each writer in `kept`."""
        owners = set()
        for path in self._folder.glob(".committed-*"):
            found = _MARK_NAME.fullmatch(path.name)
            if found and found.group("job", "uid") == sink and int(found["token"]) < token:
                owners.add(found["owner"])
        for owner in owners:
            marks = sorted(self._marks_of(owner), key=lambda mark: mark[1])
            for path, _ in marks[:-1] if owner in kept else marks:
                path.unlink(missing_ok=True)

    # ------------------------------------------------------------ visible names

    def _make_visible(self, pending: Path, final: Path) -> bool:
        """Renames the file to its visible name. False if it was already visible.

        A single rename: a consumer that removes the visible file at once never finds a second file with its rows.
        """
        try:
            rename_without_replacing(pending, final)
        except FileExistsError:
            self._check_not_foreign(pending, final)
            pending.unlink(missing_ok=True)
            return False
        except FileNotFoundError as error:
            if os.path.lexists(pending):  # a consumer has removed the empty folder of the partition
                raise EnvironmentFailure(f"{final}: the folder of the file to commit is gone") from error
            return False  # another holder of a permit was faster
        except OSError as error:
            raise EnvironmentFailure(f"{pending}: the file cannot be committed: {error}") from error
        return True


def _check_committable(committable: Any, job: str) -> Mapping[str, Any]:
    """The committable, if its file names are valid and of this job: a manifest is not trusted.

    Raises:
        JobRejected: the committable is invalid; the message quotes it.
    """
    try:
        pending, final = _PENDING_NAME.fullmatch(committable["pending"]), _FINAL_NAME.fullmatch(committable["final"])
    except (KeyError, TypeError):
        pending = final = None
    if (
        pending is None or final is None
        or pending["job"] != encode_name(job)
        or pending.group("owner", "number") != final.group("owner", "number")
        or not isinstance(committable.get("bytes"), int)
        or not isinstance(committable.get("folder", ""), str)
    ):  # fmt: skip
        detail = f"a checkpoint names a file to commit that this sink has not written for job {job}: {committable!r}"
        raise JobRejected("bad-committable", "sink", detail)
    found: Mapping[str, Any] = committable
    return found


def sink_of(files: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Job and sink of the files, spelled as in file names. Raises JobRejected if there is more than one sink."""
    found = {name.group("job", "uid") for file in files if (name := _FINAL_NAME.fullmatch(file["final"]))}
    if len(found) != 1:
        raise JobRejected("bad-committable", "sink", f"a checkpoint names files of several sinks: {sorted(found)}")
    job, sink = found.pop()
    return job, sink
