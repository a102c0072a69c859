"""Waiting for something to become true, with a limit that only a broken program reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(ask: Callable[[], T], limit_s: float = 60.0, *, or_else: Callable[[], str] = str) -> T:
    """The first answer of `ask` that is true. It is asked again after a tenth of the time waited so far, 0.5 s at most.

    A question takes processor time from the job that it waits for, so a pause lasts at least as long as the question.

    Args:
        or_else: says what there was instead, for the message of the failure.
    """
    began = time.monotonic()
    question = began
    while not (answer := ask()):
        now = time.monotonic()
        waited, cost = now - began, now - question
        assert waited < limit_s, f"not within {limit_s:g} s: {ask.__qualname__} {or_else()}"
        time.sleep(max(min(max(waited / 10, 0.02), 0.5), cost))
        question = time.monotonic()
    return answer
