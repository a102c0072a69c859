"""Packages in the storage, and the cache of a host that holds them unpacked.

The storage has `packages/DIGEST.zip` beside the folders of the jobs. A host unpacks a package once, into a folder that
is renamed when it is complete. Each process compares the files of the folder with the digest before it imports them.
No bytecode of the folder is used, so it needs no comparison.

A process holds a shared lock on the folder that it uses, and so do the processes that it forks. A folder that has no
lock and that no process has asked for in `WEIR_PACKAGE_DAYS` is removed. It is unpacked again where it is needed.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

import structlog

from runtime.access.job_package import PACKAGE_VARIABLE, JobPackage, active_package, import_from
from runtime.clock import SystemClock
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected, TargetAway
from runtime.io.package_archive import folder_files, package_digest, unpack_archive
from runtime.io.store import check_mounted, open_store, storage_uri

CACHE_FOLDER: Final = "packages"  #: in WEIR_VAR
PACKAGES_FOLDER: Final = "packages"  #: in the storage of all jobs
DAYS_VARIABLE: Final = "WEIR_PACKAGE_DAYS"
DEFAULT_DAYS: Final = 30
_FOREIGN_BITS: Final = stat.S_IWGRP | stat.S_IWOTH
_WRITE_BITS: Final = _FOREIGN_BITS | stat.S_IWUSR
_FILE_MODE: Final = 0o444  #: a job writes nothing beside its modules, unless it runs as root
_FOLDER_MODE: Final = 0o555
_SCRATCH_MODE: Final = 0o700
_SCRATCH_PREFIX: Final = "."
_SCRATCH_LIFETIME_S: Final = 3_600.0
_MODULE_SUFFIXES: Final = (".py", ".so")
_DAY_S: Final = 86_400.0
_LOCKED: Final[dict[Path, int]] = {}  #: descriptors of the folders that this process uses, open until it ends

log = structlog.get_logger()


def package_path(digest: str) -> str:
    """The path of a package below the storage of all jobs."""
    return f"{PACKAGES_FOLDER}/{digest}.zip"


def import_package(environment: Mapping[str, str]) -> None:
    """Makes this process import its job from the package that `environment` names, if it names one.

    Raises:
        JobRejected: the package is missing or damaged.
        EnvironmentFailure: the storage or the cache fails.
    """
    if digest := environment.get(PACKAGE_VARIABLE, ""):
        activate(JobPackage(digest, storage_uri("WEIR_STORAGE", environment["WEIR_STORAGE"])))


def activate(package: JobPackage) -> None:
    """Makes this process import its job from `package`, once. Raises as `import_package`."""
    active = active_package()
    if active is None or active.digest != package.digest:
        import_from(unpacked(package), package)


def unpacked(package: JobPackage) -> Path:
    """The folder with the files of `package` in the cache of this host. Raises as `import_package`.

    The folder stays until this process ends. If a file of the package is changed or missing, a new folder is made.
    """
    root = _cache_root()
    try:
        while True:
            for folder in sorted(root.glob(f"{package.digest}*")):
                if _use(folder, package.digest):
                    return folder
            _unpack(package, root)  # which another process may remove before it is used
    except OSError as error:
        raise EnvironmentFailure(f"the package {package.digest} is not unpacked below {root}: {error}") from error


def _use(folder: Path, digest: str) -> bool:
    """Keeps a folder from removal while this process lives. False if it was removed or lacks the files of `digest`."""
    if folder in _LOCKED:
        return _has_digest(folder, digest)
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    with suppress(OSError):  # a file system without locks, where no folder is removed either
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if not _is_at(folder, descriptor) or not _has_digest(folder, digest):
        os.close(descriptor)
        return False
    os.utime(folder)
    _LOCKED[folder] = descriptor
    return True


def _is_at(folder: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return folder.stat().st_ino == os.fstat(descriptor).st_ino
    return False


def clean_cache() -> None:
    """Removes unpacked packages of this host that no process has used for `WEIR_PACKAGE_DAYS`. Logs a failure."""
    try:
        root = _cache_root()
        oldest = SystemClock().now_ms() / 1000 - _DAY_S * _package_days()
        for folder in root.iterdir():
            if not folder.name.startswith(_SCRATCH_PREFIX) and folder.stat().st_mtime < oldest:
                _remove_unlocked(folder)
    except (OSError, EnvironmentFailure) as error:  # the next call comes soon
        log.warning("unused packages are not removed", error=str(error))


def _package_days() -> int:
    """The days of unused packages; 0 stands for the default, as in the settings of the console."""
    text = os.environ.get(DAYS_VARIABLE) or "0"
    if not (text.isascii() and text.isdigit()):
        raise EnvironmentFailure(f"{DAYS_VARIABLE} must be a whole number from 0 on, not {text!r}")
    return int(text) or DEFAULT_DAYS


def _remove_unlocked(folder: Path) -> None:
    """Removes a folder unless a process uses it. The lock is held until the folder has another name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(folder, descriptor):
            return
        aside = folder.with_name(f"{_SCRATCH_PREFIX}{folder.name}")
        folder.rename(aside)
    except OSError:  # in use, removed by another process, or on a file system without locks
        return
    finally:
        os.close(descriptor)
    log.info("removed an unpacked package that no process uses", folder=str(folder))
    _remove(aside)


def _unpack(package: JobPackage, root: Path) -> None:
    clean_cache()
    data, folder = _load(package), root / package.digest
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=root))
    try:
        _remove_old_scratch(scratch)
        try:
            digest = unpack_archive(data, scratch)
        except JobRejected as error:
            raise JobRejected(error.code, error.field, f"{_name(package)}: {error.detail}") from error
        if digest != package.digest:
            raise JobRejected("bad-package", "package", f"{_name(package)} is damaged: its files have another digest")
        _set_modes(scratch, _FOLDER_MODE, _FILE_MODE)
        try:
            scratch.rename(folder)
        except OSError:  # another process was faster, or the folder is damaged and perhaps in use
            if not _has_digest(folder, package.digest):
                scratch.rename(root / f"{package.digest}-{uuid4().hex}")
    finally:
        _remove(scratch)


def _load(package: JobPackage) -> bytes:
    """The archive in the storage. Raises TargetAway while its file system is not mounted."""
    try:
        check_mounted(package.storage)
    except EnvironmentFailure as error:
        raise TargetAway(str(error)) from error
    try:
        return open_store(package.storage).get(package_path(package.digest))
    except CorruptState as error:
        raise JobRejected("no-package", "package", f"the storage has no package: {error}") from error


def _name(package: JobPackage) -> str:
    return f"{package.storage}/{package_path(package.digest)}"


def _has_digest(folder: Path, digest: str) -> bool:
    """Whether the files of the package are there, and no other module. Further files that are writable are a job's."""
    try:
        return package_digest(_package_files(folder)) == digest
    except (OSError, JobRejected):
        return False


def _package_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for name, content in folder_files(folder):
        if name.endswith(_MODULE_SUFFIXES) or not (folder / name).stat().st_mode & _WRITE_BITS:
            yield name, content


def _set_modes(folder: Path, folder_mode: int, file_mode: int) -> None:
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            Path(place, name).chmod(file_mode)
        Path(place).chmod(folder_mode)


def _remove_old_scratch(current: Path) -> None:
    """Removes the scratch folders of processes that were killed. Ages are those of the file system."""
    oldest = current.stat().st_mtime - _SCRATCH_LIFETIME_S
    for folder in current.parent.glob(f"{_SCRATCH_PREFIX}*"):
        with suppress(FileNotFoundError):
            if folder.stat().st_mtime < oldest:
                _remove(folder)


def _remove(scratch: Path) -> None:
    with suppress(FileNotFoundError):
        for place, folders, _ in os.walk(scratch):  # files in folders that are read-only are not removed
            for name in ("", *folders):
                Path(place, name).chmod(_SCRATCH_MODE)
    shutil.rmtree(scratch, ignore_errors=True)


def _cache_root() -> Path:
    """The folder of unpacked packages, in WEIR_VAR or else in the folder for temporary files.

    Raises:
        EnvironmentFailure: another user may write to it.
    """
    var = os.environ.get("WEIR_VAR", "")
    root = Path(var, CACHE_FOLDER) if var and os.access(var, os.W_OK) else _temporary_root()
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        about = root.lstat()
    except OSError as error:
        raise EnvironmentFailure(f"packages have no cache on this host: {error}") from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & _FOREIGN_BITS:
        raise EnvironmentFailure(f"{root}: another user may write to it; packages are not unpacked there")
    return root


def _temporary_root() -> Path:
    return Path(tempfile.gettempdir(), f"weir-packages-{os.getuid()}")
