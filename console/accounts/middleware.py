"""Middleware: a request id for responses, rows and logs, and a limit on concurrent requests."""

import re
import threading
import uuid
from collections.abc import Callable

import structlog
from django.conf import settings
from django.db import connections
from django.http import HttpRequest, HttpResponse

HEADER = "X-Request-ID"
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIdMiddleware:
    """Set `request.request_id`, bind it to the log context and return it in the response header.

    The id is the client's `X-Request-ID` if it is safe to repeat, else a new one.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get(HEADER, "")
        request_id = given if _SAFE.fullmatch(given) else uuid.uuid4().hex
        request.request_id = request_id  # type: ignore[attr-defined]
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            response = self.get_response(request)
        response.headers[HEADER] = request_id
        return response


def request_id_of(request: HttpRequest) -> str:
    return str(getattr(request, "request_id", ""))


class ConcurrencyLimit:
    """Admit `WEIR_WEB_CONNECTIONS` requests; the rest wait up to `WEIR_WEB_WAIT_S` seconds and then get 503.

    Under ASGI each request runs in its own thread and may hold a Postgres connection. Without a limit a few hundred
    anonymous requests would take every connection, and job masters could record no checkpoint.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response
        self._free = threading.BoundedSemaphore(settings.WEIR_WEB_CONNECTIONS)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not self._free.acquire(timeout=settings.WEIR_WEB_WAIT_S):
            busy = "The console is busy; try again in a few seconds.\n"
            return HttpResponse(busy, status=503, content_type="text/plain", headers={"Retry-After": "5"})
        try:
            return self.get_response(request)
        finally:
            _close_connections()
            self._free.release()


def _close_connections() -> None:
    """Closes the thread's connections to Postgres before a slow client reads the response, except in a transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
