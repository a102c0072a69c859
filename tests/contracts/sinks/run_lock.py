"""The lock of a run, which processes share by a file; a process that is stopped for good must not hold it."""

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_thread_lock = threading.Lock()  #: taken before the lock of a run


@contextmanager
def run_lock(path: Path) -> Iterator[None]:
    with _thread_lock, path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def without_run_lock() -> Iterator[None]:
    """No thread of this process holds the lock of a run meanwhile."""
    with _thread_lock:
        yield
