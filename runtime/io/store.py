"""`open_store`: the storage of state by its URI.

    /data/state or file:///data/state     a folder that every host mounts
    s3://bucket/prefix                    a bucket of S3, or of a server with its protocol

The environment of a host has endpoint and credentials; see `io.object_store`.
"""

import os
import re
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import unquote, urlsplit

from runtime import s3
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.filesystem import FileStore
from runtime.io.object_store import ObjectStore
from runtime.libraries import require_libraries

Store: TypeAlias = FileStore | ObjectStore  #: each implements `ports.SnapshotStore`, whose module loads pyarrow

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def storage_uri(field: str, storage: str) -> str:
    """The storage in its normal form: an absolute path, or the URI of a prefix in a bucket. Performs no I/O.

    Raises:
        JobRejected: the URI is of another form or scheme, or the library for it is not installed.
    """
    if not _URI.match(storage):
        return str(Path(storage).absolute())
    parts, uri = urlsplit(storage), storage.rstrip("/")
    # Parsers of URLs drop control characters, and spaces at the ends. Two jobs would then have the same storage.
    scheme = parts.scheme if storage.isprintable() and storage == storage.strip() else None
    if scheme == "file" and parts.netloc in ("", "localhost") and not parts.query and not parts.fragment:
        return str(Path(unquote(parts.path)))
    if scheme == "s3" and s3.is_prefix(uri):
        require_libraries({"obstore": "cloud"})
        return uri
    detail = f"{storage} is no storage for checkpoints: name a folder, file:///folder or s3://bucket/prefix"
    raise JobRejected("bad-storage", field, detail)


def is_absolute(place: str) -> bool:
    """Whether a place is a URI or an absolute path, and not a folder below the storage of a job."""
    return bool(_URI.match(place)) or Path(place).is_absolute()


def check_mounted(uri: str) -> None:
    """Raises EnvironmentFailure if `uri` is a folder that is not there. A bucket answers for itself.

    While a file system is not mounted, no file below it counts as missing.
    """
    if not s3.is_bucket(uri):
        try:
            with os.scandir(uri):
                pass
        except OSError as error:
            raise EnvironmentFailure(str(error)) from error


def check_folder_storage(field: str, storage: str) -> None:
    """Raises JobRejected for a bucket, where only folders are supported."""
    if s3.is_bucket(storage):
        raise JobRejected("bad-storage", field, f"{storage}: a bucket is not supported here; name a folder")


def open_store(uri: str) -> Store:
    """The store of a job, below `uri`. Performs no I/O.

    Raises:
        JobRejected: `uri` is no storage for checkpoints, or the library for it is not installed.
    """
    place = storage_uri("storage", uri)
    return ObjectStore(place) if s3.is_bucket(place) else FileStore(place)
