"""A local folder of input files, or a folder that every host mounts, checked against the data roots at each use."""

import os
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runtime.access.data_roots import CheckedFolder, descriptor_path
from runtime.connectors.formats.input_file import LocalFile
from runtime.connectors.sources.committed_files import CommittedFiles
from runtime.connectors.sources.listing import ListedFile
from runtime.connectors.sources.partition_columns import check_file_depth, check_folder_name
from runtime.errors import DataRejected, JobRejected


@dataclass(frozen=True, slots=True)
class OpenLocalFile:
    """An open file: it stays readable when it is renamed or deleted."""

    descriptor: int

    @property
    def file(self) -> LocalFile:
        return LocalFile(descriptor_path(self.descriptor))

    @property
    def version(self) -> str:
        status = os.fstat(self.descriptor)
        return f"{status.st_ino}.{status.st_size}.{status.st_mtime_ns}"


class LocalFolder:
    """Implements `InputFolder`. In an output folder of Weir, only committed files are listed.

    Args:
        partition_names: the partition columns, from the outermost folder to the innermost.
    """

    def __init__(self, path: str, partition_names: Sequence[str] = ()) -> None:
        self.location = path
        self._path = Path(path)
        self._partition_names = partition_names
        self._checked = CheckedFolder.of("path", path)
        self._committed = CommittedFiles(self._path)

    def files(self, known_paths: Container[str] = ()) -> list[ListedFile]:
        """The files without `known_paths`. A file or subfolder that is deleted meanwhile is left out."""
        self._committed.refresh()
        try:
            return list(self._files(self._checked, "", self._partition_names, known_paths))
        except NotADirectoryError:
            raise JobRejected("bad-path", "path", f"{self._path} is a file: name the folder that holds it") from None

    def _files(
        self, parent: CheckedFolder, prefix: str, partition_names: Sequence[str], known_paths: Container[str]
    ) -> Iterator[ListedFile]:
        folders = list[str]()
        with parent.open_folder() as folder, os.scandir(folder) as entries:
            for entry in entries:
                path = f"{prefix}{entry.name}"
                if entry.name[0] in "._" or path in known_paths:
                    continue
                if entry.is_dir():
                    check_folder_name(str(self._path / path), entry.name, partition_names)
                    folders += [entry.name] if partition_names else []
                elif entry.is_file() and self._committed.is_committed(path):
                    with suppress(FileNotFoundError):  # deleted since the folder was opened
                        yield self._listed(entry, path, partition_names)
        for name in folders:
            child = CheckedFolder(parent.argument, parent.path / name, parent.roots)
            with suppress(FileNotFoundError):
                yield from self._files(child, f"{prefix}{name}/", partition_names[1:], known_paths)

    def _listed(self, entry: os.DirEntry[str], path: str, partition_names: Sequence[str]) -> ListedFile:
        if not path.isascii() and path.encode(errors="replace").decode() != path:
            raise DataRejected(f"{self._path}: the name of the file {path!r} is not UTF-8: rename it")
        check_file_depth(str(self._path / path), partition_names)
        return ListedFile(path, entry.stat().st_size)

    def open(self, path: str) -> OpenLocalFile:
        descriptor = self._checked.open_to_read(path)
        if descriptor is None:
            where = self._path / path
            raise DataRejected(f"{where}: this link leads out of the folders that jobs may read (WEIR_DATA_ROOTS)")
        return OpenLocalFile(descriptor)
