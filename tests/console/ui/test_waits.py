"""Buttons that wait for what their form asks: accepted output of a restore or start, another parallelism of a rescale.

Without scripts they can be pressed, and the console refuses the request.
"""

import pytest
from playwright.sync_api import expect

from console.jobs.models import Run
from console.operations.models import Operation
from tests.console.ui import rows
from tests.console.ui.browsing import POLL_MS, Open, jump

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_a_restore_waits_until_repeated_output_is_accepted(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/restore/")
        restore = page.get_by_role("button", name="End this run and restore")
        reason = page.get_by_text("Tick what you accept first.")
        expect(restore).to_have_attribute("aria-disabled", "true")
        expect(reason).to_be_visible()
        rows.operation(running.job, "savepoint", "queued", run=running, reason="meanwhile")
        jump(page)
        expect(page.locator("#live-restore-notice")).to_contain_text("meanwhile", timeout=POLL_MS)
        expect(restore).to_have_attribute("aria-disabled", "true")
        page.get_by_label("I accept repeated output.").check()
        expect(reason).to_be_hidden()
        page.get_by_label("I accept repeated output.").uncheck()
        expect(restore).to_have_attribute("aria-disabled", "true")
        page.get_by_label("I accept repeated output.").check()
        restore.click()
        expect(page.get_by_text("The rollback was requested")).to_be_visible()


def test_a_restore_posts_the_plan_that_is_shown_or_nothing(signed_in: Open, running: Run) -> None:
    """Pressed at once after typing, the button posted the parallelism of the former plan."""
    Run.objects.filter(pk=running.pk).update(state="stopped")
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/restore/")
        restore = page.get_by_role("button", name="at parallelism 2")
        expect(restore).to_have_attribute("aria-disabled", "false")
        page.get_by_label("Parallelism", exact=True).fill("3")
        expect(restore).to_have_attribute("aria-disabled", "true")
        expect(page.get_by_text("The effects of your choice are not shown yet.")).to_be_visible()
        page.locator("#restore-it").evaluate("button => button.click()")
        assert not Operation.objects.filter(kind="restore").exists(), "the shown plan is another one"
        page.get_by_label("Parallelism", exact=True).press("Tab")
        button = page.get_by_role("button", name="at parallelism 3")
        expect(button).to_have_attribute("aria-disabled", "false")
        button.click()
        expect(page.get_by_text("The restore was requested")).to_be_visible()
    assert Operation.objects.get(kind="restore").params["parallelism"] == 3


def test_a_start_waits_until_repeated_output_is_accepted(signed_in: Open, running: Run) -> None:
    Run.objects.filter(pk=running.pk).update(state="stopped")
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/start/")
        start = page.get_by_role("button", name="Start from empty state")
        expect(start).to_have_attribute("aria-disabled", "true")
        page.get_by_label("I accept repeated output.").check()
        start.click()
        expect(page.get_by_text("The start was requested.")).to_be_visible()


def test_a_rescale_waits_for_another_parallelism(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/rescale/")
        rescale = page.get_by_role("button", name="Rescale", exact=True)
        reason = page.get_by_text("It is 2 now: choose another parallelism or version.")
        expect(rescale).to_have_attribute("aria-disabled", "true")
        expect(reason).to_be_visible()
        page.get_by_label("Parallelism").press("Enter")
        page.get_by_label("Parallelism").fill("3")
        expect(reason).to_be_hidden()
        page.get_by_label("Parallelism").press("Tab")
        expect(page.get_by_role("region", name="Figures of the rescale")).to_contain_text("42 or 43")
        page.get_by_label("Parallelism").fill("2")
        expect(reason).to_be_visible()
        assert not Operation.objects.filter(kind="rescale").exists(), "Enter has sent nothing"
        page.get_by_label("Parallelism").fill("3")
        rescale.click()
        expect(page.get_by_text("The rescale was requested")).to_be_visible()
