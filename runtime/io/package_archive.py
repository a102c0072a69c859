"""The archive of a package: a zip of plain files, which is equal for equal contents.

The digest is over the sorted names and contents, and not over the bytes of the zip: another compression gives the same
digest. An archive comes from outside, so every property of an entry is checked before a byte is written.
"""

import hashlib
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Final, NoReturn

from runtime.errors import JobRejected

MAX_ARCHIVE_BYTES: Final = 64 * 2**20  #: the console and each process that unpacks it hold it in memory
MAX_UNPACKED_BYTES: Final = 512 * 2**20
MAX_FILE_BYTES: Final = 128 * 2**20  #: one file at a time is held unpacked
MAX_FILES: Final = 20_000
MAX_NAME_BYTES: Final = 1_000
MAX_NAME_PARTS: Final = 32
_FIXED_TIME: Final = (1980, 1, 1, 0, 0, 0)
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENTRY_SIGNATURE: Final = b"PK\x01\x02"  #: begins each entry of the archive's directory
_ENCRYPTED_FLAG: Final = 0x1
_CACHE_FOLDER: Final = "__pycache__"
_BYTECODE: Final = ".pyc"
_FILE_MODE: Final = 0o644
#: Of `zipfile` and its decompressors: the bytes are no zip, are cut off, or differ from their checksum.
_DAMAGE: Final = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


def package_digest(files: Iterable[tuple[str, bytes]]) -> str:
    """The digest of files in the order of their names. A name and its length precede each content."""
    digest = hashlib.sha256()
    for name, content in files:
        encoded = name.encode()
        digest.update(b"%d %d " % (len(encoded), len(content)) + encoded)
        digest.update(content)
    return digest.hexdigest()


def folder_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files below `folder`, sorted, without Python's bytecode.

    Raises:
        JobRejected: an entry is neither a file nor a folder.
    """
    for name, path in sorted(_walk(folder)):
        yield name, path.read_bytes()


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != _CACHE_FOLDER]
        links = [name for name in folders if Path(place, name).is_symlink()]
        for name in (*links, *files):
            path = Path(place, name)
            if not stat.S_ISREG(path.lstat().st_mode):
                _refuse(f"{path.relative_to(folder)} is no plain file")
            if path.suffix != _BYTECODE:
                yield path.relative_to(folder).as_posix(), path


def write_archive(folder: Path) -> tuple[bytes, str]:
    """The archive of the files below `folder`, and its digest. Times, modes and bytecode are left out.

    Raises:
        JobRejected: an entry is no plain file, or the package is too large.
    """
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for name, content in folder_files(folder):
            entry = zipfile.ZipInfo(name, _FIXED_TIME)
            entry.external_attr = (stat.S_IFREG | _FILE_MODE) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, whichever system writes it
            target.writestr(entry, content)
    data = archive.getvalue()
    return data, package_digest(read_archive(data))  # its limits hold here too


def read_archive(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The files of an archive, sorted by name. All entries are checked before the first.

    Raises:
        JobRejected: the archive is damaged, has an entry that no package has, or is too large.
    """
    if len(data) > MAX_ARCHIVE_BYTES:
        _refuse(f"it has {len(data):,} bytes, and a package may have {MAX_ARCHIVE_BYTES:,}")
    if (count := data.count(_ENTRY_SIGNATURE)) > MAX_FILES:  # `zipfile` holds an object for each, 20 times as large
        _refuse_count(count)
    with _damage(), zipfile.ZipFile(BytesIO(data)) as archive:
        entries = archive.infolist()
        _check_entries(entries)
        for entry in sorted(entries, key=lambda entry: entry.filename):
            yield entry.filename, _content(archive, entry)


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The content of an entry. `ZipFile.read` would inflate all of it before it compares the size."""
    with archive.open(entry) as source:
        content = source.read(entry.file_size + 1)
    if len(content) != entry.file_size:
        _refuse(f"its archive is damaged: {entry.filename} has another size than its directory has")
    return content


def unpack_archive(data: bytes, folder: Path) -> str:
    """Writes the files of an archive below `folder`, which must be empty. Returns the digest of the package.

    Raises:
        JobRejected: as `read_archive`.
    """

    def written() -> Iterator[tuple[str, bytes]]:
        for name, content in read_archive(data):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            yield name, content

    return package_digest(written())


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    if not 0 < len(entries) <= MAX_FILES:
        _refuse_count(len(entries))
    if (size := sum(entry.file_size for entry in entries)) > MAX_UNPACKED_BYTES:
        _refuse(f"it unpacks to {size:,} bytes, and a package may have {MAX_UNPACKED_BYTES:,}")
    files = {entry.orig_filename for entry in entries}
    if len(files) < len(entries):
        _refuse("it has two entries of one name")
    for entry in entries:
        if problem := _problem_of(entry):
            _refuse(f"its entry {entry.orig_filename[:MAX_NAME_BYTES]!r} {problem}")
        if above := files.intersection(str(parent) for parent in PurePosixPath(entry.filename).parents):
            _refuse(f"its entry {above.pop()!r} is a file and a folder")


def _problem_of(entry: zipfile.ZipInfo) -> str:
    """Why no package has such an entry; "" if a package may have it."""
    name, mode = entry.orig_filename, entry.external_attr >> 16
    if not name.isprintable() or len(name.encode(errors="replace")) > MAX_NAME_BYTES or "\\" in name:
        return "has a name that no package has"
    if name.count("/") >= MAX_NAME_PARTS:
        return f"has more than {MAX_NAME_PARTS} parts"
    if name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
        return "leaves the folder of the package, or is a folder"
    if _CACHE_FOLDER in name.split("/") or name.endswith(_BYTECODE):
        return "is bytecode, which Python writes by itself"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "is no plain file"
    if entry.flag_bits & _ENCRYPTED_FLAG or entry.compress_type not in _METHODS:
        return "is encrypted, or compressed in an unknown way"
    if entry.file_size > MAX_FILE_BYTES:
        return f"has {entry.file_size:,} bytes, and a file of a package may have {MAX_FILE_BYTES:,}"
    return ""


@contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        _refuse(f"its archive is damaged: {error}", error)


def _refuse_count(count: int) -> NoReturn:
    _refuse(f"it has {count:,} files, and a package has 1 to {MAX_FILES:,}")


def _refuse(problem: str, cause: BaseException | None = None) -> NoReturn:
    raise JobRejected("bad-package", "package", problem) from cause
