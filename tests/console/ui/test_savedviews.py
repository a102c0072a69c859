"""Saved views of the list of jobs: per user, without scripts, only filters that the list has."""

from django.test import Client

from console.accounts.models import SavedView
from tests.console.ui import blocks, rows


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
