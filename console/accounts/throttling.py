"""A rate limit on sign-in. Pages, API and admin share a counter, so that together they allow no extra attempts."""

from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from math import ceil
from typing import Any

from django.http import HttpRequest, HttpResponse
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle


class LoginThrottle(SimpleRateThrottle):
    """Counts sign-in attempts per client address. WEIR_NUM_PROXIES selects the client's address in X-Forwarded-For."""

    scope = "login"

    def get_cache_key(self, request: Request | HttpRequest, view: Any) -> str:
        return self.cache_format % {"scope": self.scope, "ident": self.get_ident(request)}  # type: ignore[arg-type]


def seconds_to_wait(request: HttpRequest) -> int:
    """Counts a sign-in attempt. Returns 0 if the attempt is allowed now, else the seconds until the next may be."""
    throttle = LoginThrottle()
    if throttle.allow_request(request, None):  # type: ignore[arg-type]
        return 0
    return ceil(throttle.wait() or 1)


def throttle_login(login: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """The view `login`, in which a POST beyond the rate limit gets 429 with `Retry-After`."""

    @wraps(login)
    def view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.method == "POST" and (wait_s := seconds_to_wait(request)):
            text = f"Too many sign-in attempts from your address. Try again in {wait_s} s.\n"
            headers = {"Retry-After": str(wait_s)}
            return HttpResponse(text, "text/plain", HTTPStatus.TOO_MANY_REQUESTS, headers=headers)
        return login(request, *args, **kwargs)

    return view
