"""The package of a job: the code and the dependencies that a version names by their digest.

A process imports a job either from a package or from what is installed beside Weir. It never changes between the two:
a module that is imported once stays.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from pathlib import Path
from typing import Any, Final

from runtime.errors import EnvironmentFailure, JobRejected

#: Digest of the package of the job; the console sets it for the processes of a version that names one.
PACKAGE_VARIABLE: Final = "WEIR_PACKAGE"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class JobPackage:
    """A package in the storage. `storage`: root of the storage of all jobs."""

    digest: str
    storage: str

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest):
            raise JobRejected("bad-package", "package", f"{self.digest!r} is no digest of a package")


@dataclass(frozen=True, slots=True)
class _Import:
    folder: Path
    package: JobPackage | None  #: None: a folder that is in no storage


_IMPORTS: Final[list[_Import]] = []  #: none or one


class _BytecodeFreeLoader(SourceFileLoader):
    """Compiles modules from their source. A foreign `.pyc` beside them never runs, and none is written."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError(f"{path}: no bytecode is used")  # `SourceLoader` then neither reads nor writes it


def import_from(folder: Path, package: JobPackage | None = None) -> None:
    """Makes this process import the job from the files of a package, before the modules that are installed.

    Raises:
        EnvironmentFailure: the process has imported from another package already.
        JobRejected: the package fits another deployment, or a module of it would come from elsewhere or replace one of
            Weir.
    """
    from runtime.access.package_checks import check_package, check_resolution  # 20 ms, for few processes

    selected = _Import(folder.resolve(), package)
    folder = selected.folder
    if _IMPORTS:
        if _IMPORTS[0].folder != folder:
            raise EnvironmentFailure(f"this process runs the package {_name(_IMPORTS[0])}, not {_name(selected)}")
        return
    modules = check_package(folder)
    sys.path_hooks.insert(0, lambda path: _open_finder(path, folder))
    sys.path_importer_cache.pop(str(folder), None)
    sys.path.insert(0, str(folder))
    try:
        check_resolution(folder, modules)
    except JobRejected:
        sys.path.remove(str(folder))
        raise
    _IMPORTS.append(selected)


def _open_finder(path: str, folder: Path) -> FileFinder:
    """Finder of modules in `path` without bytecode. Raises ImportError for a path outside `folder`, as hooks do."""
    if path != str(folder) and not path.startswith(f"{folder}{os.sep}"):
        raise ImportError(path)
    loaders = (ExtensionFileLoader, EXTENSION_SUFFIXES), (_BytecodeFreeLoader, SOURCE_SUFFIXES)
    return FileFinder(path, *loaders)


def _name(imported: _Import) -> str:
    return imported.folder.name if imported.package is None else imported.package.digest


def require_package(package: JobPackage | None) -> None:
    """Raises EnvironmentFailure if this process runs another package than `package`; None: installed code."""
    active = active_package()
    if active is not None and (package is None or active.digest != package.digest):
        other = "installed code" if package is None else f"the package {package.digest}"
        raise EnvironmentFailure(f"this process runs the package {active.digest}, and the job master runs {other}")


def package_folder() -> Path | None:
    """The folder from which this process imports its job; None: the job is installed."""
    return _IMPORTS[0].folder if _IMPORTS else None


def active_package() -> JobPackage | None:
    """The package in the storage from which this process imports its job."""
    return _IMPORTS[0].package if _IMPORTS else None
