"""The console by keyboard alone: pages, rows, acts, the palette, the strip of checkpoints, and announcements."""

from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Page, expect

from console.checkpoints.models import Checkpoint
from console.jobs.models import Run
from console.operations.models import Operation
from tests.console.ui import rows
from tests.console.ui.browsing import ARRIVAL_MS, POLL_MS, Open, jump
from tests.console.ui.test_every_page import violations

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_pages_rows_and_the_search_are_reached_by_letters(signed_in: Open, running: Run) -> None:
    rows.job("another-job")
    with signed_in() as page:
        page.goto("/jobs/")
        press(page, "g", "o")
        page.wait_for_url("**/operations/")
        press(page, "g", "c")
        page.wait_for_url("**/cluster/")
        press(page, "g", "j")
        page.wait_for_url("**/jobs/")
        press(page, "/")
        expect(page.locator("#q")).to_be_focused()
        page.keyboard.type("jgo?")
        expect(page.locator("#q")).to_have_value("jgo?")
        expect(page.locator("#keys")).to_be_hidden()
        page.locator("#q").blur()
        press(page, "j", "j", "k", "j")
        expect(page.locator("tbody tr").nth(1).get_by_role("link").first).to_be_focused()
        press(page, "k", "Enter")
        page.wait_for_url("**/jobs/*/")


def test_each_key_of_a_page_leads_to_its_link_or_focuses_its_button(signed_in: Open, running: Run) -> None:
    """Fields and the switch for updates have tests of their own."""
    with signed_in() as page:
        home = f"/jobs/{running.job_id}/"
        page.goto(home)
        controls = page.locator("a[data-key]:visible, button[data-key]:visible:not([data-switch])")
        keys = [(each.get_attribute("data-key") or "", each.get_attribute("href")) for each in controls.all()]
        assert len(keys) == len({key for key, _ in keys}) >= 9
        for key, href in keys:
            press(page, *key.split(" "))
            if href is None:
                expect(page.locator(f'[data-key="{key}"]')).to_be_focused()
            else:
                page.wait_for_url(f"**{href}")
                page.goto(home)


def test_letters_reach_the_acts_that_are_possible_and_the_help_lists_them(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/")
        press(page, "?")
        expect(page.locator("#keys")).to_contain_text("Drain and finish…")
        expect(page.locator("#keys")).not_to_contain_text("Start")
        assert violations(page) == []
        press(page, "d", "Escape")
        expect(page.locator("#keys")).to_be_hidden()
        press(page, "b", "s")
        expect(page.locator("#do-savepoint")).to_be_focused()
        assert not Operation.objects.filter(state="queued").exists(), "a letter alone must not act"
        press(page, "d")
        page.wait_for_url("**/drain/")


def test_the_palette_finds_jobs_and_acts_as_one_types(signed_in: Open, running: Run) -> None:
    other = rows.job("orders-scoring")
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/")
        press(page, "Control+k")
        expect(page.get_by_role("option", name="orders-scoring")).to_be_visible()
        assert violations(page) == []
        page.keyboard.type("drain")
        expect(page.get_by_role("option")).to_have_text(["Drain and finish…"])
        page.get_by_role("combobox", name="Job or operation").fill("o")
        expect(page.get_by_role("option", name="orders-scoring")).to_be_visible()
        press(page, "ArrowUp", "Enter")
        page.wait_for_url(f"**/jobs/{other.pk}/")
        press(page, "Control+k")
        page.keyboard.type("no-such-thing")
        expect(page.get_by_text("No match.")).to_be_visible()


def test_the_strip_is_one_tab_stop_with_arrows(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/")
        stops = page.locator('.strip a[tabindex="0"]')
        expect(stops).to_have_count(1)
        stops.focus()
        press(page, "ArrowLeft", "ArrowLeft", "ArrowRight")
        expect(stops).to_have_count(1)
        expect(stops).to_be_focused()
        press(page, "Enter")
        page.wait_for_url(f"**/checkpoints/{Checkpoint.objects.get(number=213).pk}/")


def test_a_new_state_is_announced_once(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        announcement = page.locator("#announcement")
        page.evaluate("""() => {
          window.said = [];
          const region = document.getElementById("announcement");
          new MutationObserver(() => said.push(region.textContent)).observe(region, {childList: true});
        }""")
        Run.objects.filter(pk=running.pk).update(state="draining")
        jump(page)
        expect(announcement).to_contain_text("flights-delays: Draining", timeout=POLL_MS)
        Run.objects.filter(pk=running.pk).update(live=rows.live(acknowledged=7))
        jump(page)
        expect(page.locator("svg.graph")).to_contain_text("7 of 10", timeout=POLL_MS)
        announced = page.evaluate("window.said")
        assert announced[0] == "flights-delays: Draining"
        assert len(announced) == len(set(announced)), "its health may follow, but no state is repeated"


def test_a_switch_pauses_the_updates_of_a_page(signed_in: Open, running: Run) -> None:
    """The choice is of one address, is shown with its time, outlasts a reload, and ends with the newest state."""
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        button, notice = page.locator("#pause"), page.locator("#paused")
        press(page, "?")
        expect(page.locator("#keys")).to_contain_text("Pause or resume the updates of this page")
        press(page, "Escape", "u")
        expect(button).to_have_attribute("aria-pressed", "true")
        expect(notice).to_contain_text("Updates are paused: the page shows its state of 20")
        assert violations(page) == []
        Run.objects.filter(pk=running.pk).update(live=rows.live(acknowledged=7))
        polls: list[str] = []
        page.on("request", lambda request: polls.append(request.url) if "hx-request" in request.headers else None)
        for _ in range(3):
            jump(page)
        page.wait_for_timeout(ARRIVAL_MS)
        assert polls == []
        page.reload()
        expect(notice).to_be_visible()
        jump(page)
        page.wait_for_timeout(ARRIVAL_MS)
        assert polls == []
        Run.objects.filter(pk=running.pk).update(live=rows.live(acknowledged=8))
        press(page, "u")
        expect(page.locator("svg.graph")).to_contain_text("8 of 10", timeout=POLL_MS)
        expect(notice).to_be_hidden()
        press(page, "u")
        page.goto("/jobs/")
        expect(notice).to_be_hidden()


def test_a_page_updates_and_pauses_where_storage_is_refused(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.add_init_script(
            "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError'); }})"
        )
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        press(page, "u")
        expect(page.locator("#paused")).to_be_visible()
        press(page, "u")
        expect(page.locator("#paused")).to_be_hidden()
        Run.objects.filter(pk=running.pk).update(live=rows.live(acknowledged=7))
        jump(page)
        expect(page.locator("svg.graph")).to_contain_text("7 of 10", timeout=POLL_MS)


def test_names_are_read_in_constant_queries(at_console: Client, django_assert_max_num_queries: Any) -> None:
    for name in ("a-job", "b-job", "c-other"):
        rows.job(name)
    with django_assert_max_num_queries(3):
        jobs = at_console.get("/jobs/names/?q=job").json()["jobs"]
    assert [job["name"] for job in jobs] == ["a-job", "b-job"]
