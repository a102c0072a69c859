"""Every page and state in a real Chromium: widths, names, headings, cut-off regions, and the rules of axe."""

import itertools
from collections.abc import Mapping

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from django.template.loader import render_to_string
from playwright.sync_api import Browser, Page, Route
from pytest_django.live_server_helper import LiveServer

from console.jobs.models import Run
from tests.console.ui import every_page, rows
from tests.console.ui.browsing import Open

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

DESKS = (1024, 1280, 1440)  #: at these widths, reasons and the whole graph are seen without scrolling
WIDTHS = (390, *DESKS)

#: Form controls without a label, links and buttons without words, ids that occur twice.
NAMELESS = """() => {
  const bad = [];
  for (const e of document.querySelectorAll('input:not([type=hidden]), select, textarea'))
    if (!e.labels?.length && !e.ariaLabel) bad.push(e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll('a, button'))
    if (!e.textContent.trim() && !e.ariaLabel) bad.push(e.outerHTML.slice(0, 80));
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  return bad.concat(ids.filter((id, at) => ids.indexOf(id) !== at));
}"""

#: Regions whose content is wider than they are.
CUT_OFF = """() => [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1)
  .map((e) => `${e.getAttribute('aria-label')}: ${e.scrollWidth} of ${e.clientWidth}`)"""

#: Runs the named rules, or all of them, after transitions of colours have ended.
AXE = """async (rules) => {
  await Promise.all(document.getAnimations().map((animation) => animation.finished));
  const only = rules.length ? {runOnly: {type: 'rule', values: rules}} : {};
  const {violations} = await axe.run(document, {resultTypes: ['violations'], ...only});
  return violations.filter(({impact}) => impact === 'serious' || impact === 'critical')
    .flatMap(({id, nodes}) => nodes.map(({html, any}) => `${id}: ${html.slice(0, 120)} ${any[0]?.message ?? ''}`));
}"""
#: Rules that markup of a library breaks: an image is the label of Django's search field, which the rule overlooks;
#: Swagger's buttons contain links to their operations.
VENDOR = {"admin-checkpoints": "label-title-only", "api": "nested-interactive"}
HEADINGS = "[...document.querySelectorAll('h1,h2,h3')].map((h) => Number(h.tagName[1]))"


def test_every_page_of_a_running_job(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        assert faults(page, every_page.pages_of_running_job(running)) == []


def test_every_page_of_jobs_in_other_states(signed_in: Open, transactional_db: None) -> None:
    rows.operator_user()
    with signed_in() as page:
        assert faults(page, every_page.pages_of_other_states()) == []


def test_the_admin_and_the_document_of_the_api(signed_in: Open, running: Run) -> None:
    paths = {
        "admin": "/admin/",
        "admin-checkpoints": "/admin/checkpoints/checkpoint/",
        "admin-checkpoint": f"/admin/checkpoints/checkpoint/{running.checkpoints.latest('number').pk}/change/",
        "api": "/api/v1/docs/",
    }
    found = []
    with signed_in(forgive="style") as page:  # Swagger adds style elements, which the policy blocks
        for name, path in paths.items():
            page.goto(path)
            if name == "api":
                page.locator(".opblock").first.wait_for(timeout=60_000)
            found += [
                f"{name}: {violation}"
                for violation in violations(page)
                if name not in VENDOR or not violation.startswith(VENDOR[name])
            ]
        assert found == []


def test_pages_of_errors_and_the_sign_in(browser: Browser, live_server: LiveServer, transactional_db: None) -> None:
    def respond(route: Route) -> None:
        template = route.request.url.rpartition("/")[2]
        route.fulfill(body=render_to_string(template, {"request_id": "7d1f0a"}), content_type="text/html")

    templates = ("400.html", "403.html", "403_csrf.html", "404.html", "500.html", "503.html")
    with browser.new_context(base_url=live_server.url) as context:
        page = context.new_page()
        page.route("**/errors/*", respond)
        assert faults(page, {"login": "/login/", **{name: f"/errors/{name}" for name in templates}}) == []


def faults(page: Page, paths: Mapping[str, str]) -> list[str]:
    """What is wrong with the pages, each fault after the name of its page."""
    return [f"{name}: {fault}" for name, path in paths.items() for fault in _faults_of_page(page, path)]


def _faults_of_page(page: Page, path: str) -> list[str]:
    response = page.goto(path)
    assert response is not None
    if response.status != 200:
        return [f"status {response.status}"]
    wrong: list[str] = page.evaluate(NAMELESS)
    levels = page.evaluate(HEADINGS)
    if levels.count(1) != 1 or any(after - before > 1 for before, after in itertools.pairwise([0, *levels])):
        wrong.append(f"headings {levels}")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        if page.evaluate("document.documentElement.scrollWidth - window.innerWidth") > 0:
            wrong.append(f"scrolls sideways at {width} px")
    page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    for width in DESKS:
        page.set_viewport_size({"width": width, "height": 900})
        wrong += page.evaluate(CUT_OFF)
    return wrong + violations(page)


def violations(page: Page) -> list[str]:
    """Serious and critical findings of axe, by day and by night."""
    page.evaluate(AXE_SCRIPT)
    found: list[str] = page.evaluate(AXE, [])
    page.emulate_media(color_scheme="dark")
    found += page.evaluate(AXE, ["color-contrast"])
    page.emulate_media(color_scheme="light")
    return found
