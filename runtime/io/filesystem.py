"""`SnapshotStore` on a local path, or on a path that every host mounts.

A file is written under a hidden temporary name, made durable and renamed into place; then its folder is made durable.
So a file is complete or absent, even after a crash. `create` links the temporary file to its place, which is atomic
also on network file systems.
"""

from __future__ import annotations  # `list` is also a method here

import contextlib
import itertools
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from runtime.durable import rename_without_replacing, sync_path
from runtime.errors import CorruptState, EnvironmentFailure

_TEMPORARY: Final = ".tmp-"
_CHUNK_BYTES: Final = 1 << 20
_MISSING: Final = (FileNotFoundError, NotADirectoryError)


class FileStore:
    """Implements `ports.SnapshotStore`.

    Args:
        root: storage root of the job; created with the first file.
    """

    concurrent_reads: Final = 4

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)

    def put(self, path: str, data: Iterable[bytes]) -> None:
        self._put(self._locate(path), data, _replace)

    def create(self, path: str, data: bytes) -> bool:
        target = self._locate(path)
        if self._put(target, [data], _link):
            return True
        try:
            is_equal = self.get(path) == data
        except CorruptState as error:  # deleted since, or no file
            raise EnvironmentFailure(f"{target} cannot be created: it is taken, and {error}") from error
        if is_equal:
            with _failures(target, "written"):
                sync_path(target.parent)
        return is_equal

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
        except _MISSING:
            raise CorruptState(path, f"there is no such file in {self._root}") from None
        except OSError as error:
            raise _failure(target, "read", error) from error

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            target = self._locate(path)
            with _failures(target, "deleted"), contextlib.suppress(NotADirectoryError):
                target.unlink(missing_ok=True)
            self._drop_empty_folders(target.parent)

    def list(self, prefix: str) -> list[str]:
        """The paths that begin with `prefix`, sorted."""
        return sorted(self._matches(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        sizes = {}
        for path in self._matches(prefix):
            with _failures(self._root / path, "listed"), contextlib.suppress(*_MISSING):  # deleted since
                sizes[path] = (self._root / path).stat().st_size
        return sizes

    def size(self, path: str) -> int | None:
        target = self._locate(path)
        with _failures(target, "listed"), contextlib.suppress(*_MISSING):
            return target.stat().st_size
        return None

    def folders(self) -> Sequence[str]:
        with _failures(self._root, "listed"), contextlib.suppress(*_MISSING), os.scandir(self._root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        return ()

    def newest_change(self, folder: str) -> float | None:
        """Counts files that are being written, too."""
        times = []
        for path in self._paths(folder):
            with _failures(self._root / path, "listed"), contextlib.suppress(*_MISSING):  # deleted since
                times.append((self._root / path).stat().st_mtime)
        return max(times, default=None)

    def copy(self, source: str, target: str) -> None:
        origin, place = self._locate(source), self._locate(target)
        with _failures(place, "written"), self._emptied(place.parent):
            folders = self._make_folder(place.parent)
            try:
                place.hardlink_to(origin)
            except FileExistsError:
                raise
            except _MISSING:
                raise CorruptState(source, f"there is no such file in {self._root}") from None
            except OSError:  # a file system without links
                self.put(target, _chunks(origin))
            else:
                for folder in (*(each.parent for each in folders), place.parent):
                    sync_path(folder)

    def leftover_files(self) -> Sequence[str]:
        return sorted(path for path in self._paths() if _is_temporary(path))

    def _matches(self, prefix: str) -> Iterator[str]:
        inside = self._paths(prefix.rpartition("/")[0])
        return (path for path in inside if path.startswith(prefix) and not _is_temporary(path))

    def _paths(self, inside: str = "") -> Iterator[str]:
        for folder, _, names in os.walk(self._root / inside, onerror=_on_listing_error):
            below = Path(folder).relative_to(self._root)
            yield from ((below / name).as_posix() for name in names)

    def _locate(self, path: str) -> Path:
        return self._root / path_below_root(path)

    def _put(self, target: Path, data: Iterable[bytes], move: Callable[[Path, Path], bool]) -> bool:
        """Writes a file and moves it to `target`. Returns what `move` returns: whether the file is there."""
        temporary = target.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}-{target.name}")
        with _failures(target, "written"), self._emptied(target.parent):
            file, folders = self._open(temporary)
            try:
                with file:
                    for chunk in data:
                        file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
                for folder in folders:
                    sync_path(folder.parent)
                is_moved = move(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)
            if is_moved:
                sync_path(target.parent)
        return is_moved

    def _open(self, temporary: Path) -> tuple[BinaryIO, Sequence[Path]]:
        """A new file, and the folders that were missing."""
        folders = self._make_folder(temporary.parent)
        try:
            return temporary.open("xb"), folders
        except FileNotFoundError:  # a concurrent delete has taken the empty folder away
            folders = self._make_folder(temporary.parent)
            return temporary.open("xb"), folders

    def _make_folder(self, folder: Path) -> Sequence[Path]:
        """Creates `folder`. Returns the folders that were missing, whose parents must be made durable."""
        missing = list(itertools.takewhile(lambda place: not place.exists(), (folder, *folder.parents)))
        for place in reversed(missing):
            with contextlib.suppress(FileNotFoundError):  # a concurrent delete has taken its parent away
                place.mkdir(mode=0o700, exist_ok=True)  # no other user may read state
        if missing:
            folder.mkdir(parents=True, exist_ok=True)
        return missing

    @contextlib.contextmanager
    def _emptied(self, folder: Path) -> Iterator[None]:
        """Leaves no empty folder behind after an error."""
        try:
            yield
        except BaseException:
            self._drop_empty_folders(folder)
            raise

    def _drop_empty_folders(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone already
                return
            folder = folder.parent


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            yield chunk


def path_below_root(path: str) -> PurePosixPath:
    """Raises EnvironmentFailure for a path that could lie outside the storage root."""
    parts = PurePosixPath(path)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts:
        raise EnvironmentFailure(f"{path!r} is not a path below the storage root")
    return parts


def _replace(temporary: Path, target: Path) -> bool:
    temporary.replace(target)
    return True


def _link(temporary: Path, target: Path) -> bool:
    """Moves a file, or links it, unless `target` exists. Returns False if it does."""
    try:
        try:
            target.hardlink_to(temporary)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            rename_without_replacing(temporary, target)
    except FileExistsError:
        return False
    return True


def _on_listing_error(error: OSError) -> None:
    """Raises EnvironmentFailure, unless the folder has vanished meanwhile."""
    if not isinstance(error, _MISSING):
        raise _failure(error.filename, "listed", error) from error


@contextlib.contextmanager
def _failures(place: Path | str, action: str) -> Iterator[None]:
    """Turns errors of the operating system into those of the port."""
    try:
        yield
    except OSError as error:
        raise _failure(place, action, error) from error


def _failure(place: Path | str, action: str, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(f"{place} cannot be {action}: {error}")


def _is_temporary(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_TEMPORARY)
