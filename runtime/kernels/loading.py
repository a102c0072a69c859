"""Loads the kernels: compiled on this machine once, then read from a cache of files.

The first load on a machine compiles for some seconds; a load from the cache takes half a second; a fork of a process
that has loaded them pays nothing. So a slot loads them before its first record (`native`).

The cache holds machine code and pickles, so it must belong to the user of the process, and no other user may write it.
Its folder is named after the kernels' sources, numba and the processor: versions, checkouts and machines that share a
home do not mix. Processes that compile at the same time write the same files, each by an atomic rename. A broken cache
is emptied once.
"""

import hashlib
import logging
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtime.errors import EnvironmentFailure

log = logging.getLogger(__name__)  # its messages go to stderr: stdout of Spark's daemon is a protocol

CACHE_FOLDER: Final = "NUMBA_CACHE_DIR"  #: environment variable: the folder of the cache, if set


class Kernels(NamedTuple):
    """The modules of kernels, compiled."""

    hashes: Any
    texts: Any
    buckets: Any
    blocks: Any
    folds: Any
    json_objects: Any


@cache
def native() -> Kernels:
    """The compiled kernels. The first call of a process takes seconds, so it precedes all records.

    Raises:
        EnvironmentFailure: this host cannot compile them.
    """
    if sys.byteorder != "little":
        raise _refusal("its processor is big-endian")
    try:
        config: Any = import_module("numba").config  # 0.4 s
    except ImportError as error:
        raise _refusal(f"numba cannot be imported ({error})") from error
    if config.DISABLE_JIT:
        raise _refusal("NUMBA_DISABLE_JIT is set")
    before, reason = config.CACHE_DIR, f"no cache folder is private to this user: set {CACHE_FOLDER} to one that is"
    for folder in _folders():
        config.CACHE_DIR = str(folder)
        if not any(folder.iterdir()):
            log.warning("compiling the kernels, once on this machine: this takes up to a minute")
        try:
            return Kernels(*(import_module(f"runtime.kernels.{name}") for name in Kernels._fields))
        except Exception as error:  # noqa: BLE001 - a broken cache raises errors of many kinds
            log.warning("the kernel cache %s is broken: %s: %s", folder, type(error).__name__, error)
            reason = f"{type(error).__name__}: {error}"
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            config.CACHE_DIR = before
    raise _refusal(reason)


def _refusal(reason: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"host {platform.node()} cannot compile the kernels that jobs need: {reason}")


def _folders() -> Iterator[Path]:
    """Safe folders for the cache, each twice: a broken one is emptied and tried again."""
    name = _folder_name()
    for parent in _parents():
        folder = parent / name
        for _ in range(2):
            if not _is_safe(folder):
                break
            yield folder


def _parents() -> Iterator[Path]:
    if folder := os.environ.get(CACHE_FOLDER):
        yield Path(folder)
        return
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "weir"  # noqa: PTH111 - no error
    yield Path(tempfile.gettempdir()) / f"weir-{os.geteuid()}"


def _folder_name() -> str:
    from llvmlite.binding import get_host_cpu_features, get_host_cpu_name  # type: ignore[import-untyped]

    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    facts = (version("numba"), version("llvmlite"), sys.version, platform.machine(), get_host_cpu_name())
    digest.update(repr((facts, get_host_cpu_features().flatten())).encode())
    return f"kernels-{digest.hexdigest()}"


def _is_safe(folder: Path) -> bool:
    """Makes the folder; returns whether it and its parent belong to this user and are closed to all other writers."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return all(_is_private(each) for each in (folder.parent, folder))
    except OSError:
        return False


def _is_private(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
