"""Pages in a real Chromium: how a browser signs in, and which complaints of a page fail its test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from playwright.sync_api import Browser, Page, expect

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
POLL_MS = 35_000  #: more than the longest pause between two polls, on a slow machine
QUIET_MS = 3_000  #: long enough for a poll that must not come

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
    **options: Any,
) -> Iterator[Page]:
    """A page after a sign-in through the form. Errors on its console fail at the end, unless they hold `forgive`."""
    context = browser.new_context(
        base_url=base_url, viewport={"width": width, "height": 900}, color_scheme=scheme, **options
    )
    context.set_default_timeout(20_000)
    page, complaints = context.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.add_init_script(WATCH)
    try:
        sign_in(page)
        yield page
        unforgiven = [text for text in complaints if not forgive or forgive not in text]
        assert not unforgiven, unforgiven
    finally:
        context.close()


def sign_in(page: Page) -> None:
    page.goto("/login/?next=/jobs/")
    page.get_by_label("User name").fill("operator")
    page.get_by_label("Password").fill("a-river-runs")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
