"""Saved views of the list of jobs: per user, without scripts, only filters that the list has."""

import pytest
from django.test import Client

from console.accounts.models import SavedView
from tests.console.ui import blocks, rows
from tests.console.ui.browsing import Open


def test_a_view_is_saved_listed_marked_and_deleted(at_console: Client) -> None:
    rows.job()
    saved = at_console.post("/jobs/views/", {"name": " On call ", "query": "state=failed&after=3&x=1&sort=-rate"})
    assert saved.headers["Location"] == "/jobs/?state=failed&sort=-rate"
    view = SavedView.objects.get()
    page = at_console.get("/jobs/?sort=-rate&state=failed").content.decode()
    link = f'<a id="view-{view.pk}" href="/jobs/?state=failed&amp;sort=-rate"'
    assert f'{link} aria-current="true">On call</a>' in page, "in whichever order the address has the filters"
    assert f"{link}>On call</a>" in at_console.get("/jobs/").content.decode()
    at_console.post("/jobs/views/", {"name": "On call", "query": "health=failed"})
    assert SavedView.objects.get().query == "health=failed"
    deleted = at_console.post(f"/jobs/views/{view.pk}/delete/", {"query": ""}, follow=True)
    assert "The view On call was deleted." in blocks.text(deleted)
    assert not SavedView.objects.exists()


def test_views_of_another_user_are_neither_shown_nor_deleted(at_console: Client, reading: Client) -> None:
    rows.job()
    reading.post("/jobs/views/", {"name": "mine", "query": "q=a"})
    view = SavedView.objects.get()
    assert "view-" + str(view.pk) not in at_console.get("/jobs/").content.decode()
    assert at_console.post(f"/jobs/views/{view.pk}/delete/").status_code == 404
    assert SavedView.objects.exists()


@pytest.mark.parametrize(("name", "query"), [("", "q=a"), ("\0", "q=a")])
def test_a_view_without_a_name_is_refused(at_console: Client, name: str, query: str) -> None:
    said = blocks.text(at_console.post("/jobs/views/", {"name": name, "query": query}, follow=True))
    assert "A view needs a name." in said
    assert not SavedView.objects.exists()


def test_a_user_has_a_bounded_number_of_views(at_console: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.accounts.saved_views.MAX_VIEWS", 2)
    for name in "abc":
        response = at_console.post("/jobs/views/", {"name": name}, follow=True)
    assert "There are 2 views already" in blocks.text(response)
    assert [view.name for view in SavedView.objects.all()] == ["a", "b"]


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_view_is_saved_without_scripts(signed_in: Open, transactional_db: None) -> None:
    rows.operator_user()
    rows.run(rows.job("alpha"), "failed")
    rows.run(rows.job("beta"))
    with signed_in(java_script_enabled=False) as page:
        page.goto("/jobs/?state=failed")
        page.locator("#views summary").press("Enter")
        page.get_by_label("Name of the view").fill("broken")
        page.get_by_role("button", name="Save these filters").click()
        page.goto("/jobs/")
        page.get_by_role("link", name="broken").click()
        assert page.url.endswith("/jobs/?state=failed")
        assert "beta" not in (page.locator("#live-jobs").text_content() or "")
