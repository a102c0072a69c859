"""Parquet files, exactly once, by rename.

A file is written under a hidden name (`.weir-….inprogress`). At the barrier it is closed, made durable and renamed to
another hidden name (`….pending`). When its checkpoint has completed, the file gets its visible name. Readers that
ignore hidden names (Spark, Arrow, Hive) therefore see only committed rows, each exactly once.

    .weir-<job>-<token>-<uid>-<subtask>-<n>.inprogress
    .weir-<job>-<token>-<uid>-<subtask>-<n>.pending
    part-<job>-<token>-<uid>-<subtask>-<checkpoint>-<n>.parquet
    .committed-<job>-<token>-<uid>-<subtask>-<n>

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
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.connectors.commit_log import CommitLog, LoggedFile
from runtime.connectors.names import NAME_PATTERN, encode_name
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.data_roots import CheckedFolder, DataRoots
from runtime.durable import copy_file, make_folder, name_write_errors, rename_without_replacing, sync_path
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.ports import OperatorContext, SinkCommitter, SinkWriter

_OWNER_PATTERN: Final = rf"(?P<job>{NAME_PATTERN})-(?P<token>\d+)-(?P<uid>{NAME_PATTERN})-\d+"
_HIDDEN_NAME: Final = re.compile(rf"\.weir-{_OWNER_PATTERN}-\d+\.(?:inprogress|pending)")
_PENDING_NAME: Final = re.compile(rf"\.weir-(?P<owner>{_OWNER_PATTERN})-(?P<number>\d+)\.pending")
_FINAL_NAME: Final = re.compile(rf"part-(?P<owner>{_OWNER_PATTERN})-\d+-(?P<number>\d+)\.parquet")
_MARK_NAME: Final = re.compile(rf"\.committed-(?P<owner>{_OWNER_PATTERN})-(?P<number>\d+)")
ROW_GROUP_BYTES: Final = 32 << 20  #: approximate size of a row group


@dataclass(frozen=True)
class ParquetSink:
    """Writes Parquet files into a folder.

    Args:
        path: the folder; created if it does not exist.
    """

    guarantee: ClassVar[str] = "exactly-once"

    path: str

    def writer(self) -> "ParquetWriter":
        return ParquetWriter(Path(self.path))

    def committer(self) -> "ParquetCommitter":
        return ParquetCommitter(Path(self.path))

    def check(self) -> None:
        if not self.path:
            raise JobRejected("bad-path", "path", "must name the output folder")

    def folders(self) -> Mapping[str, str]:
        return {"path": self.path}


class ParquetWriter(SinkWriter):
    """Writes a file per checkpoint, unless the checkpoint has no rows."""

    def __init__(self, folder: Path, roots: DataRoots | None = None, *, row_group_bytes: int = ROW_GROUP_BYTES) -> None:
        self._folder, self._row_group_bytes = folder, row_group_bytes
        self._checked = CheckedFolder.of("path", folder, roots)
        self._number = 0
        self._rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._path: Path | None = None
        self._file: Any = None
        self._parquet: Any = None

    def open(self, context: OperatorContext) -> None:
        self._owner = f"{encode_name(context.job)}-{context.token}-{encode_name(context.uid)}-{context.index}"
        self._checked.check()
        make_folder(self._folder)

    def write(self, batch: pa.RecordBatch) -> None:
        if self._parquet is None:
            self._begin(batch.schema)
        self._rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= self._row_group_bytes:
            self._write_group()

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        self._checked.check()
        if self._parquet is None:
            return ()
        assert self._path is not None, "a file that is written has a name"
        self._write_group()
        with name_write_errors(self._path):
            self._parquet.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        pending = self._path.with_suffix(".pending")
        self._path.rename(pending)
        sync_path(self._folder)
        committable = {
            "pending": pending.name,
            "final": f"part-{self._owner}-{checkpoint}-{self._number}.parquet",
            "rows": self._rows,
            "bytes": pending.stat().st_size,
            "folder": str(self._folder.absolute()),
        }
        self._path = self._file = self._parquet = None
        return (committable,)

    def close(self) -> None:
        """Deletes the file in progress, which belongs to no checkpoint. Pending files stay."""
        for part in (self._parquet, self._file):
            if part is not None:
                with contextlib.suppress(OSError):  # the file is deleted below in any case
                    part.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._path = self._file = self._parquet = None

    def _begin(self, schema: pa.Schema) -> None:
        self._number += 1
        self._rows = 0
        path = self._folder / f".weir-{self._owner}-{self._number}.inprogress"
        self._file = os.fdopen(self._checked.open_to_write(path.name, os.O_EXCL), "wb")
        self._path = path
        self._parquet = pq.ParquetWriter(
            self._file, schema, compression="zstd", use_dictionary=dictionary_columns(schema)
        )

    def _write_group(self) -> None:
        if self._waiting:
            assert self._path is not None, "a file that is written has a name"
            with name_write_errors(self._path):
                self._parquet.write_table(pa.Table.from_batches(self._waiting), sum(map(len, self._waiting)))
        self._waiting, self._waiting_bytes = [], 0


def dictionary_columns(schema: pa.Schema) -> bool | list[str]:
    """The columns to dictionary-encode: text. For numbers, writing would take 1.5 times as long and save no space."""
    if any(pa.types.is_nested(item.type) for item in schema):
        return True  # nested fields would have to be listed by their own paths
    return [item.name for item in schema if not pa.types.is_primitive(item.type)]


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
        shown = sum(self._make_visible(self._folder / file["pending"], self._folder / file["final"]) for file in due)
        if files and self._folder.is_dir():  # also if none is due: an earlier commit may not be durable yet
            sync_path(self._folder)
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
        found = [(path, _FINAL_NAME.fullmatch(path.name)) for path in sorted(self._folder.glob("part-*.parquet"))]
        own = [path for path, name in found if name and name.group("job", "uid") == (job, sink)]
        return [LoggedFile(path.name, path.stat().st_size) for path in own if path.name not in new]

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
        except FileNotFoundError:  # another holder of a permit was faster
            return False
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
