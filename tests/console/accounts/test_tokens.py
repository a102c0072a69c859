"""API tokens: shown once, stored as hashes, revocable."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.accounts import tokens
from console.accounts.models import ApiToken, Scope, User

LOGIN = {"username": "operator", "password": "a long enough one"}


def sending(authorization: str) -> APIClient:
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=authorization)
    return api


def signed_in(token: str) -> APIClient:
    return sending(f"Bearer {token}")


def everything_stored() -> str:
    """Every text of every table."""
    tables = [name for name in connection.introspection.table_names() if name != "django_migrations"]
    with connection.cursor() as cursor:
        texts = []
        for table in tables:
            cursor.execute(f'SELECT t::text FROM "{table}" t')
            texts += [row[0] for row in cursor.fetchall()]
    return "\n".join(texts)


def test_no_table_and_no_page_of_the_admin_holds_the_token(operator: User, browser: Client) -> None:
    token = APIClient().post("/api/v1/auth/token/", LOGIN).json()["token"]
    assert signed_in(token).get("/api/v1/jobs/").status_code == 200
    assert token not in everything_stored()
    row = ApiToken.objects.get()
    for path in ("", f"{row.pk}/change/"):
        page = browser.get(f"/admin/accounts/apitoken/{path}")
        assert page.status_code == 200
        assert token not in page.content.decode()
        assert row.digest not in page.content.decode()


def test_each_login_issues_another_token_and_none_ends_another(operator: User) -> None:
    first, second = (APIClient().post("/api/v1/auth/token/", LOGIN).json()["token"] for _ in range(2))
    assert first != second
    assert [signed_in(token).get("/api/v1/jobs/").status_code for token in (first, second)] == [200, 200]


def test_a_wrong_or_revoked_token_is_401(operator: User, browser: Client) -> None:
    token = tokens.issue(operator, scopes=Scope).text
    assert signed_in(token[:-1]).get("/api/v1/jobs/").status_code == 401
    row = ApiToken.objects.get()
    assert browser.post(f"/admin/accounts/apitoken/{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert signed_in(token).get("/api/v1/jobs/").status_code == 401


@pytest.mark.parametrize("scheme", ["Token", "Basic", "bearer-token"])
def test_another_scheme_is_401_and_the_answer_names_the_one_to_use(operator: User, scheme: str) -> None:
    token = tokens.issue(operator, scopes=Scope).text
    refused = sending(f"{scheme} {token}").get("/api/v1/jobs/")
    assert (refused.status_code, refused["WWW-Authenticate"]) == (401, "Bearer")
    detail = refused.json()["detail"]
    assert detail == (
        f"The scheme {scheme} is not accepted. Send 'Authorization: Bearer <token>'; POST /api/v1/auth/token/ issues "
        "a token."
    )
    assert refused.json()["code"] == "not-authenticated"


@pytest.mark.parametrize("header", ["{}", "{} ", ""])
def test_a_token_without_a_scheme_is_not_repeated(operator: User, header: str) -> None:
    token = tokens.issue(operator, scopes=Scope).text
    refused = sending(header.format(token)).get("/api/v1/jobs/")
    assert (refused.status_code, refused["WWW-Authenticate"]) == (401, "Bearer")
    assert refused.json()["detail"].startswith("Send 'Authorization: Bearer <token>'")
    assert token not in refused.content.decode()


def test_a_session_counts_whatever_scheme_a_proxy_has_passed_on(browser: Client) -> None:
    assert browser.get("/api/v1/jobs/", headers={"Authorization": "Basic Z2F0ZTprZXk="}).status_code == 200


def test_a_user_who_is_not_active_cannot_use_a_token(operator: User) -> None:
    token = tokens.issue(operator, scopes=Scope).text
    User.objects.update(is_active=False)
    assert signed_in(token).get("/api/v1/jobs/").status_code == 401


def test_a_token_may_have_an_end_and_says_so_afterwards(operator: User, browser: Client) -> None:
    issue = "/api/v1/auth/token/"
    ends = (timezone.now() + timedelta(days=1)).isoformat()
    answer = APIClient().post(issue, {**LOGIN, "expires_at": ends}, format="json").json()
    assert answer["expires_at"] is not None
    assert signed_in(answer["token"]).get("/api/v1/jobs/").status_code == 200
    row = ApiToken.objects.get()
    edit = {"expires_at_0": "2026-01-02", "expires_at_1": "03:04:00"}
    assert browser.post(f"/admin/accounts/apitoken/{row.pk}/change/", edit).status_code == 302
    refused = signed_in(answer["token"]).get("/api/v1/jobs/")
    assert refused.status_code == 401
    assert "expired at 2026-01-02 03:04 UTC" in refused.json()["detail"]


def test_a_token_that_has_ended_already_is_not_issued(operator: User) -> None:
    body = {**LOGIN, "expires_at": "2020-01-01T00:00:00Z"}
    refused = APIClient().post("/api/v1/auth/token/", body, format="json")
    assert refused.status_code == 422
    assert "expires_at" in refused.json()["detail"]
    assert not ApiToken.objects.exists()


def test_the_number_of_tokens_is_bounded_and_those_in_use_stay(operator: User) -> None:
    used = tokens.issue(operator, scopes=Scope, max_tokens=3).text
    for _ in range(5):
        signed_in(used).get("/api/v1/jobs/")
        ApiToken.objects.filter(digest=tokens.token_digest(used)).update(used_at="2999-01-01T00:00:00Z")
        tokens.issue(operator, scopes=Scope, max_tokens=3)
    assert ApiToken.objects.count() == 3
    assert signed_in(used).get("/api/v1/jobs/").status_code == 200


# ---------------------------------------------------------------- a user's own tokens


def test_a_token_expires_by_default(operator: User, settings: Settings) -> None:
    settings.WEIR_TOKEN_DAYS = 7
    issue = "/api/v1/auth/token/"
    ends = parse_datetime(APIClient().post(issue, LOGIN, format="json").json()["expires_at"])
    assert ends is not None
    assert timedelta(days=6) < ends - timezone.now() < timedelta(days=8)
    lasting = APIClient().post(issue, {**LOGIN, "expires_at": None}, format="json").json()
    assert lasting["expires_at"] is None, "by choice only"


def test_a_user_lists_and_revokes_own_tokens_over_rest(operator: User, viewer: User) -> None:
    foreign = tokens.issue(viewer).text
    used, other = signed_in(tokens.issue(operator, scopes=Scope).text), tokens.issue(operator, scopes=["review"]).text
    path = "/api/v1/auth/tokens/"
    newest, current = used.get(path).json()["results"]
    assert (newest["scopes"], newest["hint"], newest["current"]) == (["review"], other[:9], False)
    assert (current["current"], current["used_at"] is not None) == (True, True)
    assert "digest" not in current
    assert used.delete(f"{path}{ApiToken.objects.get(user=viewer).pk}/").status_code == 404
    assert signed_in(other).delete(f"{path}{current['id']}/").status_code == 403, "it lacks scopes"
    assert used.delete(f"{path}{newest['id']}/").status_code == 204
    assert signed_in(other).get(path).status_code == 401
    assert signed_in(foreign).get(path).status_code == 200


def test_a_token_revokes_itself_whatever_its_scopes(operator: User, browser: Client) -> None:
    program, path = signed_in(tokens.issue(operator, scopes=[]).text), "/api/v1/auth/tokens/current/"
    assert program.get(path).json()["current"] is True
    other = signed_in(tokens.issue(operator, scopes=[]).text)
    assert other.delete(f"/api/v1/auth/tokens/{other.get(path).json()['id']}/").status_code == 204, "by its id"
    assert program.delete(path).status_code == 204
    assert program.get(path).status_code == 401
    assert browser.get(path).status_code == 404, "a session has no token"


def test_a_user_makes_and_revokes_tokens_on_a_page(browser: Client, operator: User, viewer: User) -> None:
    tokens.issue(viewer)
    answer = browser.post("/tokens/", {"scopes": ["operate", "review"], "days": 30})
    match = re.search(r'id="issued">(weir_[\w-]+)<', answer.content.decode())
    assert match is not None
    assert "no-store" in answer["Cache-Control"]
    row = tokens.find(match[1])
    assert row is not None
    assert row.expires_at is not None
    assert (row.user, row.scopes) == (operator, ["operate", "review"])
    assert timedelta(days=29) < row.expires_at - timezone.now() < timedelta(days=31)
    page = browser.get("/tokens/").content.decode()
    assert row.hint in page
    assert match[1] not in page
    assert page.count("Revoke the token") == 1, "of this user only"
    other = ApiToken.objects.get(user=viewer)
    assert browser.post(f"/tokens/{other.pk}/revoke/").status_code == 404
    assert browser.post(f"/tokens/{row.pk}/revoke/").status_code == 302
    assert [token.user for token in ApiToken.objects.all()] == [viewer]


def test_a_form_that_is_sent_twice_leaves_a_single_token(browser: Client, operator: User) -> None:
    """A browser shows the second answer to a double click. The token in the first one was valid, and unknown."""
    page = browser.get("/tokens/").content.decode()
    key = re.search(r'name="key" value="(\w+)"', page)
    assert key is not None
    form = {"days": 30, "key": key[1]}
    first, second = (" ".join(browser.post("/tokens/", form).content.decode().split()) for _ in range(2))
    assert "It replaces" not in first
    row = ApiToken.objects.get()
    match = re.search(r'id="issued">(weir_[\w-]+)<', second)
    assert match is not None
    assert row.digest == tokens.token_digest(match[1])
    assert re.search(r"It replaces weir_\S{4}…, which is revoked\.", second)
    ApiToken.objects.update(used_at=timezone.now())
    browser.post("/tokens/", form)
    assert ApiToken.objects.filter(pk=row.pk).exists(), "a program uses it"


def test_the_page_names_the_token_that_a_new_one_replaces(browser: Client, operator: User) -> None:
    tokens.issue(operator, scopes=Scope)
    ApiToken.objects.bulk_create(
        ApiToken(user=operator, digest=str(at), hint=f"weir_{at}", used_at=timezone.now()) for at in range(99)
    )
    oldest = ApiToken.objects.get(used_at=None)
    ApiToken.objects.filter(pk=oldest.pk).update(created_at=timezone.now() - timedelta(days=9))
    page = browser.post("/tokens/", {"days": 30}).content.decode()
    assert f"It replaces {oldest}, which is revoked." in " ".join(page.split())


@pytest.mark.parametrize("form", [{"days": ""}, {"days": 0}, {"days": 9, "scopes": ["all"]}])
def test_a_token_without_an_end_or_with_an_unknown_scope_is_not_made(browser: Client, form: dict[str, Any]) -> None:
    refused = browser.post("/tokens/", form)
    assert refused.status_code == 422
    assert 'class="errors"' in refused.content.decode()
    assert not ApiToken.objects.exists()
