"""Single sign-on against the server of an OpenID provider, over HTTP."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import BoundedSemaphore
from typing import Any

import pytest
import requests
from django.contrib.auth.models import Group, Permission
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from oidc_provider_mock import run_server_in_thread
from playwright.sync_api import Browser, expect
from pytest_django.fixtures import Settings
from pytest_django.live_server_helper import LiveServer
from rest_framework.test import APIClient

from console.accounts import sign_on, tokens
from console.accounts.models import ApiToken, User
from console.ui.views.session import SESSION_TIME
from tests.kafka import free_port

#: The server uses names of Authlib that its next version does not have.
pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ADA = {"preferred_username": "ada", "email": "ada@example.org", "groups": ["operators", "cooks"]}


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with run_server_in_thread(require_nonce=True) as server:
        yield f"http://localhost:{server.server_port}"


@pytest.fixture(autouse=True)
def _provider(issuer: str, settings: Settings) -> Iterator[None]:
    settings.WEIR_OIDC_ISSUER, settings.WEIR_OIDC_CLIENT_ID, settings.WEIR_OIDC_CLIENT_SECRET = issuer, "weir", "s3cr3t"
    sign_on._provider.cache_clear()
    yield
    sign_on._provider.cache_clear()


@pytest.fixture
def operators() -> Group:
    group = Group.objects.create(name="operators")
    group.permissions.add(Permission.objects.get(codename="add_operation"))
    return group


@pytest.fixture
def signs_on(issuer: str) -> Callable[..., Any]:
    def act(client: Client, sub: str, claims: dict[str, Any], address: str = "") -> Any:
        """The answer to the browser that the provider has sent back."""
        requests.put(f"{issuer}/users/{sub}", json=claims, timeout=10).raise_for_status()
        return client.get(way_back(client, sub, address))

    return act


def way_back(client: Client, sub: str, address: str = "", action: str = "") -> str:
    """The address to which the provider sends the browser of a person who agrees, or does what `action` says."""
    begin = client.get(reverse("ui:sign-on"), {"next": address})
    assert begin.status_code == 302, begin.content.decode()
    form = {"sub": sub} | ({"action": action} if action else {})
    answer = requests.post(begin.headers["Location"], data=form, allow_redirects=False, timeout=10)
    return answer.headers["Location"]


def refusal(answer: Any) -> str:
    assert answer.status_code == 403
    page: str = answer.content.decode()
    return page.partition('class="errors"')[2].partition("</ul>")[0]


def test_the_first_sign_on_makes_the_user_with_the_groups_of_the_claims(
    client: Client, operators: Group, signs_on: Callable[..., Any], issuer: str
) -> None:
    page = client.get("/jobs/", follow=True).content.decode()
    assert "localhost" in page, "the sign-in page offers the provider"
    answer = signs_on(client, "1", ADA, "/jobs/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/jobs/")
    user = User.objects.get(username="ada")
    assert (user.identity, user.email) == (f"{issuer} 1", "ada@example.org")
    assert (list(user.groups.all()), user.has_usable_password(), user.is_staff) == ([operators], False, False)
    assert user.has_perm("operations.add_operation")
    assert client.get("/jobs/").status_code == 200
    end = client.session.get_expiry_date()
    assert client.session["_session_expiry"] == end.isoformat(), "the end does not move with later requests"
    assert end <= timezone.now() + SESSION_TIME


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_browser_signs_on_where_it_wanted_to_go(browser: Browser, live_server: LiveServer, issuer: str) -> None:
    Group.objects.create(name="operators")
    requests.put(f"{issuer}/users/5", json=ADA, timeout=10).raise_for_status()
    with browser.new_context(base_url=live_server.url, viewport={"width": 390, "height": 844}) as context:
        page = context.new_page()
        page.goto("/operations/")
        page.get_by_role("link", name="Sign in with localhost").click()
        page.get_by_placeholder("sub").fill("5")
        page.get_by_role("button", name="Authorize").click()
        expect(page.get_by_role("heading", name="Operations", exact=True)).to_be_visible()


def test_a_user_keeps_the_account_under_another_name_and_gets_other_groups(
    operators: Group, signs_on: Callable[..., Any]
) -> None:
    signs_on(Client(), "1", ADA)
    definers = Group.objects.create(name="definers")
    signs_on(Client(), "1", {**ADA, "preferred_username": "augusta", "groups": "definers"})
    user = User.objects.get()
    assert (user.username, list(user.groups.all())) == ("ada", [definers])


def test_a_user_without_a_group_is_refused_and_has_neither_token_nor_session(
    operators: Group, signs_on: Callable[..., Any]
) -> None:
    client = Client()
    signs_on(client, "1", ADA)
    user = User.objects.get()
    user.user_permissions.add(Permission.objects.get(codename="add_job"))
    tokens.issue(user)
    assert client.get("/jobs/").status_code == 200
    answer = signs_on(Client(), "1", {**ADA, "groups": ["cooks"]})
    assert "one of your groups (cooks)" in refusal(answer)
    assert not user.groups.exists()
    assert not user.user_permissions.exists()
    assert not ApiToken.objects.exists()
    assert client.get("/jobs/").status_code == 302


@pytest.mark.parametrize("groups", [[], ["cooks"], None, 7, [None], ["operators\0"]])
def test_a_stranger_without_a_group_of_the_console_gets_no_account(
    groups: Any, operators: Group, signs_on: Callable[..., Any]
) -> None:
    assert "No group of the console" in refusal(signs_on(Client(), "2", {"groups": groups}))
    assert not User.objects.exists()


def test_no_name_and_no_address_takes_over_an_account(
    operators: Group, signs_on: Callable[..., Any], issuer: str
) -> None:
    local = User.objects.create_user("ada", "ada@example.org", "a long sentence")
    tokens.issue(local)
    client = Client()
    assert f"identity &#x27;{issuer} 3&#x27;" in refusal(signs_on(client, "3", ADA))
    assert client.get("/jobs/").status_code == 302, "no session has begun"
    local.identity = f"{issuer} 3"
    local.save()
    assert signs_on(client, "3", ADA).status_code == 302
    assert User.objects.get() == local
    assert not ApiToken.objects.exists(), "the token of the account before it was bound"
    assert not Client().login(username="ada", password="a long sentence")


def test_a_superuser_needs_no_group_and_keeps_the_password(signs_on: Callable[..., Any], issuer: str) -> None:
    """An outage of the provider locks out no administrator."""
    User.objects.create_superuser("root", "", "a long sentence", identity=f"{issuer} 4")
    assert signs_on(Client(), "4", {"groups": []}).status_code == 302
    assert Client().login(username="root", password="a long sentence")


def test_without_the_claim_of_groups_nobody_loses_a_right(
    operators: Group, settings: Settings, signs_on: Callable[..., Any]
) -> None:
    signs_on(Client(), "1", ADA)
    tokens.issue(User.objects.get())
    settings.WEIR_OIDC_GROUPS_CLAIM = "teams"
    assert "the claim teams is missing" in refusal(signs_on(Client(), "1", ADA))
    assert list(User.objects.get().groups.all()) == [operators]
    assert ApiToken.objects.exists()


def test_tokens_end_with_the_last_sign_on(operators: Group, signs_on: Callable[..., Any]) -> None:
    signs_on(Client(), "1", ADA)
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {tokens.issue(User.objects.get()).text}")
    assert api.get("/api/v1/jobs/").status_code == 200
    User.objects.update(last_login=timezone.now() - timedelta(days=User.SIGN_ON_DAYS, minutes=1))
    answer = api.get("/api/v1/jobs/")
    assert answer.status_code == 401
    assert "single sign-on of this user is older" in answer.json()["detail"]


def test_an_account_that_is_not_active_is_refused(operators: Group, signs_on: Callable[..., Any]) -> None:
    signs_on(Client(), "1", ADA)
    User.objects.update(is_active=False)
    assert "not active" in refusal(signs_on(Client(), "1", ADA))


def test_an_answer_counts_once_and_only_in_the_browser_that_asked(
    operators: Group, signs_on: Callable[..., Any], issuer: str
) -> None:
    requests.put(f"{issuer}/users/1", json=ADA, timeout=10).raise_for_status()
    client = Client()
    address = way_back(client, "1")
    assert "mismatching_state" in refusal(Client().get(address)), "another browser"
    assert client.get(address).status_code == 302
    assert "mismatching_state" in refusal(client.get(address)), "a second time"


def test_a_person_who_declines_is_not_signed_in(client: Client) -> None:
    assert "access_denied" in refusal(client.get(way_back(client, "1", action="deny")))


@pytest.mark.parametrize(("address", "location"), [("https://evil.example/", "/"), ("abc", "abc")])
def test_the_address_after_the_sign_on_is_of_the_console(
    client: Client, operators: Group, signs_on: Callable[..., Any], address: str, location: str
) -> None:
    assert signs_on(client, "1", ADA, address).headers["Location"] == location


def test_while_the_provider_is_away_the_password_of_the_page_works(
    client: Client, operator: User, settings: Settings
) -> None:
    settings.WEIR_OIDC_ISSUER = f"http://localhost:{free_port()}"
    answer = client.get(reverse("ui:sign-on"))
    assert answer.status_code == 502
    page = answer.content.decode()
    assert "gave no answer" in page
    action = page.partition('action="/login/"')
    assert action[1], "the form of the page leads to the sign-in"


def test_a_slow_provider_occupies_a_part_of_the_threads(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_on, "_calls", BoundedSemaphore(1))
    with sign_on._provider_call():
        answer = client.get(reverse("ui:sign-on"))
    assert answer.status_code == 502
    assert "slowly" in answer.content.decode()
    assert client.get(reverse("ui:sign-on")).status_code == 302


def test_an_issuer_of_another_name_is_refused(
    client: Client, operators: Group, settings: Settings, signs_on: Callable[..., Any]
) -> None:
    settings.WEIR_OIDC_ISSUER += "/"
    assert "not valid" in refusal(signs_on(client, "1", ADA))
    assert not User.objects.exists()


def test_without_a_provider_there_is_nothing_to_sign_on_to(client: Client, settings: Settings) -> None:
    settings.WEIR_OIDC_ISSUER = ""
    assert client.get(reverse("ui:sign-on")).status_code == client.get(reverse("ui:provider-return")).status_code == 404
    assert "login/provider" not in client.get("/login/").content.decode()


def test_attempts_have_a_limit_apart_from_that_of_passwords(client: Client, operator: User) -> None:
    answers = [client.get(reverse("ui:sign-on")) for _ in range(31)]
    assert [answer.status_code for answer in answers] == [302] * 30 + [429]
    assert answers[-1].headers["Retry-After"]
    credentials = {"username": "operator", "password": "a-river-runs"}
    assert client.post("/login/", credentials).status_code == 302


def test_names_that_no_account_can_have_are_replaced(
    operators: Group, signs_on: Callable[..., Any], issuer: str
) -> None:
    claims = {"preferred_username": "ada lovelace", "email": "a\0b", "given_name": "Ada\0", "groups": ["operators"]}
    assert signs_on(Client(), "a|b", claims).status_code == 302
    user = User.objects.get()
    assert user.username.startswith("user-")
    assert (user.email, user.first_name) == ("", "")


def test_only_superusers_write_identities(client: Client, viewer: User, operators: Group) -> None:
    """Another one could sign in as a superuser."""
    viewer.is_staff = True
    viewer.save()
    viewer.user_permissions.set(Permission.objects.filter(codename__in=["view_user", "change_user"]))
    client.force_login(viewer)
    page = client.get(reverse("admin:accounts_user_change", args=(viewer.pk,))).content.decode()
    assert "Single sign-on" in page
    assert 'name="identity"' not in page
