"""Scopes of tokens: each route of the API with a token of each scope. A route without a rule fails."""

from collections.abc import Mapping
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, reverse
from django.utils import timezone
from rest_framework.test import APIClient

from console.accounts import tokens
from console.accounts.models import ApiToken, SavedView, Scope, User
from console.api.urls import urlpatterns
from console.checkpoints.models import StateQuery
from console.health.findings import Finding, Level
from console.health.verdicts import encode
from console.incidents.models import Incident
from console.jobs.models import Job, JobVersion
from console.operations.models import BulkOperation, Operation
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import MakeCheckpoint, MakeRun

pytestmark = pytest.mark.django_db

READ = frozenset(Scope)  #: any token, also without a scope
UNSAFE = ("post", "put", "patch", "delete")
#: (route, method) -> the scopes of which a token needs one. Reads need none.
RULES: Mapping[tuple[str, str], frozenset[str]] = {
    ("jobs", "post"): frozenset({"define"}),
    ("job", "patch"): frozenset({"define"}),
    ("versions", "post"): frozenset({"define"}),
    ("version-differences", "post"): frozenset({"define"}),
    ("equal-version", "post"): frozenset({"define"}),
    ("version", "delete"): frozenset({"define"}),
    ("package", "delete"): frozenset({"define"}),
    ("packages", "post"): frozenset({"define"}),
    ("bulk", "post"): frozenset({"operate"}),
    ("operations", "post"): frozenset({"operate"}),
    ("operation-withdrawal", "post"): frozenset({"operate"}),
    ("incident-take", "post"): frozenset({"operate"}),
    ("incident-take", "delete"): frozenset({"operate"}),
    ("incident-notes", "post"): frozenset({"operate"}),
    ("incident-silence", "post"): frozenset({"operate"}),
    ("state-queries", "post"): READ,  # it changes nothing of a job
    ("state-query", "delete"): frozenset({"operate"}),  # of another user
    ("evidence-check", "post"): READ,
    ("current-token", "delete"): READ,  # a program may end its own token
    ("saved-views", "post"): frozenset({"define"}),
    ("saved-view", "delete"): frozenset({"define"}),
    ("token", "delete"): frozenset(),  # it needs all scopes
    ("maintenance", "post"): frozenset({"maintain"}),
    ("maintenance", "delete"): frozenset({"maintain"}),
}
WITHOUT_TOKEN = {"login", "no-such-route"}  #: routes that authenticate by a password, or do nothing
DOCUMENTS = {"schema", "docs"}
TOKENS = [(), *((scope.value,) for scope in Scope)]


def routes() -> list[URLPattern]:
    patterns = [pattern for pattern in urlpatterns if isinstance(pattern, URLPattern)]
    return [pattern for pattern in patterns if pattern.name not in WITHOUT_TOKEN]


def methods_of(pattern: URLPattern) -> set[str]:
    return {method for method in UNSAFE if hasattr(pattern.callback.view_class, method)}  # type: ignore[attr-defined]


CASES = [(str(pattern.name), method) for pattern in routes() for method in sorted(methods_of(pattern))]


@pytest.fixture
def keys(
    make_run: MakeRun, make_checkpoint: MakeCheckpoint, version: JobVersion, viewer: User, operator: User
) -> dict[str, Any]:
    """The key of a row by the part of a route before it."""
    run = make_run(RunState.RUNNING)
    checkpoint = make_checkpoint(run, 1)
    operation = Operation.objects.create(job=run.job, kind="savepoint", state="queued", run=run)
    query = StateQuery.objects.create(checkpoint=checkpoint, request={"kind": "sql", "name": "x"}, requested_by=viewer)
    bulk = BulkOperation.objects.create(kind="tag", requested_by=viewer, results=[])
    cause = encode(Finding(rule="backpressure", sentence="Backpressure."))
    incident = Incident.objects.create(
        job=run.job, run_id=run.pk, level=Level.ATTENTION, cause=cause, opened_at=timezone.now()
    )
    tokens.issue(operator)
    return {
        "jobs": run.job_id, "jobs/bulk": bulk.pk, "versions": version.pk, "runs": run.pk,
        "auth/tokens": ApiToken.objects.get().pk, "checkpoints": checkpoint.pk, "operations": operation.pk,
        "incidents": incident.pk, "state-queries": query.pk,
        "saved-views": SavedView.objects.create(user=operator, name="mine").pk,
    }  # fmt: skip


def address(name: str, keys: Mapping[str, Any]) -> str:
    (pattern,) = (each for each in routes() if each.name == name)
    names = pattern.pattern.converters
    resource = str(pattern.pattern).partition("<")[0].strip("/")
    return reverse(f"api:{name}", kwargs=dict.fromkeys(names, keys.get(resource)))


def bodies(job: int) -> dict[tuple[str, str], Any]:
    return {
        ("jobs", "post"): {"name": "another", "pipeline": "sums"},
        ("job", "patch"): {"description": "changed"},
        ("versions", "post"): {"parallelism": 1, "params": {"path": "in"}},
        ("version-differences", "post"): {"parallelism": 1, "params": {"path": "in"}},
        ("bulk", "post"): {"kind": "savepoint", "jobs": [job]},
        ("operations", "post"): {"kind": "savepoint"},
        ("incident-notes", "post"): {"text": "The disk is full."},
        ("incident-silence", "post"): {"hours": 4},
        ("state-queries", "post"): {"query": "x"},
        ("saved-views", "post"): {"name": "night", "query": "tag=night"},
        ("maintenance", "post"): {"reason": "disks"},
    }


def signed_in(user: User, scopes: tuple[str, ...]) -> APIClient:
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {tokens.issue(user, scopes=scopes).text}")
    return api


def is_refused(answer: Any) -> bool:
    """By the token."""
    refused = "This token may not" in answer.content.decode()
    assert refused == (answer.status_code == 403), answer.content
    return refused


def test_every_route_has_a_rule() -> None:
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("scopes", TOKENS)
def test_a_write_needs_its_scope(operator: User, keys: dict[str, Any], scopes: tuple[str, ...]) -> None:
    for name, method in CASES:
        path, body = address(name, keys), bodies(keys["jobs"]).get((name, method))
        headers = {"If-Match": "*"} if method == "patch" else {}
        with transaction.atomic():
            answer = getattr(signed_in(operator, scopes), method)(path, body, format="json", headers=headers)
            transaction.set_rollback(True)
        allowed = RULES[name, method] is READ or not RULES[name, method].isdisjoint(scopes)
        assert is_refused(answer) is not allowed, (name, method)


def test_a_token_without_scopes_reads(operator: User, keys: dict[str, Any]) -> None:
    client = signed_in(operator, ())
    for pattern in routes():
        if pattern.name not in DOCUMENTS and hasattr(pattern.callback.view_class, "get"):  # type: ignore[attr-defined]
            status = client.get(address(str(pattern.name), keys)).status_code
            assert status in (200, 400, 404, 409, 422), (pattern.name, status)


def test_tags_in_bulk_need_the_scope_of_definitions(operator: User, keys: dict[str, Any]) -> None:
    body = {"kind": "tag", "jobs": [keys["jobs"]], "tags": ["night"]}
    assert is_refused(signed_in(operator, ("operate",)).post("/api/v1/jobs/bulk/", body, format="json"))
    assert Job.objects.get(pk=keys["jobs"]).tags == []
    assert not is_refused(signed_in(operator, ("define",)).post("/api/v1/jobs/bulk/", body, format="json"))


def test_a_scope_gives_no_permission(viewer: User, keys: dict[str, Any]) -> None:
    path = f"/api/v1/jobs/{keys['jobs']}/operations/"
    answer = signed_in(viewer, tuple(Scope)).post(path, {"kind": "savepoint"}, format="json")
    assert answer.status_code == 403
    assert "the permission operations.add_operation is required" in answer.json()["detail"]


def test_acts_of_a_run_are_those_of_the_token(operator: User, keys: dict[str, Any]) -> None:
    acts = signed_in(operator, ()).get(f"/api/v1/runs/{keys['runs']}/").json()["acts"]
    assert {act["enabled"] for act in acts} == {False}
    assert acts[0]["reason"].startswith("This token may not operate jobs: it needs the scope operate.")


def test_scopes_are_given_at_the_issue_and_limited_in_the_admin(operator: User, browser: Client) -> None:
    login = {"username": "operator", "password": "a long enough one"}
    body = {**login, "scopes": ["define", "operate", "review", "maintain"]}
    token = APIClient().post("/api/v1/auth/token/", body, format="json").json()
    assert token["scopes"] == body["scopes"]
    limited = APIClient().post("/api/v1/auth/token/", {**login, "scopes": ["review"]}, format="json").json()
    assert limited["scopes"] == ["review"]
    wrong = APIClient().post("/api/v1/auth/token/", {**login, "scopes": ["all"]}, format="json")
    assert wrong.status_code == 400
    row = ApiToken.objects.get(hint=token["token"][:9])
    path = f"/admin/accounts/apitoken/{row.pk}/change/"
    assert browser.get(path).content.decode().count('type="checkbox" name="scopes"') == 4
    assert browser.post(path, {"scopes": ["define"], "expires_at_0": "", "expires_at_1": ""}).status_code == 302
    row.refresh_from_db()
    assert row.scopes == ["define"]


def test_a_repeated_request_needs_the_scope_too(operator: User, keys: dict[str, Any]) -> None:
    path, body = f"/api/v1/jobs/{keys['jobs']}/operations/", {"kind": "savepoint"}
    headers = {"Idempotency-Key": "once"}
    assert signed_in(operator, ("operate",)).post(path, body, format="json", headers=headers).status_code == 202
    assert is_refused(signed_in(operator, ("review",)).post(path, body, format="json", headers=headers))
