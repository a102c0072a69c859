"""Rate limits on sign-in, and on requests of a user over the API.

Pages, API and admin share the counter of sign-ins, so that together they allow no extra attempts.
"""

from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from math import ceil
from typing import Any

from django.http import HttpRequest, HttpResponse
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle, UserRateThrottle


class LoginThrottle(SimpleRateThrottle):
    """Counts sign-in attempts per client address. WEIR_NUM_PROXIES selects the client's address in X-Forwarded-For."""

    scope = "login"

    def get_cache_key(self, request: Request | HttpRequest, view: Any) -> str:
        return self.cache_format % {"scope": self.scope, "ident": self.get_ident(request)}  # type: ignore[arg-type]


class ProviderThrottle(LoginThrottle):
    """Counts the ways to the provider of single sign-on, per client address."""

    scope = "provider"


class UserThrottle(UserRateThrottle):
    """Counts the requests of a user over the API within the last minute. Requests of strangers are refused anyway."""

    num_requests: int
    duration: int  #: s

    def get_cache_key(self, request: Request, view: Any) -> str | None:
        return super().get_cache_key(request, view) if request.user.is_authenticated else None

    @property
    def headers(self) -> dict[str, str]:
        """How many requests are left, and in how many seconds the oldest counts no more. Empty for strangers."""
        if self.key is None:
            return {}
        left, oldest = self.num_requests - len(self.history), self.history[-1] if self.history else self.now
        reset_s = ceil(self.duration - (self.now - oldest))
        limits = {"Limit": self.num_requests, "Remaining": max(0, left), "Reset": reset_s}
        return {f"RateLimit-{name}": str(value) for name, value in limits.items()}


def seconds_to_wait(request: HttpRequest, kind: type[LoginThrottle] = LoginThrottle) -> int:
    """Counts a sign-in attempt. Returns 0 if the attempt is allowed now, else the seconds until the next may be."""
    throttle = kind()
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
