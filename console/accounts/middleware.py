"""Middleware: a request id for responses, rows and logs, and a limit on concurrent requests."""

import re
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeGuard

import structlog
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

HEADER = "X-Request-ID"
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIdMiddleware:
    """Set `request.request_id`, bind it to the log context and return it in the response header.

    The id is the client's `X-Request-ID` if it is safe to repeat, else a new one.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
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

    Each part of a streamed response is admitted by itself. While a slow client reads a part, the response has neither a
    place nor a connection.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        self._free = threading.BoundedSemaphore(settings.WEIR_WEB_CONNECTIONS)

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not self._free.acquire(timeout=settings.WEIR_WEB_WAIT_S):
            busy = "The console is busy; try again in a few seconds.\n"
            return HttpResponse(busy, status=503, content_type="text/plain", headers={"Retry-After": "5"})
        try:
            response = self.get_response(request)
        finally:
            _close_connections()
            self._free.release()
        if isinstance(request, ASGIRequest) and _reads_rows(response):
            response.streaming_content = self._admit_parts(iter(response))
        return response

    async def _admit_parts(self, parts: Iterator[bytes]) -> AsyncIterator[bytes]:
        """The parts, each made in a thread when it is sent. Django itself would collect all parts before the first."""
        while (part := await sync_to_async(self._next_part)(parts)) is not None:
            yield part

    def _next_part(self, parts: Iterator[bytes]) -> bytes | None:
        with self._free:
            try:
                return next(parts, None)
            finally:
                _close_connections()


def _reads_rows(response: HttpResponseBase) -> TypeGuard[StreamingHttpResponse]:
    """Whether the parts of the response come from the database. Files on disk need no place."""
    return isinstance(response, StreamingHttpResponse) and not isinstance(response, FileResponse)


def _close_connections() -> None:
    """Closes the thread's connections to Postgres before a slow client reads the response, except in a transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
