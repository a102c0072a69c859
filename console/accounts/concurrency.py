"""A limit on concurrent requests, because each may hold a Postgres connection.

Under ASGI every request runs in its own thread. Without a limit a few hundred anonymous requests would take every
connection of the database, and job masters could record no checkpoint.
"""

import threading
from collections.abc import Callable
from typing import Final

from django.conf import settings
from django.db import connections
from django.http import HttpRequest, HttpResponse

MAX_WAIT_S: Final = 5.0


class ConcurrencyLimit:
    """Admit `WEIR_WEB_CONNECTIONS` requests; the rest wait up to `MAX_WAIT_S` seconds and then get 503."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response
        self._free = threading.BoundedSemaphore(settings.WEIR_WEB_CONNECTIONS)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not self._free.acquire(timeout=MAX_WAIT_S):
            busy = "The console is busy; try again in a few seconds.\n"
            return HttpResponse(busy, status=503, content_type="text/plain", headers={"Retry-After": "5"})
        try:
            return self.get_response(request)
        finally:
            _close_connections()
            self._free.release()


def _close_connections() -> None:
    """Close connections now instead of after a slow client has read the response; never inside the caller's
    transaction.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
