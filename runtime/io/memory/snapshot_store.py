"""A snapshot store in memory."""

import threading
from collections.abc import Iterable, Sequence

from runtime.errors import CorruptState


class MemorySnapshotStore:
    """Counterpart of `FileStore`: the storage root of a job in a dictionary."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, bytes] = {}

    def put(self, path: str, data: Iterable[bytes]) -> None:
        content = b"".join(data)  # first: a producer that fails leaves no file
        with self._lock:
            self._files[path] = content

    def get(self, path: str) -> bytes:
        with self._lock:
            content = self._files.get(path)
        if content is None:
            raise CorruptState(path, "there is no such file")
        return content

    def get_range(self, path: str, offset: int, nbytes: int) -> bytes:
        return self.get(path)[offset : offset + nbytes]

    def delete(self, paths: Iterable[str]) -> None:
        with self._lock:
            for path in paths:
                self._files.pop(path, None)

    def list(self, prefix: str) -> list[str]:
        with self._lock:
            return sorted(path for path in self._files if path.startswith(prefix))

    def leftover_files(self) -> Sequence[str]:
        return []
