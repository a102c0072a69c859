"""Second phase of the sinks that write files: pending files get their visible names."""

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path, PurePath
from typing import Any, Final

import msgspec

from runtime.access.data_roots import CheckedFolder, DataRoots
from runtime.connectors.commit_log import CommitLog, LoggedFile
from runtime.connectors.file_names import FINAL_NAME, HIDDEN_NAME, MARK_NAME
from runtime.connectors.names import encode_name
from runtime.connectors.sinks.claims import Claim, Claims, Contents, origin_of, origins_of
from runtime.connectors.sinks.recorded_file import check_content, is_committed_in
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.durable import copy_file, make_folder, name_write_errors, rename_without_replacing, sync_path
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.ports import SinkCommitter

FILES_IN_PROGRESS: Final = "files-in-progress"  #: list state of sinks whose files grow over checkpoints
SMALL_FILES: Final = "small-files"  #: list state of compaction
_ROWS_VISIBLE: Final = "rows-already-visible"


class FileCommitter(SinkCommitter):
    """Gives pending files their visible names.

    Keeps the hidden files in the list state of every sink of files. If another sink takes the place of theirs, the
    restore is refused for the state that it does not declare; until then, the clean-up must not delete the files.
    """

    list_states = (FILES_IN_PROGRESS, SMALL_FILES)

    def __init__(self, folder: Path, roots: DataRoots | None = None) -> None:
        self._folder = folder
        self._roots = roots
        self._checked = CheckedFolder.of("path", folder, roots)
        self._marks: dict[str, Path] = {}  #: by writer, the newest commit mark that this committer has written
        self._log = CommitLog(folder, roots)
        self._claims = Claims(folder, roots)

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Makes the files visible.

        Checks all files first: if a file is missing or damaged, none becomes visible or is marked.
        """
        self._checked.check()
        files = [_check_committable(committable, permit.job) for committable in committables]
        return self._show(files, permit.checkpoint)

    def _show(self, files: Sequence[Mapping[str, Any]], checkpoint: int) -> int:
        """Makes valid committables visible. Returns the number of files that were not visible."""
        pending = [file for file in files if self._is_pending(file)]
        for file in pending:
            self._check_content(file)
        due = [file for file in pending if self._claim(file, checkpoint)]
        if due:
            self._write_marks(due)
        for name in {str(PurePath(file["final"]).parent) for file in due if "/" in file["final"]}:
            folder = self._folder / name
            CheckedFolder("path", folder, self._checked.roots).check()  # a link may lead out of the data roots
            make_folder(folder)
        count = sum(self._make_visible(self._folder / file["pending"], self._folder / file["final"]) for file in due)
        for file in files:  # only now: the rows of the merged files are visible in another file
            for name in file.get("merged", ()):
                (self._folder / name).unlink(missing_ok=True)
        # also if none is due: an earlier commit may not be durable yet
        for folder in {self._folder, *((self._folder / file["final"]).parent for file in files)} if files else ():
            if folder.is_dir():
                sync_path(folder)
        return count

    def commit_epoch(self, permit: CommitPermit, committables: Sequence[Any]) -> None:
        """Commits the files, then adds the files that the log does not name yet as a new epoch.

        Raises:
            EnvironmentFailure: as for `commit`, or the entry cannot be written.
        """
        self.commit(permit, committables)
        files = [_check_committable(each, permit.job) for each in committables]
        self._record(files, (permit.taken_by, permit.checkpoint))

    def _record(self, files: Sequence[Mapping[str, Any]], order: tuple[int, int]) -> None:
        """Adds committed files to the log by `CommitLog.add`, then releases the claims that no copy needs."""
        here = [file for file in files if self._is_committed(file)]  # the rest was committed in a former folder
        if here:
            job, sink = sink_of(here)
            new = [LoggedFile(file["final"], file["bytes"], file["rows"]) for file in here]
            self._log.add(job, sink, order, new)
            self._claims.release(
                origin
                for file in here
                for origin, contents in origins_of(file).items()
                if _is_own(origin, file) and len(contents) == 1
            )

    def committed_elsewhere(self, committables: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
        """Committables that `commit` found committed in a former folder and not in this one, by former folder."""
        here, by_folder = str(self._folder.absolute()), dict[str, list[Any]]()
        for file in committables:
            if file["folder"] != here and not self._is_committed(file):
                by_folder.setdefault(file["folder"], []).append(file)
        return by_folder

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        self._checked.check()
        self._log.clean(encode_name(job), encode_name(uid), token)
        # A sink of another kind may have written older checkpoints.
        files = [each for each in keep if isinstance(each, Mapping) and {"pending", "hidden"} & each.keys()]
        names = {_hidden_name(each) for each in files}
        owner = (encode_name(job), encode_name(uid))
        self._complete_claimed(job, owner, token)
        self._claims.clean(owner, token, (origin for each in files for origin in _origins_in(each)))
        removed = 0
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            match = HIDDEN_NAME.fullmatch(path.name)
            if match and match.group("job", "uid") == owner and int(match["token"]) < token and path.name not in names:
                path.unlink(missing_ok=True)
                removed += 1
        self._clean_marks(owner, token, {match["owner"] for name in names if (match := HIDDEN_NAME.fullmatch(name))})
        return removed

    def missing(self, committables: Sequence[Any]) -> list[str]:
        return [str(self._folder / _hidden_name(each)) for each in committables if not self._is_present(each)]

    def _is_present(self, file: Mapping[str, Any]) -> bool:
        """Whether the file, or the recorded part of a file in progress, is in this folder."""
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / _hidden_name(file)).stat().st_size >= int(file["bytes"])
        return "final" in file and (self._folder / file["final"]).exists()

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
            status = pending.lstat()
        except FileNotFoundError:
            return not self._is_committed(file) and self._copy_from_former_folder(file)
        if not stat.S_ISREG(status.st_mode):
            raise JobRejected("bad-committable", "sink", f"{pending}: the file to commit is not a regular file")
        if status.st_size != file["bytes"]:
            raise EnvironmentFailure(f"{pending}: the file to commit has {status.st_size} bytes, not {file['bytes']}")
        self._check_not_foreign(pending, final)
        return True

    def _check_content(self, file: Mapping[str, Any]) -> None:
        """Raises EnvironmentFailure if the content of a pending file is damaged."""
        path = self._folder / file["pending"]
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # another holder of a permit was faster
        try:
            check_content(path, descriptor, file["bytes"], file["crc32"])
        finally:
            os.close(descriptor)

    def _check_not_foreign(self, pending: Path, final: Path) -> None:
        """Raises EnvironmentFailure if a foreign file has the visible name, while the file is still pending."""
        if os.path.lexists(final) and os.path.lexists(pending):
            raise EnvironmentFailure(f"{final}: a foreign file has the name of the file to commit: move it away")

    def _is_committed(self, file: Mapping[str, Any]) -> bool:
        return (self._folder / file["final"]).exists() or self._is_marked(file)

    def _is_marked(self, file: Mapping[str, Any]) -> bool:
        """Whether a commit mark covers the file. Lists the folder, so it is called only for missing files."""
        final = _final_name(file)
        newest = max((number for _, number in self._marks_of(final["owner"])), default=0)
        return int(final["number"]) <= newest

    def _copy_from_former_folder(self, file: Mapping[str, Any]) -> bool:
        """Copies a pending file from the former folder, if a savepoint is restored into another output folder.

        The file is copied, not moved: the same savepoint may be restored again, into any folder.

        Returns:
            True if the copy is pending. False if the file was committed in the former folder.
        """
        pending, former = self._folder / file["pending"], file["folder"]
        if Path(former) == self._folder.absolute():
            raise EnvironmentFailure(f"{pending}: the file to commit is neither pending nor committed")
        before = FileCommitter(Path(former), self._roots)
        before._checked.check()
        if os.path.lexists(before._folder / file["pending"]):
            before._is_pending(file)
            before._check_content(file)  # a damaged copy would stay when the file is replaced from a backup
            make_folder(self._folder)
            copy_file(before._folder / file["pending"], pending)
            return self._is_pending(file)  # the former folder may have changed since the check
        if before._is_committed(file):
            return False
        raise EnvironmentFailure(
            f"{pending}: the file to commit, with {file['rows']} rows, is neither pending nor committed in "
            f"{former}, where it was written, nor here; copy {file['pending']} from there into this folder"
        )

    # ------------------------------------------------------------ claims

    def _claim(self, file: Mapping[str, Any], checkpoint: int) -> bool:
        """Claims the origins of the rows of a pending file. Returns whether the file is pending still.

        Raises:
            JobRejected: rows of the file are visible in another file; the message names both.
            EnvironmentFailure: a clean-up has deleted the file before the claim.
        """
        for origin in origins_of(file):
            claim = self._claims.acquire(origin, Claim(file, checkpoint))
            other = claim.file["final"]
            if other == file["final"]:
                if _is_own(origin, file) or not self._is_committed_itself(origin, file):
                    continue
                other = f"the file that was begun as {origin}"
            if (self._folder / file["pending"]).exists():  # else its commit was completed elsewhere
                self._give_back(file)
            raise JobRejected(
                _ROWS_VISIBLE,
                "path",
                f"{self._folder / file['final']} cannot be committed: rows of it are visible in {other}, since a "
                "savepoint was restored more than once into this folder. Restore that savepoint again, which leaves "
                "these rows out, or restore into another folder",
            )
        try:
            return not origins_of(file) or self._is_pending(file)
        except EnvironmentFailure:
            self._give_back(file)
            raise

    def _is_committed_itself(self, origin: str, file: Mapping[str, Any]) -> bool:
        return is_committed_in(self._folder, str(PurePath(file["final"]).parent), origin)

    def _give_back(self, file: Mapping[str, Any]) -> None:
        """Releases the claims of a file that does not become visible."""
        claims = ((origin, self._claims.find(origin)) for origin in origins_of(file))
        self._claims.release(origin for origin, claim in claims if claim and claim.file["final"] == file["final"])

    def _complete_claimed(self, job: str, owner: tuple[str, str], token: Token) -> None:
        """Completes the commits of older attempts that ended between their claims and the commit log.

        Releases claims of files that will not become visible: their rows are visible elsewhere, or a clean-up has
        deleted them before their claim.
        """
        claimed: dict[str, Claim] = {}
        for origin in self._claims.origins():
            name = HIDDEN_NAME.fullmatch(origin)
            claim = self._claims.find(origin) if name and name.group("job", "uid") == owner else None
            if claim is not None:
                file = _check_committable(claim.file, job)
                if int(_final_name(file)["token"]) < token:
                    claimed[file["final"]] = claim
        epochs = self._log.epochs(*owner) if claimed else []
        for final in sorted(claimed.keys() - {file.name for epoch in epochs for file in epoch.files}):
            file = claimed[final].file
            if not (self._folder / file["pending"]).exists() and not self._is_committed(file):
                self._give_back(file)
                continue
            try:
                self._show([file], claimed[final].checkpoint)
            except JobRejected as error:
                if error.code != _ROWS_VISIBLE:
                    raise
            else:
                self._record([file], (int(_final_name(file)["token"]), claimed[final].checkpoint))

    # ------------------------------------------------------------ commit marks

    def _write_marks(self, due: Sequence[Mapping[str, Any]]) -> None:
        """Adds commit marks and removes older marks of this committer. A marked file that is not pending was committed.

        A committer of an older attempt may run at the same time. Its marks never lower the newest mark of a writer.
        """
        newest: dict[str, int] = {}
        for file in due:
            final = _final_name(file)
            newest[final["owner"]] = max(int(final["number"]), newest.get(final["owner"], 0))
        marks = {owner: self._folder / f".committed-{owner}-{number}" for owner, number in newest.items()}
        for path in marks.values():
            with name_write_errors(path):
                os.close(self._checked.open_to_write(path.name, 0))
        sync_path(self._folder)
        for owner, path in marks.items():
            if owner in self._marks and self._marks[owner] != path:
                self._marks[owner].unlink(missing_ok=True)
        self._marks.update(marks)

    def _marks_of(self, owner: str) -> list[tuple[Path, int]]:
        matches = ((path, MARK_NAME.fullmatch(path.name)) for path in self._folder.glob(f".committed-{owner}-*"))
        return [(path, int(name["number"])) for path, name in matches if name and name["owner"] == owner]

    def _clean_marks(self, sink: tuple[str, str], token: Token, writers: Set[str]) -> None:
        """Removes marks of attempts before `token`. A manifest needs the newest mark of each writer in `writers`."""
        owners = set()
        for path in self._folder.glob(".committed-*"):
            match = MARK_NAME.fullmatch(path.name)
            if match and match.group("job", "uid") == sink and int(match["token"]) < token:
                owners.add(match["owner"])
        for owner in owners:
            marks = sorted(self._marks_of(owner), key=lambda mark: mark[1])
            for path, _ in marks[:-1] if owner in writers else marks:
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
            return False  # another holder of a permit was faster
        except FileNotFoundError as error:
            if os.path.lexists(pending):  # a consumer has removed the empty folder of the partition
                raise EnvironmentFailure(f"{final}: the folder of the file to commit is gone") from error
            return False  # another holder of a permit was faster
        except OSError as error:
            raise EnvironmentFailure(f"{pending}: the file cannot be committed: {error}") from error
        return True


def _hidden_name(file: Mapping[str, Any]) -> str:
    """The hidden name in a committable, or in an entry of the list state of a writer."""
    name: str = file["pending"] if "pending" in file else file["hidden"]
    return name


def _is_own(hidden: str, file: Mapping[str, Any]) -> bool:
    """Whether the writer of a committable has written the hidden file."""
    name = HIDDEN_NAME.fullmatch(hidden)
    return name is not None and name["owner"] == _final_name(file)["owner"]


def _origins_in(entry: Mapping[str, Any]) -> Iterator[str]:
    """The origins of the rows of a committable, or of an entry of the list state of a writer."""
    yield from origins_of(entry)
    if "hidden" in entry:
        yield origin_of(entry.get("copied") or {entry["hidden"]: 0})


def _final_name(file: Mapping[str, Any]) -> re.Match[str]:
    match = FINAL_NAME.fullmatch(file["final"])
    assert match is not None, "its name has been checked"
    return match


def _check_committable(committable: Any, job: str) -> Mapping[str, Any]:
    """The committable, if its file names are valid and of this job: a manifest is not trusted.

    Raises:
        JobRejected: the committable is invalid, and the message quotes it; or it belongs to a bucket.
    """
    check_kind(committable, "upload")
    try:
        hidden, final = HIDDEN_NAME.fullmatch(committable["pending"]), FINAL_NAME.fullmatch(committable["final"])
    except (KeyError, TypeError):
        hidden = final = None
    if (
        hidden is None or final is None
        or hidden["job"] != encode_name(job)
        or (hidden["owner"], hidden["begun"]) != (final["owner"], final["begun"] or final["number"])
        or hidden["state"] not in ("pending", "inprogress" if final["begun"] else "pending")
        or not isinstance(committable.get("bytes"), int)
        or not isinstance(committable.get("crc32"), int)
        or not isinstance(committable.get("rows"), int)
        or not isinstance(committable.get("folder"), str)
        or not _are_files_of(hidden["owner"], committable.get("merged", []))
        or not _are_parts_of(hidden, committable.get("parts", []))
    ):  # fmt: skip
        detail = f"a checkpoint names a file to commit that this sink has not written for job {job}: {committable!r}"
        raise JobRejected("bad-committable", "sink", detail)
    file: Mapping[str, Any] = committable
    return file


def check_kind(committable: Any, foreign_key: str) -> None:
    """Raises JobRejected for output that a checkpoint took in a bucket, of a sink in a folder now, or the reverse.

    Args:
        foreign_key: of committables of the other kind.
    """
    if isinstance(committable, Mapping) and foreign_key in committable and "folder" in committable:
        problem = f"output of the checkpoint belongs to {committable['folder']}, committed or not"
        remedy = "a checkpoint does not move between a folder and a bucket: restore it there"
        raise JobRejected("other-folder", "path", f"{problem}; {remedy}")


def _are_files_of(owner: str, names: Any) -> bool:
    """Whether `names` is a list of pending files of `owner`."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return False
    matches = [HIDDEN_NAME.fullmatch(name) for name in names]
    return all(name is not None and (name["owner"], name["state"]) == (owner, "pending") for name in matches)


def _are_parts_of(hidden: re.Match[str], parts: Any) -> bool:
    """Whether `parts` has contents of files of the same sink."""
    try:
        origins = msgspec.convert(parts, list[Contents])
    except msgspec.ValidationError:
        return False
    names = [HIDDEN_NAME.fullmatch(name) for contents in origins for name in contents]
    owner = hidden.group("job", "uid")
    return all(origins) and all(name is not None and name.group("job", "uid") == owner for name in names)


def sink_of(files: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Job and sink of the files, spelled as in file names. Raises JobRejected if there is more than one sink."""
    sinks = {_final_name(file).group("job", "uid") for file in files}
    if len(sinks) != 1:
        raise JobRejected("bad-committable", "sink", f"a checkpoint names files of several sinks: {sorted(sinks)}")
    job, sink = sinks.pop()
    return job, sink
