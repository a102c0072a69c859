"""`SnapshotStore` on a local path, or on a path that every host mounts.

A file is written under a hidden temporary name, made durable and renamed into place; then its folder is made durable.
So a file is complete or absent, even after a crash.
"""

from __future__ import annotations  # `list` is also a method here

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from runtime.durable import sync_path
from runtime.errors import CorruptState, EnvironmentFailure

_TEMPORARY = ".tmp-"


class FileStore:
    """Implements `ports.SnapshotStore`.

    Args:
        root: storage root of the job; created with the first file.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        self._numbers = itertools.count()

    def put(self, path: str, data: Iterable[bytes]) -> None:
        target = self._locate(path)
        try:
            self._put(target, data)
        except OSError as error:
            raise EnvironmentFailure(f"{target} cannot be written: {error}") from error

    def get(self, path: str) -> bytes:
        return self._read(path, lambda file: file.read())

    def get_range(self, path: str, offset: int, nbytes: int) -> bytes:
        def part(file: BinaryIO) -> bytes:
            file.seek(offset)
            return file.read(nbytes)

        return self._read(path, part)

    def _read(self, path: str, read: Callable[[BinaryIO], bytes]) -> bytes:
        target = self._locate(path)
        try:
            with target.open("rb") as file:
                return read(file)
        except (FileNotFoundError, NotADirectoryError):
            raise CorruptState(path, f"there is no such file in {self._root}") from None
        except OSError as error:
            raise EnvironmentFailure(f"{target} cannot be read: {error}") from error

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            target = self._locate(path)
            try:
                target.unlink(missing_ok=True)
            except NotADirectoryError:
                continue
            except OSError as error:
                raise EnvironmentFailure(f"{target} cannot be deleted: {error}") from error
            self._drop_empty_folders(target.parent)

    def list(self, prefix: str) -> list[str]:
        """The paths that begin with `prefix`, sorted."""
        inside = self._paths(prefix.rpartition("/")[0])
        return sorted(path for path in inside if path.startswith(prefix) and not _is_temporary(path))

    def leftover_files(self) -> Sequence[str]:
        return sorted(path for path in self._paths() if _is_temporary(path))

    def _paths(self, inside: str = "") -> Iterator[str]:
        for folder, _, names in os.walk(self._root / inside):  # tolerates folders that vanish meanwhile
            below = Path(folder).relative_to(self._root)
            yield from ((below / name).as_posix() for name in names)

    def _locate(self, path: str) -> Path:
        parts = PurePosixPath(path)
        if not parts.parts or parts.is_absolute() or ".." in parts.parts:
            raise EnvironmentFailure(f"{path!r} is not a path below the storage root")
        return self._root / parts

    def _put(self, target: Path, data: Iterable[bytes]) -> None:
        temporary = target.with_name(f"{_TEMPORARY}{os.getpid()}-{next(self._numbers)}-{target.name}")
        try:
            self._write(temporary, data)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_path(target.parent)

    def _write(self, temporary: Path, data: Iterable[bytes]) -> None:
        folders = self._make_folder(temporary.parent)
        try:
            file = temporary.open("xb")
        except FileNotFoundError:  # a concurrent delete has taken the empty folder away
            folders = self._make_folder(temporary.parent)
            file = temporary.open("xb")
        with file:
            for chunk in data:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        for folder in folders:
            sync_path(folder.parent)

    def _make_folder(self, folder: Path) -> Sequence[Path]:
        """Creates `folder`. Returns the folders that were missing, whose parents must be made durable."""
        missing = list(itertools.takewhile(lambda place: not place.exists(), (folder, *folder.parents)))
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)  # no other user may read state
        folder.mkdir(parents=True, exist_ok=True)
        return missing

    def _drop_empty_folders(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone already
                return
            folder = folder.parent


def _is_temporary(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_TEMPORARY)
