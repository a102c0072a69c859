"""How often somebody may try to sign in. One count for pages, API and admin, or a guesser would have several."""

from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from math import ceil
from typing import Any

from django.http import HttpRequest, HttpResponse
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle


class LoginThrottle(SimpleRateThrottle):
    """Counts by address; which one is the client's is told by WEIR_NUM_PROXIES."""

    scope = "login"

    def get_cache_key(self, request: Request | HttpRequest, view: Any) -> str:
        return self.cache_format % {"scope": self.scope, "ident": self.get_ident(request)}  # type: ignore[arg-type]


def seconds_to_wait(request: HttpRequest) -> int:
    """Counts one more try. 0: it may be made."""
    throttle = LoginThrottle()
    if throttle.allow_request(request, None):  # type: ignore[arg-type]
        return 0
    return ceil(throttle.wait() or 1)


def throttled(login: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """`login`, a view, with its tries counted."""

    @wraps(login)
    def view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.method == "POST" and (wait_s := seconds_to_wait(request)):
            told = f"There were too many tries to sign in from here. Try again in {wait_s} s.\n"
            headers = {"Retry-After": str(wait_s)}
            return HttpResponse(told, "text/plain", HTTPStatus.TOO_MANY_REQUESTS, headers=headers)
        return login(request, *args, **kwargs)

    return view
