"""Threads that cannot start: their stack is larger than the address space, so the system refuses them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

_TOO_LARGE_STACK_BYTES: Final = 1 << 46


@contextmanager
def starved(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    """While it lasts, no thread starts whose name begins with one of `names`."""
    start = threading.Thread.start

    def start_starved(thread: threading.Thread) -> None:
        if not thread.name.startswith(names):
            start(thread)
            return
        normal = threading.stack_size(_TOO_LARGE_STACK_BYTES)
        try:
            start(thread)
        finally:
            threading.stack_size(normal)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_starved)
        yield
