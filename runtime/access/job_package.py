"""The package of a job: the code and the dependencies that a version names by their digest.

A process imports a job either from a package or from what is installed beside Weir. It never changes between the two:
a module that is imported once stays.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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


def import_from(folder: Path, package: JobPackage | None = None) -> None:
    """Makes this process import the job from the files of a package, before the modules that are installed.

    Raises:
        EnvironmentFailure: the process has imported from another package already.
    """
    if _IMPORTS:
        if _IMPORTS[0].folder != folder:
            raise EnvironmentFailure(f"this process runs the package {_IMPORTS[0].folder.name}, not {folder.name}")
        return
    sys.path.insert(0, str(folder))
    _IMPORTS.append(_Import(folder, package))


def package_folder() -> Path | None:
    """The folder from which this process imports its job; None: the job is installed."""
    return _IMPORTS[0].folder if _IMPORTS else None


def active_package() -> JobPackage | None:
    """The package in the storage from which this process imports its job."""
    return _IMPORTS[0].package if _IMPORTS else None
