"""What every page shares: sign-in, rendering of page or fragment, and an honest answer while the database is away."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, cast
from uuid import uuid4

from django.contrib.auth.decorators import login_required
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django_htmx.http import HttpResponseStopPolling

from console.accounts.models import User

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


def signed_in(view: View[P]) -> View[P]:
    """For signed-in users; 503 in words while Postgres is away, since nothing can be said without it.

    A script that polls is told 401: it would follow a redirect and take the login page for an answer.
    """

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        try:
            if request.headers.get("HX-Request") and not request.user.is_authenticated:
                return HttpResponse("You are signed out.", status=401, content_type="text/plain")
            return login_required(view)(request, *args, **kwargs)
        except (OperationalError, InterfaceError):
            return away(request)

    return guarded


def away(request: HttpRequest) -> HttpResponse:
    """The database cannot be reached. Rendered without touching session or user, which live in it."""
    response = render(None, "503.html", {"request_id": getattr(request, "request_id", "")}, status=503)
    response.headers["Retry-After"] = "5"
    return response


def user_of(request: HttpRequest) -> User:
    """The signed-in user; views are reached by no other."""
    return cast(User, request.user)


def page(request: HttpRequest, template: str, context: Mapping[str, Any], status: int = 200) -> HttpResponse:
    """A whole page. Back and forward must not show a fragment from the cache, hence Vary.

    `once` is the page's own: what is sent from it a second time, by a double click, is the same request.
    """
    given = {"now": timezone.now(), "once": uuid4().hex, **context}
    response = render(request, template, given, status=status)
    patch_vary_headers(response, ["HX-Request"])
    return response


def page_or_blocks(
    request: HttpRequest, template: str, blocks: str, context: Mapping[str, Any], *, settled: bool
) -> HttpResponse:
    """The page, or for a poll its live blocks. `settled`: nothing will change by itself, so polling ends (286)."""
    if not request.headers.get("HX-Request"):
        return page(request, template, {**context, "poll": not settled})
    answer = page(request, blocks, {**context, "fragment": True})
    if not settled:
        return answer
    stopped = HttpResponseStopPolling(answer.content)
    patch_vary_headers(stopped, ["HX-Request"])
    return stopped
