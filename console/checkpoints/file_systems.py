"""The file systems of Weir's folders, and how much is free on them."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from django.conf import settings
from django.core.cache import cache

from console import formats
from console.accounts.refusals import Refused
from console.checkpoints.timed_reads import read_in_time
from runtime.s3 import is_bucket

_MEGABYTE: Final = 1 << 20
_POSTGRES: Final = "Postgres"
_CACHE_KEY: Final = "low-file-systems"
_CACHE_S: Final = 2


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system. `label`: use of the folder; bytes None: it cannot be read."""

    label: str
    folder: str
    free_bytes: int | None
    total_bytes: int | None
    is_missing: bool = False  #: the folder does not exist, which is well before its first use
    is_hanging: bool = False  #: it does not answer in time

    @property
    def used_percent(self) -> float | None:
        if self.free_bytes is None or not self.total_bytes:
            return None
        return (1 - self.free_bytes / self.total_bytes) * 100

    @property
    def is_low(self) -> bool:
        """Whether less than `WEIR_MIN_FREE_MB` are free."""
        return self.free_bytes is not None and self.free_bytes < settings.WEIR_MIN_FREE_MB * _MEGABYTE

    @property
    def free_words(self) -> str:
        """How much is free: 12.3 GB free of 40 GB (checkpoints)."""
        free, total = formats.size(self.free_bytes), formats.size(self.total_bytes)
        return f"{free} free of {total} ({self.label})"


def file_systems() -> tuple[FileSystem, ...]:
    """The file systems of Weir's folders, each once, by its first folder."""
    systems, devices = [], set()
    for label, folder in _folders().items():
        try:
            free, total, device = read_in_time(("usage", label), partial(_usage, folder))
        except Refused:
            systems.append(FileSystem(label, str(folder), None, None, is_hanging=True))
            continue
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError)
            if not (is_missing and label == _POSTGRES):  # it runs elsewhere
                systems.append(FileSystem(label, str(folder), None, None, is_missing))
            continue
        if device not in devices:
            devices.add(device)
            systems.append(FileSystem(label, str(folder), free, total))
    return tuple(systems)


def low_file_systems() -> tuple[FileSystem, ...]:
    """The file systems on which less than `WEIR_MIN_FREE_MB` are free. Each process reads them every 2 s at most."""
    low = cache.get(_CACHE_KEY)
    if low is None:
        low = tuple(system for system in file_systems() if system.is_low)
        cache.set(_CACHE_KEY, low, _CACHE_S)
    return tuple(low)


def _folders() -> Mapping[str, Path]:
    """By use."""
    storage = str(settings.WEIR_STORAGE)
    checkpoints = {} if is_bucket(storage) else {"Checkpoints": Path(storage)}
    return {**checkpoints, "Inputs from Spark": settings.WEIR_INPUTS,
            "Logs": settings.WEIR_LOGS, _POSTGRES: settings.WEIR_VAR / "pg"}  # fmt: skip


def _usage(folder: Path) -> tuple[int, int, int]:
    """Free and total bytes of a file system, and its device."""
    usage = shutil.disk_usage(folder)
    return usage.free, usage.total, folder.stat().st_dev
