"""The pace of polls: each answer names the pause until the next poll, by the load of the process that answers.

The load is the larger of two shares. Both are of the whole process, which also renders pages and answers REST:

- processor time per second. Threads of Python share one processor, so a load of 1 is all that there is.
- time of the threads in requests. On a contended machine, a process gets little processor time, and requests last long.

If nearly all threads are busy, further requests wait for one. The pause then grows beyond `MAX_PAUSE_MS`.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

HEADER: Final = "X-Poll-After"  #: of an answer to a poll, in ms
MIN_PAUSE_MS: Final = 2_000
MAX_PAUSE_MS: Final = 4_000
OVERLOAD_PAUSE_MS: Final = 8_000  #: while requests wait for a thread
_CALM: Final = 0.25  #: load up to which polls have the shortest pause
_BUSY: Final = 0.75  #: load from which they have the longest; from this share of busy threads on, it grows
_MIN_MEASURED_S: Final = 1.0
_WEIGHT: Final = 0.5  #: of the newest measurement


class Pace:
    """The load of a process with a number of `threads`, measured at most once a second."""

    def __init__(
        self,
        threads: int,
        clock: Callable[[], float] = time.monotonic,
        processor_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._threads, self._clock, self._processor_s = threads, clock, processor_s
        self._lock = Lock()
        self._requests, self._requests_s, self._changed_at = 0, 0.0, clock()
        self._before = (self._changed_at, processor_s(), 0.0)
        self._processor_share = self._thread_share = 0.0

    @contextmanager
    def request(self) -> Iterator[None]:
        """A thread answers a request."""
        self._count(+1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            now = self._clock()
            self._requests_s += self._requests * (now - self._changed_at)
            self._requests, self._changed_at = self._requests + change, now

    def pause_ms(self) -> int:
        """The pause until the next poll of a page."""
        self._count(0)
        now, used_s, requests_s = self._changed_at, self._processor_s(), self._requests_s
        began, used_before_s, requests_before_s = self._before
        if (span_s := now - began) >= _MIN_MEASURED_S:
            self._processor_share = _smooth(self._processor_share, (used_s - used_before_s) / span_s)
            busy = (requests_s - requests_before_s) / span_s / self._threads
            self._thread_share = _smooth(self._thread_share, busy)
            self._before = (now, used_s, requests_s)
        load = max(self._processor_share, self._thread_share)
        pause = (MAX_PAUSE_MS - MIN_PAUSE_MS) * _part(load, _CALM, _BUSY)
        longer = (OVERLOAD_PAUSE_MS - MAX_PAUSE_MS) * _part(self._thread_share, _BUSY, 1.0)
        return round(MIN_PAUSE_MS + pause + longer)


def _smooth(before: float, newest: float) -> float:
    return _WEIGHT * newest + (1 - _WEIGHT) * before


def _part(share: float, low: float, high: float) -> float:
    """How far `share` is from `low` to `high`: 0 to 1."""
    return min(1.0, max(0.0, (share - low) / (high - low)))


PACE: Final = Pace(settings.WEIR_WEB_THREADS)


class PaceMiddleware:
    """Counts the threads that answer requests."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with PACE.request():
            return self.get_response(request)
