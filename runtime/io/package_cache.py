"""Packages in the storage, and the cache of a host that holds them unpacked.

The storage has `packages/DIGEST.zip` beside the folders of the jobs. A host unpacks a package once, into a folder that
is renamed when it is complete. Each process compares the files of the folder with the digest before it imports them.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import uuid4

from runtime.access.job_package import PACKAGE_VARIABLE, JobPackage, import_from
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected
from runtime.io.package_archive import folder_files, package_digest, unpack_archive
from runtime.io.store import check_mounted, open_store, storage_uri

CACHE_FOLDER: Final = "packages"  #: in WEIR_VAR
_FOREIGN_BITS: Final = stat.S_IWGRP | stat.S_IWOTH


def package_path(digest: str) -> str:
    """The path of a package below the storage of all jobs."""
    return f"packages/{digest}.zip"


def import_package(environment: Mapping[str, str]) -> None:
    """Makes this process import its job from the package that `environment` names, if it names one.

    Raises:
        JobRejected: the package is missing or damaged.
        EnvironmentFailure: the storage or the cache fails.
    """
    if digest := environment.get(PACKAGE_VARIABLE, ""):
        activate(JobPackage(digest, storage_uri("WEIR_STORAGE", environment["WEIR_STORAGE"])))


def activate(package: JobPackage) -> None:
    """Makes this process import its job from `package`. Raises as `import_package`."""
    import_from(unpacked(package), package)


def unpacked(package: JobPackage) -> Path:
    """The folder with the files of `package` in the cache of this host. Raises as `import_package`."""
    root = _cache_root()
    folder = root / package.digest
    try:
        if folder.is_dir():
            if _has_digest(folder, package.digest):
                return folder
            _remove(folder, root)
        return _unpack(package, root)
    except OSError as error:
        raise EnvironmentFailure(f"the package {package.digest} is not unpacked below {root}: {error}") from error


def _unpack(package: JobPackage, root: Path) -> Path:
    data, folder = _load(package), root / package.digest
    with tempfile.TemporaryDirectory(prefix=".", dir=root) as scratch:
        files = Path(scratch, "files")
        try:
            digest = unpack_archive(data, files)
        except JobRejected as error:
            raise JobRejected(error.code, error.field, f"{_name(package)}: {error.detail}") from error
        if digest != package.digest:
            raise JobRejected("bad-package", "package", f"{_name(package)} is damaged: its files have another digest")
        try:
            files.rename(folder)
        except OSError:
            if not _has_digest(folder, package.digest):  # otherwise another process was faster
                raise
    return folder


def _load(package: JobPackage) -> bytes:
    check_mounted(package.storage)
    try:
        return open_store(package.storage).get(package_path(package.digest))
    except CorruptState as error:
        raise JobRejected("no-package", "package", f"the storage has no package: {error}") from error


def _name(package: JobPackage) -> str:
    return f"{package.storage}/{package_path(package.digest)}"


def _has_digest(folder: Path, digest: str) -> bool:
    try:
        return package_digest(folder_files(folder)) == digest
    except (OSError, JobRejected):
        return False


def _remove(folder: Path, root: Path) -> None:
    """Removes a damaged folder. Another process may do the same."""
    damaged = root / f".{uuid4().hex}"
    if folder.exists():
        folder.rename(damaged)
    shutil.rmtree(damaged, ignore_errors=True)


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
