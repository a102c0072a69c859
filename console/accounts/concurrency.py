"""How many requests are handled at the same time: each may hold a connection to Postgres.

Under ASGI every request runs in a thread of its own, so without a limit a few hundred anonymous requests take every
connection that the database has, and job masters can record nothing.
"""

import threading
from collections.abc import Callable
from typing import Final

from django.conf import settings
from django.db import connections
from django.http import HttpRequest, HttpResponse

WAIT_S: Final = 5.0


class ConcurrencyLimit:
    """Lets `WEIR_WEB_CONNECTIONS` requests in; the others wait for `WAIT_S`, then are told to come back (503)."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response
        self._free = threading.BoundedSemaphore(settings.WEIR_WEB_CONNECTIONS)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not self._free.acquire(timeout=WAIT_S):
            busy = "The console is busy; try again in a few seconds.\n"
            return HttpResponse(busy, status=503, content_type="text/plain", headers={"Retry-After": "5"})
        try:
            return self.get_response(request)
        finally:
            _close_connections()
            self._free.release()


def _close_connections() -> None:
    """Now, and not when a slow client has read its answer; but never under a transaction of the caller."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
