"""A journey by keyboard alone: sign in, find a job, take a savepoint, review a checkpoint, stop the run and restore."""

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from console.checkpoints.models import Checkpoint
from console.jobs.models import Run
from console.operations.models import Operation

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

MOST_TABS = 120
FOCUSED = r"""() => {
  const e = document.activeElement;
  const names = [e.ariaLabel ?? '', e.labels?.[0]?.textContent ?? '', e.textContent ?? ''];
  return names.map((text) => text.trim().replace(/\s+/g, ' '));
}"""


def tab_to(page: Page, text: str) -> None:
    """Presses Tab until the control named `text` has the focus, which must be seen."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if any(name.startswith(text) for name in page.evaluate(FOCUSED)):
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"the focus on {text} is not seen"
            return
    raise AssertionError(f"{text} is not reached by {MOST_TABS} tabs")


def act(page: Page, text: str) -> None:
    tab_to(page, text)
    page.keyboard.press("Enter")


def test_from_the_sign_in_to_a_restore(browser: Browser, live_server: LiveServer, running: Run) -> None:
    with browser.new_context(base_url=live_server.url, viewport={"width": 1440, "height": 900}) as context:
        context.set_default_timeout(20_000)
        page = context.new_page()
        page.goto("/jobs/")
        tab_to(page, "User name")
        page.keyboard.type("operator")
        page.keyboard.press("Tab")
        page.keyboard.type("a-river-runs")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()

        act(page, running.job.name)
        page.wait_for_url(f"**/jobs/{running.job_id}/")
        act(page, "Take savepoint")
        expect(page.get_by_text("A savepoint was requested.")).to_be_visible()
        assert Operation.objects.filter(kind="savepoint", requested_by__username="operator").exists()

        snapshot = Checkpoint.objects.get(number=213)
        act(page, "213")
        page.wait_for_url(f"**/checkpoints/{snapshot.pk}/")
        act(page, "Change the review")
        tab_to(page, "Comment")
        page.keyboard.type("looks right")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_text("looks right").first).to_be_visible()
        assert Operation.objects.filter(kind="comment").exists()

        act(page, "Restore")
        page.wait_for_url("**/restore/**")
        tab_to(page, "Checkpoint 213")
        page.keyboard.press("ArrowDown")
        act(page, "Show what will happen")
        expect(page.get_by_text("Output is repeated.")).to_be_visible()
        tab_to(page, "I accept repeated output")
        page.keyboard.press("Space")
        act(page, "End this run and restore")
        expect(page.get_by_text("The rollback was requested")).to_be_visible()
        assert Operation.objects.get(kind="rollback").params["checkpoint"] < snapshot.pk
