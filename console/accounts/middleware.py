"""A request id for responses, rows and logs: the client's `X-Request-ID` if it is safe to repeat, else a new id."""

import re
import uuid
from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponse

HEADER = "X-Request-ID"
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIdMiddleware:
    """Set `request.request_id`, bind it to the log context and return it in the response header."""

    sync_capable = True
    async_capable = False

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
