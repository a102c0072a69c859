"""The record of a hidden file in a checkpoint, as an entry of the list state of a writer."""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self

import msgspec

from runtime.access.data_roots import CheckedFolder
from runtime.connectors.commit_log import CommitLog
from runtime.connectors.file_names import FINAL_NAME, HIDDEN_NAME, covers
from runtime.connectors.partitions import FOLDER_PATTERN
from runtime.connectors.sinks.claims import Claims, Contents, contents_of, origin_of, origins_of, shared_bytes
from runtime.durable import head_crc32
from runtime.errors import EnvironmentFailure, JobRejected

_PARTITION: Final = re.compile(FOLDER_PATTERN)


class RecordedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A hidden file whose first `bytes` bytes, with the checksum `crc32`, belong to a checkpoint.

    Args:
        hidden: its name in `folder`.
        partition: folder of the partition, relative; "" without partitions.
        copied: the contents of the file from which its first bytes were copied; empty if there is none.
    """

    hidden: str
    folder: str
    partition: str
    bytes: int
    crc32: int
    rows: int
    copied: Contents = {}

    @classmethod
    def of_state(cls, entry: Any) -> Self:
        """The record in an entry of list state. Raises JobRejected: a manifest is not trusted."""
        try:
            record = msgspec.convert(entry, cls)
        except msgspec.ValidationError as error:
            raise JobRejected("bad-state", "sink", f"not a record of a file in progress: {entry!r}: {error}") from error
        name, partition = HIDDEN_NAME.fullmatch(record.hidden), record.partition and f"{record.partition}/"
        if (
            name is None or not name["begun"].isdecimal() or not _PARTITION.fullmatch(partition) or record.bytes < 0
            or not all(HIDDEN_NAME.fullmatch(each) for each in record.copied)
        ):  # fmt: skip
            raise JobRejected("bad-state", "sink", f"a checkpoint names a file that no sink has written: {entry!r}")
        return record

    @property
    def path(self) -> Path:
        return Path(self.folder, self.hidden)

    @property
    def begun(self) -> int:
        """The number under which its writer began it."""
        return int(_parsed(self.hidden)["begun"])

    @property
    def contents(self) -> Contents:
        return contents_of(self.hidden, self.bytes, self.copied)

    @contextlib.contextmanager
    def found_in(self, sink_folder: CheckedFolder) -> Iterator[tuple[Path, int] | None]:
        """Path and descriptor of the file in the folder `sink_folder`, or in the folder where it was recorded.

        None: a later checkpoint has committed it or a copy of it, so its rows are visible, or a consumer has taken
        them.

        Raises:
            JobRejected: the name is a link or a folder, the folder lies outside the data roots, or only a part of the
                rows is visible.
            EnvironmentFailure: the file is lost, shorter than recorded, damaged, or cannot be read.
        """
        former = CheckedFolder(sink_folder.argument, Path(self.folder), sink_folder.roots)
        folders = [sink_folder] if former.path == sink_folder.path.absolute() else [sink_folder, former]
        if any(self._is_claimed_in(folder, sink_folder) for folder in folders):
            yield None
            return
        for folder in folders:
            with self._open_in(folder) as descriptor:
                if descriptor is not None:
                    yield folder.path / self.hidden, descriptor
                    return
        if not any(is_committed_in(folder.path, self.partition, self.hidden) for folder in folders):
            raise EnvironmentFailure(
                f"{self.path}: the file in progress, with {self.rows} rows of a checkpoint, is neither there nor "
                f"committed, nor is it in {sink_folder.path}; copy it from a backup into one of these folders"
            )
        yield None

    def check_in(self, folder: CheckedFolder) -> None:
        """Raises EnvironmentFailure unless the recorded part of the file is in `folder`, without damage."""
        with self._open_in(folder) as descriptor:
            if descriptor is None:
                raise EnvironmentFailure(f"{folder.path / self.hidden}: the file is gone")

    @contextlib.contextmanager
    def _open_in(self, folder: CheckedFolder) -> Iterator[int | None]:
        path = folder.path / self.hidden
        try:
            with folder.open_folder() as parent:
                descriptor = os.open(self.hidden, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise EnvironmentFailure(f"{path}: the file in progress cannot be read: {error}") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise JobRejected("bad-state", "sink", f"{path}: the file in progress is not a regular file")
            if status.st_size < self.bytes:
                problem = f"the file in progress has {status.st_size} bytes; the checkpoint recorded {self.bytes}"
                raise EnvironmentFailure(f"{path}: {problem}")
            check_content(path, descriptor, self.bytes, self.crc32)
            yield descriptor
        finally:
            os.close(descriptor)

    def _is_claimed_in(self, folder: CheckedFolder, sink_folder: CheckedFolder) -> bool:
        """Whether the rows are visible in `folder` in a file that has claimed their origin.

        Raises:
            JobRejected: only a part of the rows is visible in `sink_folder`. Another folder gets all of them.
            EnvironmentFailure: the file is about to become visible. The clean-up before the next attempt waits for it.
        """
        origin = origin_of(self.contents)
        claim = Claims(folder.path, folder.roots).find(origin)
        if claim is None:
            return False
        final = folder.path / claim.file["final"]
        shared = shared_bytes(self.contents, origins_of(claim.file)[origin])
        is_pending = (folder.path / claim.file["pending"]).exists()
        if folder is not sink_folder:
            return shared == self.bytes and not is_pending
        if is_pending:
            raise EnvironmentFailure(f"{final}: another attempt is committing this file, with rows of {self.hidden}")
        if shared < self.bytes:
            raise JobRejected(
                "rows-partly-visible",
                "path",
                f"{final} has the first {shared} of {self.bytes} bytes that the checkpoint recorded of {self.hidden}: "
                "the job was restored from an earlier savepoint into this folder and has published them. Restore "
                "that savepoint or a checkpoint since then, or restore this checkpoint into another folder",
            )
        return True


def check_content(path: Path, descriptor: int, nbytes: int, crc32: int) -> None:
    """Raises EnvironmentFailure, which names `path`, unless the first `nbytes` bytes have the checksum `crc32`."""
    if head_crc32(descriptor, nbytes) != crc32:
        problem = f"its first {nbytes} bytes do not have the checksum that the checkpoint recorded"
        raise EnvironmentFailure(f"{path}: the file is damaged: {problem}; copy it from a backup")


def is_committed_in(folder: Path, partition: str, hidden: str) -> bool:
    """Whether the hidden file was committed in `folder` under its own name, even if a consumer has moved it since."""
    name = _parsed(hidden)
    visible = [path.relative_to(folder).as_posix() for path in (folder / partition).glob(f"part-{name['owner']}-*")]
    logged = (file.name for epoch in CommitLog(folder).epochs(name["job"], name["uid"]) for file in epoch.files)
    finals = (
        FINAL_NAME.fullmatch(path)
        for path in chain(visible, logged)
        if PurePosixPath(path).parent == PurePosixPath(partition)
    )
    return any(final is not None and covers(final, name["owner"], int(name["begun"])) for final in finals)


def _parsed(hidden: str) -> re.Match[str]:
    name = HIDDEN_NAME.fullmatch(hidden)
    assert name is not None, "its name has been checked"
    return name
