"""Pages in a real Chromium: the session of an operator, and which complaints of a page fail its test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from django.template.loader import render_to_string
from django.test import Client
from playwright.sync_api import Browser, Page, Route

from console.accounts.models import User

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
TEMPLATES = Path(__file__).parents[3] / "templates"
POLL_MS = 10_000  #: more than the longest pause between two polls, on a slow machine
LONG_MS = 5_000  #: more than the longest pause between two polls
ARRIVAL_MS = 300  #: long enough for a request that must not come, once it is due

Open = Callable[..., Any]
Scheme = Literal["light", "dark"]

#: Reports violations of the content security policy, before any script of the page runs.
WATCH = "addEventListener('securitypolicyviolation', (e) => console.error(`policy: ${e.violatedDirective}`))"


@contextmanager
def open_signed_in(
    browser: Browser,
    base_url: str,
    width: int = 1440,
    scheme: Scheme = "light",
    forgive: str = "",
    user: User | None = None,
    **options: Any,
) -> Iterator[Page]:
    """An empty page of a signed-in user, by default an operator. Errors on its console fail at the end, unless they
    hold `forgive`.
    """
    context = browser.new_context(
        base_url=base_url, viewport={"width": width, "height": 900}, color_scheme=scheme, **options
    )
    context.set_default_timeout(20_000)
    client = Client()
    client.force_login(user or User.objects.filter(is_superuser=True).earliest("pk"))
    context.add_cookies([{"name": name, "value": each.value, "url": base_url} for name, each in client.cookies.items()])
    page, complaints = context.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.add_init_script(WATCH)
    try:
        yield page
        unforgiven = [text for text in complaints if not forgive or forgive not in text]
        assert not unforgiven, unforgiven
    finally:
        context.close()


def error_pages(page: Page) -> dict[str, str]:
    """The pages of errors, by the names of their templates: `page` gets them at addresses that the console lacks."""

    def respond(route: Route) -> None:
        template = route.request.url.rpartition("/")[2]
        route.fulfill(body=render_to_string(template, {"request_id": "7d1f0a"}), content_type="text/html")

    page.route("**/errors/*", respond)
    return {path.name: f"/errors/{path.name}" for path in sorted(TEMPLATES.glob("[45]*.html"))}


def jump(page: Page) -> None:
    """Advances the clock of the page, installed before the page was opened, so that a poll is due at once."""
    page.clock.fast_forward(LONG_MS)
