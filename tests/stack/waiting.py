"""Waiting for something to become true, with a limit that only a broken program reaches."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(is_true: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Fails with the name of what never came true."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {is_true.__qualname__}"
        time.sleep(0.02)
