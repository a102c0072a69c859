"""Durable writes, checksums and renames of connectors; errors name the file."""

import contextlib
import ctypes
import errno
import itertools
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from runtime.errors import EnvironmentFailure, JobRejected

_AT_FDCWD: Final = -100  #: paths are relative to the working directory
_RENAME_NOREPLACE: Final = 1
_UNSUPPORTED_ERRNOS: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_COPIED_BYTES: Final = 1 << 20  #: at a time


def make_folder(folder: Path) -> None:
    """Creates `folder` and its parents durably, unless they exist.

    Raises:
        JobRejected: a file has the name of the folder or of a parent.
    """
    missing = list(itertools.takewhile(lambda place: not place.exists(), (folder, *folder.parents)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise JobRejected("bad-path", "path", f"{folder} is not a folder: {error.filename} is a file") from error
    for path in missing:
        sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Makes the contents of a file durable, or the creations, renames and removals in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def name_write_errors(file: Path) -> Iterator[None]:
    """Turns an OSError of the block into an EnvironmentFailure that names `file`, which most disk-full errors omit."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFailure(f"{file}: it cannot be written: {error}") from error


def write_file(target: Path, data: bytes) -> None:
    """Writes a file durably and atomically, first under a hidden name. An existing file is replaced."""
    hidden = target.with_name(f".{target.name.lstrip('.')}.{uuid4().hex}.tmp")
    with name_write_errors(target):
        try:
            with hidden.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            hidden.replace(target)
        except OSError:
            hidden.unlink(missing_ok=True)  # else each retry would leave a file on a full disk
            raise
        sync_path(target.parent)


def rename_without_replacing(source: Path, target: Path) -> None:
    """Renames a file atomically. Raises FileExistsError if `target` exists.

    Some network file systems cannot check and rename atomically. On them the check precedes the rename, and a file that
    another writer creates in between is replaced.
    """
    if not rename_exclusively(source, target):
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)


def rename_exclusively(source: Path, target: Path) -> bool:
    """Renames by renameat2(2) with RENAME_NOREPLACE. False if kernel, C library or file system lack that call."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED_ERRNOS:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))


class OutputFile:
    """A file that is written in sequence. Knows the size and the CRC-32 of all bytes that were passed to it."""

    def __init__(self, descriptor: int) -> None:
        self.size = self.crc32 = 0
        self._file = os.fdopen(descriptor, "wb")

    def write(self, data: Any) -> int:
        """Appends an object with the buffer protocol. Returns its number of bytes."""
        self._file.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        nbytes = memoryview(data).nbytes
        self.size += nbytes
        return nbytes

    def copy_head(self, source: int, nbytes: int, crc32: int) -> None:
        """Begins the empty file with the first `nbytes` bytes of an open file, whose checksum is `crc32`."""
        copy_head(source, self._file.fileno(), nbytes)
        self._file.seek(nbytes)
        self.size, self.crc32 = nbytes, crc32

    def persist(self) -> None:
        """Makes all written bytes durable."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed


def head_crc32(descriptor: int, nbytes: int) -> int:
    """The CRC-32 of the first `nbytes` bytes of an open file, or of all bytes of a shorter file."""
    crc32 = offset = 0
    while chunk := os.pread(descriptor, min(_COPIED_BYTES, nbytes - offset), offset):
        crc32 = zlib.crc32(chunk, crc32)
        offset += len(chunk)
    return crc32


def copy_head(source: int, target: int, nbytes: int) -> None:
    """Copies the first `nbytes` bytes between open files; in the kernel, which may share the blocks, if it can.

    Raises:
        OSError: `target` cannot be written, or `source` is shorter.
    """
    offset = 0
    while offset < nbytes:
        try:
            count = os.copy_file_range(source, target, nbytes - offset, offset, offset)
        except OSError as error:
            if error.errno not in (*_UNSUPPORTED_ERRNOS, errno.EXDEV):
                raise
            count = os.pwrite(target, os.pread(source, min(_COPIED_BYTES, nbytes - offset), offset), offset)
        if not count:
            raise OSError(errno.EIO, f"the source ends after {offset} of {nbytes} bytes")
        offset += count


def copy_file(source: Path, target: Path) -> None:
    """Makes `target` a hard link to `source`, or a copy where links are not possible; durably and atomically.

    Follows no symbolic link, neither at `source` nor at `target`. Does nothing if `target` exists.
    """
    try:
        target.hardlink_to(source)
    except FileExistsError:
        return
    except OSError:
        partial = target.with_suffix(".copying")
        partial.unlink(missing_ok=True)
        with (
            name_write_errors(partial),
            os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as read,
            partial.open("xb") as written,
        ):
            shutil.copyfileobj(read, written)
            written.flush()
            os.fsync(written.fileno())
        partial.rename(target)
    sync_path(target.parent)
