"""REST: does it work, who may, what a wrong request is told."""

import json
import re
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.utils import timezone
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from pytest_django.fixtures import Settings
from rest_framework.renderers import JSONRenderer
from rest_framework.test import APIClient

from console.accounts.models import ApiToken, User
from console.accounts.throttling import UserThrottle
from console.api import activity
from console.api.parsing import MsgspecJson
from console.checkpoints.models import StateQuery
from console.health.models import HousekeepingPass
from console.health.passes import RECONCILER
from console.health.readiness import READINESS
from console.housekeeping.advance import advance_rows
from console.jobs.models import Job, JobVersion, Package, Pipeline, Run
from console.operations.models import BulkOperation, Operation, Schedule
from runtime.core.job.lifecycle import RunState
from runtime.core.job.settings import JobSettings
from tests.console.conftest import GRAPH, MakeCheckpoint, MakeRun, api_as
from tests.console.incidents.verdicts import open_incident
from tests.console.stored import job_root


def check_problem(response: Any, status: int, code: str, pointer: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert set(body) >= {"type", "title", "status", "detail", "code", "errors", "request_id"}
    assert (body["status"], body["code"], body["request_id"]) == (status, code, response["X-Request-ID"])
    if pointer is not None:
        assert [error["pointer"] for error in body["errors"]] == [pointer]
    return body


# ---------------------------------------------------------------- who


def test_a_token_is_given_for_name_and_password(operator: User) -> None:
    api = APIClient()
    answer = api.post("/api/v1/auth/token/", {"username": "operator", "password": "a long enough one"})
    assert answer.status_code == 200
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {answer.json()['token']}")
    assert api.get("/api/v1/jobs/").status_code == 200


def test_guessing_passwords_is_slowed_down(operator: User) -> None:
    api = APIClient()
    for _ in range(30):
        wrong = api.post("/api/v1/auth/token/", {"username": "operator", "password": "guess"})
    check_problem(wrong, 401, "wrong-credentials")
    assert not ApiToken.objects.exists()
    slowed = api.post("/api/v1/auth/token/", {"username": "operator", "password": "a long enough one"})
    check_problem(slowed, 429, "throttled")
    assert int(slowed["Retry-After"]) > 0


def test_who_guesses_cannot_change_the_name_or_the_door(operator: User, client: Client) -> None:
    """Without a proxy in front, a header says nothing of where a request comes from; pages and API count together."""
    for number in range(30):
        forged = {"X-Forwarded-For": f"10.0.0.{number}"}
        APIClient().post("/api/v1/auth/token/", {"username": "operator", "password": "guess"}, headers=forged)
    credentials = {"username": "operator", "password": "a long enough one"}
    slowed = client.post("/login/", credentials, headers={"X-Forwarded-For": "10.0.1.1"})
    assert slowed.status_code == 429
    assert int(slowed["Retry-After"]) > 0
    assert "Too many sign-in attempts" in slowed.content.decode()
    assert client.get("/jobs/").status_code == 302, "not signed in"
    check_problem(APIClient().post("/api/v1/auth/token/", credentials), 429, "throttled")


def test_a_user_has_a_number_of_requests_a_minute(
    operator: User, viewer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UserThrottle, "rate", "3/min", raising=False)
    apis = [api_as(operator), api_as(viewer)]
    answers = [apis[0].get("/api/v1/jobs/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert {answer["RateLimit-Limit"] for answer in answers} == {"3"}
    check_problem(answers[-1], 429, "throttled")
    assert int(answers[-1]["Retry-After"]) > 0
    assert 0 < int(answers[-1]["RateLimit-Reset"]) <= 60
    assert apis[1].get("/api/v1/jobs/")["RateLimit-Remaining"] == "2", "another user"
    assert "RateLimit-Remaining" not in APIClient().get("/api/v1/jobs/"), "a stranger"


@pytest.mark.parametrize(("proxies", "status"), [(0, 429), (1, 200)])
def test_behind_a_proxy_clients_are_counted_apart(
    operator: User, settings: Settings, proxies: int, status: int
) -> None:
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "NUM_PROXIES": proxies}
    api = APIClient()
    for _ in range(30):
        guess = {"username": "operator", "password": "guess"}
        api.post("/api/v1/auth/token/", guess, headers={"X-Forwarded-For": "10.0.0.1"})
    credentials = {"username": "operator", "password": "a long enough one"}
    answer = api.post("/api/v1/auth/token/", credentials, headers={"X-Forwarded-For": "10.0.0.2"})
    assert answer.status_code == status


WITHOUT_GET = {
    "bulk", "equal-version", "evidence-check", "incident-notes", "incident-silence", "incident-take", "login",
    "operation-withdrawal", "saved-view", "token",
}  # fmt: skip


@pytest.fixture
def routes(make_run: MakeRun, make_checkpoint: MakeCheckpoint, settings: Settings, tmp_path: Path) -> dict[str, str]:
    """A path for every route of the API, by its name."""
    settings.WEIR_LOGS = tmp_path
    run = make_run(RunState.RUNNING)
    (tmp_path / f"run-{run.pk}.log").touch()
    checkpoint, _ = make_checkpoint(run, 1, "savepoint"), make_checkpoint(run, 2, "savepoint")
    operation = Operation.objects.create(job=run.job, run=run, kind="savepoint")
    request = {"kind": "sql", "name": "all", "sql": "SELECT 1"}
    table = {"columns": [{"name": "1", "type": "int"}], "rows": [[1]]}
    query = StateQuery.objects.create(checkpoint=checkpoint, request=request, state="succeeded", result=table)
    JobVersion.objects.create(job=run.job, number=2, parallelism=3, params={"path": "in"}, state="ready", graph=GRAPH)
    owner = User.objects.create_user("owner")
    result = {"job": run.job_id, "operation": str(operation.pk), "refusal": "", "changes": False, "effect": ""}
    bulk = BulkOperation.objects.create(kind="savepoint", requested_by=owner, results=[result])
    job = f"/api/v1/jobs/{run.job_id}/"
    Schedule.objects.create(
        job=run.job, operation="savepoint", every_hours=6, name="scheduled", keep=7,
        owner=owner, next_at=timezone.now(),
    )  # fmt: skip
    incident = open_incident(run)
    return {
        "tokens": "/api/v1/auth/tokens/",
        "current-token": "/api/v1/auth/tokens/current/",
        "pipelines": "/api/v1/pipelines/",
        "packages": "/api/v1/packages/",
        "package": f"/api/v1/packages/{Package.objects.create(digest='0' * 64, size=1).pk}/",
        "connections": "/api/v1/connections/",
        "jobs": "/api/v1/jobs/",
        "job": job,
        "versions": f"{job}versions/",
        "version-differences": f"{job}versions/difference/?base=1&other=2",
        "dead-letters": f"{job}dead-letters/?operator=sums",
        "failures": f"{job}failures/?operator=sums",
        "operation-preview": f"{job}preview/?act=stop",
        "runs": f"{job}runs/",
        "checkpoints": f"{job}checkpoints/",
        "statistics": f"{job}checkpoints/statistics/",
        "compare": f"{job}checkpoints/compare/?base=1&other=2",
        "retention": f"{job}checkpoints/retention/?keep=3",
        "trend": f"{job}checkpoints/trend/?days=7",
        "orphans": f"{job}checkpoints/orphans/",
        "rescale-effects": f"{job}rescale/?parallelism=3",
        "schedule": f"{job}checkpoints/schedule/",
        "operations": f"{job}operations/",
        "version": f"/api/v1/versions/{run.version_id}/",
        "run": f"/api/v1/runs/{run.pk}/",
        "run-start": f"/api/v1/runs/{run.pk}/start/",
        "run-logs": f"/api/v1/runs/{run.pk}/logs/",
        "run-log": f"/api/v1/runs/{run.pk}/log/",
        "run-checkpoints": f"/api/v1/runs/{run.pk}/checkpoints/",
        "run-metrics": f"/api/v1/runs/{run.pk}/metrics/",
        "run-subtask-metrics": f"/api/v1/runs/{run.pk}/metrics/subtasks/?operator=sums",
        "checkpoint": f"/api/v1/checkpoints/{checkpoint.pk}/",
        "checkpoint-mapping": f"/api/v1/checkpoints/{checkpoint.pk}/mapping/",
        "evidence": f"/api/v1/checkpoints/{checkpoint.pk}/evidence/",
        "review-history": f"/api/v1/checkpoints/{checkpoint.pk}/review/",
        "reviews": "/api/v1/reviews/",
        "checkpoint-state": f"/api/v1/checkpoints/{checkpoint.pk}/state/",
        "state-queries": f"/api/v1/checkpoints/{checkpoint.pk}/state-queries/",
        "state-query": f"/api/v1/state-queries/{query.pk}/",
        "state-query-csv": f"/api/v1/state-queries/{query.pk}/csv/",
        "savepoint-mapping": f"{job}mapping/?path={job_root(run.job_id) / checkpoint.path}",
        "operation": f"/api/v1/operations/{operation.pk}/",
        "all-operations": "/api/v1/operations/",
        "cluster": "/api/v1/cluster/",
        "saved-views": "/api/v1/saved-views/",
        "incidents": "/api/v1/incidents/",
        "incident": f"/api/v1/incidents/{incident.pk}/",
        "maintenance": "/api/v1/maintenance/",
        "bulk-result": f"/api/v1/jobs/bulk/{bulk.pk}/",
    }


def test_the_table_of_routes_here_is_complete(routes: dict[str, str]) -> None:
    from console.api.urls import urlpatterns

    names = {"schema", "docs", "no-such-route"}
    assert {pattern.name for pattern in urlpatterns} == set(routes) | names | WITHOUT_GET


def test_a_difference_needs_the_permission_to_define(routes: dict[str, str], viewer: User, definer: User) -> None:
    """A comparison with a secret would reveal whether a guess of it is right."""
    path, body = f"{routes['versions']}difference/", {"parallelism": 1, "params": {"path": "in"}}
    check_problem(api_as(viewer).post(path, body, format="json"), 403, "not-permitted")
    assert api_as(definer).post(path, body, format="json").status_code == 200
    assert JobVersion.objects.count() == 2


def test_only_an_operator_withdraws_a_request(routes: dict[str, str], viewer: User, api: APIClient) -> None:
    path = f"{routes['operation']}withdraw/"
    check_problem(api_as(viewer).post(path), 403, "not-permitted")
    assert api.post(path).json()["error"]["code"] == "withdrawn"
    check_problem(api.post(path), 409, "cannot-withdraw")


def test_nobody_reads_without_a_login(routes: dict[str, str]) -> None:
    for path in routes.values():
        refused = APIClient().get(path)
        check_problem(refused, 401, "not-authenticated")
        assert refused["WWW-Authenticate"] == "Bearer"


def test_a_viewer_reads_everything(routes: dict[str, str], viewer: User) -> None:
    for path in routes.values():
        assert api_as(viewer).get(path).status_code == 200, path


def test_no_route_is_written_to_by_another_method(routes: dict[str, str], api: APIClient) -> None:
    for name, path in routes.items():
        legal = {
            "current-token": [api.delete],
            "state-query": [api.delete],
            "version": [api.delete],
            "package": [api.delete],
            "job": [api.patch],
            "maintenance": [api.delete],
        }.get(name, [])
        for method in (api.put, api.patch, api.delete):
            if method not in legal:
                check_problem(method(path, {}), 405, "method-not-allowed")


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("jobs", {"name": "b", "pipeline": "sums"}),
        ("versions", {"parallelism": 1, "params": {"path": "in"}}),
        ("operations", {"kind": "savepoint"}),
    ],
)
def test_a_viewer_changes_nothing(routes: dict[str, str], viewer: User, route: str, body: dict[str, Any]) -> None:
    check_problem(api_as(viewer).post(routes[route], body), 403, "not-permitted")


def test_a_session_needs_its_csrf_token(operator: User, job: Job) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(operator)
    refused = browser.post(f"/api/v1/jobs/{job.pk}/operations/", "{}", content_type="application/json")
    assert check_problem(refused, 403, "permission-denied")["detail"].startswith("CSRF")


def test_an_unknown_parameter_is_an_error(routes: dict[str, str], api: APIClient) -> None:
    for path in routes.values():
        check_problem(api.get(path, {"stat": "running"}), 400, "invalid-request", "/stat")


def test_what_does_not_exist_is_a_problem_too(api: APIClient, job: Job) -> None:
    for path in ("jobs/0/", "jobs/0/runs/", "runs/0/checkpoints/", f"operations/{uuid4()}/", "nothing/here/"):
        check_problem(api.get(f"/api/v1/{path}"), 404, "not-found")


# ---------------------------------------------------------------- definitions


def test_pipelines_are_listed_with_their_schemas(api: APIClient, pipeline: Pipeline) -> None:
    [listed] = api.get("/api/v1/pipelines/").json()["results"]
    assert listed["name"] == "sums"
    assert listed["schema"]["required"] == ["path"]


def test_a_job_is_created_found_and_shown(api: APIClient, pipeline: Pipeline) -> None:
    created = api.post("/api/v1/jobs/", {"name": "daily", "pipeline": "sums"})
    assert created.status_code == 201
    assert api.get(created["Location"]).json()["name"] == "daily"
    assert [job["name"] for job in api.get("/api/v1/jobs/", {"q": "DAI"}).json()["results"]] == ["daily"]
    assert api.get("/api/v1/jobs/", {"q": "weekly"}).json()["results"] == []


def test_a_job_shows_its_latest_run_and_newest_version(api: APIClient, make_run: MakeRun) -> None:
    make_run(RunState.FAILED)
    run = make_run(RunState.RUNNING)
    body = api.get(f"/api/v1/jobs/{run.job_id}/").json()
    assert (body["latest_run"], body["latest_state"], body["newest_version"]) == (run.pk, "running", run.version_id)


def test_a_version_is_accepted_to_be_compiled(api: APIClient, job: Job) -> None:
    accepted = api.post(f"/api/v1/jobs/{job.pk}/versions/", {"parallelism": 2, "params": {"path": "in"}})
    assert accepted.status_code == 202
    assert accepted.json()["state"] == "compiling"
    assert api.get(accepted["Location"]).json()["number"] == 1


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        ({"params": {"path": "in"}}, 400, "invalid-request", "/parallelism"),
        ({"parallelism": "two", "params": {}}, 400, "invalid-request", "/parallelism"),
        ({"parallelism": 1, "params": {"path": "in"}, "paralelism": 2}, 400, "invalid-request", "/paralelism"),
        ({"parallelism": 999, "params": {"path": "in"}}, 422, "invalid-field", "/parallelism"),
        ({"parallelism": 1, "params": {"path": 1}}, 422, "invalid-field", "/params/path"),
        ({"parallelism": 1, "params": {"path": "in"}, "settings": {"x": 1}}, 422, "invalid-field", "/settings/x"),
    ],
)
def test_a_bad_version_is_pointed_at(
    api: APIClient, job: Job, body: dict[str, Any], status: int, code: str, pointer: str
) -> None:
    check_problem(api.post(f"/api/v1/jobs/{job.pk}/versions/", body), status, code, pointer)


def test_a_body_that_is_not_json_is_a_problem(api: APIClient, job: Job) -> None:
    broken = api.post(f"/api/v1/jobs/{job.pk}/operations/", "{", content_type="application/json")
    check_problem(broken, 400, "parse-error")
    listed = api.post(f"/api/v1/jobs/{job.pk}/operations/", "[]", content_type="application/json")
    check_problem(listed, 400, "invalid-request")


# ---------------------------------------------------------------- activity


def test_a_run_shows_its_numbers_attempts_and_legal_acts(api: APIClient, make_run: MakeRun) -> None:
    run = make_run(RunState.RUNNING, live={"restarts": 1})
    run.attempts.create(token=41, outcome="failed", reason="slot 1 died")
    body = api.get(f"/api/v1/runs/{run.pk}/").json()
    assert body["live"] == {"restarts": 1}
    assert [attempt["reason"] for attempt in body["attempts"]] == ["slot 1 died"]
    enabled = {act["act"]: act["enabled"] for act in body["acts"]}
    assert enabled == {
        "start": False, "restore": False, "rescale": True, "rollback": True, "savepoint": True, "stop": True,
        "drain": True, "cancel": True,
    }  # fmt: skip
    assert all(act["enabled"] != bool(act["reason"]) for act in body["acts"])


def test_checkpoints_are_paged_newest_first_and_filtered(
    api: APIClient, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    run = make_run(RunState.RUNNING)
    for number in range(1, 6):
        make_checkpoint(run, number, "savepoint" if number == 3 else "checkpoint")
    path = f"/api/v1/jobs/{run.job_id}/checkpoints/"
    page = api.get(path, {"limit": 2}).json()
    numbers = [row["number"] for row in page["results"]]
    while page["next"]:
        page = api.get(page["next"]).json()
        numbers += [row["number"] for row in page["results"]]
    assert numbers == [5, 4, 3, 2, 1]
    assert [row["number"] for row in api.get(path, {"kind": "savepoint"}).json()["results"]] == [3]
    check_problem(api.get(path, {"kind": "snapshot"}), 400, "invalid-request", "/kind")
    assert len(api.get(f"/api/v1/runs/{run.pk}/checkpoints/").json()["results"]) == 5


def test_an_act_is_accepted_with_the_place_to_look(api: APIClient, job: Job, version: JobVersion) -> None:
    accepted = api.post(
        f"/api/v1/jobs/{job.pk}/operations/", {"kind": "start", "reason": "first"}, headers={"X-Request-ID": "from-me"}
    )
    assert accepted.status_code == 202
    assert accepted["Retry-After"] == "1"
    assert accepted["Location"] == f"/api/v1/operations/{accepted.json()['id']}/"
    assert (accepted.json()["request_id"], accepted.json()["reason"]) == ("from-me", "first")
    assert api.get(accepted["Location"]).json()["state"] == "queued", "reading changes nothing"
    advance_rows()
    assert api.get(accepted["Location"]).json()["phase"] == "waiting for a worker"


def test_a_repeated_request_is_answered_as_before(api: APIClient, job: Job, version: JobVersion) -> None:
    path, key = f"/api/v1/jobs/{job.pk}/operations/", {"Idempotency-Key": "once"}
    first = api.post(path, {"kind": "start"}, headers=key)
    second = api.post(path, {"kind": "start"}, headers=key)
    assert (second.status_code, second["Idempotent-Replay"], second.json()["id"]) == (202, "true", first.json()["id"])
    assert "Idempotent-Replay" not in first
    check_problem(api.post(path, {"kind": "cancel"}, headers=key), 422, "idempotency-key-reused")


def test_a_conflict_names_what_is_in_the_way(api: APIClient, job: Job, version: JobVersion) -> None:
    path = f"/api/v1/jobs/{job.pk}/operations/"
    first = api.post(path, {"kind": "start"}).json()
    body = check_problem(api.post(path, {"kind": "start"}), 409, "run-active")
    assert (body["run"], body["operation"]) == (first["run"], first["id"])


def test_repeated_output_is_asked_about_by_pointer(
    api: APIClient, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    run = make_run(RunState.FAILED)
    checkpoint = make_checkpoint(run, 1)
    make_checkpoint(run, 2)
    path = f"/api/v1/jobs/{run.job_id}/operations/"
    answer = api.post(path, {"kind": "restore", "params": {"checkpoint": checkpoint.pk}})
    check_problem(answer, 409, "repeats-output", "/params/accept_repeated_output")


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"uid": "gone", "finished": "running", "state_bytes": 1}, "unmapped-state"),
        ({"uid": "files", "finished": "finished", "state_bytes": 0}, "operator-before-finished"),
    ],
)
def test_a_restore_that_the_master_would_refuse_is_refused_at_once(
    api: APIClient, make_run: MakeRun, make_checkpoint: MakeCheckpoint, entry: dict[str, Any], code: str
) -> None:
    run = make_run(RunState.STOPPED)
    checkpoint = make_checkpoint(run, 1, "stop", operators=[entry])
    answer = api.post(
        f"/api/v1/jobs/{run.job_id}/operations/", {"kind": "restore", "params": {"checkpoint": checkpoint.pk}}
    )
    body = check_problem(answer, 422, code, "/params/version")
    assert body["operator"] in ("gone", "sums")
    assert not Operation.objects.exists()


@pytest.mark.parametrize("state", ["running", "finished"])
def test_a_start_has_succeeded_once_its_run_runs(api: APIClient, job: Job, version: JobVersion, state: str) -> None:
    accepted = api.post(f"/api/v1/jobs/{job.pk}/operations/", {"kind": "start"})
    Run.objects.update(state=state)
    advance_rows()
    body = api.get(accepted["Location"]).json()
    assert (body["state"], body["result"]) == ("succeeded", {"run": accepted.json()["run"]})
    assert body["ended_at"] is not None


def test_a_start_whose_run_failed_first_has_failed(api: APIClient, job: Job, version: JobVersion) -> None:
    accepted = api.post(f"/api/v1/jobs/{job.pk}/operations/", {"kind": "start"})
    Run.objects.update(state="failed", failure={"code": "no-slots", "message": "needs 6 slots", "detail": ""})
    advance_rows()
    body = api.get(accepted["Location"]).json()
    assert (body["state"], body["error"]["code"]) == ("failed", "run-failed")
    assert "needs 6 slots" in body["error"]["message"]


@pytest.mark.django_db(transaction=True)
def test_waiting_ends_with_the_operation(api: APIClient, make_run: MakeRun) -> None:
    operation = Operation.objects.create(job=make_run(RunState.RUNNING).job, kind="savepoint")

    def end_it() -> None:
        try:
            Operation.objects.update(state="succeeded", result={"checkpoint": 3})
        finally:
            connection.close()

    began = time.monotonic()
    threading.Timer(0.5, end_it).start()
    body = api.get(f"/api/v1/operations/{operation.pk}/", {"wait": "60"}).json()
    assert body["state"] == "succeeded"
    assert time.monotonic() - began < 60


@pytest.mark.django_db(transaction=True)
def test_waiting_ends_with_the_compilation(api: APIClient, job: Job) -> None:
    version = JobVersion.objects.create(job=job, number=1, parallelism=1)

    def end_it() -> None:
        try:
            JobVersion.objects.update(state="rejected")
        finally:
            connection.close()

    began = time.monotonic()
    threading.Timer(0.5, end_it).start()
    assert api.get(f"/api/v1/versions/{version.pk}/", {"wait": "60"}).json()["state"] == "rejected"
    assert 0.4 < time.monotonic() - began < 60


def test_waiting_for_nothing_ends_in_time_and_says_when_to_ask_again(api: APIClient, make_run: MakeRun) -> None:
    operation = Operation.objects.create(job=make_run(RunState.RUNNING).job, kind="savepoint")
    answer = api.get(f"/api/v1/operations/{operation.pk}/", {"wait": "1"})
    assert (answer.json()["state"], answer["Retry-After"]) == ("queued", "1")
    check_problem(api.get(f"/api/v1/operations/{operation.pk}/", {"wait": "long"}), 422, "invalid-field", "/wait")


def test_a_request_that_finds_no_place_to_wait_is_answered_at_once(
    api: APIClient, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting requests leave three quarters of the places to pages."""
    operation = Operation.objects.create(job=make_run(RunState.RUNNING).job, kind="savepoint")
    places = threading.BoundedSemaphore(1)
    monkeypatch.setattr(activity, "_WAITING_PLACES", places)
    with places:
        answer = api.get(f"/api/v1/operations/{operation.pk}/", {"wait": "60"})
        assert (answer.json()["state"], answer["Retry-After"]) == ("queued", "1")
    api.get(f"/api/v1/operations/{operation.pk}/", {"wait": "1"})
    assert places.acquire(blocking=False), "a place is given back"


# ---------------------------------------------------------------- documents and health


def test_the_openapi_document_names_every_route(api: APIClient, routes: dict[str, str]) -> None:
    document = api.get("/api/v1/schema/?format=json").json()
    assert len(document["paths"]) == len(routes) + len(WITHOUT_GET)
    responses = document["paths"]["/api/v1/jobs/{job}/operations/"]["post"]["responses"].keys()
    assert responses == {"202", "400", "401", "403", "404", "406", "409", "412", "413", "415", "422", "429", "503"}
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


def test_the_openapi_document_lists_the_settings_of_a_version(api: APIClient) -> None:
    """All of them, from their one definition: type, bounds, default and what each does; nothing is referred to."""
    document = api.get("/api/v1/schema/?format=json").json()
    for component in ("VersionRequestRequest", "Version"):
        settings = document["components"]["schemas"][component]["properties"]["settings"]
        assert settings["properties"].keys() == set(JobSettings.__struct_fields__)
        for name, schema in settings["properties"].items():
            assert schema["description"], name
            assert schema.keys() & {"type", "enum", "anyOf"}, name
        assert settings["properties"]["checkpoint_interval_ms"] == {
            "type": "integer",
            "minimum": 100,
            "maximum": 86_400_000,
            "default": 5000,
            "description": "From the start of one checkpoint to the start of the next.",
        }
        assert settings["properties"]["execution_mode"]["enum"] == ["automatic", "batch", "streaming"]
        assert settings["properties"]["tolerable_failed_checkpoints"]["anyOf"][-1] == {"type": "null"}
        assert "$ref" not in str(settings)


def test_the_page_of_the_api_has_nothing_inline(browser: Client) -> None:
    page = browser.get("/api/v1/docs/")
    assert page.status_code == 200
    assert "default-src 'self'" in page["Content-Security-Policy"]
    html = page.content.decode()
    assert "<style" not in html
    assert " style=" not in html
    assert html.count("<script") == html.count("<script src=") == 3
    script = browser.get("/api/v1/docs/?lang=&script=")
    assert script["Content-Type"] == "application/javascript"
    assert "/api/v1/schema/" in script.content.decode()


@pytest.mark.django_db(transaction=True)
def test_readiness_names_the_parts(client: Client, broker_url: str) -> None:
    assert client.get("/livez").json() == {"status": "ok"}
    ready = client.get("/readyz").json()
    assert ready["status"] == "ok"
    assert ready["parts"].pop("disk").startswith("ok: ")
    assert ready["parts"] == {"database": "ok", "broker": "ok", "reconciler": "ok"}
    assert client.post("/readyz").status_code == 405


@pytest.mark.django_db(transaction=True)
def test_a_database_without_our_tables_is_not_ready(client: Client, broker_url: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE weir_run RENAME TO weir_run_elsewhere")
    try:
        answer = client.get("/readyz")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE weir_run_elsewhere RENAME TO weir_run")
    assert answer.status_code == 503
    parts = answer.json()["parts"]
    assert (parts["database"], parts["broker"]) == ("unavailable: ProgrammingError", "ok")


@pytest.mark.django_db(transaction=True)
def test_readiness_says_how_much_is_left_on_a_disk_that_is_nearly_full(
    client: Client, broker_url: str, settings: Settings
) -> None:
    assert re.fullmatch(r"ok: \S+ \S+ free of \S+ \S+ \(\w+\)", client.get("/readyz").json()["parts"]["disk"])
    READINESS.clear()
    settings.WEIR_MIN_FREE_MB = 1 << 30
    answer = client.get("/readyz")
    assert answer.status_code == 503
    said = answer.json()["parts"]["disk"]
    assert re.fullmatch(r"unavailable: \S+ \S+ free of \S+ \S+ \(\w+\); WEIR_MIN_FREE_MB is 1073741824", said)


@pytest.mark.django_db(transaction=True)
def test_readiness_says_since_when_the_reconciler_has_not_run(client: Client, broker_url: str) -> None:
    """A clock that jumped silenced Celery's beat, and the console called itself ready."""
    at = timezone.now() - timedelta(seconds=45)
    HousekeepingPass.objects.create(task=RECONCILER, at=at)
    cache.clear()
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["parts"]["reconciler"].startswith(
        f"unavailable: no pass since {at:%Y-%m-%d %H:%M:%S} UTC, for 45 s"
    )


def test_a_version_says_what_it_promises_from_end_to_end(api: APIClient, version: JobVersion) -> None:
    """S1-01: the sink is the weakest here."""
    weak = {"files": "at-least-once"}
    operators = [{**o, "guarantee": weak.get(str(o["uid"]), "exactly-once")} for o in GRAPH["operators"]]  # type: ignore[attr-defined]
    row = JobVersion.objects.create(
        job=version.job, number=9, parallelism=2, params={}, state="ready", graph={**GRAPH, "operators": operators}
    )
    promise = api.get(f"/api/v1/versions/{row.pk}/").json()["promise"]
    assert promise["guarantee"] == "at-least-once"
    assert promise["reasons"] == ["Sink Files publishes records before their checkpoint: a restart may repeat them."]


def test_an_answer_has_the_json_of_the_encoder_of_the_framework() -> None:
    values = {
        "safe": mark_safe("<b>é</b>"), "state": RunState.RUNNING, "at": timezone.now(), "id": uuid4(),
        "rows": (1, 2.5e-7), "lazy": gettext_lazy("text"), "large": 2**70,
    }  # fmt: skip
    renderer, framework = MsgspecJson(), JSONRenderer()
    assert json.loads(renderer.render(values)) == json.loads(framework.render(values))
    assert renderer.render(None) == b""
    indented = "application/json; indent=4"
    assert renderer.render({"a": 1}, indented) == framework.render({"a": 1}, indented)
