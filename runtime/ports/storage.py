"""Ports of the storage of state, and of the clock."""

from collections.abc import Iterable, Sequence
from typing import Protocol


class SnapshotStore(Protocol):
    """Files below a job's storage root. A file exists completely and durably, or not at all."""

    def put(self, path: str, data: Iterable[bytes]) -> None:
        """Creates `path`: temporary name, fsync, rename, fsync of the folder. Replacing an existing file is allowed."""

    def get(self, path: str) -> bytes:
        """Raises CorruptState, naming the path, if the file is missing."""

    def get_range(self, path: str, offset: int, nbytes: int) -> bytes:
        """Up to `nbytes` from `offset`; fewer at the end of the file. Raises CorruptState as `get` does."""

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes files and the folders that become empty. A missing file counts as success."""

    def list(self, prefix: str) -> list[str]: ...
    def leftover_files(self) -> Sequence[str]:
        """Temporary files of killed writers, and of running ones."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""

    def monotonic_ms(self) -> float: ...
