"""Waiting for something to become true, with a limit that only a broken program reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(ask: Callable[[], T], limit_s: float = 60.0, *, or_else: Callable[[], str] = str) -> T:
    """The first answer of `ask` that is true.

    Args:
        or_else: says what there was instead, for the message of the failure.
    """
    deadline = time.monotonic() + limit_s
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {ask.__qualname__} {or_else()}"
        time.sleep(0.03)
    return answer
