"""A folder of an object store or a distributed file system, by a URL of `pyarrow.fs`.

    s3://bucket/folder?region=eu-central-1          also endpoint_override=host:port&scheme=http
    gs://bucket/folder                              abfs://container@account.dfs.core.windows.net/folder
    hdfs://namenode:8020/folder

A key may stand in the URL as references: `s3://${secret:key-id}:${secret:key}@bucket/folder`. Without a key, the file
system takes the credentials of the host, such as `AWS_ACCESS_KEY_ID` or an instance role.

An error of the store ends the attempt, and a retry may help. It must never count as a fault of a file, which a source
may be told to skip. Reads therefore raise it as `EnvironmentFailure`, also within the parsers of Arrow.
"""

import io
import os
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa

from runtime.access.data_roots import check_url
from runtime.access.secrets import check_references, resolve
from runtime.connectors.formats.input_file import InputFile
from runtime.connectors.sources.listing import ListedFile
from runtime.connectors.sources.partition_columns import check_file_depth, check_folder_name
from runtime.errors import EnvironmentFailure, JobRejected

if TYPE_CHECKING:
    from pyarrow import fs

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/")
_SCHEMES: Final = {
    "s3": "S3FileSystem",
    "gs": "GcsFileSystem",
    "gcs": "GcsFileSystem",
    "abfs": "AzureFileSystem",
    "abfss": "AzureFileSystem",
    "hdfs": "HadoopFileSystem",
    "viewfs": "HadoopFileSystem",
}
_BUFFER_BYTES: Final = 8 << 20  #: read at once by parsers in Python, since every read is a request
#: errors of the store that no retry cures
_REFUSED: Final = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|NO_SUCH_BUCKET|PERMISSION_DENIED|UNAUTHENTICATED"
    r"|AuthenticationFailed|AuthorizationFailure|HTTP status 40[13]"
)


def local_path(path: str) -> str | None:
    """The local folder that `path` or a URL `file:` names; None: a URL of another scheme."""
    match = _URL.match(path)
    if match is None:
        return path
    if match["scheme"].lower() != "file":
        return None
    return unquote(urlsplit(path).path)


def check_local_path(field: str, path: str) -> None:
    """Raises JobRejected for a URL `file:` with more than a path: `file://data/in` names a host `data`."""
    parts = urlsplit(path) if _URL.match(path) else None
    if parts is not None and (parts.netloc not in ("", "localhost") or parts.query or parts.fragment):
        detail = (
            f"{path}: write an absolute path after three slashes, with %23 for '#' and %3F for '?': file:///data/in"
        )
        raise JobRejected("bad-path", field, detail)


def check_remote_url(field: str, url: str) -> None:
    """Checks a URL without I/O.

    Raises:
        JobRejected: the scheme is not supported, the URL contains a secret, or jobs may not use it.
    """
    from pyarrow import fs

    scheme = url.partition(":")[0].lower()
    if scheme not in _SCHEMES or not hasattr(fs, _SCHEMES[scheme]):
        schemes = ", ".join(f"{name}://" for name, kind in _SCHEMES.items() if hasattr(fs, kind))
        detail = f"the scheme {scheme!r} is not supported: name a folder, or a URL of file:, {schemes}"
        raise JobRejected("unsupported-scheme", field, detail)
    check_references(field, url)
    check_url(field, url, os.environ)


class RemoteFolder:
    """Implements `InputFolder`.

    Args:
        url: the URL, with references to secrets.
        partition_names: the partition columns, from the outermost folder to the innermost.
    """

    def __init__(self, url: str, partition_names: Sequence[str] = ()) -> None:
        self._url, self._partition_names = url, partition_names
        parts = urlsplit(url)
        self.location = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"

    def files(self, known_paths: Container[str] = ()) -> list[ListedFile]:
        from pyarrow import fs

        system, base = self._opened
        try:
            entries = system.get_file_info(fs.FileSelector(base, recursive=bool(self._partition_names)))
        except FileNotFoundError:
            raise
        except NotADirectoryError:
            raise JobRejected("bad-path", "path", f"{self.location} is a file: name the folder that holds it") from None
        except OSError as error:
            raise _store_error(self.location, error) from error
        listed = []
        for info in entries:
            path = info.path[len(base) :].lstrip("/")
            if info.type == fs.FileType.File and not path:
                raise JobRejected("bad-path", "path", f"{self.location} is a file: name the folder that holds it")
            steps = path.split("/")  # a key may have empty steps: `in//a` lies in a sub-folder without a name
            is_deeper = len(steps) > len(self._partition_names) + 1
            if is_deeper or path in known_paths or any(step.startswith((".", "_")) for step in steps):
                continue
            self._check_place(path, info.type == fs.FileType.Directory)
            if info.type == fs.FileType.File:
                listed.append(ListedFile(path, info.size))
        return listed

    def _check_place(self, path: str, is_folder: bool) -> None:
        """Raises DataRejected if a file or folder is not where the partition columns need it."""
        *parents, name = path.split("/")
        if is_folder:
            check_folder_name(f"{self.location}/{path}", name, self._partition_names[len(parents) :])
        else:
            check_file_depth(f"{self.location}/{path}", self._partition_names[len(parents) :])

    def open(self, path: str) -> "OpenRemoteFile":
        from pyarrow import fs

        system, base = self._opened
        try:
            info = system.get_file_info(f"{base}/{path}")
        except OSError as error:
            raise _store_error(f"{self.location}/{path}", error) from error
        if info.type != fs.FileType.File:
            raise FileNotFoundError(info.path)
        file = RemoteFile(system, info.path, f"{self.location}/{path}", info.size)
        return OpenRemoteFile(file, f"{info.size}.{info.mtime_ns}")

    @cached_property
    def _opened(self) -> "tuple[fs.FileSystem, str]":
        """The file system and the path in it. Secrets are resolved here, and only here."""
        from pyarrow import fs

        check_url("path", self._url, os.environ)
        uri = resolve("path", self._url, (), encode=lambda secret: quote(secret, safe=""))
        try:
            system, base = fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, ValueError):  # the error may repeat the secret
            detail = f"{self.location}: pyarrow.fs does not understand this URL: check its parts and parameters"
            raise JobRejected("bad-path", "path", detail) from None
        except OSError as error:
            raise _store_error(self.location, error) from error
        return system, base.rstrip("/")


@dataclass(frozen=True, slots=True)
class OpenRemoteFile:
    """A file of a store has no descriptor that keeps it."""

    file: InputFile
    version: str
    descriptor: None = None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Implements `InputFile`.

    Args:
        path: path in `system`.
        location: the file as the job names it, for errors.
    """

    system: "fs.FileSystem"
    path: str
    location: str
    size_bytes: int

    def open(self) -> BinaryIO:
        return cast("BinaryIO", io.BufferedReader(self._reads(), _BUFFER_BYTES))

    def open_native(self) -> pa.NativeFile:
        return pa.PythonFile(self._reads(), mode="r")

    def _reads(self) -> "_Reads":
        try:
            return _Reads(self.system.open_input_file(self.path), self.location)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _store_error(self.location, error) from error


class _Reads(io.RawIOBase):
    """The file for parsers. Errors of the store are raised as such."""

    def __init__(self, file: Any, location: str) -> None:
        self._file, self._location = file, location

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def read(self, size: int = -1) -> bytes:
        try:
            return bytes(self._file.read(None if size < 0 else size))
        except (OSError, pa.ArrowException) as error:
            raise _store_error(self._location, error) from error

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _store_error(location: str, error: Exception) -> EnvironmentFailure | JobRejected:
    text = str(error)
    if _REFUSED.search(text):
        detail = f"{location}: the store refuses access: check that it exists, and the credentials. {text[:500]}"
        return JobRejected("store-refused", "path", detail)
    return EnvironmentFailure(f"{location}: the store cannot be read: {text[:500]}")
