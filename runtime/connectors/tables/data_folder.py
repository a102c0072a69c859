"""The folder of a table's data files: in a file system, or below a prefix of a bucket.

A data file is complete and durable once it is finished. Readers of the table see it when the table's log names it. The
committable has the proof of its content: size and CRC-32 of a file, size and ETag of an object.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.access.data_roots import CheckedFolder
from runtime.connectors.bucket import Bucket
from runtime.connectors.bucket_file import MAX_OPEN_UPLOADS, BucketFile, OpenUploads
from runtime.connectors.sinks.parquet_file import FolderFile
from runtime.connectors.sinks.recorded_file import check_content
from runtime.durable import copy_file, make_folder, sync_path
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.s3 import is_bucket

_PREFIX: Final = "part-"  #: of the names of data files
_TAIL_BYTES: Final = 64 << 10  #: of a file of Parquet, read at first: most footers are shorter


class DataFile(Protocol):
    """A file in progress, for a writer of Parquet. Writes may raise OSError or EnvironmentFailure."""

    def write(self, data: Any) -> int: ...

    def finish(self) -> Mapping[str, Any]:
        """Makes the file durable. Returns the proof of its content."""

    def discard(self) -> None:
        """Deletes the file."""


class DataFolder(Protocol):
    """The folder of a table. `location`: as committables name it, and errors."""

    location: str
    max_open_files: int  #: of a writer

    @property
    def is_full(self) -> bool:
        """Whether the open files hold so much memory that they must be finished."""

    def check(self) -> None:
        """Raises JobRejected if jobs may not use the folder."""

    def make(self) -> None: ...

    def create(self, name: str) -> DataFile:
        """Begins the file `name`, which no other writer has."""

    def sync(self) -> None:
        """Makes creations of files durable."""

    def names(self) -> list[str]:
        """The names of data files, also of files that no commit names."""

    def has(self, name: str) -> bool: ...

    def delete(self, names: list[str]) -> None: ...

    def check_file(self, file: Mapping[str, Any]) -> int:
        """When the file to commit was written (ms). `file`: its part of the committable.

        Raises:
            EnvironmentFailure: the file is missing, has another size, or is damaged; the error names it.
        """

    def parquet_metadata(self, file: Mapping[str, Any]) -> Any:
        """The footer of a file of Parquet. `file`: its part of the committable."""

    def take(self, former: "DataFolder", name: str) -> None:
        """Copies a pending file from the folder in which it was written. Raises JobRejected: that is not possible."""

    def abort_uploads(self, is_left: Callable[[str], bool]) -> None:
        """Ends uploads of files in progress whose writer was killed."""


def data_folder_at(argument: str, location: str) -> DataFolder:
    """The folder at a path or a URL. `argument`: of the sink, for errors."""
    return BucketFolder(argument, location) if is_bucket(location) else LocalFolder(argument, Path(location))


class LocalFolder:
    """Implements `DataFolder`."""

    max_open_files = 100
    is_full = False

    def __init__(self, argument: str, path: Path) -> None:
        self._path = path
        self.location = str(path.absolute())
        self._checked = CheckedFolder.of(argument, path)

    def check(self) -> None:
        self._checked.check()

    def make(self) -> None:
        make_folder(self._path)

    def create(self, name: str) -> DataFile:
        return _LocalFile(self._checked, name)

    def sync(self) -> None:
        sync_path(self._path)

    def names(self) -> list[str]:
        return [path.name for path in self._path.glob(f"{_PREFIX}*")]

    def has(self, name: str) -> bool:
        return (self._path / name).exists()

    def delete(self, names: list[str]) -> None:
        for name in names:
            (self._path / name).unlink(missing_ok=True)

    def check_file(self, file: Mapping[str, Any]) -> int:
        path = self._path / file["path"]
        try:
            status = path.lstat()
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _lost(path) from None
        except OSError as error:
            raise EnvironmentFailure(f"{path}: the file to commit cannot be read: {error}") from error
        try:
            if status.st_size != file["bytes"]:
                raise EnvironmentFailure(f"{path}: the file to commit has {status.st_size} bytes, not {file['bytes']}")
            check_content(path, descriptor, file["bytes"], file["crc32"])
        finally:
            os.close(descriptor)
        return int(status.st_mtime * 1000)

    def parquet_metadata(self, file: Mapping[str, Any]) -> Any:
        return pq.read_metadata(self._path / file["path"])

    def take(self, former: DataFolder, name: str) -> None:
        if not isinstance(former, LocalFolder):
            raise _other_folder(former, self)
        self.make()
        copy_file(former._path / name, self._path / name)

    def abort_uploads(self, is_left: Callable[[str], bool]) -> None:
        """A file in progress has a name, and is removed as every file that no commit names."""


class _LocalFile(FolderFile):
    def finish(self) -> Mapping[str, Any]:
        self.end()
        return {"bytes": self.size, "crc32": self.crc32}


class BucketFolder:
    """Implements `DataFolder`."""

    max_open_files = MAX_OPEN_UPLOADS

    def __init__(self, argument: str, uri: str) -> None:
        self._bucket = Bucket(uri, argument)
        self._uploads = OpenUploads()
        self.location = self._bucket.uri

    def check(self) -> None:
        self._bucket.check()

    @property
    def is_full(self) -> bool:
        return self._uploads.are_full

    def make(self) -> None:
        """A bucket has no folders."""

    def create(self, name: str) -> DataFile:
        return _BucketDataFile(self._bucket, name, self._uploads)

    def sync(self) -> None:
        """An object is durable when its request is answered."""

    def names(self) -> list[str]:
        return [name for name in self._bucket.names(_PREFIX) if "/" not in name]

    def has(self, name: str) -> bool:
        return self._bucket.find(name) is not None

    def delete(self, names: list[str]) -> None:
        self._bucket.delete(names)

    def check_file(self, file: Mapping[str, Any]) -> int:
        name = f"{self.location}/{file['path']}"
        stored = self._bucket.find(file["path"])
        if stored is None:
            raise _lost(name)
        if (stored.bytes, stored.etag) != (file["bytes"], file["etag"]):
            problem = f"{stored.bytes} bytes and the ETag {stored.etag}, not {file['bytes']} and {file['etag']}"
            raise EnvironmentFailure(f"{name}: the file to commit has {problem}: it was replaced")
        return stored.modified_ms

    def parquet_metadata(self, file: Mapping[str, Any]) -> Any:
        return pq.read_metadata(pa.BufferReader(self._footer(file)))

    def _footer(self, file: Mapping[str, Any]) -> bytes:
        """The magic number and the footer, which together are a file of Parquet without rows."""
        tail_bytes = min(file["bytes"], _TAIL_BYTES)
        tail = self._bucket.read_tail(file["path"], tail_bytes)
        footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
        if footer_bytes > len(tail):
            tail = self._bucket.read_tail(file["path"], footer_bytes)
        return tail[-4:] + tail[-footer_bytes:]

    def take(self, former: DataFolder, name: str) -> None:
        raise _other_folder(former, self)

    def abort_uploads(self, is_left: Callable[[str], bool]) -> None:
        for name, upload in self._bucket.uploads(_PREFIX):
            if is_left(name):
                self._bucket.abort(name, upload)


class _BucketDataFile(BucketFile):
    def finish(self) -> Mapping[str, Any]:
        etag = self.complete()
        self.close()
        return {"bytes": self.size, "etag": etag}


def _lost(path: Path | str) -> EnvironmentFailure:
    return EnvironmentFailure(f"{path}: the file to commit is neither pending nor committed")


def _other_folder(former: DataFolder, folder: DataFolder) -> JobRejected:
    problem = f"output of the checkpoint is pending in {former.location}, not in {folder.location}"
    return JobRejected("other-folder", "path", f"{problem}: restore it into that table first")
