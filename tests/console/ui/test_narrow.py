"""The top of narrow pages: lines of places, and a menu for the rest, without scripts."""

import re

import pytest
from playwright.sync_api import expect

from console.jobs.models import Run
from tests.console.ui import rows
from tests.console.ui.browsing import POLL_MS, Open

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

NARROW = 390
MAX_LINE_PX = 48


def test_all_places_are_seen_and_the_rest_is_in_a_menu(signed_in: Open, running: Run) -> None:
    with signed_in(NARROW, java_script_enabled=False) as page:
        page.goto("/jobs/")
        line = page.get_by_role("banner")
        box = line.bounding_box()
        assert box is not None
        assert box["height"] <= 2 * MAX_LINE_PX
        places = line.get_by_role("navigation").get_by_role("link")
        assert places.count() >= 6
        for place in places.all():
            expect(place).to_be_in_viewport(ratio=1)
        expect(page.get_by_role("button", name="Sign out")).to_be_hidden()
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("button", name="Dark").click()
        expect(page.locator("html[data-theme=dark]")).to_be_attached()
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_choice_stands_in_the_line_of_its_words(signed_in: Open, running: Run) -> None:
    """Words that need two lines do not move below their button."""
    with signed_in(NARROW) as page:
        page.goto(f"/jobs/{running.job_id}/restore/?checkpoint={running.checkpoints.get(number=210).pk}")
        for way in ("Stop it with a savepoint", "Cancel it at once"):
            button, words = page.get_by_label(way), page.locator("label", has_text=way)
            beside, text = button.bounding_box(), words.bounding_box()
            assert beside is not None
            assert text is not None
            assert text["y"] <= beside["y"] + beside["height"] / 2 <= text["y"] + text["height"]


def test_the_menu_keeps_the_places_of_a_tablet_in_a_line(signed_in: Open, running: Run) -> None:
    for width in (700, 1000):
        with signed_in(width) as page:
            page.goto("/jobs/")
            box = page.get_by_role("banner").bounding_box()
            assert box is not None
            assert box["height"] <= MAX_LINE_PX
            page.get_by_role("button", name="Menu").click()
            expect(page.get_by_role("button", name="Sign out")).to_be_in_viewport(ratio=1)


def test_a_wide_page_has_no_menu(signed_in: Open, transactional_db: None) -> None:
    """At 1024 px the line wrapped, and did so on wider pages for long names of users."""
    for name in ("ada", "a-service-account-of-the-delays-team"):
        with signed_in(user=rows.operator_user(name)) as page:
            for width in (1024, 1120):
                page.set_viewport_size({"width": width, "height": 900})
                page.goto("/jobs/")
                expect(page.get_by_role("button", name="Menu")).to_be_hidden()
                box = page.get_by_role("banner").bounding_box()
                assert box is not None
                assert box["height"] <= MAX_LINE_PX + 8
                expect(page.get_by_role("button", name="Sign out")).to_be_in_viewport(ratio=1)


def test_a_narrow_page_of_a_job_has_three_checkpoints_and_leads_to_the_others(signed_in: Open, running: Run) -> None:
    """Ten checkpoints as blocks of six lines took a third of the page."""
    for width, is_narrow in ((NARROW, True), (1440, False)):
        with signed_in(width) as page:
            page.goto(f"/jobs/{running.job_id}/")
            table = page.get_by_role("region", name="Table of checkpoints")
            assert table.locator("tbody tr:visible").count() == (3 if is_narrow else 10)
            expect(page.locator("#older-checkpoints")).to_be_visible(visible=is_narrow)
            expect(page.locator("#page-older")).to_be_visible(visible=not is_narrow)
    with signed_in(NARROW) as page:
        page.goto(f"/jobs/{running.job_id}/?before=210")
        expect(page.locator("#page-newest")).to_be_visible()
        expect(page.locator("#older-checkpoints")).to_be_hidden()
        page.goto(f"/jobs/{running.job_id}/")
        page.locator("#older-checkpoints").click()
        expect(page).to_have_url(re.compile(rf"/jobs/{running.job_id}/checkpoints/$"))


def test_a_narrow_page_of_a_job_has_the_whole_graph(signed_in: Open, running: Run) -> None:
    """It showed two of six operators, and scrolled. All numbers are one click away."""
    for options in ({}, {"java_script_enabled": False}):
        with signed_in(NARROW, **options) as page:
            page.goto(f"/jobs/{running.job_id}/")
            nodes = page.locator(".node-link:visible")
            assert nodes.count() == len(rows.GRAPH["operators"])
            for node in nodes.all():
                box = node.bounding_box()
                assert box is not None
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= NARROW
            expect(page.locator(".weir-caption")).to_have_text("checkpoint 214, 6 of 10 acknowledged")
            expect(page.locator(".weir-caption")).to_be_visible()
            nodes.filter(has_text="join").click()
            expect(page.get_by_role("heading", name="join airlines")).to_be_visible()
            page.get_by_role("link", name="All numbers").click()
            expect(page.locator("svg.graph")).to_be_visible()
            expect(page.locator(".narrow-graph")).to_have_count(0)


def test_the_graph_of_a_narrow_page_follows_the_run_and_is_one_tab_stop(signed_in: Open, running: Run) -> None:
    with signed_in(NARROW) as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        Run.objects.filter(pk=running.pk).update(live=rows.live(acknowledged=7))
        expect(page.locator(".weir-caption")).to_contain_text("7 of 10 acknowledged", timeout=POLL_MS)
        assert page.locator('.node-link[tabindex="0"]:visible').count() == 1
        page.locator("#narrow-node-1").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="prepared")).to_be_visible()
    with signed_in(1440) as page:
        page.goto(f"/jobs/{running.job_id}/")
        expect(page.locator(".narrow-graph")).to_be_hidden()
