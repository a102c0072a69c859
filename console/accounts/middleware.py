"""Middleware: a request id for responses, rows and logs, the access log, and compression."""

import re
import time
import uuid
from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware

HEADER = "X-Request-ID"
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = structlog.get_logger("console.access")


class RequestIdMiddleware:
    """Set `request.request_id`, bind it to the log context and return it in the response header. Log the request.

    The id is the client's `X-Request-ID` if it is safe to repeat, else a new one.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        header = request.headers.get(HEADER, "")
        request_id = header if _SAFE.fullmatch(header) else uuid.uuid4().hex
        request.request_id = request_id  # type: ignore[attr-defined]
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            began = time.monotonic()
            response = self.get_response(request)
            log.info(
                "request", method=request.method, path=request.path, status=response.status_code,
                ms=round((time.monotonic() - began) * 1000), client=request.META.get("REMOTE_ADDR"),
            )  # fmt: skip
        response.headers[HEADER] = request_id
        return response


class CompressionMiddleware(GZipMiddleware):
    """Compression of responses that permit it. `Cache-Control: no-transform` forbids it, to caches too (RFC 9111)."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if "no-transform" in response.get("Cache-Control", ""):
            return response
        return super().process_response(request, response)


def request_id_of(request: HttpRequest) -> str:
    return str(getattr(request, "request_id", ""))
