"""Waiting for something to become true, with a limit that only a broken program reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(ask: Callable[[], T], limit_s: float = 60.0, *, or_else: Callable[[], str] = str) -> T:
    """The first answer of `ask` that is true. It is asked again after a tenth of the time waited so far, 0.5 s at most.

    A question to a whole stack takes processor time from the job that it waits for.

    Args:
        or_else: says what there was instead, for the message of the failure.
    """
    began = time.monotonic()
    while not (answer := ask()):
        waited = time.monotonic() - began
        assert waited < limit_s, f"not within {limit_s:g} s: {ask.__qualname__} {or_else()}"
        time.sleep(min(max(waited / 10, 0.02), 0.5))
    return answer
