"""The folders that jobs may read and write: `WEIR_DATA_ROOTS`, less the folders of Weir itself.

Parameters of a job name folders, and whoever may define a job chooses them. A path is allowed if, with every symbolic
link resolved, it lies below a data root. The folders of Weir (`WEIR_STORAGE`, `WEIR_INPUTS`, `WEIR_LOGS` and those
that the stack makes in `WEIR_VAR`) stay refused, also below a data root.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from runtime.errors import JobRejected

VARIABLE: Final = "WEIR_DATA_ROOTS"
_OWN_FOLDERS: Final = ("WEIR_STORAGE", "WEIR_INPUTS", "WEIR_LOGS")
#: in WEIR_VAR
_OWN_NAMES: Final = ("pg", "redis", "programs", "run", "log", "storage", "inputs", "spark", "weir-spark")


@dataclass(frozen=True)
class DataRoots:
    """Absolute, resolved folders.

    Args:
        allowed: what lies below one of these may be used. None: no limit, for jobs that their author starts himself.
        reserved: what lies below one of these may not, unless a data root lies deeper.
        own: what lies below one of these may never be used.
    """

    allowed: tuple[Path, ...] | None = None
    reserved: tuple[Path, ...] = ()
    own: tuple[Path, ...] = ()

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self:
        """The console sets `WEIR_DATA_ROOTS` for every process that it starts. Unset: no limit."""
        given = environment.get(VARIABLE)
        if given is None:
            return cls()
        var = environment.get("WEIR_VAR")
        own = [environment[name] for name in _OWN_FOLDERS if environment.get(name)]
        own += [str(Path(var, name)) for name in _OWN_NAMES] if var else []
        return cls(
            allowed=_resolved_all(part for part in given.split(os.pathsep) if part),
            reserved=_resolved_all([var] if var else []),
            own=_resolved_all(own),
        )

    def holds(self, path: str | Path) -> bool:
        """Whether `path` may be used, after its symbolic links."""
        if self.allowed is None:
            return True
        try:
            found = Path(path).resolve()
        except (OSError, RuntimeError, ValueError):  # links that lead in a circle, NUL
            return False
        if _depth(found, self.own) >= 0:
            return False
        return _depth(found, self.allowed) >= max(_depth(found, self.reserved), 0)

    def check(self, field: str, path: str) -> None:
        """Raises JobRejected naming `field`, with the roots that are allowed."""
        if self.holds(path):
            return
        roots = ", ".join(map(str, self.allowed or ())) or "none"
        detail = (
            f"{path} is not a folder that jobs may use. Allowed is what lies below: {roots}. "
            f"An administrator adds folders in {VARIABLE}; the folders of Weir itself cannot be added"
        )
        raise JobRejected("path-not-allowed", field, detail)


def _resolved_all(paths: Iterable[str]) -> tuple[Path, ...]:
    return tuple(Path(path).resolve() for path in paths)


def _depth(path: Path, folders: tuple[Path, ...]) -> int:
    """Number of parts of the deepest of `folders` that `path` lies in or is; -1 for none."""
    return max((len(folder.parts) for folder in folders if path.is_relative_to(folder)), default=-1)
