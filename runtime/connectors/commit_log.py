"""The commit log of an output folder: which files belong to which checkpoint.

Visible file names appear one after another, but a reader of the log sees all files of a checkpoint or none. An entry is
a single file, written under a temporary name and renamed. An entry names only files that are already visible.

    .commit-log/<job>-<sink>-<n>.json     epoch n: the files that a sink committed with one checkpoint
    .commit-log/<job>-<sink>-<n>.delivered   all epochs up to n are delivered, see `release`

The folder name begins with a dot: readers of Parquet folders and a shell's `*` ignore it. Epochs of a sink are numbered
from 1 without gaps, in commit order. A checkpoint without rows has no epoch.

Each file is in exactly one epoch. In an attempt, a subtask names a file in each checkpoint until it gets the notice of
the commit. The newest entry therefore names every file that may be committed again (`files`, `carried`). A commit of a
checkpoint that is not above the highest of the log follows a restore: its files are compared with all entries. (The
principle of Delta Lake's transaction log, without its table state.)
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from runtime.access.data_roots import CheckedFolder, DataRoots
from runtime.connectors.file_names import FINAL_NAME
from runtime.connectors.names import NAME_PATTERN
from runtime.durable import make_folder, name_write_errors, rename_without_replacing, sync_path
from runtime.errors import CorruptState, JobRejected

LOG_FOLDER: Final = ".commit-log"
FORMAT_VERSION: Final = 1
_ENTRY_NAME: Final = re.compile(rf"(?P<job>{NAME_PATTERN})-(?P<sink>{NAME_PATTERN})-(?P<number>\d+)\.json")
_TEMPORARY_NAME: Final = re.compile(
    rf"\.(?P<job>{NAME_PATTERN})-(?P<sink>{NAME_PATTERN})-(?P<token>\d+)-[0-9a-f]+\.tmp"
)
_DELIVERED_NAME: Final = re.compile(rf"(?P<job>{NAME_PATTERN})-(?P<sink>{NAME_PATTERN})-(?P<number>\d+)\.delivered")


class LoggedFile(msgspec.Struct, frozen=True):
    """A visible file by its path in the folder."""

    name: str
    bytes: int
    rows: int


class CommittedEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a sink committed with a checkpoint. `job` and `sink` are spelled as in file names
    (`names.encode_name`).

    Args:
        log: id of the log of this sink, different in each folder.
        token: token of the attempt that took the checkpoint.
        highest: the highest (token, checkpoint) of this and all earlier epochs.
        carried: names of files of earlier epochs that the checkpoint named as well.
    """

    format: int = FORMAT_VERSION
    log: str
    job: str
    sink: str
    number: int
    token: int
    checkpoint: int
    highest: tuple[int, int]
    files: tuple[LoggedFile, ...]
    carried: tuple[str, ...] = ()

    @property
    def file_names(self) -> frozenset[str]:
        """Every file that the checkpoint named."""
        return frozenset((*(file.name for file in self.files), *self.carried))

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def entry_name(self) -> str:
        return f"{self.job}-{self.sink}-{self.number}.json"


class CommitLog:
    """The log of the output folder `output`."""

    def __init__(self, output: Path, roots: DataRoots | None = None) -> None:
        """`roots`: the folders in which `output` may lie; None: the data roots of this process."""
        self.output = output
        self.folder = output / LOG_FOLDER
        self._location = str(self.folder)  #: for errors
        self._checked = CheckedFolder.of("path", self.folder, roots)
        #: newest epoch by job and sink; may be stale if another master appends
        self._newest: dict[tuple[str, str], CommittedEpoch] = {}

    @property
    def exists(self) -> bool:
        return self.folder.is_dir()

    # ------------------------------------------------------------ reading

    def sinks(self) -> list[tuple[str, str]]:
        """Job and sink of every log in this folder, spelled as in file names."""
        return sorted({(job, sink) for job, sink, _ in self._entries()})

    def numbers(self, job: str, sink: str) -> list[int]:
        """The epoch numbers of a sink, ascending."""
        return sorted(number for *owner, number in self._entries() if tuple(owner) == (job, sink))

    def epochs(self, job: str, sink: str, numbers: Iterable[int] | None = None) -> list[CommittedEpoch]:
        """Epochs of a sink, ascending. With `numbers`: epochs of these numbers, except epochs whose entry was removed.

        Raises:
            CorruptState: an entry is damaged; the error names it.
            JobRejected: an entry has another format.
        """
        epoch_numbers = self.numbers(job, sink) if numbers is None else numbers
        epochs = (self._read(f"{job}-{sink}-{number}.json") for number in epoch_numbers)
        return [epoch for epoch in epochs if epoch is not None]

    def newest(self, job: str, sink: str) -> CommittedEpoch | None:
        """The newest epoch of a sink. Reads a single entry."""
        epochs = self.epochs(job, sink, self.numbers(job, sink)[-1:])
        return epochs[0] if epochs else None

    def logged_names(self, job: str, sink: str, order: tuple[int, int]) -> frozenset[str]:
        """The files of a checkpoint that may be in the log already. `order`: as for `add`."""
        return self._logged_names(job, sink, self._newest_epoch(job, sink), order)

    def _read(self, entry: str) -> CommittedEpoch | None:
        """The epoch of an entry; None if the entry was removed in the meantime."""
        path = f"{self._location}/{entry}"
        content = self._content(entry)
        if content is None:
            return None
        try:
            epoch = msgspec.json.decode(content, type=CommittedEpoch)
        except msgspec.DecodeError as error:
            raise CorruptState(path, f"not an entry of a commit log: {error}") from error
        if epoch.format != FORMAT_VERSION:
            raise JobRejected(
                "other-format", "path", f"{path} has format {epoch.format}; this Weir reads format {FORMAT_VERSION}"
            )
        if epoch.entry_name != entry or not all(FINAL_NAME.fullmatch(file.name) for file in epoch.files):
            raise CorruptState(path, "it names another epoch, or files that no sink has written")
        return epoch

    def _entries(self) -> Iterator[tuple[str, str, int]]:
        for name in self._names():
            match = _ENTRY_NAME.fullmatch(name)
            if match:
                yield match["job"], match["sink"], int(match["number"])

    # ------------------------------------------------------------ writing

    def add(self, job: str, sink: str, order: tuple[int, int], files: Iterable[LoggedFile]) -> CommittedEpoch | None:
        """Adds the files that are in no epoch yet as a new epoch, durably and atomically. Idempotent.

        Args:
            order: token of the attempt that took the checkpoint, and number of the checkpoint.
            files: all files that the checkpoint names; each is visible or was visible before.

        Returns:
            The new epoch; None if every file is already in the log.

        Raises:
            EnvironmentFailure: an entry cannot be written; the error names it.
        """
        while True:
            newest = self._newest_epoch(job, sink)
            epoch = self._next_epoch(job, sink, newest, order, tuple(files))
            if epoch is None:
                return None
            if self.append_epoch(epoch):
                self._newest[job, sink] = epoch
                return epoch
            self._newest.pop((job, sink), None)  # another master has added an epoch with this number

    def append_epoch(self, epoch: CommittedEpoch) -> bool:
        """Adds an epoch under its own number. Returns False if an epoch with this number already exists."""
        return self._write(epoch.entry_name, epoch.job, epoch.sink, epoch.token, msgspec.json.encode(epoch))

    def clean(self, job: str, sink: str, token: int) -> None:
        """Removes the sink's temporary files of attempts before `token`."""
        self._checked.check()
        for path in self.folder.iterdir() if self.exists else ():
            match = _TEMPORARY_NAME.fullmatch(path.name)
            if match and match.group("job", "sink") == (job, sink) and int(match["token"]) < token:
                path.unlink(missing_ok=True)

    # ------------------------------------------------------------ delivery

    def delivered_epoch(self, job: str, sink: str) -> int:
        """Number of the last delivered epoch: delivery is in order, so all earlier epochs are delivered as well."""
        return max((number for number, _ in self._delivery_marks(job, sink)), default=0)

    def backlog(self, job: str, sink: str) -> list[int]:
        """Numbers of the epochs that are not yet delivered, ascending."""
        delivered = self.delivered_epoch(job, sink)
        return [number for number in self.numbers(job, sink) if number > delivered]

    def release(self, job: str, sink: str, delivered: int) -> None:
        """Records durably that all epochs up to `delivered` are delivered, then deletes their files. Idempotent.

        The entry of the newest epoch stays: it names the files that may be committed again.
        """
        if delivered > self.delivered_epoch(job, sink):
            self._write(f"{job}-{sink}-{delivered}.delivered", job, sink, 0, b"")
        for number, path in self._delivery_marks(job, sink):
            if number < delivered:
                path.unlink(missing_ok=True)
        numbers = self.numbers(job, sink)
        for epoch in self.epochs(job, sink, [number for number in numbers if number <= delivered]):
            for file in epoch.files:
                (self.output / file.name).unlink(missing_ok=True)
            if epoch.number != numbers[-1]:
                (self.folder / epoch.entry_name).unlink(missing_ok=True)

    def _delivery_marks(self, job: str, sink: str) -> Iterator[tuple[int, Path]]:
        """The files that record deliveries, each with the number of its epoch.

        A stopped master that goes on later adds its own, lower number, and the highest counts.
        """
        for path in self.folder.iterdir() if self.exists else ():
            match = _DELIVERED_NAME.fullmatch(path.name)
            if match and match.group("job", "sink") == (job, sink):
                yield int(match["number"]), path

    # ------------------------------------------------------------ entries

    def _next_epoch(
        self, job: str, sink: str, newest: CommittedEpoch | None, order: tuple[int, int], files: tuple[LoggedFile, ...]
    ) -> CommittedEpoch | None:
        """The epoch of the files that are in no epoch yet; None if there are none. `newest`: None begins the log."""
        logged = self._logged_names(job, sink, newest, order)
        if newest is not None and order <= newest.highest:
            files = tuple(file for file in files if file.name in logged or self._is_visible(file.name))
        new = tuple(file for file in files if file.name not in logged)
        if not new:
            return None
        return CommittedEpoch(
            log=newest.log if newest else uuid4().hex,
            job=job,
            sink=sink,
            number=newest.number + 1 if newest else 1,
            token=order[0],
            checkpoint=order[1],
            highest=max(order, newest.highest) if newest else order,
            files=new,
            carried=tuple(file.name for file in files if file.name in logged),
        )

    def _newest_epoch(self, job: str, sink: str) -> CommittedEpoch | None:
        return self._newest.get((job, sink)) or self.newest(job, sink)

    def _logged_names(
        self, job: str, sink: str, newest: CommittedEpoch | None, order: tuple[int, int]
    ) -> frozenset[str]:
        if newest is None or order > newest.highest:
            return newest.file_names if newest else frozenset()
        return frozenset().union(*(epoch.file_names for epoch in self.epochs(job, sink)))

    # ------------------------------------------------------------ storage

    def _names(self) -> list[str]:
        """The names of all files of the log."""
        return [path.name for path in self.folder.iterdir()] if self.exists else []

    def _content(self, name: str) -> bytes | None:
        """The content of a file of the log; None if there is no such file."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def _is_visible(self, name: str) -> bool:
        """Whether a file of the output is there."""
        return (self.output / name).exists()

    def _write(self, name: str, job: str, sink: str, token: int, data: bytes) -> bool:
        """Writes a file durably and atomically. Returns False if the file exists."""
        make_folder(self.output)
        self._checked.make()
        path, temporary = self.folder / name, self.folder / f".{job}-{sink}-{token}-{uuid4().hex}.tmp"
        with name_write_errors(path):
            with os.fdopen(self._checked.open_to_write(temporary.name, os.O_EXCL), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                rename_without_replacing(temporary, path)
            except FileExistsError:
                temporary.unlink()
                return False
            sync_path(self.folder)
        return True
