"""The top of narrow pages: a line of places, and a menu for the rest, without scripts."""

import re

import pytest
from playwright.sync_api import expect

from console.jobs.models import Run
from tests.console.ui import rows
from tests.console.ui.browsing import Open

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

NARROW = 390
MAX_LINE_PX = 48


def test_the_places_are_a_line_and_the_rest_is_in_a_menu(signed_in: Open, running: Run) -> None:
    with signed_in(NARROW, java_script_enabled=False) as page:
        page.goto("/jobs/")
        line = page.get_by_role("banner")
        box = line.bounding_box()
        assert box is not None
        assert box["height"] <= MAX_LINE_PX
        for place in ("Jobs", "Operations", "Reviews"):
            expect(line.get_by_role("link", name=place)).to_be_in_viewport(ratio=1)
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


@pytest.mark.parametrize("width", [700, 1000])
def test_the_menu_keeps_the_places_of_a_tablet_in_a_line(signed_in: Open, running: Run, width: int) -> None:
    with signed_in(width) as page:
        page.goto("/jobs/")
        box = page.get_by_role("banner").bounding_box()
        assert box is not None
        assert box["height"] <= MAX_LINE_PX
        page.get_by_role("button", name="Menu").click()
        expect(page.get_by_role("button", name="Sign out")).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("width", [1024, 1120])
@pytest.mark.parametrize("name", ["ada", "a-service-account-of-the-delays-team"])
def test_a_wide_page_has_no_menu(signed_in: Open, running: Run, width: int, name: str) -> None:
    """At 1024 px the line wrapped, and did so on wider pages for long names of users."""
    with signed_in(width, user=rows.operator_user(name)) as page:
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
