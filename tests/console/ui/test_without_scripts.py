"""Every page and state in Chromium with scripts off: it answers, has no dead button, and every form can be sent.

A narrow window cuts nothing off and hides no act.
"""

from collections.abc import Mapping

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from console.checkpoints.models import Checkpoint
from console.jobs.models import Run
from console.operations.models import Operation
from tests.console.ui import every_page, rows
from tests.console.ui.browsing import Open, error_pages
from tests.console.ui.test_every_page import OVERFLOW

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WIDTHS = (390, 1024, 1440)
#: Visible enabled buttons that need a script, forms without a button to send them, and placeholders that only a script
#: fills.
DEAD = """() => {
  const seen = (e) => e.checkVisibility();
  const dead = [...document.querySelectorAll('button[type=button], button:not([form]):not(form button)')]
    .filter((e) => !e.disabled);
  const mute = [...document.querySelectorAll('form')].filter((form) =>
    [...form.elements].some((e) => e.type !== 'hidden' && seen(e)) &&
    ![...form.elements].some((e) => e.type === 'submit' && (seen(e) || e.closest('details:not([open])'))));
  const links = [...document.querySelectorAll('a:not([href]), a[href="#"], a[href^="javascript"]')];
  return [...dead, ...mute, ...links].filter(seen).map((e) => e.outerHTML.slice(0, 120));
}"""


#: Buttons and other acts that are seen, by id or text.
ACTS = """() => [...document.querySelectorAll('main button, main a.button, main summary')]
  .filter((e) => e.checkVisibility() && e.getClientRects().length).map((e) => e.id || e.textContent.trim())"""


def faults(page: Page, paths: Mapping[str, str]) -> list[str]:
    messages = []
    for name, path in paths.items():
        response = page.goto(path)
        assert response is not None
        if response.status != 200:
            messages.append(f"{name}: status {response.status}")
        messages += [f"{name}: {fault}" for fault in faults_of_page(page)]
    return messages


def faults_of_page(page: Page) -> list[str]:
    """What is wrong with the page that is open."""
    expect(page.locator("h1")).to_be_visible()
    controls: list[str] = page.evaluate(DEAD)
    acts = page.evaluate(ACTS)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        if page.evaluate(OVERFLOW) > 0:
            controls.append(f"scrolls sideways at {width} px")
        narrow = page.evaluate(ACTS)
        controls += [f"not seen at {width} px: {act}" for act in acts if act not in narrow]
    return controls


def test_every_page_of_a_running_job(signed_in: Open, running: Run) -> None:
    with signed_in(java_script_enabled=False) as page:
        assert faults(page, every_page.pages_of_running_job(running)) == []


def test_every_page_of_jobs_in_other_states(signed_in: Open, transactional_db: None) -> None:
    rows.operator_user()
    with signed_in(java_script_enabled=False) as page:
        assert faults(page, every_page.pages_of_other_states()) == []


def test_the_results_of_an_act_on_several_jobs(signed_in: Open, running: Run) -> None:
    with signed_in(java_script_enabled=False) as page:
        page.goto(f"/jobs/bulk/?kind=savepoint&job={running.job_id}")
        page.locator("#do-all").click()
        expect(page.get_by_role("status").filter(has_text="1 of 1")).to_be_visible()
        assert faults_of_page(page) == []


def test_pages_of_errors_and_the_sign_in(browser: Browser, live_server: LiveServer, transactional_db: None) -> None:
    with browser.new_context(base_url=live_server.url, java_script_enabled=False) as context:
        page = context.new_page()
        assert faults(page, {"login": "/login/", **error_pages(page)}) == []


def test_a_name_and_a_comment_are_stored(signed_in: Open, running: Run) -> None:
    snapshot = Checkpoint.objects.get(number=213)
    with signed_in(java_script_enabled=False) as page:
        page.goto(f"/checkpoints/{snapshot.pk}/")
        page.locator("#name").fill("before the upgrade")
        page.get_by_role("button", name="Save name and note").click()
        expect(page.get_by_text("before the upgrade").first).to_be_visible()
        expect(page.get_by_label("Comment")).to_be_hidden()
        page.get_by_text("Change the review").click()
        page.get_by_label("Comment").fill("looks right")
        page.get_by_role("button", name="Add comment").click()
        expect(page.get_by_text("looks right").first).to_be_visible()
    snapshot.refresh_from_db()
    assert snapshot.name == "before the upgrade"
    assert Operation.objects.filter(kind="comment").exists()
