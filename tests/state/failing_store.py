"""Storage that fails, for tests of what state does about it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from runtime.errors import EnvironmentFailure
from runtime.io.memory.snapshot_store import MemorySnapshotStore

_NEVER = 1_000_000


class DiskFull(EnvironmentFailure):
    """No chunk of a file can be written."""


class FailingStore(MemorySnapshotStore):
    """A store whose disk is full now and then, also in the middle of a file."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_until_failure = _NEVER

    @contextmanager
    def failing_after(self, writes: int | None) -> Iterator[None]:
        """The disk is full after so many writes of the block; None: it has room."""
        self.writes_until_failure = _NEVER if writes is None else writes
        try:
            yield
        finally:
            self.writes_until_failure = _NEVER

    def put(self, path: str, data: Iterable[bytes]) -> None:
        super().put(path, self._checked(data))

    def _checked(self, data: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in data:
            self.writes_until_failure -= 1
            if self.writes_until_failure < 0:
                raise DiskFull("the disk is full")
            yield chunk
