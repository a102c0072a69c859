"""A snapshot store in memory."""

import threading
from collections.abc import Iterable, Sequence

from runtime.errors import CorruptState


class MemorySnapshotStore:
    """Counterpart of `FileStore`: the storage root of a job in a dictionary."""

    concurrent_reads = 1  # a simulated store draws its faults in the order of the reads

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, bytes] = {}

    def put(self, path: str, data: Iterable[bytes]) -> None:
        content = b"".join(data)  # first: a producer that fails leaves no file
        with self._lock:
            self._files[path] = content

    def create(self, path: str, data: bytes) -> bool:
        with self._lock:
            return self._files.setdefault(path, data) == data

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
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        with self._lock:
            return {path: len(content) for path, content in self._files.items() if path.startswith(prefix)}

    def size(self, path: str) -> int | None:
        return self.sizes(path).get(path)

    def folders(self) -> Sequence[str]:
        return sorted({path.partition("/")[0] for path in self.list("") if "/" in path})

    def newest_change(self, folder: str) -> float | None:
        return 0.0 if self.sizes(f"{folder}/") else None

    def copy(self, source: str, target: str) -> None:
        self.put(target, [self.get(source)])

    def leftover_files(self) -> Sequence[str]:
        return []
