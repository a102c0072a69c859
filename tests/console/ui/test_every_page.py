"""Every page and state in a real Chromium: widths, names, headings, keys, cut-off regions, and the rules of axe, also
on a narrow page.

`test_visited_addresses` shows that these are all pages.
"""

import itertools
from collections.abc import Mapping, Sequence

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from django.apps import apps
from django.contrib import admin
from django.urls import reverse
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from console.jobs.models import Run
from tests.console.ui import every_page, rows
from tests.console.ui.browsing import Open, Scheme, error_pages

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]

#: The pages of a running job are many: each test takes every fifth, so that no test needs minutes on a slow machine.
PARTS = range(5)
DESKS = (1024, 1280, 1440)  #: at these widths, reasons and the whole graph are seen without scrolling
NARROW = 390

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

#: Controls that Tab does not reach in the order of the page. Of a group with arrow keys, Tab reaches a single control.
#: Also parts that invite a click and are no control.
WITHOUT_KEYS = """() => {
  const bad = [];
  const controls = 'a[href], button:not(:disabled), input:not([type=hidden]):not(:disabled), select, textarea, summary';
  for (const e of document.querySelectorAll(controls)) {
    if (!e.checkVisibility() || e.ariaHidden === 'true') continue;
    const stop = e.closest('svg, [role=group]')?.querySelector('[tabindex="0"]');
    if (e.tabIndex > 0 || (e.tabIndex < 0 && !stop)) bad.push(`not reached by Tab: ${e.outerHTML.slice(0, 80)}`);
  }
  for (const e of document.querySelectorAll('main *'))
    if (getComputedStyle(e).cursor === 'pointer' && !e.closest('a, button, summary, label, input, select'))
      bad.push(`only for a pointer: ${e.outerHTML.slice(0, 80)}`);
  return bad;
}"""

#: Regions whose content is wider than they are.
CUT_OFF = """() => [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1)
  .map((e) => `${e.getAttribute('aria-label')}: ${e.scrollWidth} of ${e.clientWidth}`)"""

#: Runs the rules of `only`, or all but those of `without`, after transitions of colours have ended. No rule needs the
#: style sheets, which it would load again.
AXE = """async ({only, without}) => {
  await Promise.all(document.getAnimations().map((animation) => animation.finished));
  const off = Object.fromEntries(without.map((rule) => [rule, {enabled: false}]));
  const chosen = only.length ? {runOnly: {type: 'rule', values: only}} : {rules: off};
  const {violations} = await axe.run(document, {resultTypes: ['violations'], preload: false, ...chosen});
  return violations.filter(({impact}) => impact === 'serious' || impact === 'critical')
    .flatMap(({id, nodes}) => nodes.map(({html, any}) => `${id}: ${html.slice(0, 120)} ${any[0]?.message ?? ''}`));
}"""
#: Rules that markup of a library breaks. Django: an image is the label of the search field, a title that of a filter,
#: and date and time have one label together. Swagger: buttons contain links to their operations.
VENDOR = {"admin": ("label-title-only", "aria-prohibited-attr", "label:"), "api": ("nested-interactive",)}
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
#: The findings of all others are the same in each scheme. These take most of the time of axe.
COLOUR_RULES = ["color-contrast", "link-in-text-block"]
#: Whether a page has parts that only its narrow form shows. The colours of all others are the same at each width.
HAS_NARROW_PARTS = "Boolean(document.querySelector('.narrow-only, .narrow-graph'))"
OVERFLOW = "document.documentElement.scrollWidth - window.innerWidth"
HEADINGS = "[...document.querySelectorAll('h1,h2,h3')].map((h) => Number(h.tagName[1]))"


@pytest.mark.parametrize("part", PARTS)
def test_every_page_of_a_running_job(signed_in: Open, running: Run, part: int) -> None:
    with signed_in() as page:
        assert faults(page, part_of_pages(running, part)) == []


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_every_page_as_a_reader(signed_in: Open, running: Run, part: int) -> None:
    """Acts are disabled with their reasons, and pages that define a job refuse it."""
    with signed_in(user=rows.reader(), forgive="403") as page:
        assert faults(page, part_of_pages(running, part), ("light",), statuses=(200, 403)) == []


def test_every_page_of_jobs_in_other_states(signed_in: Open, transactional_db: None) -> None:
    rows.operator_user()
    with signed_in() as page:
        assert faults(page, every_page.pages_of_other_states()) == []


@pytest.mark.parametrize("kind", ["savepoint", "tag"])
def test_the_results_of_an_act_on_several_jobs(signed_in: Open, running: Run, kind: str) -> None:
    """With a job on which the act is not possible."""
    other = rows.job("flights-new")
    with signed_in() as page:
        page.goto(f"/jobs/bulk/?kind={kind}&tags=nightly&job={running.job_id}&job={other.pk}")
        page.locator("#do-all").click()
        expect(page.get_by_role("status").filter(has_text="of 2")).to_be_visible()
        assert faults_of_page(page) == []


def test_every_page_of_the_admin(signed_in: Open, running: Run) -> None:
    """The lists of all models, and a row of each that has one."""
    paths = {"index": "/admin/"}
    for model in filter(admin.site.is_registered, apps.get_models()):
        name, row = f"{model._meta.app_label}_{model._meta.model_name}", model._default_manager.first()
        paths[f"{name} list"] = reverse(f"admin:{name}_changelist")
        if row is not None:
            paths[f"{name} row"] = reverse(f"admin:{name}_change", args=[row.pk])
    problems = []
    with signed_in() as page:
        for name, path in paths.items():
            page.goto(path)
            problems += [f"{name}: {fault}" for fault in violations(page) if not fault.startswith(VENDOR["admin"])]
    assert problems == []


def test_the_document_of_the_api(signed_in: Open, transactional_db: None) -> None:
    rows.operator_user()
    with signed_in(forgive="style") as page:  # Swagger adds style elements, which the policy blocks
        page.goto("/api/v1/docs/")
        page.locator(".opblock").first.wait_for(timeout=60_000)
        assert [fault for fault in violations(page) if not fault.startswith(VENDOR["api"])] == []


def test_pages_of_errors_and_the_sign_in(browser: Browser, live_server: LiveServer, transactional_db: None) -> None:
    with browser.new_context(base_url=live_server.url) as context:
        page = context.new_page()
        assert faults(page, {"login": "/login/", **error_pages(page)}) == []


def part_of_pages(run: Run, part: int) -> dict[str, str]:
    return dict(itertools.islice(every_page.pages_of_running_job(run).items(), part, None, len(PARTS)))


def faults(
    page: Page, paths: Mapping[str, str], schemes: Sequence[Scheme] = SCHEMES, statuses: Sequence[int] = (200,)
) -> list[str]:
    """What is wrong with the pages, each fault after the name of its page."""
    messages = []
    for name, path in paths.items():
        response = page.goto(path)
        assert response is not None
        wrong = faults_of_page(page, schemes) if response.status in statuses else [f"status {response.status}"]
        messages += [f"{name}: {fault}" for fault in wrong]
    return messages


def faults_of_page(page: Page, schemes: Sequence[Scheme] = SCHEMES) -> list[str]:
    """What is wrong with the page that is open."""
    wrong: list[str] = page.evaluate(NAMELESS)
    levels = page.evaluate(HEADINGS)
    if levels.count(1) != 1 or any(after - before > 1 for before, after in itertools.pairwise([0, *levels])):
        wrong.append(f"headings {levels}")
    for width in (*reversed(DESKS), NARROW):
        page.set_viewport_size({"width": width, "height": 900})
        if page.evaluate(OVERFLOW) > 0:
            wrong.append(f"scrolls sideways at {width} px")
    page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    colours = bool(page.evaluate(HAS_NARROW_PARTS))
    wrong += [f"{fault} at {NARROW} px" for fault in violations(page, schemes[:1], colours=colours)]
    for width in DESKS:
        page.set_viewport_size({"width": width, "height": 900})
        wrong += page.evaluate(CUT_OFF)
    wrong += page.evaluate(WITHOUT_KEYS)
    return wrong + violations(page, schemes)


def violations(page: Page, schemes: Sequence[Scheme] = SCHEMES, *, colours: bool = True) -> list[str]:
    """Serious and critical findings of axe: of all rules in the first scheme, of those for colours in the others.

    `colours`: whether the rules for colours are among those of the first scheme.
    """
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(AXE_SCRIPT)
    problems: list[str] = []
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        only = [] if scheme == schemes[0] else COLOUR_RULES
        without = [] if colours else COLOUR_RULES
        problems += [f"{fault} ({scheme})" for fault in page.evaluate(AXE, {"only": only, "without": without})]
    page.emulate_media(color_scheme="light")
    return problems
