"""Saved views over REST: own views only, with the checks of the page."""

import pytest
from rest_framework.test import APIClient

from console.accounts import saved_views
from console.accounts.models import SavedView, User
from tests.console.api.test_api import check_problem
from tests.console.conftest import api_as

pytestmark = pytest.mark.django_db
PATH = "/api/v1/saved-views/"


def test_a_view_is_saved_changed_listed_and_deleted(api: APIClient) -> None:
    answer = api.post(PATH, {"name": "On call", "query": "state=failed&after=3&x=1&sort=-rate"})
    assert (answer.status_code, answer.json()["query"]) == (201, "state=failed&sort=-rate"), (
        "no page, no unknown filter"
    )
    api.post(PATH, {"name": "All", "query": ""})
    changed = api.post(PATH, {"name": "On call", "query": "health=failed"})
    assert (changed.status_code, changed.json()) == (200, {**answer.json(), "query": "health=failed"})
    assert [view["name"] for view in api.get(PATH).json()] == ["All", "On call"]
    assert api.delete(f"{PATH}{answer.json()['id']}/").status_code == 204
    assert [view["name"] for view in api.get(PATH).json()] == ["All"]


def test_views_of_another_user_are_neither_listed_nor_deleted(api: APIClient, viewer: User) -> None:
    """A viewer has views, too: they need no permission."""
    answer = api_as(viewer).post(PATH, {"name": "mine", "query": "q=a"})
    assert answer.status_code == 201
    assert api.get(PATH).json() == []
    check_problem(api.delete(f"{PATH}{answer.json()['id']}/"), 404, "not-found")
    assert SavedView.objects.exists()


def test_a_view_is_checked_as_on_the_page(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "MAX_VIEWS", 1)
    check_problem(api.post(PATH, {"name": " ", "query": ""}), 400, "invalid-request", "/name")
    check_problem(api.post(PATH, {"name": "a" * 61, "query": ""}), 400, "invalid-request", "/name")
    check_problem(api.post(PATH, {"name": "a", "query": f"q={'a' * 999}"}), 422, "invalid-field", "/query")
    check_problem(api.post(PATH, {"name": "a", "query": "", "user": 1}), 400, "invalid-request", "/user")
    assert not SavedView.objects.exists()
    assert api.post(PATH, {"name": "a", "query": ""}).status_code == 201
    check_problem(api.post(PATH, {"name": "b", "query": ""}), 409, "too-many-views")
