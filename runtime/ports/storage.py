"""Ports of the storage of state, and of the clock."""

from collections.abc import Iterable, Sequence
from typing import Protocol


class SnapshotStore(Protocol):
    """Files below a job's storage root. A file exists completely and durably, or not at all.

    Two errors differ. `CorruptState` from a read means that the storage answered, and has no such file. Every
    method raises another EnvironmentFailure if the storage failed. Where `errors.is_outage` holds for it, the storage
    does not serve now, and the caller waits. Otherwise a person must act, for example because access is denied.
    """

    @property
    def concurrent_reads(self) -> int:
        """The number of reads or copies at once where several files are needed. 1: in order, on a single thread."""

    def put(self, path: str, data: Iterable[bytes]) -> None:
        """Creates or replaces `path`. After an error the file is the old one, the new one, or absent."""

    def create(self, path: str, data: bytes) -> bool:
        """Creates `path` unless it exists, atomically. Returns whether the file now holds `data`.

        Of several writers a single one succeeds, so `data` contains a token that no other writer uses. If the reply to
        the creation was lost, the file is read back: with the writer's own token, the creation has succeeded.
        """

    def get(self, path: str) -> bytes:
        """Raises CorruptState, naming the path, if the file is missing."""

    def get_range(self, path: str, offset: int, nbytes: int) -> bytes:
        """Up to `nbytes` from `offset`; fewer at the end of the file. Raises CorruptState as `get` does."""

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes files and the folders that become empty. A missing file counts as success."""

    def list(self, prefix: str) -> list[str]:
        """The paths that begin with `prefix`, sorted."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of the files whose paths begin with `prefix`, by path."""

    def size(self, path: str) -> int | None:
        """Bytes of a file; None if it is missing."""

    def folders(self) -> Sequence[str]:
        """The names of the folders in the root, sorted. A store of files may name empty ones."""

    def newest_change(self, folder: str) -> float | None:
        """The time of the last change in `folder`, in seconds since the epoch; None if it has no file."""

    def copy(self, source: str, target: str) -> None:
        """Creates `target` with the content of `source`; without a transfer of bytes where the storage can.

        The two share their bytes then, as files of state never change. Raises CorruptState if `source` is missing.
        """

    def leftover_files(self) -> Sequence[str]:
        """Temporary files of killed writers, and of running ones."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""

    def monotonic_ms(self) -> float: ...
