"""Common parts of the pages: login, rendering of pages and fragments, and the response while Postgres is down."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import wraps
from http import HTTPStatus
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, cast
from uuid import uuid4

from django.contrib.auth.decorators import login_required
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.utils.cache import get_conditional_response, patch_vary_headers
from django.views.decorators.http import require_http_methods
from django_htmx.http import HttpResponseClientRefresh

from console.accounts.models import User
from console.alerts.failing import late_channels
from console.health import passes
from console.operations.maintenance import shown_maintenance
from console.ui.live.pace import HEADER, PACE
from console.ui.live.revision import digest

_BLOCK_NAME: Final = re.compile(r'<div id="live-([^"]+)" data-digest=')


PageContent = Mapping[str, Any]  #: the template context of a page

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def require_login(view: View[P]) -> View[P]:
    """Requires a login; answers 503 while Postgres is unreachable.

    A polling script gets 401: the script would follow a redirect and take the login page for a fragment.
    """

    @wraps(view)
    def wrapper(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        try:
            if request.headers.get("HX-Request") and not request.user.is_authenticated:
                return HttpResponse("You are signed out.", status=401, content_type="text/plain")
            return login_required(view)(request, *args, **kwargs)
        except (OperationalError, InterfaceError):
            return database_unreachable(request)

    return wrapper


def database_unreachable(request: HttpRequest) -> HttpResponse:
    """503, rendered without session and user, which live in the database."""
    response = render(None, "503.html", {"request_id": getattr(request, "request_id", "")}, status=503)
    response.headers["Retry-After"] = "5"
    return response


def user_of(request: HttpRequest) -> User:
    """The signed-in user of a view behind `require_login`."""
    return cast(User, request.user)


def page(request: HttpRequest, template: str, context: Mapping[str, Any], status: int = 200) -> HttpResponse:
    """A whole page. `Vary` keeps the browser's history from showing a cached fragment.

    `once` identifies the rendered page: a form sent from it twice, by a double click, is the same request.
    """
    now = timezone.now()
    common = {"section": "jobs", "now": now, "once": uuid4().hex, "is_error": status >= HTTPStatus.BAD_REQUEST}
    values = {**common, **_outages(now), **context}
    response = render(request, template, values, status=status)
    patch_vary_headers(response, ["HX-Request"])
    return response


def asks_for_limit(request: HttpRequest) -> bool:
    """Whether a script asks for the field of the parallelism, after the choice of another version."""
    return request.headers.get("HX-Target") == "parallelism-field"


def page_or_blocks(
    request: HttpRequest,
    template: str,
    blocks: str,
    load_content: Callable[[], PageContent],
    load_revision: Callable[[], str],
    status: int = 200,
) -> HttpResponse:
    """The page with `status`, or for a poll the live blocks that have changed.

    Polls carry their revision (`If-None-Match`) and the digests of their blocks (`X-Blocks`). An equal revision saves
    reading and rendering (304); equal blocks save the transfer (204). A block without a place in the page, such as
    the slots of the first run, makes the browser load the whole page.
    """
    if not request.headers.get("HX-Request"):
        return page(request, template, {**load_content(), "first_pause_ms": PACE.pause_ms()}, status=status)
    outages, maintenance = _outages(timezone.now()), shown_maintenance()
    silent = digest(*outages.values()) if any(outages.values()) else ""
    tag = f'"{load_revision()}{silent}{f"-m{maintenance.pk}" if maintenance else ""}"'.replace(" ", "T")
    if (unchanged := get_conditional_response(request, tag)) is not None:
        return _poll_answer(unchanged, tag)
    digests = _known_blocks(request)
    shared = {"fragment": True, "known_blocks": digests, "blocks": blocks, **outages}
    answer = page(request, "weir/_poll.html", {**load_content(), **shared})
    if digests and not digests.keys() >= set(_BLOCK_NAME.findall(answer.content.decode())):
        return _poll_answer(HttpResponseClientRefresh(), tag)
    return _poll_answer(answer if answer.content.strip() else HttpResponse(status=HTTPStatus.NO_CONTENT), tag)


def _outages(now: datetime) -> dict[str, Any]:
    """Since when the workers of the console are silent, and whose alerts are late, for the banners of all pages."""
    silent = {"outage": passes.silent_since(now), "stages_outage": passes.stages_silent_since(now)}
    return {**silent, "late_alerts": late_channels()}


def _known_blocks(request: HttpRequest) -> dict[str, str]:
    """The digests of the blocks in the browser, by name."""
    pairs = (pair.partition("=") for pair in request.headers.get("X-Blocks", "").split())
    return {name: digest for name, _, digest in pairs}


def _poll_answer(response: HttpResponse, tag: str) -> HttpResponse:
    """Marks a poll's response as uncacheable: going back in the browser must not show a fragment. Sets the pace."""
    response.headers["ETag"] = tag
    response.headers[HEADER] = str(PACE.pause_ms())
    response.headers["Cache-Control"] = "no-store"
    patch_vary_headers(response, ["HX-Request"])
    return response


class LivePage:
    """A page that asks for its blocks that have changed, as long as it is open. An instance answers a single request.

    A subclass reads the rows of its address in `open`. `content` makes the page of them; `rows` is their revision,
    which a poll compares first. `template`: the whole page. `blocks`: its live blocks.
    """

    template: ClassVar[str]
    blocks: ClassVar[str]
    status = 200

    def __init__(self, request: HttpRequest) -> None:
        self.request = request

    def open(self, *args: Any, **address: Any) -> HttpResponseBase | None:
        """Reads the rows of the address. An answer, such as that to a form, stands instead of the page."""
        return None

    def content(self) -> PageContent:
        raise NotImplementedError

    def rows(self) -> str:
        raise NotImplementedError

    def response(self) -> HttpResponse:
        return page_or_blocks(self.request, self.template, self.blocks, self.content, self.rows, self.status)

    @classmethod
    def view(cls, *, posts: bool = False) -> Callable[..., HttpResponseBase]:
        """The view of the page. `posts`: its form is sent to the same address."""

        @require_http_methods(["GET", "HEAD", *(["POST"] if posts else [])])
        @require_login
        def view(request: HttpRequest, /, **address: Any) -> HttpResponseBase:
            page = cls(request)
            answer = page.open(**address)
            return page.response() if answer is None else answer

        return view
