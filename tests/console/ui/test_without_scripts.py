"""Every page and state in Chromium with scripts off: it answers, has no dead button, and every form can be sent."""

from collections.abc import Mapping

import pytest
from playwright.sync_api import Page, expect

from console.checkpoints.models import Checkpoint
from console.jobs.models import Run
from console.operations.models import Operation
from tests.console.ui import every_page, rows
from tests.console.ui.browsing import Open

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

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


def faults(page: Page, paths: Mapping[str, str]) -> list[str]:
    found = []
    for name, path in paths.items():
        response = page.goto(path)
        assert response is not None
        if response.status != 200:
            found.append(f"{name}: status {response.status}")
        expect(page.locator("h1")).to_be_visible()
        found += [f"{name}: {fault}" for fault in page.evaluate(DEAD)]
    return found


def test_every_page_of_a_running_job(signed_in: Open, running: Run) -> None:
    with signed_in(java_script_enabled=False) as page:
        assert faults(page, every_page.pages_of_running_job(running)) == []


def test_every_page_of_jobs_in_other_states(signed_in: Open, transactional_db: None) -> None:
    rows.operator_user()
    with signed_in(java_script_enabled=False) as page:
        assert faults(page, every_page.pages_of_other_states()) == []


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
