"""Storage that fails, for tests of what state does about it."""

from collections.abc import Iterable, Iterator

from runtime.errors import EnvironmentFailure
from runtime.io.memory.snapshot_store import MemorySnapshotStore


class FailingStore(MemorySnapshotStore):
    """A store whose disk is full now and then, also in the middle of a file."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_until_failure = 1_000_000

    def put(self, path: str, data: Iterable[bytes]) -> None:
        super().put(path, self._checked(data))

    def _checked(self, data: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in data:
            self.writes_until_failure -= 1
            if self.writes_until_failure < 0:
                raise EnvironmentFailure("the disk is full")
            yield chunk
