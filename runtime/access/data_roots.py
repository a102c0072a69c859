"""The folders that jobs may read and write: `WEIR_DATA_ROOTS`, less the folders of Weir itself.

Parameters of a job name folders, so every user who may define a job chooses paths. A path is allowed if it lies below a
data root after every symbolic link is resolved. The folders of Weir (`WEIR_STORAGE`, `WEIR_INPUTS`, `WEIR_LOGS` and the
folders that the stack makes in `WEIR_VAR`) are refused even below a data root.

A folder may be replaced by a symbolic link at any time. Connectors therefore open it through a `CheckedFolder`, which
checks the path at each use.

URLs of object stores are checked against `WEIR_DATA_URLS` in the same way (`check_url`).
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from runtime.access.data_hosts import CONNECTIONS_VARIABLE, HOSTS_VARIABLE
from runtime.errors import JobRejected

DATA_ROOTS_VARIABLE: Final = "WEIR_DATA_ROOTS"
DATA_URLS_VARIABLE: Final = "WEIR_DATA_URLS"
#: Environment by which a slot or a Spark task determines what it may use. Slots on executors of a cluster have their
#: hosts' own; slots on a Spark Connect server and tasks of BATCH have the job master's.
JOB_VARIABLES: Final = (
    *(DATA_ROOTS_VARIABLE, DATA_URLS_VARIABLE, HOSTS_VARIABLE, CONNECTIONS_VARIABLE),
    *("WEIR_VAR", "WEIR_STORAGE", "WEIR_INPUTS", "WEIR_LOGS"),
)
_OWN_FOLDERS: Final = ("WEIR_STORAGE", "WEIR_INPUTS", "WEIR_LOGS")
#: names of Weir's folders in WEIR_VAR
_OWN_NAMES: Final = ("pg", "redis", "programs", "run", "log", "storage", "inputs", "packages", "spark", "weir-spark")


@dataclass(frozen=True)
class DataRoots:
    """Absolute, resolved folders.

    Args:
        allowed: jobs may use paths below these folders. None: no limit, for jobs that an author starts without console.
        reserved: paths below these folders are refused unless a data root lies deeper.
        refused: paths below these folders are always refused.
    """

    allowed: tuple[Path, ...] | None = None
    reserved: tuple[Path, ...] = ()
    refused: tuple[Path, ...] = ()

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self:
        """Data roots from `WEIR_DATA_ROOTS`, which the console sets for every child process. No limit if unset."""
        setting = environment.get(DATA_ROOTS_VARIABLE)
        if setting is None:
            return cls()
        var = environment.get("WEIR_VAR")
        folders = [place for name in _OWN_FOLDERS if (place := environment.get(name, "")) and "://" not in place]
        folders += [str(Path(var, name)) for name in _OWN_NAMES] if var else []
        return cls(
            allowed=_resolve_all(part for part in setting.split(os.pathsep) if part),
            reserved=_resolve_all([var] if var else []),
            refused=_resolve_all(folders),
        )

    @classmethod
    def of_connector(cls, environment: Mapping[str, str], folder: str | Path) -> Self:
        """The roots for a source or sink that was accepted with `folder`.

        Materialised inputs (`WEIR_INPUTS`) belong to Weir: they are readable only if `folder` is one of them.
        """
        inputs, roots = environment.get("WEIR_INPUTS"), cls.of_environment(environment)
        if roots.allowed is None or not inputs or not _is_in(folder, inputs):
            return roots
        return cls(allowed=_resolve_all([inputs]))

    def is_allowed(self, path: str | Path) -> bool:
        """Whether `path` may be used, after resolving its symbolic links."""
        if self.allowed is None:
            return True
        try:
            real_path = Path(path).resolve()
        except (OSError, RuntimeError, ValueError):  # cyclic links, NUL
            return False
        if _deepest_match(real_path, self.refused) >= 0:
            return False
        return _deepest_match(real_path, self.allowed) >= max(_deepest_match(real_path, self.reserved), 0)

    def check(self, field: str, path: str) -> None:
        """Raises JobRejected, which names `field` and the allowed roots, if `path` may not be used."""
        if not self.is_allowed(path):
            self.refuse(field, path)

    def refuse(self, field: str, path: str) -> NoReturn:
        """Raises JobRejected as `check` does, without checking `path`."""
        roots = ", ".join(map(str, self.allowed or ())) or "none"
        detail = (
            f"{path} is not a folder that jobs may use. Allowed are folders below: {roots}. "
            f"An administrator adds folders in {DATA_ROOTS_VARIABLE}; the folders of Weir itself cannot be added"
        )
        raise JobRejected("path-not-allowed", field, detail)


def check_url(field: str, url: str, environment: Mapping[str, str]) -> None:
    """Raises JobRejected, which names `field`, if jobs may not use a URL.

    Without `WEIR_DATA_ROOTS` every URL is allowed. Otherwise `WEIR_DATA_URLS` names the allowed URLs, separated by
    spaces: scheme, host and query must be equal, and the path must lie below. Credentials are not compared. A store has
    no symbolic links, so a single check is enough. The storage of checkpoints (`WEIR_STORAGE`) is always refused.
    """
    if environment.get(DATA_ROOTS_VARIABLE) is None:
        return
    allowed = environment.get(DATA_URLS_VARIABLE, "").split()
    steps = _url_parts(url)[1]
    is_plain = not {".", "..", ""}.intersection(steps) and not any("/" in step for step in steps)
    storage = environment.get("WEIR_STORAGE", "")
    if "://" in storage and _is_same_bucket_place(url, storage):
        raise JobRejected("path-not-allowed", field, f"{url} overlaps the storage of checkpoints, WEIR_STORAGE")
    if is_plain and any(_is_url_below(url, root) for root in allowed):
        return
    detail = (
        f"{url} is not a URL that jobs may use. Allowed are URLs below: {', '.join(allowed) or 'none'}. "
        f"An administrator adds URLs in {DATA_URLS_VARIABLE}"
    )
    raise JobRejected("path-not-allowed", field, detail)


def is_same_url(url: str, other: str) -> bool:
    """Whether two URLs name the same place, by whatever credentials and parameters."""
    (place, steps), (other_place, other_steps) = _url_parts(url), _url_parts(other)
    return (place[:-1], steps) == (other_place[:-1], other_steps)


def _is_same_bucket_place(url: str, storage: str) -> bool:
    """Whether a URL of a bucket overlaps `storage`, by whatever endpoint, user or driver (`s3a://`)."""
    (bucket, steps), (other, other_steps) = ((urlsplit(each).hostname, _url_parts(each)[1]) for each in (url, storage))
    length = min(len(steps), len(other_steps))
    return bucket == other and urlsplit(url).scheme.startswith("s3") and steps[:length] == other_steps[:length]


def _is_url_below(url: str, root: str) -> bool:
    (place, steps), (root_place, root_steps) = _url_parts(url), _url_parts(root)
    return place == root_place and steps[: len(root_steps)] == root_steps


def _url_parts(url: str) -> tuple[tuple[object, ...], list[str]]:
    """Scheme, host and query of a URL, and the steps of its path. A user without password is part of the host: `abfs`
    names its container so.
    """
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    place = (parts.scheme.lower(), "" if ":" in user else user, host, tuple(sorted(parse_qsl(parts.query))))
    path = parts.path.strip("/")
    return place, [unquote(step) for step in path.split("/")] if path else []


@dataclass(frozen=True)
class CheckedFolder:
    """A folder of a source or sink, checked against `roots` at each use.

    Args:
        argument: name of the argument of the source or sink, for errors.
        path: the folder; links are followed as long as they stay below the roots.
    """

    argument: str
    path: Path
    roots: DataRoots

    @classmethod
    def of(cls, argument: str, path: str | Path, roots: DataRoots | None = None) -> Self:
        """A folder with `roots`, by default the data roots of this process."""
        return cls(argument, Path(path), roots or DataRoots.of_connector(os.environ, path))

    def check(self) -> None:
        """Raises JobRejected, which names the argument, if the folder now lies outside the roots."""
        self.roots.check(self.argument, str(self.path))

    @contextlib.contextmanager
    def open_folder(self) -> Iterator[int]:
        """A descriptor of the folder. The open descriptor is checked, so a link made later cannot redirect it.

        Raises:
            JobRejected: the folder lies outside the roots.
            OSError: the folder cannot be opened.
        """
        self.check()
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not self._is_allowed(descriptor):
                self.roots.refuse(self.argument, str(self.path))
            yield descriptor
        finally:
            os.close(descriptor)

    def make(self) -> None:
        """Creates the folder durably, unless it exists. It is made in its parent, which is open and checked.

        Raises:
            JobRejected: the parent lies outside the roots.
            OSError: the parent does not exist, or the folder cannot be created.
        """
        if self.path.is_dir():
            return
        with replace(self, path=self.path.parent).open_folder() as parent:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path.name, dir_fd=parent)
            os.fsync(parent)

    def open_to_read(self, name: str) -> int | None:
        """A descriptor of the file `name`; None if a link of the file or the folder leads outside the roots."""
        if not self.roots.is_allowed(self.path / name):
            return None
        descriptor = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC)
        if self._is_allowed(descriptor):
            return descriptor
        os.close(descriptor)
        return None

    def open_to_write(self, name: str, flags: int) -> int:
        """A descriptor of the file `name` in the folder itself; a symbolic link of that name is not followed.

        Args:
            flags: additional flags for `os.open`, such as O_EXCL or O_APPEND.

        Raises:
            JobRejected: the folder lies outside the roots.
            OSError: the file is a symbolic link or cannot be created; the error names it.
        """
        with self.open_folder() as folder:
            try:
                open_flags = flags | os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                return os.open(name, open_flags, 0o666, dir_fd=folder)
            except OSError as error:
                error.filename = str(self.path / name)
                raise

    def _is_allowed(self, descriptor: int) -> bool:
        return self.roots.allowed is None or self.roots.is_allowed(descriptor_path(descriptor).readlink())


def descriptor_path(descriptor: int) -> Path:
    """A path to the open file that stays valid when the file is renamed or deleted (Linux, proc(5))."""
    return Path(f"/proc/self/fd/{descriptor}")


def _is_in(folder: str | Path, parent: str) -> bool:
    """Whether `folder` lies in `parent` by name; links are not followed."""
    place = os.path.normpath(Path(folder).absolute())
    return Path(place).is_relative_to(os.path.normpath(Path(parent).absolute()))


def _resolve_all(paths: Iterable[str]) -> tuple[Path, ...]:
    return tuple(Path(path).resolve() for path in paths)


def _deepest_match(path: Path, folders: tuple[Path, ...]) -> int:
    """Number of path parts of the deepest of `folders` that contains or equals `path`; -1 if there is none."""
    return max((len(folder.parts) for folder in folders if path.is_relative_to(folder)), default=-1)
