"""A local folder of input files, or a folder that every host mounts, checked against the data roots at each use."""

import os
from collections.abc import Container
from pathlib import Path

import msgspec

from runtime.data_roots import CheckedFolder
from runtime.errors import DataRejected, JobRejected


class ListedFile(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A file of a listing. `path` is relative to the folder."""

    path: str
    size_bytes: int


class Listing(msgspec.Struct, frozen=True):
    """The files of a bounded source, in the order of their paths."""

    files: tuple[ListedFile, ...]


class LocalFolder:
    """The files of `path`. Names that begin with "." or "_" are ignored, and so are sub-folders."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._checked = CheckedFolder.of("path", path)

    def files(self, known: Container[str] = ()) -> list[ListedFile]:
        """The files except `known` files, in any order.

        Raises:
            FileNotFoundError: there is no such folder.
            JobRejected: the path is a file, or lies outside the data roots.
            DataRejected: a name is not UTF-8.
        """
        try:
            with self._checked.open_folder() as folder, os.scandir(folder) as entries:
                new = (entry for entry in entries if entry.name not in known and entry.name[0] not in "._")
                return [self._listed(entry) for entry in new if entry.is_file()]
        except NotADirectoryError:
            raise JobRejected("bad-path", "path", f"{self.path} is a file: name the folder that holds it") from None

    def _listed(self, entry: os.DirEntry[str]) -> ListedFile:
        name = entry.name
        if not name.isascii() and name.encode(errors="replace").decode() != name:
            raise DataRejected(f"{self.path}: the name of the file {name!r} is not UTF-8: rename it")
        return ListedFile(name, entry.stat().st_size)

    def open(self, path: str) -> int:
        """A descriptor of the file `path`.

        Raises:
            FileNotFoundError: there is no such file.
            DataRejected: a link of the file leads out of the data roots.
        """
        descriptor = self._checked.open_to_read(path)
        if descriptor is None:
            where = self.path / path
            raise DataRejected(f"{where}: this link leads out of the folders that jobs may read (WEIR_DATA_ROOTS)")
        return descriptor
