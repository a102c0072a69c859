"""Credentials end and are limited: tokens with the password, scopes by choice, passwords unlike the user's name."""

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.accounts import tokens
from console.accounts.models import ApiToken, User
from tests.console.conftest import api_as

NEW = "an unrelated sentence 7"


def answers(token: str) -> int:
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    return int(api.get("/api/v1/jobs/").status_code)


@pytest.mark.parametrize("how", ["admin", "shell", "unusable"])
def test_the_tokens_of_a_user_end_when_the_password_changes(
    client: Client, operator: User, viewer: User, how: str
) -> None:
    """Who has read a token has it no longer; tokens of other users stay."""
    token, other = tokens.issue(viewer).text, tokens.issue(operator).text
    assert answers(token) == 200
    if how == "admin":
        client.force_login(operator)
        form = {"password1": NEW, "password2": NEW, "usable_password": "true"}
        answer = client.post(reverse("admin:auth_user_password_change", args=(viewer.pk,)), form)
        assert answer.status_code == 302, answer.content.decode()
    elif how == "shell":
        viewer.set_password(NEW)
        viewer.save()
    else:
        viewer.set_unusable_password()
        viewer.save(update_fields=["password"])
    assert answers(token) == 401
    assert answers(other) == 200


def test_a_sign_in_that_only_renews_the_hash_ends_no_token(viewer: User, settings: Settings) -> None:
    """Django replaces a hash of an older hasher at a sign-in; the password is the same."""
    settings.PASSWORD_HASHERS = [*settings.PASSWORD_HASHERS, "django.contrib.auth.hashers.PBKDF2PasswordHasher"]
    token = tokens.issue(viewer).text
    old = PBKDF2PasswordHasher().encode("a long enough one", "salt")
    User.objects.filter(pk=viewer.pk).update(password=old)
    viewer.refresh_from_db()
    assert viewer.check_password("a long enough one")
    assert User.objects.get(pk=viewer.pk).password != old
    viewer.first_name = "Vera"
    viewer.save()
    assert answers(token) == 200


def test_a_token_has_no_scope_unless_it_is_chosen(operator: User, client: Client) -> None:
    login = {"username": "operator", "password": "a long enough one"}
    issued = APIClient().post("/api/v1/auth/token/", login, format="json").json()
    assert issued["scopes"] == []
    answer = APIClient().post("/api/v1/auth/token/", {**login, "scopes": ["define"]}, format="json").json()
    assert answer["scopes"] == ["define"]
    tokens.issue(operator)
    client.force_login(operator)
    client.post(reverse("ui:tokens"), {"days": 1})
    assert sorted(ApiToken.objects.values_list("scopes", flat=True)) == [[], [], [], ["define"]]
    assert ApiToken(user=operator).scopes == []


@pytest.mark.parametrize("password", ["operator12", "my-operator-1", "Operator2026"])
def test_a_password_like_the_name_of_its_user_is_refused(
    db: None, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValidationError, match="too similar to the username"):
        validate_password(password, User(username="operator"))
    monkeypatch.setenv("WEIR_ADMIN_PASSWORD", password)
    with pytest.raises(CommandError, match=r"WEIR_ADMIN_PASSWORD.*too similar"):
        call_command("ensure_operator")
    assert not User.objects.exists()


def test_a_program_without_a_scope_only_reads(operator: User) -> None:
    api = api_as(operator, scopes=())
    assert api.get("/api/v1/jobs/").status_code == 200
    assert api.post("/api/v1/jobs/", {"name": "a", "pipeline": "sums"}).status_code == 403
