"""The record of a hidden file in a checkpoint, as an entry of the list state of a writer."""

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self

import msgspec

from runtime.connectors.commit_log import CommitLog
from runtime.connectors.file_names import FINAL_NAME, HIDDEN_NAME, covers
from runtime.connectors.partitions import FOLDER_PATTERN
from runtime.data_roots import CheckedFolder
from runtime.errors import EnvironmentFailure, JobRejected

_PARTITION: Final = re.compile(FOLDER_PATTERN)


class RecordedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A hidden file whose first `bytes` bytes belong to a checkpoint.

    Args:
        hidden: its name in `folder`.
        partition: folder of the partition, relative; "" without partitions.
    """

    hidden: str
    folder: str
    partition: str
    bytes: int
    rows: int

    @classmethod
    def of_state(cls, entry: Any) -> Self:
        """The record in an entry of list state. Raises JobRejected: a manifest is not trusted."""
        try:
            found = msgspec.convert(entry, cls)
        except msgspec.ValidationError as error:
            raise JobRejected("bad-state", "sink", f"not a record of a file in progress: {entry!r}: {error}") from error
        name, partition = HIDDEN_NAME.fullmatch(found.hidden), found.partition and f"{found.partition}/"
        if name is None or not name["begun"].isdecimal() or not _PARTITION.fullmatch(partition) or found.bytes < 0:
            raise JobRejected("bad-state", "sink", f"a checkpoint names a file that no sink has written: {entry!r}")
        return found

    @property
    def path(self) -> Path:
        return Path(self.folder, self.hidden)

    @property
    def begun(self) -> int:
        """The number under which its writer began it."""
        return int(self._name["begun"])

    @contextlib.contextmanager
    def found_in(self, own: CheckedFolder) -> Iterator[tuple[Path, int] | None]:
        """Path and descriptor of the file in the folder `own`, or in the folder where it was recorded.

        None: a later checkpoint has committed it, so its rows are visible, or a consumer has taken them.

        Raises:
            JobRejected: the name is a link or a folder, or the folder lies outside the data roots.
            EnvironmentFailure: the file is lost, shorter than recorded, or cannot be read.
        """
        former = CheckedFolder(own.argument, Path(self.folder), own.roots)
        folders = [own] if former.path == own.path.absolute() else [own, former]
        for folder in folders:
            with self._open_in(folder) as descriptor:
                if descriptor is not None:
                    yield folder.path / self.hidden, descriptor
                    return
        if not any(self._is_committed_in(folder.path) for folder in folders):
            raise EnvironmentFailure(
                f"{self.path}: the file in progress, with {self.rows} rows of a checkpoint, is neither there nor "
                f"committed, nor is it in {own.path}; copy it from a backup into one of these folders"
            )
        yield None

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
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise JobRejected("bad-state", "sink", f"{path}: the file in progress is not a regular file")
            if found.st_size < self.bytes:
                problem = f"the file in progress has {found.st_size} bytes; the checkpoint recorded {self.bytes}"
                raise EnvironmentFailure(f"{path}: {problem}")
            yield descriptor
        finally:
            os.close(descriptor)

    def _is_committed_in(self, folder: Path) -> bool:
        """Whether a later checkpoint committed the file in `folder`, even if a consumer has moved it since."""
        owner = self._name["owner"]
        visible = [path.relative_to(folder).as_posix() for path in (folder / self.partition).glob(f"part-{owner}-*")]
        epochs = CommitLog(folder).epochs(self._name["job"], self._name["uid"])
        return self._is_among(visible) or any(self._is_among([file.name for file in epoch.files]) for epoch in epochs)

    def _is_among(self, paths: Sequence[str]) -> bool:
        finals = [
            FINAL_NAME.fullmatch(path) for path in paths if PurePosixPath(path).parent == PurePosixPath(self.partition)
        ]
        return any(final is not None and covers(final, self._name["owner"], self.begun) for final in finals)

    @property
    def _name(self) -> re.Match[str]:
        name = HIDDEN_NAME.fullmatch(self.hidden)
        assert name is not None, "its name has been checked"
        return name
